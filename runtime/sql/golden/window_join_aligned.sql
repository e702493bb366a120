-- Two sources of different speed that are aligned: the fast one waits for the slow one.
-- rows: 800
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
  'scan.watermark.alignment.group' = 'views',
  'scan.watermark.alignment.max-drift' = '3 s',
  'scan.watermark.alignment.update-interval' = '100 ms'
);

CREATE TABLE page_views_slow (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH (
  'connector' = 'rows',
  'every' = '9',
  'scan.watermark.alignment.group' = 'views',
  'scan.watermark.alignment.max-drift' = '3 s',
  'scan.watermark.alignment.update-interval' = '100 ms'
);

CREATE TABLE s (app STRING, s TIMESTAMP(3), slow INT, fast INT, url STRING) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT l.app_id, l.window_start, l.ms, r.ms, r.url
FROM (SELECT * FROM TABLE(TUMBLE(TABLE page_views_slow, DESCRIPTOR(at), INTERVAL '2' SECOND)) WHERE ms > 700) AS l
JOIN (SELECT * FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND)) WHERE ms < 400) AS r
ON l.app_id = r.app_id AND l.window_start = r.window_start AND l.window_end = r.window_end;
