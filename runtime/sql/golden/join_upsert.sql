-- A join of two aggregations by their key, into a sink by that key.
-- rows: 800
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, n BIGINT, PRIMARY KEY (app) NOT ENFORCED) WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO s
SELECT v.app_id, v.n + COALESCE(o.owners, 0)
FROM (SELECT app_id, COUNT(*) AS n FROM page_views GROUP BY app_id) AS v
JOIN (SELECT app_id, COUNT(owner) AS owners FROM owners GROUP BY app_id) AS o
ON v.app_id = o.app_id
WHERE v.n > 5;
