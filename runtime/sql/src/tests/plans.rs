//! The graph of a statement: its operators, their ids, its edges, and what the source is asked to read.

use super::{TABLES, TestConnectors, mistake, options, plan, plan_text};
use crate::{SqlErrorKind, explain};
use sluice_protocol::graph::{OperatorKind, Partitioning};

/// The explained plans of statements, one snapshot each.
macro_rules! plans {
    ($($name:ident: $statement:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let statement: &str = $statement;
                insta::with_settings!({ description => statement, omit_expression => true }, {
                    insta::assert_snapshot!(explain(&plan(statement)));
                });
            }
        )*
    };
}

plans! {
    count_per_key: "INSERT INTO pv SELECT app_id, COUNT(*) AS pv FROM page_views GROUP BY app_id";
    copy_everything: "INSERT INTO log SELECT app_id, 1 FROM page_views";
    filter_and_project: "INSERT INTO log SELECT UPPER(app_id), ms * 2 FROM page_views WHERE ms > 10 AND url LIKE '/a%'";
    filter_before_count: "INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views WHERE ms > 10 GROUP BY app_id";
    sum_and_count_of_columns: "INSERT INTO changes SELECT app_id, SUM(ms) + COUNT(url) FROM page_views GROUP BY app_id";
    global_count: "INSERT INTO changes SELECT 'all', COUNT(*) FROM page_views";
    key_that_is_computed: "INSERT INTO pv SELECT LOWER(app_id) AS a, COUNT(*) FROM page_views GROUP BY LOWER(app_id)";
    columns_are_listed: "INSERT INTO changes (n) SELECT COUNT(*) FROM page_views GROUP BY app_id";
    derived_table: "INSERT INTO log SELECT a, m FROM (SELECT app_id AS a, ms + 1 AS m FROM page_views) AS t WHERE m > 5";
    projection_over_count: "INSERT INTO changes SELECT k, n + 1 FROM (SELECT app_id k, COUNT(*) n FROM page_views GROUP BY app_id) t";
    two_statements: "INSERT INTO log SELECT app_id, ms FROM page_views; INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id";
    statement_set: "EXECUTE STATEMENT SET BEGIN INSERT INTO log SELECT app_id, ms FROM page_views; INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id; END;";
    constants_are_folded: "INSERT INTO log SELECT app_id, 2 + 3 FROM page_views WHERE 1 = 1";
    having: "INSERT INTO changes SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id HAVING SUM(ms) > 100";
    aggregation_over_aggregation: "INSERT INTO changes SELECT 'apps', COUNT(*) FROM (SELECT app_id, COUNT(*) n FROM page_views GROUP BY app_id) t WHERE n > 10";
    count_twice: "INSERT INTO changes SELECT app_id, COUNT(*) + COUNT(*) FROM page_views WHERE app_id IS NOT NULL GROUP BY app_id";
    view_over_a_view: "CREATE VIEW v AS SELECT app_id, ms FROM page_views WHERE ms > 1; CREATE TEMPORARY VIEW w (app, slow) AS SELECT app_id, ms * 2 FROM v; INSERT INTO log SELECT app, slow FROM w";
    with: "INSERT INTO pv WITH slow AS (SELECT app_id, ms FROM page_views WHERE ms > 1), c (k, n) AS (SELECT app_id, COUNT(*) FROM slow GROUP BY app_id) SELECT c.k, n FROM c";
    computed_column_and_watermark: "CREATE TABLE t (a INT, twice AS a * 2 COMMENT 'of it', b BIGINT, at AS TO_TIMESTAMP_LTZ(b, 3), WATERMARK FOR at AS at - INTERVAL '5' SECOND) WITH ('connector' = 'source'); INSERT INTO log SELECT DATE_FORMAT(at, 'yyyy'), twice FROM t";
    functions_of_flink: "INSERT INTO two SELECT CONCAT(url, IF(ms > 3, 'a', 'b')), CAST(ts AS STRING) FROM page_views WHERE EXTRACT(YEAR FROM ts) = 2024 AND MOD(ms, 2) = 1 AND YEAR(ts) > 3";
    parallelism_is_set: "SET 'parallelism.default' = '2'; INSERT INTO log SELECT app_id, ms FROM page_views";
    unnest: "INSERT INTO pv SELECT word, COUNT(*) FROM page_views CROSS JOIN UNNEST(SPLIT(url, '/')) AS t(word) WHERE word <> '' GROUP BY word";
    unnest_that_keeps_rows: "INSERT INTO log SELECT w || p.app_id, i FROM page_views p LEFT JOIN UNNEST(SPLIT(p.url, '/')) WITH ORDINALITY AS t(w, i) ON TRUE";
    unnest_of_a_constant: "INSERT INTO two SELECT a, b FROM page_views, UNNEST(SPLIT('x y', ' ')) t(a), UNNEST(SPLIT(a, '')) u(b) WHERE ms > 1";
    union_all: "INSERT INTO changes SELECT app_id, ms FROM page_views WHERE ms > 1 UNION ALL SELECT url, 1 FROM page_views UNION ALL SELECT 'x', COUNT(*) FROM page_views";
    union: "INSERT INTO two SELECT app_id, url FROM page_views UNION SELECT url, app_id FROM page_views";
    count_over_a_union: "INSERT INTO pv SELECT k, COUNT(*) FROM (SELECT app_id AS k FROM page_views UNION ALL SELECT app_id FROM page_views) t GROUP BY k";
    distinct: "INSERT INTO two SELECT DISTINCT LOWER(app_id), url FROM page_views WHERE ms > 1";
    distinct_over_counts: "INSERT INTO changes SELECT DISTINCT 'x', COUNT(*) FROM page_views GROUP BY app_id";
    join: "INSERT INTO changes SELECT v.app_id, p.pv + v.ms FROM page_views v JOIN (SELECT app_id, COUNT(*) AS pv FROM page_views GROUP BY app_id) p ON v.app_id = p.app_id AND v.ms > 3 AND p.pv < v.ms";
    left_join: "INSERT INTO changes SELECT a.url, b.ms FROM page_views a LEFT JOIN page_views b ON UPPER(a.url) = b.app_id AND b.ms > 3 AND a.ms > 4 WHERE a.cost > 1";
    joins_by_commas: "INSERT INTO two SELECT a.url, c.url FROM page_views a, page_views b, page_views c WHERE a.app_id = b.app_id AND b.ms = c.ms AND c.cost > 3 AND a.ms + b.ms > c.ms";
    join_by_using: "INSERT INTO two SELECT app_id, b.url FROM page_views a JOIN page_views b USING (app_id, ms)";
    join_with_ttl: "SET 'table.exec.state.ttl' = '2 h'; INSERT INTO two SELECT /*+ STATE_TTL('b' = '1 d') */ a.app_id, b.url FROM page_views a JOIN page_views b ON a.app_id = b.app_id";
    all_aggregates: "INSERT INTO changes SELECT app_id, COUNT(DISTINCT url) + SUM(ms) FILTER (WHERE ms > 3) + MIN(DISTINCT ms) + MAX(ms) + AVG(ms) FROM page_views GROUP BY app_id";
    having_into_a_sink_by_key: "INSERT INTO pv SELECT app_id, n FROM (SELECT app_id, COUNT(*) AS n FROM page_views GROUP BY app_id HAVING SUM(ms) > 100) t WHERE n < 50";
    where_over_a_left_join: "INSERT INTO changes SELECT a.url, b.ms FROM page_views a LEFT JOIN page_views b ON a.url = b.app_id WHERE a.ms > 3 AND b.ms IS NULL";
    source_of_changes: "CREATE TABLE kept (id BIGINT, balance BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'upsert'); INSERT INTO kept SELECT id, balance FROM accounts WHERE balance > 0; INSERT INTO changes SELECT owner, SUM(balance) FROM accounts GROUP BY owner";
    dead_letters: "CREATE TABLE bad (place STRING, source STRING, record BYTES, reason STRING NOT NULL) WITH ('connector' = 'insert-only'); CREATE TABLE t (a STRING NOT NULL, b BIGINT) WITH ('connector' = 'source', 'dead-letter' = 'bad'); INSERT INTO log SELECT a, b FROM t; INSERT INTO pv SELECT a, COUNT(*) FROM t GROUP BY a";
    metadata: "CREATE TABLE t (a INT, `at` TIMESTAMP(3) METADATA FROM 'timestamp' VIRTUAL, place BIGINT METADATA) WITH ('connector' = 'source'); INSERT INTO log SELECT CAST(`at` AS STRING), place FROM t";
    top_n: "INSERT INTO changes SELECT app_id, ms FROM (SELECT app_id, url, ms, ROW_NUMBER() OVER (PARTITION BY app_id ORDER BY ms DESC, url) AS n FROM page_views) t WHERE n <= 3";
    top_n_with_number: "INSERT INTO changes SELECT app_id, n FROM (SELECT app_id, ROW_NUMBER() OVER (PARTITION BY app_id, LOWER(url) ORDER BY ms + 1 DESC NULLS FIRST) AS n FROM page_views WHERE cost > 1) t WHERE n BETWEEN 2 AND 5";
    top_n_of_counts: "INSERT INTO changes SELECT app_id, c FROM (SELECT app_id, COUNT(*) AS c, ROW_NUMBER() OVER (ORDER BY COUNT(*) DESC) AS n FROM page_views GROUP BY app_id) t WHERE n < 11";
    best_into_a_sink_by_key: "INSERT INTO pv SELECT app_id, ms FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY app_id ORDER BY ms) AS n FROM page_views) t WHERE n = 1 AND cost > 3";
    right_join: "INSERT INTO changes SELECT a.url, b.ms FROM page_views a RIGHT JOIN page_views b ON a.url = b.app_id AND b.ms > 3 AND a.ms > 4 WHERE b.cost > 1 AND a.cost > 2";
    full_join: "INSERT INTO changes SELECT COALESCE(a.url, b.url), b.ms FROM page_views a FULL OUTER JOIN page_views b ON a.url = b.app_id AND b.ms > 3 WHERE b.cost > 1";
    values: "INSERT INTO log VALUES ('a', 1), ('b', 2)";
    select_without_from: "INSERT INTO log SELECT 'a', 1 UNION ALL SELECT 'b', 2";
    interval_join: "CREATE TABLE t (k STRING, v INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'source'); INSERT INTO two SELECT a.k, b.k FROM t a LEFT JOIN t b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '1' HOUR AND a.ts + INTERVAL '5' MINUTE AND a.v > b.v";
    window_join: "CREATE TABLE t (k STRING, v INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'source'); INSERT INTO two SELECT a.k, b.k FROM (SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE))) a JOIN (SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) WHERE v > 3) b ON a.window_start = b.window_start AND a.k = b.k AND a.window_end = b.window_end";
    window_top_n: "CREATE TABLE t (k STRING, v INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'source'); INSERT INTO log SELECT k, n FROM (SELECT k, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY v DESC) AS n FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE))) WHERE n <= 3";
    first_row: "CREATE TABLE t (k STRING, v INT, p AS PROCTIME()) WITH ('connector' = 'source'); INSERT INTO log SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY p) AS n FROM t) WHERE n = 1";
    last_row: "CREATE TABLE t (k STRING, v INT, p AS PROCTIME()) WITH ('connector' = 'source'); INSERT INTO pv SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY p DESC) AS n FROM t) WHERE n <= 1";
    column_twice: "INSERT INTO two SELECT app_id, app_id FROM page_views";
}

