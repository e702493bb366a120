-- Counts of two seconds, of which ten seconds are added up; and the greatest count of each window.
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

CREATE TABLE tens (s TIMESTAMP(3), app STRING, n BIGINT, windows BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');
CREATE TABLE most (e TIMESTAMP(3), n BIGINT, apps BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

CREATE VIEW twos AS
SELECT app_id, window_start AS s, window_end AS e, window_time AS rowtime, COUNT(*) AS n
FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND))
GROUP BY app_id, window_start, window_end, window_time;

INSERT INTO tens
SELECT window_start, app_id, SUM(n), COUNT(*)
FROM TABLE(TUMBLE(TABLE twos, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
GROUP BY window_start, window_end, app_id;

INSERT INTO most
SELECT window_end, MAX(n), COUNT(*)
FROM (
  SELECT window_start, window_end, app_id, COUNT(*) AS n
  FROM TABLE(HOP(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND, INTERVAL '6' SECOND))
  GROUP BY window_start, window_end, app_id
) t
GROUP BY window_start, window_end;
