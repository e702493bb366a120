-- Without state: a filter and computed columns.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE pages (app STRING, ms BIGINT, url STRING)
WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO pages
SELECT UPPER(app_id), ms * 2 + 1, url
FROM page_views
WHERE ms >= 0 AND url LIKE '/a/%';
