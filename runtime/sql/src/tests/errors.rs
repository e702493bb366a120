//! Every mistake names what is wrong and points at it. The place that is expected is marked with `«` in the text.

use super::{TABLES, mistake, plan_text};
use crate::{SqlError, SqlErrorKind};

/// Checks kind, message and place of the mistake in a statement; with `TABLES` before it.
pub(super) fn check(kind: SqlErrorKind, marked: &str, message: &str) {
    check_text(kind, &format!("{TABLES}{marked}"), message);
}

/// The same for a text that declares its own tables.
fn check_text(kind: SqlErrorKind, marked: &str, message: &str) {
    let text = marked.replace('«', "");
    let error = match plan_text(&text) {
        Ok(program) => panic!("planned: {text}\n{}", crate::explain(&program)),
        Err(error) => error,
    };
    assert_eq!((error.kind, error.message.as_str()), (kind, message), "{error}");
    let (before, _) = marked.split_once('«').unwrap_or_else(|| panic!("no mark in {marked}"));
    let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    assert_eq!((error.line, error.column), (line as u64, column as u64), "{error}");
}

#[test]
fn the_line_is_shown_with_a_caret() {
    let error = mistake("INSERT INTO pv SELECT ap_id, COUNT(*)\nFROM page_view GROUP BY app_id");
    assert_eq!(
        error.to_string(),
        "table 'page_view' does not exist; did you mean 'page_views'? at line 9, column 6
  |
9 | FROM page_view GROUP BY app_id
  |      ^"
    );
}

#[test]
fn a_mistake_without_a_place_shows_no_line() {
    let error: SqlError = plan_text("CREATE TABLE t (a INT) WITH ('connector' = 'source');").err().unwrap();
    assert_eq!(error.to_string(), "the program has no INSERT INTO statement, so there is nothing to run");
}

#[test]
fn what_is_not_sql() {
    use SqlErrorKind::Syntax;
    check(
        Syntax,
        "«SELEC 1",
        "expected a statement: CREATE TABLE, CREATE VIEW, INSERT INTO, SET or EXECUTE STATEMENT SET, found 'SELEC'",
    );
    check(Syntax, "INSERT «pv SELECT 1", "expected INTO, found 'pv'");
    check(Syntax, "INSERT INTO pv SELECT app_id FROM«", "expected identifier, found the end of the text");
    check(
        Syntax,
        "INSERT INTO pv SELECT app_id FROM page_views «) ",
        "expected ';' or the end of the statement, found ')'",
    );
    check(Syntax, "CREATE TABLE t («)", "expected a column name, found ')'");
    check(Syntax, "CREATE TABLE t (a INT «b INT)", "expected ')', found 'b'");
    check(
        Syntax,
        "CREATE TABLE t (a INT) WITH («connector = 'x')",
        "expected an option in single quotes, found 'connector'",
    );
    check(
        Syntax,
        "CREATE TABLE t (a INT) WITH ('connector' = «x)",
        "expected the option's value in single quotes, found 'x'",
    );
    check(
        Syntax,
        "EXECUTE STATEMENT SET BEGIN «CREATE",
        "expected INSERT INTO or END of the statement set, found 'CREATE'",
    );
    check(Syntax, "CREATE TABLE t (a INT«", "expected ')', found the end of the text");
    check(Syntax, "INSERT INTO pv SELECT «'abc", "Unterminated string literal");
}

#[test]
fn statements_that_do_not_run_yet() {
    use SqlErrorKind::Unsupported;
    check(Unsupported, "CREATE «MATERIALIZED TABLE v AS SELECT 1", "CREATE MATERIALIZED is not supported yet");
    check(Unsupported, "CREATE TEMPORARY «FUNCTION f AS 'x'", "CREATE FUNCTION is not supported yet");
    check(Unsupported, "«DROP TABLE pv", "DROP is not supported yet");
    check(Unsupported, "«RESET 'a'", "RESET is not supported yet");
    check(
        Unsupported,
        "EXPLAIN «CHANGELOG_MODE INSERT INTO two SELECT app_id, url FROM page_views",
        "EXPLAIN CHANGELOG_MODE is not supported yet",
    );
    check(Unsupported, "«SELECT * FROM pv", "a query needs a sink: write INSERT INTO table SELECT …");
    check(Unsupported, "INSERT «OVERWRITE pv SELECT 1", "INSERT OVERWRITE is not supported yet");
    check(Unsupported, "CREATE TABLE t «LIKE pv", "CREATE TABLE … AS or LIKE is not supported yet");
    check(Unsupported, "CREATE TABLE t «AS SELECT 1", "CREATE TABLE … AS or LIKE is not supported yet");
}

