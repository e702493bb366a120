-- A table joined with itself by an expression, and the pairs counted.
-- rows: 200
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows');
CREATE TABLE s (app STRING, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT a.app_id, COUNT(*)
FROM page_views AS a, page_views AS b
WHERE a.url = b.url AND a.ms / 10 = b.ms / 10 AND a.ms <= b.ms
GROUP BY a.app_id;
