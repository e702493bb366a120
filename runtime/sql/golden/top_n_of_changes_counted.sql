-- Rows that leave and enter are counted above.
-- rows: 700
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (n BIGINT, urls BIGINT, apps BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT n, COUNT(DISTINCT url), COUNT(*)
FROM (
  SELECT url, app_id, n, ROW_NUMBER() OVER (PARTITION BY url ORDER BY n DESC, app_id) AS place
  FROM (SELECT url, app_id, COUNT(*) AS n FROM page_views GROUP BY url, app_id) AS counts) AS ranked
WHERE place <= 4
GROUP BY n;
