-- All views and all owners, with NULL where the other side has none.
-- rows: 300
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, owned STRING, owner STRING, ms INT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT v.app_id, o.app_id, o.owner, v.ms
FROM page_views AS v FULL OUTER JOIN owners AS o ON v.app_id = o.app_id AND v.ms < o.quota AND o.owner LIKE 'owner%'
WHERE o.quota IS NULL OR o.quota > 0;
