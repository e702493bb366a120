-- The key of the join is what changes: rows move from one place to another.
-- rows: 600
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, other INT, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT a.app_id, b.k, a.n
FROM (SELECT app_id, COUNT(*) / 4 AS n FROM page_views GROUP BY app_id) AS a
JOIN (SELECT ms % 23 AS k, COUNT(*) / 4 AS n FROM page_views GROUP BY ms % 23) AS b
ON a.n = b.n AND b.k > 3;
