-- The slowest views of each path, given as an array.
-- rows: 700
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (parts ARRAY<STRING>, ms INT, app STRING) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT parts, ms, app_id
FROM (
  SELECT parts, ms, app_id, ROW_NUMBER() OVER (PARTITION BY parts ORDER BY ms DESC, app_id) AS rownum
  FROM (SELECT SPLIT(url, '/') AS parts, ms, app_id FROM page_views))
WHERE rownum <= 2;
