-- Several aggregates with a filter before and arithmetic behind, into a sink that takes all changes.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE totals (app_id STRING, total_ms BIGINT, urls BIGINT, more BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO totals
SELECT app_id, SUM(ms), COUNT(url), COUNT(*) + 1
FROM page_views
WHERE ms > 100 OR ms IS NULL
GROUP BY app_id;
