-- The apps with the most views, all over: counts change their places, into a sink by place.
-- rows: 700
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (place BIGINT, app STRING, n BIGINT, PRIMARY KEY (place) NOT ENFORCED)
WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO s
SELECT place, app_id, n
FROM (
  SELECT app_id, COUNT(*) AS n, ROW_NUMBER() OVER (ORDER BY COUNT(*) DESC, app_id) AS place
  FROM page_views
  GROUP BY app_id)
WHERE 7 >= place;
