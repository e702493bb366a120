-- A key that is computed.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE histogram (hundreds INT, n BIGINT)
WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO histogram
SELECT ms / 100, COUNT(*)
FROM page_views
GROUP BY ms / 100;
