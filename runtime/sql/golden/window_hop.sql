-- Windows that overlap: each row is in four.
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

CREATE TABLE counts (app STRING, e TIMESTAMP(3), n BIGINT, least INT)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO counts
SELECT app_id, window_end, COUNT(ms), MIN(ms) + 1
FROM HOP(DATA => TABLE page_views, TIMECOL => DESCRIPTOR(at), SLIDE => INTERVAL '5' SECOND, SIZE => INTERVAL '20' SECOND)
WHERE url IS NOT NULL
GROUP BY window_end, app_id, window_start
HAVING COUNT(*) > 1;