/// Ids of a statement's operators, joined by spaces.
fn uids(statement: &str) -> Vec<String> {
    let program = plan(statement);
    let operators = program.graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    operators
        .filter(|operator| operator.kind != OperatorKind::Stateless)
        .map(|operator| operator.uid.0.clone())
        .collect()
}

#[test]
fn ids_do_not_depend_on_projections_filters_and_names() {
    let expected = ["pv.source(page_views)", "pv.group-aggregate(app_id)", "pv.sink"];
    for statement in [
        "INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id",
        "INSERT INTO pv SELECT v.app_id, COUNT(*) + 1 AS n FROM page_views AS v WHERE ms > 3 GROUP BY v.app_id",
        "INSERT INTO pv (pv, app_id) SELECT SUM(ms), app_id FROM page_views GROUP BY 2",
        "INSERT INTO pv SELECT app_id AS k, COUNT(*) FROM page_views GROUP BY k",
        "INSERT INTO pv SELECT k, n FROM (SELECT app_id AS k, COUNT(*) AS n FROM page_views GROUP BY app_id) t",
    ] {
        assert_eq!(uids(statement), expected, "{statement}");
    }
}

#[test]
fn ids_of_ranks_say_partition_and_order() {
    let ranked = |inner: &str| {
        uids(&format!(
            "INSERT INTO changes SELECT app_id, m FROM (SELECT {inner}, app_id, ms AS m, ROW_NUMBER() OVER (PARTITION BY \
             p.app_id, url ORDER BY ms DESC, cost) AS n FROM page_views AS p WHERE ms > 1) t WHERE n <= 3"
        ))
    };
    let expected = ["changes.source(page_views)", "changes.rank(app_id,url;ms DESC,cost)", "changes.sink"];
    assert_eq!(ranked("cost"), expected);
    assert_eq!(ranked("UPPER(url), ts"), expected);
}

