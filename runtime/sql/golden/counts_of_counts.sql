-- An aggregation over an aggregation takes back what it counted before.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE sizes (n BIGINT, apps BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO sizes
SELECT n, COUNT(*)
FROM (SELECT app_id, COUNT(*) AS n FROM page_views GROUP BY app_id) AS t
WHERE n > 50
GROUP BY n;
