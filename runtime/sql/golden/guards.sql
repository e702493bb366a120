-- Conditions that keep rows from others that would fail for them: a division by zero, a text that is no number.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

CREATE VIEW divided AS SELECT app_id, url, ms, ms % 7 AS d FROM page_views WHERE ms % 7 <> 0;

INSERT INTO s
SELECT app_id, ms / d
FROM divided
WHERE 1000 / d > 150 AND url IS NOT NULL AND url <> '/a/0' AND url LIKE '/a/%' AND CAST(SUBSTRING(url, 4) AS INT) > 1
  AND app_id LIKE 'app%' AND CAST(SUBSTRING(app_id, 4) AS INT) < 20
UNION ALL
SELECT app_id, CASE WHEN ms % 5 <> 0 THEN 100 / (ms % 5) ELSE -1 END
FROM page_views
WHERE CASE WHEN ms % 3 <> 0 THEN 10 / (ms % 3) > 4 ELSE FALSE END;
