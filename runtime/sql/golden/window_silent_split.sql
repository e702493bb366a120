-- One split has no rows for as long as the others do: it falls idle, and windows fire all the same.
-- rows: 1500
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH (
  'connector' = 'rows',
  'scan.watermark.idle-timeout' = '200 ms',
  'silent' = 'true'
);

CREATE TABLE counts (app STRING, s TIMESTAMP(3), e TIMESTAMP(3), n BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO counts
SELECT app_id, window_start, window_end, COUNT(*)
FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '5' SECOND))
GROUP BY app_id, window_start, window_end;
