-- Arrays as keys of groups, in rows that a join keeps, and taken apart: positions begin with 1.
-- rows: 800
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, parts ARRAY<STRING>, n BIGINT, last STRING, beyond STRING, size INT)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT a.app_id, b.parts, b.n, b.parts[CARDINALITY(b.parts)], a.parts[9], CARDINALITY(a.parts)
FROM (SELECT DISTINCT app_id, SPLIT(url, '/') AS parts FROM page_views WHERE ms > 300) AS a
JOIN (SELECT SPLIT(url, '/') AS parts, COUNT(*) AS n FROM page_views GROUP BY SPLIT(url, '/')) AS b
ON a.parts = b.parts;
