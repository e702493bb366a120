-- Views of one app within some seconds of each other.
-- rows: 300
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE,
  at TIMESTAMP(3),
  WATERMARK FOR at AS at - INTERVAL '1' SECOND
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, a TIMESTAMP(3), b TIMESTAMP(3), ms INT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');

INSERT INTO s
SELECT a.app_id, a.at, b.at, b.ms
FROM page_views AS a JOIN page_views AS b ON a.app_id = b.app_id
WHERE b.at BETWEEN a.at - INTERVAL '1' SECOND AND a.at + INTERVAL '2' SECOND AND a.ms > b.ms;
