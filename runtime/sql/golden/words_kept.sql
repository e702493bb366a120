-- UNNEST that keeps rows without words, with the number of each word.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (app STRING, word STRING, i INT, n BIGINT) WITH ('connector' = 'collect', 'kinds' = 'all');

INSERT INTO s
SELECT v.app_id, t.word, t.i, COUNT(*)
FROM page_views AS v LEFT JOIN UNNEST(SPLIT(v.url, '/')) WITH ORDINALITY AS t (word, i) ON TRUE
GROUP BY v.app_id, t.word, t.i;
