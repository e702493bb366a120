-- Places but the first, as far as they pass a filter, into a sink by app and place.
-- rows: 700
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, place BIGINT, total BIGINT, PRIMARY KEY (app, place) NOT ENFORCED)
WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO s
SELECT app_id, place, total
FROM (
  SELECT app_id, url, total, ROW_NUMBER() OVER (PARTITION BY app_id ORDER BY total DESC, url) AS place
  FROM (SELECT app_id, url, SUM(ms) AS total FROM page_views WHERE app_id IS NOT NULL GROUP BY app_id, url) AS totals)
WHERE place BETWEEN 2 AND 6 AND total % 3 <> 0;
