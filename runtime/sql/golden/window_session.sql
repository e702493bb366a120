-- Sessions of each app.
-- rows: 500
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE counts (s TIMESTAMP(3), e TIMESTAMP(3), app STRING, n BIGINT, total BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO counts
SELECT window_start, window_end, app_id, COUNT(*), SUM(ms)
FROM TABLE(SESSION(TABLE page_views PARTITION BY app_id, DESCRIPTOR(at), INTERVAL '2' SECOND))
GROUP BY window_start, window_end, app_id;
