-- Counts of slow and of fast views of each app and window, and windows with one of both.
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

CREATE TABLE s (app STRING, s TIMESTAMP(3), slow BIGINT, other STRING, fast BIGINT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT l.app_id, l.window_start, l.n, r.app_id, r.n
FROM (SELECT window_start, window_end, app_id, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND)) WHERE ms > 700 GROUP BY window_start, window_end, app_id) AS l
FULL JOIN (SELECT window_start, window_end, app_id, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND)) WHERE ms < 100 GROUP BY window_start, window_end, app_id) AS r
ON l.app_id = r.app_id AND l.window_start = r.window_start AND l.window_end = r.window_end;