#[test]
fn sources_of_changes_and_sinks_that_do_not_take_them() {
    let node = "TableSourceScan(table=[accounts])";
    check(
        SqlErrorKind::Changelog,
        "INSERT INTO «log SELECT owner, balance FROM accounts",
        &format!("table sink 'log' doesn't support consuming update changes which is produced by node {node}"),
    );
    check(
        SqlErrorKind::Changelog,
        "INSERT INTO «pv SELECT owner, balance FROM accounts",
        "the PRIMARY KEY of table sink 'pv' must be the query's grouping key (id), but its column 'app_id' is not part of that \
         and changes",
    );
    check(
        SqlErrorKind::Invalid,
        "CREATE TABLE t (a INT, b BIGINT METADATA FROM 'offset', PRIMARY KEY («b) NOT ENFORCED)",
        "column 'b' is METADATA and cannot be part of the PRIMARY KEY",
    );
}

#[test]
fn a_table_of_dead_letters_that_is_none() {
    let check = |columns: &str, name: &str, message: &str| {
        let sql = format!(
            "CREATE TABLE bad ({columns}) WITH ('connector' = 'insert-only');\nCREATE TABLE t (a STRING, n BIGINT) WITH ('connector' = \
             'source', «'dead-letter' = '{name}'); INSERT INTO log SELECT a, n FROM t"
        );
        let whole = format!(
            "table 't': {message}; its columns are record (BYTES or STRING), place STRING, reason STRING and, if you like, source STRING"
        );
        check_text(SqlErrorKind::Connector, &format!("{TABLES}{sql}"), &whole);
    };
    let right = "record BYTES, place STRING, reason STRING";
    check(right, "worse", "'dead-letter' names 'worse', which is no other table: declare it");
    check(right, "t", "'dead-letter' names 't', which is no other table: declare it");
    check("record BYTES, place STRING", "bad", "table 'bad' of dead letters has no column 'reason'");
    check("record INT, place STRING, reason STRING", "bad", "table 'bad' of dead letters has a column record INT");
    check(&format!("{right}, at DATE"), "bad", "table 'bad' of dead letters has a column at DATE");
}

#[test]
fn partition_columns_are_columns_of_the_table() {
    use SqlErrorKind::{Duplicate, Invalid, UnknownColumn};
    let none = |marked: &str, near: &str| {
        check(UnknownColumn, marked, &format!("PARTITIONED BY names no physical column: 'b'{near}"));
    };
    none("CREATE TABLE t (a INT, bb INT) PARTITIONED BY («b)", "; did you mean 'bb'?");
    none("CREATE TABLE t (ccc INT, b AS ccc + 1) PARTITIONED BY («b)", "");
    none("CREATE TABLE t (ccc INT, b INT METADATA) PARTITIONED BY («b)", "");
    check(
        Duplicate,
        "CREATE TABLE t (a INT, b INT) PARTITIONED BY (b, «b)",
        "column 'b' stands in PARTITIONED BY twice",
    );
    let twice = "CREATE TABLE t (a INT, b INT) PARTITIONED BY (b) «PARTITIONED BY (a)";
    check(Duplicate, twice, "a second PARTITIONED BY");
    let message = "a table needs a physical column beside those of PARTITIONED BY";
    check(Invalid, "CREATE TABLE t (a INT, b INT) PARTITIONED BY («b, a)", message);
}

#[test]
fn table_clauses_that_do_not_run_yet() {
    use SqlErrorKind::Unsupported;
    let refused = |marked: &str, what: &str| check(Unsupported, marked, &format!("{what} is not supported yet"));
    refused("CREATE TABLE t (a INT) «DISTRIBUTED BY (a) WITH ('connector' = 'x')", "DISTRIBUTED BY");
    refused("CREATE TABLE t (a «ROW<b INT>)", "type ROW");
    refused("CREATE TABLE t (a «MAP<STRING, INT>)", "type MAP");
    refused("CREATE TABLE t (a «MULTISET<INT>)", "type MULTISET");
    refused("CREATE TABLE cat«.t (a INT)", "a table name with a catalog or database");
    check(
        Unsupported,
        "CREATE TABLE t (a INT, PRIMARY KEY (a)«)",
        "a PRIMARY KEY must be declared NOT ENFORCED: the data is not Sluice's to check",
    );
}

