-- Slow views with the fast ones before them, if any; the sink takes no changes.
-- rows: 300
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, a TIMESTAMP(3), b TIMESTAMP(3), url STRING) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT a.app_id, a.at, b.at, b.url
FROM page_views AS a LEFT JOIN (SELECT * FROM page_views WHERE ms < 100) AS b
ON a.app_id = b.app_id AND a.at >= b.at AND b.at + INTERVAL '1' SECOND > a.at
WHERE a.ms > 500;
