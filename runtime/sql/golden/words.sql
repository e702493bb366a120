-- UNNEST: the words of a text, counted; empty ones left out.
CREATE TABLE page_views (
  app_id STRING,
  url STRING,
  ms INT,
  cost DECIMAL(10, 2),
  ratio DOUBLE
) WITH ('connector' = 'rows');

CREATE TABLE s (word STRING, n BIGINT, PRIMARY KEY (word) NOT ENFORCED) WITH ('connector' = 'collect', 'kinds' = 'upsert');

INSERT INTO s
SELECT word, COUNT(*)
FROM page_views CROSS JOIN UNNEST(SPLIT(url, '/')) AS t(word)
WHERE word <> ''
GROUP BY word;