#[test]
fn query_clauses_that_do_not_run_yet() {
    let refused = |marked: &str, what: &str| {
        check(SqlErrorKind::Unsupported, marked, &format!("{what} is not supported yet"));
    };
    refused("INSERT INTO two SELECT «DISTINCT ON (app_id) app_id, url FROM page_views", "DISTINCT ON");
    refused("INSERT INTO two SELECT a FROM «UNNEST(SPLIT('a', 'b')) AS t(a)", "UNNEST without a table before it");
    refused(
        "INSERT INTO two SELECT a FROM page_views «JOIN UNNEST(SPLIT(url, 'b')) AS t(a) ON a = app_id",
        "UNNEST other than by CROSS JOIN or LEFT JOIN … ON TRUE",
    );
    refused("INSERT INTO two SELECT app_id, url FROM page_views «ORDER BY 1", "ORDER BY");
    refused("INSERT INTO two SELECT app_id, url FROM page_views «LIMIT 3", "LIMIT");
    refused("INSERT INTO two SELECT app_id, url FROM page_views «EXCEPT SELECT a, b FROM two", "EXCEPT");
    refused(
        "INSERT INTO two SELECT a.url, b.url FROM page_views a\n  FULL «JOIN page_views b USING (ms)",
        "FULL JOIN … USING (write ON a.key = b.key, and COALESCE(a.key, b.key))",
    );
    refused("INSERT INTO two SELECT url, url FROM page_views NATURAL «JOIN two", "NATURAL JOIN");
    refused(
        "INSERT INTO two SELECT a.url, b.url FROM page_views a RIGHT «JOIN page_views b USING (app_id)",
        "RIGHT JOIN … USING (write ON a.key = b.key, and say whose key is meant)",
    );
    for join in [
        " CROSS JOIN page_views b",
        ", page_views b",
        " JOIN page_views b ON a.ms > 3 AND a.ms IS NOT DISTINCT FROM b.ms",
    ] {
        refused(
            &format!("INSERT INTO two «SELECT a.url, b.url FROM page_views a{join}"),
            "JOIN without an equality between a column of the one side and one of the other",
        );
    }
    refused("INSERT INTO pv «WITH RECURSIVE t AS (SELECT 1) SELECT * FROM t", "WITH RECURSIVE");
    refused("INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY «ROLLUP (app_id)", "ROLLUP");
}

#[test]
fn row_numbers_that_do_not_run() {
    use SqlErrorKind::{Invalid, Unsupported};
    let ranked = |marked: &str| {
        format!("INSERT INTO log SELECT app_id, n FROM (SELECT app_id, {marked} AS n FROM page_views) t")
    };
    let unbounded = "ROW_NUMBER needs an upper bound in the query around it, as in SELECT … FROM (SELECT …, \
                     ROW_NUMBER() OVER (…) AS rownum FROM …) WHERE rownum <= 10; one per SELECT";
    for condition in ["", " WHERE n > 3", " WHERE n <= 3 OR app_id = 'x'", " WHERE n <= 0", " WHERE n + 1 < 3"] {
        let statement = ranked("«ROW_NUMBER() OVER (PARTITION BY url ORDER BY ms)") + condition;
        check(Unsupported, &statement, unbounded);
    }
    let unused = "INSERT INTO pv SELECT app_id, COUNT(*) FROM (SELECT app_id, «ROW_NUMBER() OVER (ORDER BY ms) AS n
                  FROM page_views) t GROUP BY app_id";
    check(Unsupported, unused, unbounded);
    let two = "«ROW_NUMBER() OVER (ORDER BY ms) AS m, ROW_NUMBER() OVER (ORDER BY url)";
    check(Unsupported, &(ranked(two) + " WHERE n <= 3"), unbounded);
    check(
        Invalid,
        &ranked("ROW_NUMBER() «OVER (PARTITION BY url)"),
        "ROW_NUMBER needs an order: OVER (PARTITION BY … ORDER BY …)",
    );
    check(Invalid, &ranked("«ROW_NUMBER()"), "ROW_NUMBER needs OVER (PARTITION BY … ORDER BY …)");
    check(Invalid, &ranked("«ROW_NUMBER(ms) OVER (ORDER BY ms)"), "ROW_NUMBER takes no arguments");
    let around = "ROW_NUMBER may stand in SELECT only, with nothing around it";
    check(Invalid, &ranked("1 + «ROW_NUMBER() OVER (ORDER BY ms)"), around);
    check(
        Invalid,
        "INSERT INTO log SELECT app_id, ms FROM page_views WHERE «ROW_NUMBER() OVER (ORDER BY ms) < 3",
        "ROW_NUMBER may not stand in WHERE",
    );
    let frame = "a frame (ROWS or RANGE) of ROW_NUMBER is not supported yet";
    check(Unsupported, &ranked("ROW_NUMBER() «OVER (ORDER BY ms ROWS UNBOUNDED PRECEDING)"), frame);
    check(Unsupported, &ranked("RANK() «OVER (ORDER BY ms)"), "RANK OVER (a window) is not supported yet");
}

