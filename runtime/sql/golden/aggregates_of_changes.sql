-- Aggregates over an aggregation: every value is taken back when its group changes.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (parity BIGINT, apps BIGINT, least BIGINT, most BIGINT, average BIGINT, different BIGINT, largest STRING)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT n % 3, COUNT(*), MIN(n), MAX(n), AVG(n), COUNT(DISTINCT n), MAX(app_id) FILTER (WHERE n > 30)
FROM (SELECT app_id, COUNT(*) AS n FROM page_views GROUP BY app_id) AS t
GROUP BY n % 3
HAVING COUNT(*) > 1;
