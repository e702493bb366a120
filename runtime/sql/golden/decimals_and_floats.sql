-- Sums of DECIMAL and DOUBLE.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE costs (app STRING, cost DECIMAL(38, 2), ratio DOUBLE)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO costs
SELECT app_id, SUM(cost), SUM(ratio)
FROM page_views
GROUP BY app_id;