#[test]
fn explained_statements_are_planned_apart_and_do_not_run() {
    let explained = |statement: &str| {
        let (plans, program) =
            crate::explained(&format!("{TABLES}{statement}"), &options(), &TestConnectors::default()).unwrap();
        (plans, program.map(|program| explain(&program)))
    };
    let insert = "INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id";
    let copy = "INSERT INTO two SELECT app_id, url FROM page_views";
    let (plans, program) = explained(&format!("EXPLAIN PLAN FOR {insert}; {copy}; EXPLAIN {copy};"));
    assert_eq!(plans, [explain(&plan(insert)), explain(&plan(copy))]);
    assert_eq!(program, Some(explain(&plan(copy))));
    let set = format!("STATEMENT SET BEGIN {insert}; {copy}; END");
    assert_eq!(explained(&format!("EXPLAIN {set}")), (vec![explain(&plan(&format!("EXECUTE {set}")))], None));
    let (query, _) = explained("EXPLAIN SELECT app_id, COUNT(*) AS n FROM page_views GROUP BY app_id");
    assert!(query[0].contains("uid query.group-aggregate(app_id), keyed"), "{}", query[0]);
    assert!(!query[0].contains("Sink("), "{}", query[0]);
}

/// Without bounds on both sides, or over rows that change, a join is a regular one: it is not planned wrongly.
#[test]
fn what_time_does_not_bound_is_a_regular_join() {
    let joined = |left: &str, condition: &str| {
        let sql = format!(
            "CREATE TABLE t (k STRING, v INT, ts TIMESTAMP(3), other TIMESTAMP(3), WATERMARK FOR ts AS ts)
             WITH ('connector' = 'source');
             INSERT INTO changes SELECT a.k, b.v FROM {left} AS a LEFT JOIN t AS b ON a.k = b.k AND {condition}"
        );
        let plan = explain(&plan(&sql));
        (plan.contains("  IntervalJoin("), plan.contains("  Join("))
    };
    let both = "b.ts >= a.ts - INTERVAL '1' HOUR AND b.ts < a.ts";
    assert_eq!(joined("t", both), (true, false));
    assert_eq!(joined("t", "a.ts <= b.ts + INTERVAL '1' HOUR AND a.ts > b.ts"), (true, false));
    assert_eq!(joined("t", "b.ts >= a.ts - INTERVAL '1' HOUR"), (false, true));
    assert_eq!(joined("t", "b.other BETWEEN a.ts - INTERVAL '1' HOUR AND a.ts"), (false, true));
    assert_eq!(joined("t", "b.ts BETWEEN a.ts - INTERVAL '1' MONTH AND a.ts"), (false, true));
    assert_eq!(joined("t", "CAST(b.ts AS TIMESTAMP(6)) BETWEEN a.ts - INTERVAL '1' HOUR AND a.ts"), (true, false));
    assert_eq!(joined("(SELECT k, ts FROM t GROUP BY k, ts)", both), (false, true));
}

