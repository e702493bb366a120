-- Columns of one name on both sides of a join, both aggregated.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');
CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, other STRING, a BIGINT, b BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT x.app_id, y.app_id, SUM(x.ms), COUNT(y.app_id) FILTER (WHERE y.quota > 100)
FROM page_views AS x LEFT JOIN owners AS y ON x.app_id = y.app_id
GROUP BY x.app_id, y.app_id;
