-- Rows of three branches, one of which is an aggregation without keys and so has another parallelism.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (a STRING, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT app_id, ms FROM page_views WHERE ms > 100
UNION ALL
SELECT url, CAST(ratio AS BIGINT) FROM page_views
UNION ALL
SELECT 'all', COUNT(*) FROM page_views;
