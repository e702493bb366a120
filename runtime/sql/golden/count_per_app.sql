-- The page-view count: an upsert sink keyed by the grouping key.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE pv (
  app_id STRING,
  pv BIGINT,
  PRIMARY KEY (app_id) NOT ENFORCED
) WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO pv
SELECT app_id, COUNT(*) AS pv
FROM page_views
WHERE app_id IS NOT NULL
GROUP BY app_id;
