-- Only views without an owner, found by the NULL of a left join: they go when an owner comes.
-- rows: 300
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, ms INT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT v.app_id, v.ms
FROM page_views AS v LEFT JOIN owners AS o ON v.app_id = o.app_id AND o.quota > 100
WHERE o.app_id IS NULL AND (v.ms > 10 OR v.ms IS NULL);
