-- Distinct values in windows, beside what is not distinct.
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

CREATE TABLE counts (app STRING, s TIMESTAMP(3), pages BIGINT, n BIGINT, total BIGINT, least INT, known BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO counts
SELECT app_id, window_start, COUNT(DISTINCT url), COUNT(*), SUM(ms), MIN(ms), COUNT(ms) FILTER (WHERE ms > 100)
FROM HOP(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
GROUP BY app_id, window_start, window_end;
