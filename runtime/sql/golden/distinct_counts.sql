-- DISTINCT over rows that come and go.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (n BIGINT, parity BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s SELECT DISTINCT COUNT(*), COUNT(*) % 2 FROM page_views GROUP BY app_id;
