-- Rows of a union of which no column is needed.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT COUNT(*)
FROM (SELECT app_id, 1 AS n FROM page_views UNION ALL
      SELECT 'all', n FROM (SELECT COUNT(*) AS n FROM page_views) AS c WHERE n > 5) AS t;
