-- Two sources that are aligned, the fast one with a split that has no rows for as long as the others do: that one is read all the
-- same, the others wait.
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
  'silent' = 'true',
  'scan.watermark.idle-timeout' = '200 ms',
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

CREATE TABLE counts (s TIMESTAMP(3), n BIGINT, total BIGINT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');
CREATE TABLE counts_slow (s TIMESTAMP(3), n BIGINT, total BIGINT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO counts
SELECT window_start, COUNT(*), SUM(ms)
FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND))
GROUP BY window_start, window_end;
INSERT INTO counts_slow
SELECT window_start, COUNT(*), SUM(ms)
FROM TABLE(TUMBLE(TABLE page_views_slow, DESCRIPTOR(at), INTERVAL '2' SECOND))
GROUP BY window_start, window_end;
