-- The slowest views of each app and window, with their places; the sink takes no changes.
-- rows: 800
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE s (e TIMESTAMP(3), app STRING, place BIGINT, ms INT, url STRING) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT window_end, app_id, n, ms, url
FROM (
  SELECT app_id, url, ms, window_start, window_end,
    ROW_NUMBER() OVER (PARTITION BY window_start, window_end, app_id ORDER BY ms DESC, url) AS n
  FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND)))
WHERE n <= 2;
