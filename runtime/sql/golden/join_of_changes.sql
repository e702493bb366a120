-- Both sides change: counts per app with what its owners may use, by left join.
-- rows: 800
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, n BIGINT, quota BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT v.app_id, v.n, o.quota
FROM (SELECT app_id, COUNT(*) AS n FROM page_views GROUP BY app_id) AS v
LEFT JOIN (SELECT app_id, SUM(quota) AS quota FROM owners GROUP BY app_id HAVING COUNT(*) > 1) AS o
ON v.app_id = o.app_id;