#[test]
fn a_hint_takes_the_place_of_the_derived_id() {
    let statement = "INSERT INTO pv SELECT /*+ UID('views') */ app_id, COUNT(*) FROM page_views GROUP BY app_id";
    assert_eq!(uids(statement), ["views.source(page_views)", "views", "views.sink"]);
    let inner = "INSERT INTO pv SELECT k, n FROM \
                 (SELECT /*+ UID('inner') */ app_id AS k, COUNT(*) AS n FROM page_views GROUP BY app_id) t";
    assert_eq!(uids(inner), ["pv.source(page_views)", "inner", "pv.sink"]);
}

#[test]
fn ids_of_all_operators_differ_and_vertices_are_in_order() {
    let program = plan(
        "INSERT INTO log SELECT app_id, ms FROM page_views WHERE ms > 1;
         INSERT INTO changes SELECT app_id, COUNT(*) FROM page_views WHERE ms > 2 GROUP BY app_id;
         INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id;",
    );
    let graph = &program.graph;
    let mut uids: Vec<_> =
        graph.vertices.iter().flat_map(|vertex| &vertex.operators).map(|operator| &operator.uid).collect();
    let all = uids.len();
    uids.sort();
    uids.dedup();
    assert_eq!(uids.len(), all);
    assert!(graph.vertices.iter().enumerate().all(|(index, vertex)| vertex.id.0 as usize == index));
    assert!(graph.edges.iter().all(|edge| edge.from < edge.to));
    assert_eq!(graph.vertices.len(), program.vertices.len());
    for (vertex, chain) in graph.vertices.iter().zip(&program.vertices) {
        let chained = usize::from(chain.source.is_some()) + chain.operators.len() + usize::from(chain.sink.is_some());
        assert_eq!(vertex.operators.len(), chained, "{}", vertex.name);
    }
}

