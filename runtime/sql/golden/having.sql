-- A filter over the aggregation: groups come and go with their sum.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE costly (app STRING, total BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO costly
SELECT app_id, SUM(ms)
FROM page_views
GROUP BY app_id
HAVING SUM(ms) BETWEEN 1000 AND 24000;
