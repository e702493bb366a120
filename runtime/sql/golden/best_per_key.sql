-- One row of each app, the cheapest, into a sink by app.
-- rows: 700
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, cost DECIMAL(10, 2), ratio DOUBLE, PRIMARY KEY (app) NOT ENFORCED)
WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO s
SELECT app_id, cost, ratio
FROM (
  SELECT app_id, cost, ratio, ROW_NUMBER() OVER (PARTITION BY app_id ORDER BY cost, ratio DESC) AS rownum
  FROM page_views
  WHERE cost IS NOT NULL AND app_id IS NOT NULL)
WHERE rownum = 1;
