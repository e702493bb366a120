-- The apps with the most views of each window.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE s (s TIMESTAMP(3), app STRING, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT window_start, app_id, n
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY n DESC, app_id) AS place
  FROM (SELECT window_start, window_end, app_id, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE page_views, DESCRIPTOR(at), INTERVAL '2' SECOND)) GROUP BY window_start, window_end, app_id) AS counts)
WHERE place <= 3;
