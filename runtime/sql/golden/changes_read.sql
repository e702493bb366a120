-- A source of changes: filtered, counted, joined and passed on, each row of it as if it had come once.
CREATE TABLE page_views (app_id STRING, url STRING, ms INT) WITH ('connector' = 'rows', 'changes' = 'true');
CREATE TABLE owners (app_id STRING, owner STRING, quota INT) WITH ('connector' = 'rows', 'changes' = 'true');
CREATE TABLE counts (app_id STRING, views BIGINT, least INT) WITH ('connector' = 'collect');
CREATE TABLE owned (owner STRING, views BIGINT) WITH ('connector' = 'collect');
CREATE TABLE slow (app_id STRING, url STRING, ms INT) WITH ('connector' = 'collect');

INSERT INTO counts SELECT app_id, COUNT(*), MIN(ms) FROM page_views WHERE ms > 20 GROUP BY app_id;
INSERT INTO owned SELECT o.owner, COUNT(*) FROM page_views v JOIN owners o ON v.app_id = o.app_id GROUP BY o.owner;
INSERT INTO slow SELECT app_id, url, ms FROM page_views WHERE ms > 50;
