-- One group of all rows.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE total (name STRING, n BIGINT, ms BIGINT, PRIMARY KEY (name) NOT ENFORCED)
WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO total
SELECT 'all', COUNT(*), SUM(ms)
FROM page_views;
