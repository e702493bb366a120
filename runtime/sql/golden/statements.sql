-- Several statements over one table, which is read once for all of them.
-- rows: 400
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE raw (app STRING, ms INT) WITH ('connector' = 'collect', 'kinds' = 'insert-only');
CREATE TABLE counts (app STRING, n BIGINT, PRIMARY KEY (app) NOT ENFORCED) WITH ('connector' = 'collect', 'kinds' = 'upsert');
CREATE TABLE pairs (app STRING, url STRING, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO raw SELECT app_id, ms FROM page_views WHERE ms > 500;

EXECUTE STATEMENT SET BEGIN
  INSERT INTO counts SELECT app_id, COUNT(*) FROM page_views WHERE app_id IS NOT NULL GROUP BY app_id;
  INSERT INTO pairs
  SELECT a.app_id, a.url, b.n
  FROM page_views a JOIN (SELECT url, COUNT(*) AS n FROM page_views GROUP BY url) b ON a.url = b.url
  WHERE a.ms > 300;
END;
