-- Windows over two sources, of which one has no more rows long before the other and does not end: it falls idle.
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
  'connector' = 'rows'
);

CREATE TABLE page_views_short (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH (
  'connector' = 'rows',
  'lingers' = '900',
  'scan.watermark.idle-timeout' = '100 ms'
);

CREATE TABLE counts (app STRING, s TIMESTAMP(3), e TIMESTAMP(3), n BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

CREATE VIEW both AS SELECT app_id, at FROM page_views UNION ALL SELECT app_id, at FROM page_views_short;

INSERT INTO counts
SELECT app_id, window_start, window_end, COUNT(*)
FROM TABLE(TUMBLE(TABLE both, DESCRIPTOR(at), INTERVAL '5' SECOND))
GROUP BY app_id, window_start, window_end;
