-- Views over views, WITH, computed columns: all end in the place of their names.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, size STRING, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');
CREATE VIEW fast AS SELECT app_id, ms FROM page_views WHERE ms < 500;
CREATE VIEW sized (app, size) AS SELECT app_id, IF(ms > 100, 'large', 'small') FROM fast;

INSERT INTO s
WITH named AS (SELECT COALESCE(app, 'none') AS app, size FROM sized)
SELECT app, size, COUNT(*) FROM named GROUP BY app, size;
