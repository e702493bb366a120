-- Of all rows of a window, with a filter.
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

CREATE TABLE counts (s TIMESTAMP(3), slow BIGINT, average INT, total BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO counts
SELECT window_start, COUNT(DISTINCT ms) FILTER (WHERE url IS NOT NULL), AVG(DISTINCT ms) FILTER (WHERE url IS NOT NULL),
  SUM(DISTINCT ms) FILTER (WHERE url IS NOT NULL)
FROM TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '3' SECOND)
GROUP BY window_start, window_end;
