-- Aggregates of distinct values, and of filtered ones.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, urls BIGINT, few BIGINT, total BIGINT, slow BIGINT, slowest INT, average INT)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT
  app_id,
  COUNT(DISTINCT url),
  COUNT(DISTINCT ms / 100) FILTER (WHERE url IS NOT NULL),
  SUM(DISTINCT ms / 100),
  COUNT(*) FILTER (WHERE ms > 500),
  MAX(ms) FILTER (WHERE url LIKE '/a%'),
  AVG(DISTINCT ms / 100)
FROM page_views
GROUP BY app_id;