#[test]
fn arrivals_that_cannot_be_ranked() {
    let ranked = |from: &str, bound: &str| {
        mistake(&format!(
            "INSERT INTO changes SELECT k, 1 FROM (SELECT k, ROW_NUMBER() OVER (PARTITION BY k ORDER BY PROCTIME()) AS n
             FROM (SELECT app_id AS k FROM {from}) v) t WHERE n {bound}"
        ))
    };
    let several = ranked("page_views", "<= 2");
    assert!(several.message.contains("PROCTIME() with a bound other than 1"), "{several}");
    let changes = ranked("(SELECT app_id FROM page_views GROUP BY app_id HAVING COUNT(*) > 3)", "= 1");
    assert!(changes.message.contains("PROCTIME() over the changing rows of GroupAggregate"), "{changes}");
}

/// Rows of one partition may have several numbers, and change them.
#[test]
fn ranks_into_sinks_that_cannot_take_their_changes() {
    let changelog = |statement: &str, message: &str| {
        let error = mistake(statement);
        assert_eq!(error.kind, SqlErrorKind::Changelog, "{error}");
        assert!(error.message.contains(message), "{error}");
    };
    let ranked = |columns: &str, partition: &str, bound: &str| {
        format!(
            "SELECT {columns} FROM (SELECT app_id, ms, ROW_NUMBER() OVER (PARTITION BY {partition} ORDER BY ms) AS n
             FROM page_views) t WHERE n {bound}"
        )
    };
    let insert_only = format!("INSERT INTO log {}", ranked("app_id, ms", "app_id", "= 1"));
    changelog(&insert_only, "doesn't support consuming update changes which is produced by node Rank(");
    let places = format!("INSERT INTO pv {}", ranked("app_id, n", "app_id", "<= 2"));
    changelog(&places, "lacks 'ROW_NUMBER'");
    let no_key = format!("INSERT INTO pv {}", ranked("app_id, ms", "app_id", "<= 2"));
    changelog(&no_key, "have no key whose changes come in order");
    let other_key = format!("INSERT INTO pv {}", ranked("app_id, ms", "url", "= 1"));
    changelog(&other_key, "must be the query's grouping key (url)");
}

#[test]
fn a_program_that_only_explains_runs_nothing() {
    let error = mistake("EXPLAIN PLAN FOR INSERT INTO two SELECT app_id, url FROM page_views");
    assert!(error.message.starts_with("the program only explains"), "{error}");
    check(SqlErrorKind::UnknownTable, "EXPLAIN SELECT a FROM «t", "table 't' does not exist");
}

#[test]
fn expressions_that_do_not_run_yet() {
    let refused = |marked: &str, what: &str| {
        check(SqlErrorKind::Unsupported, marked, &format!("{what} is not supported yet"));
    };
    refused("INSERT INTO pv SELECT app_id, «STDDEV(ms) FROM page_views GROUP BY app_id", "STDDEV");
    refused("INSERT INTO pv SELECT app_id, «ARRAY_AGG(ms) FROM page_views GROUP BY app_id", "ARRAY_AGG");
    refused(
        "INSERT INTO log SELECT app_id, COUNT(*) «OVER (PARTITION BY url) FROM page_views",
        "COUNT OVER (a window)",
    );
    refused(
        "INSERT INTO log SELECT app_id, ms FROM page_views WHERE «app_id IN (SELECT app_id FROM pv)",
        "a subquery in an expression",
    );
    for call in ["NOW()", "CURRENT_TIMESTAMP", "RAND()", "UUID()"] {
        let name = call.trim_end_matches("()");
        check(
            SqlErrorKind::Unsupported,
            &format!("INSERT INTO log SELECT app_id, ms FROM page_views WHERE ts > «{call}"),
            &format!("{name} is not supported yet: a restart would compute another value"),
        );
    }
    refused("INSERT INTO log SELECT «JSON_ARRAY(url), ms FROM page_views", "JSON_ARRAY");
}

#[test]
fn constants_that_functions_cannot_use() {
    let wrong = |call: &str, message: &str| {
        let error = mistake(&format!("INSERT INTO log SELECT app_id,\n  {call} FROM page_views"));
        assert_eq!((error.kind, error.line), (SqlErrorKind::Type, 9), "{error}");
        assert!(error.message.contains(message), "{error}");
    };
    wrong("CHAR_LENGTH(REGEXP_EXTRACT(url, '(', 1))", "not a regular expression");
    wrong("CHAR_LENGTH(DATE_FORMAT(ts, 'yyyy XX'))", "the pattern 'yyyy XX' has 'XX', which is not supported");
    wrong("CHAR_LENGTH(JSON_VALUE(url, '$..a'))", "not supported as a JSON path");
    wrong("TIMESTAMPDIFF(FORTNIGHT, ts, ts)", "the unit FORTNIGHT is not supported here");
    wrong("CHAR_LENGTH(SUBSTRING(ms, 1))", "SUBSTRING(INT, BIGINT) does not exist: it is SUBSTRING(STRING, BIGINT) or");
}

