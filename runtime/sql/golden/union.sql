-- The second and third occurrence of a row add nothing, and one table is read twice.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (a STRING, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT app_id, ms / 100 FROM page_views
UNION
SELECT app_id, 3 FROM page_views WHERE app_id IS NOT NULL;