#[test]
fn the_same_text_gives_the_same_fingerprint_and_another_text_another() {
    let statement = "INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id";
    assert_eq!(plan(statement).graph.fingerprint(), plan(statement).graph.fingerprint());
    let filtered = "INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views WHERE ms > 1 GROUP BY app_id";
    assert_ne!(plan(statement).graph.fingerprint(), plan(filtered).graph.fingerprint());
}

/// The columns that the source is asked for, and its key positions.
fn scanned(sql: &str) -> (Vec<String>, Vec<usize>) {
    let connectors = TestConnectors::default();
    crate::plan(sql, &options(), &connectors).unwrap_or_else(|error| panic!("{error}"));
    let asked = connectors.asked.into_inner().unwrap();
    let source = asked.into_iter().rfind(|table| table.option("connector") == Some("source")).unwrap();
    let columns = source.schema.fields().iter().map(|field| field.name().clone()).collect();
    (columns, source.primary_key)
}

#[test]
fn a_source_reads_only_what_is_needed() {
    let of = |statement: &str| scanned(&format!("{TABLES}{statement}")).0;
    assert_eq!(of("INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id"), ["app_id"]);
    assert_eq!(of("INSERT INTO log SELECT url, 1 FROM page_views WHERE ms > 1"), ["url", "ms"]);
    // Rows must be counted by something: the narrowest column.
    assert_eq!(of("INSERT INTO changes SELECT 'all', COUNT(*) FROM page_views"), ["ms"]);
}

#[test]
fn a_source_that_cannot_leave_columns_out_reads_all() {
    // The test's connector refuses a description without the column that the topic's name ends in.
    let sql = "CREATE TABLE t (a INT, b STRING, c STRING) WITH ('connector' = 'source', 'topic' = 'needs a');
               CREATE TABLE s (b STRING) WITH ('connector' = 'insert-only');
               INSERT INTO s SELECT c FROM t WHERE b <> ''";
    assert_eq!(scanned(sql).0, ["b", "c", "a"]);
}

#[test]
fn a_source_always_reads_its_primary_key() {
    let sql =
        "CREATE TABLE t (a INT, id BIGINT, b STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'source');
               CREATE TABLE s (b STRING) WITH ('connector' = 'insert-only');
               INSERT INTO s SELECT b FROM t WHERE b <> ''";
    assert_eq!(scanned(sql), (vec!["b".to_owned(), "id".to_owned()], vec![1]));
}

