-- Ten seconds at a time, shifted by three, per app; the sink takes no changes.
-- rows: 600
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE counts (s TIMESTAMP(3), e TIMESTAMP(3), app STRING, n BIGINT, total BIGINT, most INT, mean DOUBLE, cost DECIMAL(38, 2))
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO counts
SELECT window_start, window_end, app_id, COUNT(*), SUM(ms), MAX(ms), AVG(ratio), SUM(cost) FILTER (WHERE ms > 100)
FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '10' SECOND, INTERVAL '3' SECOND))
GROUP BY window_start, window_end, app_id;
