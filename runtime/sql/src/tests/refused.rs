//! What the parser takes and Flink does not mean, or does not run: each refused by name and place, none planned as something
//! else.

use super::errors::check;
use super::{TABLES, mistake, plan_text};
use crate::SqlErrorKind::{Hint, Invalid, Syntax, Type, Unsupported};

/// A query for the sink `log`, over a table, a view and a query of WITH.
fn over_each(marked: &str, refused: impl Fn(&str)) {
    let view = "CREATE VIEW v AS SELECT * FROM page_views; INSERT INTO log SELECT app_id, ms FROM ";
    for relation in ["page_views", "v"] {
        refused(&format!("{view}{}", marked.replace('$', relation)));
    }
    let with = "WITH w AS (SELECT * FROM page_views) SELECT app_id, ms FROM ";
    refused(&format!("INSERT INTO log {with}{}", marked.replace('$', "w")));
    refused(&format!("INSERT INTO log SELECT app_id, ms FROM {}", marked.replace('$', "(SELECT * FROM page_views)")));
}

#[test]
fn samples_of_tables() {
    for sample in ["TABLESAMPLE BERNOULLI (10)", "AS x TABLESAMPLE SYSTEM (10 PERCENT)"] {
        over_each(&format!("$ {sample}"), |statement| {
            let error = mistake(statement);
            assert_eq!(
                (error.kind, error.message.as_str()),
                (Unsupported, "TABLESAMPLE is not supported yet"),
                "{error}"
            );
            assert_eq!(error.line, 8, "{error}");
        });
    }
}

#[test]
fn tables_of_another_time_and_with_hints() {
    over_each("$ FOR SYSTEM_TIME AS OF PROCTIME()", |statement| {
        assert!(matches!(mistake(statement).kind, Unsupported | Syntax), "{statement}");
    });
    over_each("$ WITH (NOLOCK)", |statement| {
        assert!(matches!(mistake(statement).kind, Unsupported | Syntax), "{statement}");
    });
    check(
        Unsupported,
        "INSERT INTO log SELECT a, b FROM («SELECT app_id, ms FROM page_views) AS t (a STRING, b INT)",
        "a type in the columns of an alias is not supported yet",
    );
}

