-- MIN, MAX and AVG of every kind of column, over rows that only come.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (
  app STRING, least_ms INT, most_ms INT, ms INT, url STRING, last_url STRING, cost DECIMAL(38, 6), least DECIMAL(10, 2), ratio DOUBLE
) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT app_id, MIN(ms), MAX(ms), AVG(ms), MIN(url), MAX(url), AVG(cost), MIN(cost), MAX(ratio)
FROM page_views
GROUP BY app_id;
