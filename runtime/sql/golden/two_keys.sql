-- Two keys, both of which may be NULL, and sink columns that are listed in another order.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE pages (app STRING, url STRING, n BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO pages (n, url, app)
SELECT COUNT(*), url, app_id
FROM page_views
GROUP BY url, app_id;
