-- One group per window, so one subtask.
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

CREATE TABLE counts (s TIMESTAMP(3), n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO counts
SELECT window_start, COUNT(*)
FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND))
GROUP BY window_start, window_end;
