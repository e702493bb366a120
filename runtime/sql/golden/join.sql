-- Views with the owners of their apps; an app without owner has no row, NULL is no app's name.
-- rows: 300
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, owner STRING, ms INT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT v.app_id, o.owner, v.ms
FROM page_views AS v JOIN owners AS o ON v.app_id = o.app_id AND (v.ms < o.quota OR o.quota IS NULL) AND o.owner <> 'owner1'
WHERE v.ms > 10;