#[test]
fn settings() {
    use SqlErrorKind::{Invalid, Syntax, Unsupported};
    check(
        Invalid,
        "SET «'table.exec.state.tll' = '1 d'",
        "the key 'table.exec.state.tll' does not exist; did you mean 'table.exec.state.ttl'?",
    );
    check(
        Invalid,
        "SET 'table.exec.state.ttl' = «'1 fortnight'",
        "'table.exec.state.ttl' is no duration: 'fortnight' is no unit of time: use ms, s, min, h or d",
    );
    check(
        Unsupported,
        "SET «'execution.checkpointing.interval' = '10 s'",
        "'execution.checkpointing.interval' cannot be set here: it is in the StreamJob's spec: checkpointing.interval",
    );
    check(
        Invalid,
        "SET 'parallelism.default' = «'5'; INSERT INTO two SELECT app_id, url FROM page_views",
        "'parallelism.default' is 5, more than the 4 of the StreamJob's spec, which decides how many TaskManagers run: \
         raise it there",
    );
    check(
        Invalid,
        "INSERT INTO two SELECT app_id, url FROM page_views; SET «'parallelism.default' = '2'",
        "'parallelism.default' holds for the whole job: write it before the first INSERT INTO",
    );
    check(
        Invalid,
        "SET 'parallelism.default' = «'0'",
        "'parallelism.default' must be a whole number from 1 on, not '0'",
    );
    check(Syntax, "SET «table.exec.state.ttl = '1 d'", "expected a key in single quotes, found 'table'");
}

#[test]
fn views_and_with() {
    use SqlErrorKind::{Duplicate, Invalid, UnknownColumn, UnknownTable};
    check(
        UnknownColumn,
        "CREATE VIEW v AS SELECT app_id, «urls FROM page_views; INSERT INTO two SELECT * FROM v",
        "column 'urls' does not exist; did you mean 'url'?",
    );
    check(
        UnknownTable,
        "CREATE VIEW v AS SELECT * FROM «w; CREATE VIEW w AS SELECT 1 FROM v; INSERT INTO two SELECT * FROM v",
        "table 'w' does not exist",
    );
    check(
        UnknownTable,
        "CREATE VIEW v AS SELECT * FROM «v; INSERT INTO two SELECT * FROM v",
        "table 'v' does not exist",
    );
    check(
        Invalid,
        "CREATE VIEW v AS SELECT app_id, url FROM page_views; INSERT INTO «v SELECT app_id, url FROM page_views",
        "'v' is a view: only a table can be written",
    );
    check(
        Duplicate,
        "CREATE VIEW «two AS SELECT app_id FROM page_views; INSERT INTO log SELECT app_id, ms FROM page_views",
        "a table or view 'two' is already declared",
    );
    check(
        Duplicate,
        "INSERT INTO two WITH t AS (SELECT app_id FROM page_views), «t AS (SELECT url FROM page_views) SELECT * FROM t",
        "WITH declares 't' twice",
    );
    let mut text = TABLES.to_owned() + "CREATE VIEW v0 AS SELECT app_id a, url b FROM page_views;\n";
    for number in 1..20 {
        let below = number - 1;
        text += &format!("CREATE VIEW v{number} AS SELECT x.a, y.b FROM v{below} x JOIN v{below} y ON x.a = y.a;\n");
    }
    let error = plan_text(&(text + "INSERT INTO two SELECT * FROM v19")).err().unwrap();
    assert!(error.kind == Invalid && error.message.contains("more than 10000 queries"), "{error}");
}

