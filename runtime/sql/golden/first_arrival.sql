-- One row of each app and page, the first that comes; the sink takes no changes.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, url STRING, place BIGINT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT app_id, url, n
FROM (
  SELECT app_id, url, ROW_NUMBER() OVER (PARTITION BY app_id, url ORDER BY PROCTIME()) AS n
  FROM page_views)
WHERE n = 1;
