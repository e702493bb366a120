-- Branches of which one has no key, counted together: nothing stands between their exchange and the next.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (n BIGINT, rows_of_it BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT n, COUNT(*)
FROM (SELECT ms % 10 AS n FROM page_views UNION ALL SELECT COUNT(*) % 10 FROM page_views) AS t
GROUP BY n;
