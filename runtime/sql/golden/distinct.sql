-- DISTINCT over rows that only come.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (a STRING, b STRING) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s SELECT DISTINCT UPPER(app_id), url FROM page_views WHERE ms IS DISTINCT FROM 3;
