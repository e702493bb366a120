-- Derived tables below and above the aggregation.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE slow (app STRING, total BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO slow
SELECT app, total * 10
FROM (
  SELECT app, SUM(later) AS total
  FROM (SELECT COALESCE(app_id, 'none') AS app, ms + 1 AS later FROM page_views) AS v
  WHERE later > 500
  GROUP BY app
) AS t;
