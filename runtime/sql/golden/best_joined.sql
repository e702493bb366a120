-- The largest quota of each app, joined; the second by its number.
-- rows: 300
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, ms INT, owner STRING, quota INT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT v.app_id, v.ms, o.owner, o.quota
FROM page_views AS v
JOIN (
  SELECT app_id, owner, quota, ROW_NUMBER() OVER (PARTITION BY app_id ORDER BY quota DESC, owner) AS place
  FROM owners) AS o
ON v.app_id = o.app_id
WHERE o.place = 2;