#[test]
fn rows_go_by_the_positions_of_the_keys() {
    let program = plan("INSERT INTO changes SELECT app_id, SUM(ms) FROM page_views GROUP BY url, app_id");
    assert_eq!(program.graph.edges.len(), 1);
    let Partitioning::Hash { keys } = &program.graph.edges[0].partitioning else { panic!("not hashed") };
    let schema = &program.vertices[0].output_schema;
    let names: Vec<&str> = keys.iter().map(|key| schema.field(*key).name().as_str()).collect();
    assert_eq!(names, ["url", "app_id"]);
}

#[test]
fn a_copy_needs_no_operator() {
    let sql = "CREATE TABLE a (x INT, y STRING) WITH ('connector' = 'source');
               CREATE TABLE b (x INT, y STRING) WITH ('connector' = 'insert-only');
               INSERT INTO b SELECT * FROM a";
    let program = plan_text(sql).unwrap();
    assert_eq!(program.graph.vertices[0].name, "Source: a -> Sink: b");
}

#[test]
fn options_are_handed_on_as_written() {
    let sql = "CREATE TABLE a (x INT) WITH ('connector' = 'source', 'topic' = '${secret:kafka/topic}');
               CREATE TABLE b (x INT) WITH ('connector' = 'insert-only');
               INSERT INTO b SELECT x FROM a";
    let connectors = TestConnectors::default();
    crate::plan(sql, &options(), &connectors).unwrap();
    let asked = connectors.asked.into_inner().unwrap();
    let source = asked.iter().find(|table| table.name == "a").unwrap();
    assert_eq!(source.option("topic"), Some("${secret:kafka/topic}"));
}

#[test]
fn a_table_is_read_once_whoever_reads_it() {
    let program = plan(
        "INSERT INTO log SELECT app_id, ms FROM page_views WHERE ms > 1;
         INSERT INTO two SELECT app_id, url FROM page_views;
         INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id;",
    );
    let sources: Vec<_> = program.vertices.iter().filter_map(|vertex| vertex.source.as_ref()).collect();
    assert_eq!(sources.len(), 1);
    assert_eq!(sources[0].0.0, "log.source(page_views)");
    let names: Vec<&str> =
        program.vertices[0].output_schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["app_id", "url", "ms"]);
    assert_eq!(program.graph.edges.iter().filter(|edge| edge.from.0 == 0).count(), 3);
}

#[test]
fn tables_are_read_in_every_place_when_that_is_set() {
    assert_eq!(
        uids(
            "SET 'table.optimizer.reuse-source-enabled' = 'false';
             INSERT INTO log SELECT app_id, ms FROM page_views UNION ALL SELECT url, ms FROM page_views;
             INSERT INTO two SELECT app_id, url FROM page_views"
        ),
        ["log.source(page_views)", "log.source(page_views)#2", "log.sink", "two.source(page_views)", "two.sink"]
    );
}

#[test]
fn ids_of_joins_tell_keys_and_both_sides() {
    let counts = "(SELECT app_id, COUNT(*) AS n FROM page_views GROUP BY app_id)";
    for (from, expected) in [
        ("page_views a JOIN page_views b ON a.app_id = b.url", "changes.join(app_id=url)"),
        ("page_views a, page_views b WHERE b.url = a.app_id AND a.ms = 3", "changes.join(url=app_id)"),
        ("page_views a JOIN page_views b USING (app_id)", "changes.join(app_id)"),
    ] {
        let found = uids(&format!("INSERT INTO changes SELECT a.url, b.ms FROM {from}"));
        assert_eq!(found, ["changes.source(page_views)", expected, "changes.sink"], "{from}");
    }
    let deep = format!(
        "INSERT INTO changes SELECT a.app_id, COUNT(*) FROM {counts} a LEFT JOIN page_views b ON a.app_id = b.url \
         JOIN {counts} c ON c.n = b.ms GROUP BY a.app_id"
    );
    assert_eq!(
        uids(&deep),
        [
            "changes.source(page_views)",
            "changes.group-aggregate(app_id)",
            "changes.[group-aggregate(app_id)|].join(app_id=url)",
            "changes.group-aggregate(app_id)#2",
            "changes.[[group-aggregate(app_id)|].join(app_id=url)|group-aggregate(app_id)].join(n=ms)",
            "changes.[[group-aggregate(app_id)|].join(app_id=url)|group-aggregate(app_id)].join(n=ms).group-aggregate(app_id)",
            "changes.sink"
        ]
    );
}

