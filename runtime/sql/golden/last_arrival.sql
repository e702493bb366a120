-- One row of each app, the last that came; only its key is the same in every run.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT app_id, COUNT(*)
FROM (
  SELECT app_id, ms, ROW_NUMBER() OVER (PARTITION BY app_id ORDER BY PROCTIME() DESC) AS n
  FROM page_views)
WHERE n = 1 AND (ms IS NULL OR ms > -1000)
GROUP BY app_id;
