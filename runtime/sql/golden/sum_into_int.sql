-- A sum of INT goes into an INT column.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, total INT, PRIMARY KEY (app) NOT ENFORCED) WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO s
SELECT app_id, total FROM (SELECT app_id, SUM(ms) AS total FROM page_views WHERE app_id IS NOT NULL GROUP BY app_id) t;
