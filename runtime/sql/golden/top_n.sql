-- The slowest views of each app, ties by their other columns; some are there several times.
-- rows: 700
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, ms INT, url STRING) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT app_id, ms, url
FROM (
  SELECT app_id, ms, url, ROW_NUMBER() OVER (PARTITION BY app_id ORDER BY ms DESC, url) AS rownum
  FROM page_views)
WHERE rownum <= 3;
