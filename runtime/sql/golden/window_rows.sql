-- Rows of windows, and an aggregation that looks at the window before.
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

CREATE TABLE pairs (s TIMESTAMP(3), at TIMESTAMP(3), ms INT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');
CREATE TABLE counts (e TIMESTAMP(3), n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO pairs
SELECT window_start, at, ms
FROM TABLE(HOP(TABLE page_views, DESCRIPTOR(at), INTERVAL '5' SECOND, INTERVAL '10' SECOND))
WHERE ms > 300;

INSERT INTO counts
SELECT window_end, COUNT(*)
FROM TABLE(HOP(TABLE page_views, DESCRIPTOR(at), INTERVAL '5' SECOND, INTERVAL '10' SECOND))
WHERE window_start >= TIMESTAMP '1970-01-01 00:00:10'
GROUP BY window_start, window_end;