#[test]
fn hints_where_none_may_stand() {
    check(
        Hint,
        "INSERT INTO log SELECT app_id, ms FROM page_views «/*+ OPTIONS('topic' = 'other') */ AS p",
        "the hint OPTIONS behind a table is not supported yet: write the options into WITH (…) of its CREATE TABLE, or \
         declare a second table with other options",
    );
    check(
        Hint,
        "INSERT INTO log «/*+ options('topic' = 'other') */ SELECT app_id, ms FROM page_views",
        "the hint OPTIONS behind a table is not supported yet: write the options into WITH (…) of its CREATE TABLE, or \
         declare a second table with other options",
    );
    check(
        Hint,
        "INSERT INTO log SELECT app_id, «/*+ STATE_TTL('page_views' = '1 d') */ ms FROM page_views",
        "the hint STATE_TTL stands where none may: write it right behind SELECT, as in SELECT /*+ STATE_TTL('t' = \
         '1 d') */ …",
    );
    // Comments are none.
    for comment in ["/* + */", "/*x+ y */", "--+ UIDD('x')\n", "-- + x\n"] {
        let statement =
            format!("{TABLES}INSERT INTO log SELECT {comment} app_id, {comment} ms FROM page_views {comment}");
        plan_text(&statement).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn lists_that_end_early() {
    check(Syntax, "INSERT INTO log SELECT app_id, ms«, FROM page_views", "expected a column after ',', found 'FROM'");
    check(Invalid, "INSERT INTO log SELECT «FROM page_views", "SELECT needs a column before FROM: SELECT * FROM …");
    for list in ["SELECT app_id, ms FROM (SELECT app_id, ms, ) t", "SELECT app_id, ms,"] {
        assert_eq!(mistake(&format!("INSERT INTO log {list}")).kind, Syntax, "{list}");
    }
}

#[test]
fn calls_with_wrong_arguments() {
    let of = |marked: &str| format!("INSERT INTO pv SELECT app_id, {marked} FROM page_views GROUP BY app_id");
    check(Invalid, &of("«COUNT()"), "COUNT needs an argument: COUNT(*) or COUNT(a)");
    check(Invalid, &of("«COUNT(DISTINCT *)"), "COUNT(DISTINCT *) names no value: write COUNT(DISTINCT a)");
    check(Unsupported, &of("«COUNT(ms, url)"), "COUNT of several values is not supported yet");
    check(Invalid, &of("«SUM(*)"), "SUM takes no *: only COUNT(*) counts whole rows");
    check(Invalid, &of("«COUNT(page_views.*)"), "COUNT takes no page_views.*: only COUNT(*) counts whole rows");
    check(Unsupported, &of("«SUM(value => ms)"), "a named argument is not supported yet");
    check(
        Invalid,
        "INSERT INTO log SELECT «UPPER(ALL app_id), ms FROM page_views",
        "ALL belongs to an aggregate call, which UPPER is none",
    );
}

#[test]
fn intervals_without_a_unit() {
    let of =
        |marked: &str| format!("INSERT INTO log SELECT app_id, ms FROM page_views WHERE ts > ts - INTERVAL {marked}");
    let no_unit = |interval: &str| format!("INTERVAL {interval} has no unit of time: write it as INTERVAL '1' DAY");
    check(Invalid, &of("«'1'"), &no_unit("'1'"));
    check(Invalid, &of("«'5 minutes'"), &no_unit("'5 minutes'"));
    check(
        Invalid,
        "INSERT INTO log SELECT app_id, ms FROM (SELECT INTERVAL «'1' FOO, app_id, ms FROM page_views) t",
        &no_unit("'1'"),
    );
    check(
        Invalid,
        &of("«1 DAY"),
        "INTERVAL 1 DAY is no interval: its length is a number in single quotes, as in INTERVAL '1' DAY",
    );
    check(
        Invalid,
        &of("«'1 day' DAY"),
        "INTERVAL '1 day' DAY is no interval: its text does not fit its units, as '1' DAY and '1 02:03' DAY TO MINUTE do",
    );
}

#[test]
fn conditions_that_are_none() {
    let of = |marked: &str| format!("INSERT INTO log SELECT app_id, {marked} FROM page_views");
    let message = |what: &str, data_type: &str| {
        format!("{what} takes a condition (BOOLEAN), not {data_type}: compare it, as in a <> 0")
    };
    check(Type, &of("«CASE WHEN ms THEN 1 ELSE 2 END"), &message("CASE WHEN or IF", "INT"));
    check(Type, &of("«IF(ms, 1, 2)"), &message("CASE WHEN or IF", "INT"));
    check(Type, &of("CHAR_LENGTH(«IF(url, 'a', 'b'))"), &message("CASE WHEN or IF", "STRING"));
    assert_eq!(mistake("INSERT INTO log SELECT app_id, ms FROM page_views WHERE NOT ms").kind, Type);
    for condition in ["ms IS TRUE", "ms AND ts IS NULL", "ts IS NULL OR ms"] {
        let error = mistake(&format!("INSERT INTO log SELECT app_id, ms FROM page_views\nWHERE {condition}"));
        assert_eq!((error.kind, error.line), (Type, 9), "{error}");
        assert!(error.message.contains("takes a condition (BOOLEAN), not INT"), "{error}");
    }
    let filter = mistake("INSERT INTO pv SELECT app_id, COUNT(*) FILTER (WHERE ms) FROM page_views GROUP BY app_id");
    assert_eq!((filter.kind, filter.line), (Type, 8), "{filter}");
}

#[test]
fn casts_that_do_not_exist() {
    let of = |marked: &str| format!("INSERT INTO two SELECT app_id, CAST({marked} AS STRING) FROM page_views");
    let message = |from: &str, to: &str, advice: &str| format!("a CAST of {from} to {to} does not exist{advice}");
    let numbers = ": TO_TIMESTAMP_LTZ(n, 3) is the time of n milliseconds since 1970";
    let times = ": EXTRACT and TIMESTAMPDIFF give numbers";
    check(Type, &of("CAST(«ms AS DATE)"), &message("INT", "DATE", numbers));
    check(Type, &of("CAST(«ms AS TIMESTAMP(3))"), &message("INT", "TIMESTAMP(3)", numbers));
    check(Type, &of("TRY_CAST(«cost AS TIME)"), &message("DECIMAL(10, 2)", "TIME(3)", numbers));
    check(Type, &of("CAST(«ts AS INT)"), &message("TIMESTAMP(3)", "INT", times));
    check(Type, &of("CAST(«cost AS BOOLEAN)"), &message("DECIMAL(10, 2)", "BOOLEAN", ""));
    check(Type, &of("CAST(«ts AS BOOLEAN)"), &message("TIMESTAMP(3)", "BOOLEAN", ""));
    for cast in
        ["CAST(ms AS BOOLEAN)", "CAST(ts AS DATE)", "CAST(CAST(ts AS DATE) AS TIMESTAMP(3))", "CAST(url AS DATE)"]
    {
        plan_text(&format!("{TABLES}{}", of(cast))).unwrap_or_else(|error| panic!("{cast}: {error}"));
    }
}

#[test]
fn literals_of_other_systems() {
    let of = |marked: &str| format!("INSERT INTO two SELECT app_id, {marked} FROM page_views");
    let refused = |marked: &str, what: &str| check(Unsupported, &of(marked), &format!("{what} is not supported yet"));
    refused("CAST(«1L AS STRING)", "a number with an L behind it");
    refused("«$1", "a placeholder ($1)");
    refused("«E'a'", "a literal as E'a'");
    refused("«N'a'", "a literal as N'a'");
    refused("CAST(INT «'5' AS STRING)", "INT before a literal (write CAST('5' AS INT))");
    refused("«url 'x'", "an alias in single quotes (write it in backticks)");
    refused("«url AS 'x'", "an alias in single quotes (write it in backticks)");
}

#[test]
fn an_empty_array_is_pointed_at() {
    check(
        Invalid,
        "INSERT INTO two SELECT app_id, url FROM page_views WHERE ARRAY_CONTAINS(«ARRAY[], url)",
        "ARRAY[] has no type: give it an element",
    );
    check(
        Invalid,
        "INSERT INTO log SELECT app_id, «ARRAY [ ] FROM page_views",
        "ARRAY[] has no type: give it an element",
    );
}
