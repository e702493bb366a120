-- Slow and fast views of one app and window.
-- rows: 400
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, s TIMESTAMP(3), slow INT, fast INT, url STRING) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT l.app_id, l.window_start, l.ms, r.ms, r.url
FROM (SELECT * FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND)) WHERE ms > 500) AS l
JOIN (SELECT * FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND)) WHERE ms < 100) AS r
ON l.app_id = r.app_id AND l.window_start = r.window_start AND l.window_end = r.window_end;
