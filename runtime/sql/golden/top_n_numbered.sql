-- The same with the number, in the place that it has: NULL is less than all values.
-- rows: 700
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (url STRING, place BIGINT, seconds INT, app STRING) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT url, rownum, seconds, app_id
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY url, ms / 500 ORDER BY seconds, app_id DESC) AS rownum
  FROM (SELECT app_id, url, ms, ms / 100 AS seconds FROM page_views) AS timed)
WHERE rownum < 5;
