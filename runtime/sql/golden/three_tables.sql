-- Three tables, keys on both sides of the equality, duplicates everywhere.
-- rows: 150
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (owner STRING, most INT, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT o.owner, MAX(b.ms), COUNT(*)
FROM page_views a
JOIN owners o ON o.app_id = a.app_id
LEFT JOIN page_views b ON a.url = b.url AND b.ms > o.quota
GROUP BY o.owner;
