-- Windows that grow, of two keys that are computed.
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

CREATE TABLE counts (s TIMESTAMP(3), e TIMESTAMP(3), page STRING, slow INT, n BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO counts
SELECT window_start, window_end, UPPER(url), ms / 300, COUNT(*)
FROM TABLE(CUMULATE(TABLE page_views, DESCRIPTOR(at), INTERVAL '4' SECOND, INTERVAL '20' SECOND))
GROUP BY window_start, window_end, UPPER(url), ms / 300;
