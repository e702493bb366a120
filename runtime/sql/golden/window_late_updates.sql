-- Rows that are late by up to a second: lateness is allowed, so each result comes to that of all rows.
-- rows: 600
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '0.1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE counts (app STRING, s TIMESTAMP(3), e TIMESTAMP(3), n BIGINT, total BIGINT, slowest INT)
WITH ('connector' = 'collect');

SET 'table.exec.emit.allow-lateness' = '10 s';

INSERT INTO counts
SELECT app_id, window_start, window_end, COUNT(*), SUM(ms), MAX(ms)
FROM HOP(TABLE page_views, DESCRIPTOR(at), INTERVAL '0.5' SECOND, INTERVAL '2' SECOND)
GROUP BY app_id, window_start, window_end;