#[test]
fn computed_columns_and_watermarks() {
    use SqlErrorKind::{Duplicate, Invalid, Type, UnknownColumn, Unsupported};
    let table = |columns: &str| {
        format!(
            "CREATE TABLE t ({columns}) WITH ('connector' = 'source'); INSERT INTO two SELECT app_id, url FROM page_views"
        )
    };
    let wrong = |kind, columns: &str, message: &str| check(kind, &table(columns), message);
    wrong(UnknownColumn, "a INT, b AS «c + 1", "column 'c' does not exist; there are a");
    wrong(Unsupported, "a INT, p AS «NOW()", "NOW is not supported yet: a restart would compute another value");
    wrong(Duplicate, "a INT, «a AS a + 1", "column 'a' is already declared in line 8");
    wrong(
        Invalid,
        "a INT, b AS a + 1, PRIMARY KEY («b) NOT ENFORCED",
        "column 'b' is computed and cannot be part of the PRIMARY KEY",
    );
    wrong(UnknownColumn, "a INT, WATERMARK FOR «b AS a", "WATERMARK names no column: 'b'");
    wrong(
        Type,
        "a INT, WATERMARK FOR «a AS a",
        "column 'a' is INT, but a WATERMARK needs TIMESTAMP(3) or TIMESTAMP_LTZ(3)",
    );
    wrong(
        Type,
        "a TIMESTAMP(6), WATERMARK FOR «a AS a",
        "column 'a' is TIMESTAMP(6), but a WATERMARK needs TIMESTAMP(3) or TIMESTAMP_LTZ(3)",
    );
    wrong(Type, "a TIMESTAMP(3), WATERMARK FOR «a AS 1", "the WATERMARK is INT, but its column 'a' is TIMESTAMP(3)");
    wrong(Duplicate, "a TIMESTAMP(3), WATERMARK FOR a AS a, «WATERMARK FOR a AS a", "a second WATERMARK");
    check(Invalid, "CREATE TABLE «t (a AS 1)", "table 't' has no physical column");
}

#[test]
fn names_that_do_not_exist() {
    use SqlErrorKind::{UnknownColumn, UnknownFunction, UnknownTable, UnknownType};
    check(
        SqlErrorKind::Invalid,
        "INSERT INTO two SELECT «app_id, a.url FROM page_views a JOIN page_views b ON a.url = b.url",
        "column 'app_id' is ambiguous",
    );
    check(
        UnknownColumn,
        "INSERT INTO two SELECT a.app_id, b.url FROM page_views a JOIN page_views b ON a.url = «b.urls",
        "column 'b.urls' does not exist; did you mean 'url'?",
    );
    check(
        UnknownColumn,
        "INSERT INTO two SELECT a.app_id, «c.url FROM page_views a JOIN (SELECT ms FROM page_views) b ON a.ms = b.ms",
        "column 'c.url' does not exist: there is no 'c' in FROM",
    );
    check(
        UnknownColumn,
        "INSERT INTO two SELECT a.app_id, «b.zz FROM page_views a JOIN (SELECT ms FROM page_views) b ON a.ms = b.ms",
        "column 'b.zz' does not exist; there are ms",
    );
    check(UnknownTable, "INSERT INTO «pvs SELECT 1", "table 'pvs' does not exist; did you mean 'pv'?");
    check_text(UnknownTable, "INSERT INTO «x SELECT 1", "table 'x' does not exist: declare it with CREATE TABLE first");
    check(
        UnknownColumn,
        "INSERT INTO pv SELECT app_id, COUNT(«urls) FROM page_views GROUP BY app_id",
        "column 'urls' does not exist; did you mean 'url'?",
    );
    check(
        UnknownColumn,
        "INSERT INTO two SELECT app_id, «quite FROM page_views",
        "column 'quite' does not exist; there are app_id, url, ms, cost, ts",
    );
    check(UnknownColumn, "INSERT INTO two (a, «c) SELECT app_id, url FROM page_views", "table 'two' has no column 'c'");
    check(
        UnknownFunction,
        "INSERT INTO two SELECT app_id, «UPER(url) FROM page_views",
        "function UPER does not exist; did you mean 'UPPER'?",
    );
    check(UnknownType, "CREATE TABLE t (a «STRNG)", "type STRNG does not exist; did you mean 'STRING'?");
    check(
        UnknownType,
        "CREATE TABLE t (a «DECIMAL(50, 2))",
        "DECIMAL(50, 2) is out of range: the precision is 1 to 38, the scale 0 to the precision",
    );
    check(UnknownType, "CREATE TABLE t (a «TIMESTAMP(12))", "TIMESTAMP(12) is out of range: the precision is 0 to 9");
    check(
        UnknownColumn,
        "CREATE TABLE t (aa INT, PRIMARY KEY («ab) NOT ENFORCED)",
        "PRIMARY KEY names no column: 'ab'",
    );
}

#[test]
fn things_declared_twice() {
    use SqlErrorKind::Duplicate;
    check(Duplicate, "CREATE TABLE «pv (a INT)", "table 'pv' is already declared in line 4");
    check(Duplicate, "CREATE TABLE t (a INT, «a INT)", "column 'a' is already declared in line 8");
    check(Duplicate, "CREATE TABLE t (a INT) WITH ('b' = 'c', «'b' = 'd')", "option 'b' is given twice");
    check(
        Duplicate,
        "INSERT INTO log SELECT app_id, ms FROM page_views; INSERT INTO log «SELECT url, ms FROM page_views",
        "two operators would have the id 'log.calc(1)': give one of the statements another name with \
         SELECT /*+ UID('name') */ …",
    );
}

