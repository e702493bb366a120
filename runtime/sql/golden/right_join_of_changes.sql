-- Counts of apps for each owner that is known, into a sink by app.
-- rows: 800
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, n BIGINT, owners BIGINT, PRIMARY KEY (app) NOT ENFORCED)
WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO s
SELECT o.app_id, v.n, o.owners
FROM (SELECT app_id, COUNT(*) AS n FROM page_views GROUP BY app_id) AS v
RIGHT JOIN (SELECT app_id, COUNT(owner) AS owners FROM owners WHERE app_id IS NOT NULL GROUP BY app_id) AS o
ON v.app_id = o.app_id;
