-- Groups that come and go with a filter, into a sink by their key: those that no longer pass are deleted there.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, total BIGINT, n BIGINT, PRIMARY KEY (app) NOT ENFORCED) WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO s
SELECT app_id, total, n
FROM (SELECT app_id, SUM(ms) AS total, COUNT(*) AS n FROM page_views WHERE app_id IS NOT NULL GROUP BY app_id) AS t
WHERE n % 3 <> 0 AND total > 0;