#[test]
fn hints() {
    use SqlErrorKind::{Hint, Unsupported};
    check(
        Hint,
        "INSERT INTO two «SELECT /*+ UIDD('x') */ app_id, url FROM page_views",
        "the hint UIDD does not exist; did you mean 'UID'?",
    );
    check(
        Hint,
        "INSERT INTO two «SELECT /*+ UID(x) */ app_id, url FROM page_views",
        "the hint UID takes one name in single quotes, as in /*+ UID('page views') */",
    );
    check(
        Hint,
        "INSERT INTO two «SELECT /*+ STATE_TTL('page_view' = '1d') */ app_id, url FROM page_views",
        "the hint STATE_TTL names 'page_view', which is not in this FROM; did you mean 'page_views'?",
    );
    check(
        Hint,
        "INSERT INTO two «SELECT /*+ STATE_TTL('p' = '1 day', 'p' = 'x') */ app_id, url FROM page_views p",
        "the hint STATE_TTL: 'x' does not begin with a whole number",
    );
    check(
        Hint,
        "INSERT INTO two «SELECT /*+ STATE_TTL(p) */ app_id, url FROM page_views p",
        "the hint STATE_TTL takes tables with durations, as in /*+ STATE_TTL('orders' = '1 d') */",
    );
    check(
        Unsupported,
        "INSERT INTO two «SELECT /*+ OPTIONS('a' = '1d') */ app_id, url FROM page_views",
        "the hint OPTIONS is not supported yet",
    );
}

#[test]
fn types_that_do_not_fit() {
    use SqlErrorKind::Type;
    check(
        Type,
        "INSERT INTO log SELECT app_id, «url FROM page_views",
        "column 'n' of table 'log' is BIGINT, but the query's column 2 is STRING: write CAST(… AS BIGINT)",
    );
    check(
        Type,
        "INSERT INTO log «SELECT app_id FROM page_views",
        "the query has 1 columns (app_id STRING), but table 'log' is given 2 (app_id STRING, n BIGINT)",
    );
    check(
        Type,
        "INSERT INTO pv (pv) SELECT ms FROM page_views".replace("pv (pv)", "«pv (pv)").as_str(),
        "column 'app_id' of table 'pv' is NOT NULL and must be listed",
    );
    check_text(
        Type,
        "CREATE TABLE a (k STRING, n BIGINT, i INT) WITH ('connector' = 'source');
         CREATE TABLE b (k STRING, n INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'upsert');
         INSERT INTO b SELECT k, SUM(i) FROM a GROUP BY k;
         INSERT INTO b SELECT /*+ UID('b') */ k, «SUM(n) FROM a GROUP BY k",
        "column 'n' of table 'b' is INT, but the query's column 2 is BIGINT: write CAST(… AS INT)",
    );
    let average = mistake("INSERT INTO pv SELECT app_id,\n  AVG(url) FROM page_views GROUP BY app_id");
    assert_eq!((average.kind, average.line), (Type, 9), "{average}");
    let sum = mistake("INSERT INTO pv SELECT app_id,\n  SUM(url) FROM page_views GROUP BY app_id");
    assert_eq!((sum.kind, sum.line), (Type, 9), "{sum}");
    let minus = mistake("INSERT INTO two SELECT app_id, url FROM page_views WHERE ms > 1 AND\n  ts * 2 > 1");
    assert_eq!((minus.kind, minus.line, minus.column), (Type, 9, 3), "{minus}");
}

#[test]
fn statements_that_contradict_themselves() {
    use SqlErrorKind::Invalid;
    check(
        Invalid,
        "INSERT INTO log SELECT app_id, ms FROM page_views WHERE «COUNT(*) > 1",
        "COUNT may not stand in WHERE",
    );
    check(
        Invalid,
        "INSERT INTO pv SELECT app_id, «SUM(COUNT(*)) FROM page_views GROUP BY app_id",
        "an aggregate call inside SUM",
    );
    check(
        Invalid,
        "INSERT INTO two SELECT app_id, UPPER(url) «FILTER (WHERE ms > 1) FROM page_views",
        "FILTER belongs to an aggregate call, which UPPER is none",
    );
    check(
        Invalid,
        "INSERT INTO two SELECT app_id, «UPPER(DISTINCT url) FROM page_views",
        "DISTINCT belongs to an aggregate call, which UPPER is none",
    );
    check(
        Invalid,
        "INSERT INTO pv SELECT app_id, COUNT(*) FILTER (WHERE «COUNT(*) > 1) FROM page_views GROUP BY app_id",
        "COUNT may not stand in FILTER",
    );
    let ungrouped = mistake("INSERT INTO two SELECT app_id,\n  url FROM page_views GROUP BY app_id");
    assert_eq!(ungrouped.line, 9, "{ungrouped}");
    assert!(ungrouped.message.contains("GROUP BY"), "{ungrouped}");
}

