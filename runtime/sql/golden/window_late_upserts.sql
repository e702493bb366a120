-- The same of all apps, into a sink by key, and counted by the number of views.
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

CREATE TABLE counts (s TIMESTAMP(3), e TIMESTAMP(3), n BIGINT, PRIMARY KEY (s, e) NOT ENFORCED)
WITH ('connector' = 'collect', 'kinds' = 'upsert');

CREATE TABLE sizes (n BIGINT, windows BIGINT) WITH ('connector' = 'collect');

SET 'table.exec.emit.allow-lateness' = '10 s';

INSERT INTO counts
SELECT window_start, window_end, COUNT(*)
FROM CUMULATE(TABLE page_views, DESCRIPTOR(at), INTERVAL '1' SECOND, INTERVAL '3' SECOND)
GROUP BY window_start, window_end;

INSERT INTO sizes
SELECT n, COUNT(*)
FROM (
  SELECT app_id, window_start, window_end, COUNT(*) AS n
  FROM TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '1' SECOND)
  GROUP BY app_id, window_start, window_end)
GROUP BY n;
