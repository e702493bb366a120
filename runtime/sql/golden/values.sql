-- Rows of the statement itself, joined and united.
-- rows: 300
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, n BIGINT, tag STRING) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT v.app_id, COUNT(*), t.tag
FROM page_views AS v
JOIN (VALUES ('app1', 'one'), ('app2', 'two'), (CAST(NULL AS STRING), 'none')) AS t (app, tag) ON v.app_id = t.app
GROUP BY v.app_id, t.tag
UNION ALL
SELECT 'literal', CAST(1 + 1 AS BIGINT), UPPER('x')
UNION ALL
VALUES ('more', CAST(3 AS BIGINT), 'y');