#[test]
fn an_upsert_sink_takes_a_join_by_the_key_of_both_sides() {
    let counts = |table: &str| format!("(SELECT {table}, COUNT(*) AS n FROM page_views GROUP BY {table})");
    let by_key = format!(
        "INSERT INTO pv SELECT a.app_id, a.n + COALESCE(b.n, 0) FROM {} a LEFT JOIN {} b ON a.app_id = b.url",
        counts("app_id"),
        counts("url")
    );
    assert_eq!(uids(&by_key).last().map(String::as_str), Some("pv.sink"));
    let by_another = by_key.replace("a.app_id = b.url", "a.n = b.n");
    let error = mistake(&by_another);
    assert_eq!(error.kind, SqlErrorKind::Changelog, "{error}");
    assert!(error.message.contains("have no key whose changes come in order"), "{error}");
}

#[test]
fn ids_of_equal_operators_in_one_statement_differ() {
    let counts = "SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id";
    assert_eq!(
        uids(&format!("INSERT INTO changes {counts} UNION ALL {counts}")),
        [
            "changes.source(page_views)",
            "changes.group-aggregate(app_id)",
            "changes.group-aggregate(app_id)#2",
            "changes.sink"
        ]
    );
    assert_eq!(
        uids(&format!(
            "INSERT INTO changes SELECT DISTINCT * FROM ({counts} UNION ALL SELECT url, ms FROM page_views)"
        ))[2..],
        ["changes.[group-aggregate(app_id)|].distinct(*)", "changes.sink"]
    );
}

/// The ids of what keeps state, over the tables `clicks`, `views` and a sink `s`, in order of the program.
fn ids_over_two_tables(query: &str) -> Vec<String> {
    let sql = format!(
        "CREATE TABLE clicks (k STRING, n BIGINT) WITH ('connector' = 'source');
         CREATE TABLE views (k STRING, n BIGINT) WITH ('connector' = 'source');
         CREATE TABLE s (k STRING, n BIGINT) WITH ('connector' = 'all');
         INSERT INTO s {query}"
    );
    let program = plan_text(&sql).unwrap_or_else(|error| panic!("{error}"));
    let operators = program.graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    operators.filter(|operator| operator.kind == OperatorKind::Keyed).map(|operator| operator.uid.0.clone()).collect()
}

#[test]
fn what_changes_places_takes_its_id_along() {
    let counts = |table: &str| format!("SELECT k, COUNT(*) AS n FROM {table} GROUP BY k");
    let joined = |left: &str, right: &str| {
        let (left, right) = (counts(left), counts(right));
        ids_over_two_tables(&format!("SELECT a.k, a.n + b.n FROM ({left}) a JOIN ({right}) b ON a.k = b.k"))
    };
    let both = "s.[clicks.group-aggregate(k)|views.group-aggregate(k)].join(k=k)";
    assert_eq!(joined("clicks", "views"), ["s.clicks.group-aggregate(k)", "s.views.group-aggregate(k)", both]);
    let swapped = "s.[views.group-aggregate(k)|clicks.group-aggregate(k)].join(k=k)";
    assert_eq!(joined("views", "clicks"), ["s.views.group-aggregate(k)", "s.clicks.group-aggregate(k)", swapped]);

    let united = |left: &str, right: &str| {
        ids_over_two_tables(&format!("{} UNION ALL {} UNION ALL {}", counts(left), counts(right), counts(left)))
    };
    let (clicks, views) = ("s.clicks.group-aggregate(k)", "s.views.group-aggregate(k)");
    assert_eq!(united("clicks", "views"), [clicks, views, "s.clicks.group-aggregate(k)#2"]);
    assert_eq!(united("views", "clicks"), [views, clicks, "s.views.group-aggregate(k)#2"]);

    let tables = |left: &str, right: &str| {
        ids_over_two_tables(&format!("SELECT a.k, b.n FROM {left} a JOIN {right} b ON a.k = b.k"))
    };
    assert_eq!(tables("clicks", "views"), ["s.[clicks|views].join(k=k)"]);
    assert_eq!(tables("views", "clicks"), ["s.[views|clicks].join(k=k)"]);
    // Where nothing can change places unseen, ids are without tables.
    assert_eq!(tables("clicks", "clicks"), ["s.join(k=k)"]);
    let mixed = format!("SELECT a.k, b.n FROM ({}) a JOIN views b ON a.k = b.k", counts("clicks"));
    assert_eq!(ids_over_two_tables(&mixed), ["s.group-aggregate(k)", "s.[group-aggregate(k)|].join(k=k)"]);
}