#[test]
fn connectors_refuse_at_the_option() {
    use SqlErrorKind::Connector;
    check_text(
        Connector,
        "CREATE TABLE a (x INT) WITH ('connector' = 'source',\n  «'topc' = 't');
         CREATE TABLE b (x INT) WITH ('connector' = 'insert-only');
         INSERT INTO b SELECT x FROM a",
        "table 'a': option 'topc' does not exist",
    );
    check_text(
        Connector,
        "CREATE TABLE «a (x INT); CREATE TABLE b (x INT) WITH ('connector' = 'insert-only'); INSERT INTO b SELECT x FROM a",
        "table 'a': it has no 'connector'",
    );
}

#[test]
fn sinks_that_cannot_take_the_changes() {
    use SqlErrorKind::Changelog;
    check(
        Changelog,
        "SET 'table.exec.state.ttl' = '1 h'; INSERT INTO «two SELECT DISTINCT app_id, url FROM page_views",
        "table sink 'two' doesn't support consuming update changes which is produced by node \
         Distinct(columns=[app_id, url])",
    );
    check(
        Changelog,
        "INSERT INTO «log SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id",
        "table sink 'log' doesn't support consuming update changes which is produced by node \
         GroupAggregate(groupBy=[app_id], select=[app_id, COUNT(*)])",
    );
    check(
        Changelog,
        "INSERT INTO «pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id, url",
        "the PRIMARY KEY of table sink 'pv' must be the query's grouping key (app_id, url), but lacks 'url': rows of \
         different groups would overwrite each other",
    );
    check(
        Changelog,
        "INSERT INTO «pv SELECT url || '', COUNT(*) FROM page_views GROUP BY url",
        "the PRIMARY KEY of table sink 'pv' must be the query's grouping key (url), but its column 'app_id' is not \
         part of that and changes",
    );
    check_text(
        Changelog,
        "CREATE TABLE a (x INT) WITH ('connector' = 'source');
         CREATE TABLE b (x INT, n BIGINT) WITH ('connector' = 'upsert');
         INSERT INTO «b SELECT x, COUNT(*) FROM a GROUP BY x",
        "table sink 'b' takes updates by key: declare a PRIMARY KEY",
    );
}

#[test]
fn like_with_an_escape_character() {
    use SqlErrorKind::{Invalid, Unsupported};
    let of = |condition: &str| format!("INSERT INTO two SELECT app_id, url FROM page_views WHERE {condition}");
    check(
        Invalid,
        &of("«url LIKE 'a!b' ESCAPE '!'"),
        "in a pattern of LIKE, '!' may stand before %, _ and itself only",
    );
    check(Invalid, &of("«url LIKE 'a' ESCAPE 'ab'"), "ESCAPE takes one character, not 'ab'");
    check(
        Unsupported,
        &of("«url LIKE app_id ESCAPE '!'"),
        "ESCAPE with a pattern that is no constant is not supported yet",
    );
}

#[test]
fn calls_that_would_grow_without_bound() {
    let nested = |call: &str, depth: usize| (0..depth).fold("ms".to_owned(), |inner, _| format!("{call}({inner}, 1)"));
    for call in ["COALESCE", "GREATEST", "LEAST", "NVL"] {
        let statement = format!("INSERT INTO log SELECT app_id, {} FROM page_views", nested(call, 30));
        let error = mistake(&statement);
        assert!(error.message.contains("are nested too deeply"), "{error}");
    }
    plan_text(&format!("{TABLES}INSERT INTO log SELECT app_id, {} FROM page_views", nested("COALESCE", 8))).unwrap();
    // Each adds little where it is not repeated.
    let last = (0..30).fold("ms".to_owned(), |inner, _| format!("COALESCE(ms, {inner})"));
    plan_text(&format!("{TABLES}INSERT INTO log SELECT app_id, {last} FROM page_views")).unwrap();
}

#[test]
fn arrays_that_are_none() {
    use SqlErrorKind::Unsupported;
    let of = |marked: &str| format!("INSERT INTO two SELECT app_id, {marked} FROM page_views");
    check(Unsupported, &of("«SPLIT(url, '/')[1:2]"), "access into a value is not supported yet");
    check(Unsupported, &of("[«url, url][1]"), "an array without the word ARRAY is not supported yet");
}