#[test]
fn quoted_and_foreign_names() {
    let sql = "CREATE TABLE `select` (`from` STRING, `größe` INT, `a b` INT) WITH ('connector' = 'source');
               CREATE TABLE `日本` (`group` STRING, `order` BIGINT) WITH ('connector' = 'all');
               CREATE VIEW `where` AS SELECT `from` AS `join`, `größe` + `a b` AS `ß` FROM `select`;
               INSERT INTO `日本` SELECT `w`.`join`, SUM(`ß`) FROM `where` AS `w` WHERE `join` <> 'ünï\u{1F600}' GROUP BY `join`";
    let program = plan_text(sql).unwrap_or_else(|error| panic!("{error}"));
    let uids: Vec<&str> =
        program.graph.vertices.iter().flat_map(|vertex| &vertex.operators).map(|o| o.uid.0.as_str()).collect();
    assert!(uids.contains(&"日本.group-aggregate(join)"), "{uids:?}");
}

#[test]
fn long_statements() {
    let list: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    plan(&format!("INSERT INTO log SELECT app_id, ms FROM page_views WHERE ms IN ({})", list.join(", ")));
    let either = |terms: usize| {
        let terms: Vec<String> = (0..terms).map(|number| format!("url LIKE '%{number}'")).collect();
        format!("INSERT INTO log SELECT app_id, ms FROM page_views WHERE {}", terms.join(" OR "))
    };
    plan(&either(400));
    let error = mistake(&either(3000));
    assert!(error.message.contains("nested more than 500 deep"), "{error}");
    let words = mistake(&format!("INSERT INTO log SELECT app_id, ms FROM page_views {}", "UNION ALL ".repeat(50_000)));
    assert_eq!(words.kind, SqlErrorKind::Unsupported, "{words}");
    let branch = "SELECT app_id, ms FROM page_views";
    plan(&format!("INSERT INTO log {}", vec![branch; 200].join(" UNION ALL ")));
    let deep = format!("INSERT INTO log SELECT app_id, {}ms{} FROM page_views", "(".repeat(5000), ")".repeat(5000));
    assert_eq!(mistake(&deep).message, "the statement is nested too deeply");
}

/// What columns of metadata stand for, and that only those that are not VIRTUAL are written.
#[test]
fn metadata_reaches_the_connectors() {
    let connectors = TestConnectors::default();
    let sql = "CREATE TABLE a (x INT, o BIGINT METADATA FROM 'offset' VIRTUAL, h STRING METADATA) WITH ('connector' = 'source');
CREATE TABLE b (o BIGINT METADATA FROM 'offset' VIRTUAL, x INT, at TIMESTAMP(3) METADATA FROM 'timestamp', k STRING,
  PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'upsert');
INSERT INTO b SELECT x, CAST(NULL AS TIMESTAMP(3)), h FROM a";
    crate::plan(sql, &options(), &connectors).unwrap_or_else(|error| panic!("{error}"));
    let asked = connectors.asked.lock().unwrap();
    let columns = |schema: &arrow::datatypes::SchemaRef| {
        schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>().join(" ")
    };
    let source = asked.iter().rfind(|table| table.name == "a").unwrap();
    assert_eq!((columns(&source.schema), columns(&source.declared)), ("x h".to_owned(), "x o h".to_owned()));
    let keys: Vec<_> = source.metadata.iter().map(|(column, key)| format!("{column}={key}")).collect();
    assert_eq!(keys, ["h=h", "o=offset"]);
    let sink = asked.iter().find(|table| table.name == "b").unwrap();
    assert_eq!((columns(&sink.schema), sink.primary_key.as_slice()), ("x at k".to_owned(), &[2][..]));
}
