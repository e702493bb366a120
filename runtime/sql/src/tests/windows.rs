//! Window table functions: how they are written, what they become, and what is refused.

use super::{mistake, plan_text};
use crate::{SqlErrorKind, explain};

const EVENTS: &str = "\
CREATE TABLE events (
  k STRING, v INT, ts TIMESTAMP(3), other TIMESTAMP(3), p AS PROCTIME(), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH ('connector' = 'source');
CREATE TABLE counts (s TIMESTAMP(3), e TIMESTAMP(3), k STRING, n BIGINT) WITH ('connector' = 'insert-only');
CREATE TABLE spans (s TIMESTAMP(3), e TIMESTAMP(3), n BIGINT) WITH ('connector' = 'insert-only');
CREATE TABLE changed (s TIMESTAMP(3), e TIMESTAMP(3), n BIGINT) WITH ('connector' = 'all');
CREATE TABLE texts (s TIMESTAMP(3), k STRING) WITH ('connector' = 'insert-only');
CREATE TABLE bykey (s TIMESTAMP(3), k STRING, n BIGINT, PRIMARY KEY (s, k) NOT ENFORCED) WITH ('connector' = 'upsert');
";

fn plan(statement: &str) -> String {
    let program = plan_text(&format!("{EVENTS}{statement}")).unwrap_or_else(|error| panic!("{statement}: {error}"));
    explain(&program)
}

fn counted(function: &str) -> String {
    counted_where(function, "v > 3")
}

fn counted_where(function: &str, condition: &str) -> String {
    plan(&of_counts(function, condition))
}

fn of_counts(function: &str, condition: &str) -> String {
    format!(
        "INSERT INTO counts SELECT window_start, window_end, k, COUNT(*) FROM {function} WHERE {condition} GROUP BY k, \
         window_start, window_end HAVING COUNT(*) > 1"
    )
}

fn refusal(kind: SqlErrorKind, marked: &str) -> String {
    let text = format!("{EVENTS}{marked}").replace('«', "");
    let error = match plan_text(&text) {
        Ok(program) => panic!("planned: {text}\n{}", explain(&program)),
        Err(error) => error,
    };
    assert_eq!(error.kind, kind, "{error}");
    if let Some((before, _)) = marked.split_once('«') {
        let line = EVENTS.lines().count() + before.lines().count();
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        assert_eq!((error.line, error.column), (line as u64, column as u64), "{error}");
    }
    error.message
}

#[test]
fn all_ways_to_write_a_window_are_one() {
    let one = counted("TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '10' SECOND))");
    assert!(one.contains("WindowAggregate(window=[TUMBLE(10000 ms)], groupBy=[k], select=[k, COUNT(*)])"), "{one}");
    assert!(one.contains("counts.window-aggregate(TUMBLE(10000 ms),k)"), "{one}");
    for other in [
        "TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '10' SECONDS)",
        "TABLE ( tumble ( TABLE `events` , DESCRIPTOR(`ts`), INTERVAL '10.0' SECOND ) )",
        "TABLE(TUMBLE(DATA => TABLE events, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '10' SECOND))",
        "TABLE(TUMBLE(SIZE => INTERVAL '10' SECOND, TIMECOL => DESCRIPTOR(ts), DATA => TABLE events)) AS t",
        "TABLE(TUMBLE((SELECT * FROM events), DESCRIPTOR(ts), INTERVAL '10000' MILLISECOND, INTERVAL '0' SECOND))",
    ] {
        assert_eq!(counted(other), one, "{other}");
    }
    let hop = counted(
        "TABLE(HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '1' MINUTE, INTERVAL '-1' SECOND))",
    );
    assert!(hop.contains("window=[HOP(5000 ms, 60000 ms, offset -1000 ms)]"), "{hop}");
    let named = "HOP(DATA => TABLE events, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '1' MINUTE, SLIDE => INTERVAL '5' SECOND, OFFSET => - INTERVAL '1' SECOND)";
    assert_eq!(counted(named), hop);
    let cumulate = counted("CUMULATE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '1' DAY)");
    assert!(cumulate.contains("window=[CUMULATE(3600000 ms, 86400000 ms)]"), "{cumulate}");
}

#[test]
fn windows_over_views_with_and_derived_tables() {
    let hop = "TABLE(HOP(TABLE v, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND))";
    let view = plan(&format!(
        "CREATE VIEW v AS SELECT UPPER(k) AS k, v, ts FROM events WHERE v > 1; \
         INSERT INTO spans SELECT t.window_start, t.window_end, MAX(v) FROM {hop} t GROUP BY window_start, window_end"
    ));
    assert!(view.contains("window=[HOP(5000 ms, 10000 ms)], select=[MAX(v)]"), "{view}");
    assert!(view.contains("spans.window-aggregate(HOP(5000 ms, 10000 ms))"), "{view}");
    let with = plan(&format!(
        "INSERT INTO spans WITH v AS (SELECT k, ts FROM events), w AS (SELECT window_start AS a, window_end AS b, \
         COUNT(*) AS n FROM {hop} GROUP BY window_start, window_end) SELECT a, b, n FROM w"
    ));
    assert!(with.contains("WindowAggregate(window=[HOP(5000 ms, 10000 ms)], select=[COUNT(*)])"), "{with}");
}

#[test]
fn windows_of_windows() {
    let ten = "TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '10' SECOND))";
    // By window_time, into longer windows.
    let longer = plan(&format!(
        "CREATE VIEW tens AS SELECT k, window_time AS rowtime, COUNT(*) AS n FROM {ten} GROUP BY k, window_start, window_end, \
         window_time; INSERT INTO counts SELECT window_start, window_end, k, SUM(n) FROM \
         TABLE(TUMBLE(TABLE tens, DESCRIPTOR(rowtime), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end, k"
    ));
    assert!(
        longer.contains("counts.window-aggregate(TUMBLE(10000 ms),k).window-aggregate(TUMBLE(60000 ms),k)"),
        "{longer}"
    );
    // Of the same windows, again.
    let again = plan(&format!(
        "INSERT INTO spans SELECT window_start, window_end, MAX(n) FROM (SELECT window_start, window_end, k, COUNT(*) AS n \
         FROM {ten} GROUP BY window_start, window_end, k) t GROUP BY window_start, window_end"
    ));
    assert!(again.contains("WindowAggregate(window=[WINDOW(of the rows)], select=[MAX(n)])"), "{again}");
    assert!(again.contains("spans.window-aggregate(TUMBLE(10000 ms),k).window-aggregate()"), "{again}");
}

#[test]
fn rows_of_windows_without_or_with_another_aggregation() {
    let ten = "TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '10' SECOND))";
    let rows = plan(&format!("INSERT INTO counts SELECT window_start, window_end, k, v FROM {ten}"));
    assert!(rows.contains("WindowTableFunction(window=[TUMBLE(10000 ms)])"), "{rows}");
    assert!(!rows.contains("Aggregate"), "{rows}");
    // A filter that looks at the window, and a key computed from it, need the rows.
    let filtered = plan(&format!(
        "INSERT INTO spans SELECT window_start, window_end, COUNT(*) FROM {ten} WHERE window_end > TIMESTAMP '2024-01-01 \
         00:00:00' GROUP BY window_start, window_end"
    ));
    assert!(filtered.contains("WindowAggregate(window=[WINDOW(of the rows)], select=[COUNT(*)])"), "{filtered}");
    // Two names of a column are two keys.
    let twice = plan(&format!(
        "INSERT INTO spans SELECT a, b, 1 FROM (SELECT window_start AS a, window_start AS b, window_end AS e FROM {ten}) t \
         GROUP BY a, b, e"
    ));
    assert!(twice.contains("WindowTableFunction(window=[TUMBLE(10000 ms)])"), "{twice}");
    // By the start alone it is an aggregation whose groups change, as in Flink.
    let updating =
        plan(&format!("INSERT INTO bykey SELECT window_start, k, COUNT(*) FROM {ten} GROUP BY window_start, k"));
    assert!(updating.contains("GroupAggregate("), "{updating}");
}

#[test]
fn sessions_belong_to_the_keys_they_are_partitioned_by() {
    let counted = |function: &str| counted_where(function, "k <> 'x'");
    let session = counted("TABLE(SESSION(TABLE events PARTITION BY (k), DESCRIPTOR(ts), INTERVAL '1' MINUTE))");
    assert!(
        session.contains("WindowAggregate(window=[SESSION(60000 ms)], groupBy=[k], select=[k, COUNT(*)])"),
        "{session}"
    );
    assert!(session.contains("counts.window-aggregate(SESSION(60000 ms),k)"), "{session}");
    assert_eq!(counted("SESSION(TABLE events PARTITION BY k, DESCRIPTOR(ts), INTERVAL '60' SECOND)"), session);
    assert_eq!(
        counted("SESSION(DATA => TABLE events PARTITION BY k, TIMECOL => DESCRIPTOR(ts), GAP => INTERVAL '60' SECOND)"),
        session
    );
    let whole = "TABLE(SESSION(TABLE events, DESCRIPTOR(ts), INTERVAL '1' MINUTE))";
    let of_all = plan(&format!(
        "INSERT INTO spans SELECT window_start, window_end, COUNT(*) FROM {whole} GROUP BY window_start, window_end"
    ));
    assert!(of_all.contains("window=[SESSION(60000 ms)], select=[COUNT(*)]"), "{of_all}");
    let other = refusal(
        SqlErrorKind::Invalid,
        &format!(
            "INSERT INTO counts SELECT window_start, window_end, k, COUNT(*) FROM {whole} GROUP BY window_start, window_end, k"
        ),
    );
    assert!(other.contains("just the columns of its PARTITION BY"), "{other}");
    let rows = refusal(
        SqlErrorKind::Unsupported,
        &format!("INSERT INTO counts SELECT window_start, window_end, k, v FROM {whole}"),
    );
    assert!(rows.starts_with("SESSION without an aggregation"), "{rows}");
}

/// Rows that a condition leaves out still hold a session together: only whole sessions can be left out.
#[test]
fn a_condition_on_rows_of_sessions_is_refused() {
    let session = "SESSION(TABLE events PARTITION BY (k), DESCRIPTOR(ts), INTERVAL '1' MINUTE)";
    for (from, condition) in [
        (session.to_owned(), "v > 3"),
        (session.to_owned(), "k <> 'x' AND v > 3"),
        (format!("(SELECT * FROM {session}) t"), "v > 3"),
        (format!("(SELECT window_start, window_end, k, v AS n FROM {session} WHERE v > 3) t"), "k <> 'x'"),
    ] {
        let refused = refusal(SqlErrorKind::Unsupported, &of_counts(&from, condition));
        assert!(refused.contains("WHERE over SESSION can only look at the columns of its PARTITION BY"), "{refused}");
    }
    let below = session.replace("TABLE events", "(SELECT * FROM events WHERE v > 3)");
    for (from, condition) in [
        (below, "k <> 'x'"),
        (format!("(SELECT k AS k, window_start, window_end, v FROM {session}) t"), "k <> 'x' AND UPPER(k) <> 'Y'"),
    ] {
        assert!(counted_where(&from, condition).contains("window=[SESSION(60000 ms)], groupBy=[k]"), "{from}");
    }
}

#[test]
fn windows_by_the_clock() {
    let clock = counted("TABLE(TUMBLE(TABLE events, DESCRIPTOR(p), INTERVAL '10' SECOND))");
    assert!(clock.contains("WindowAggregate(window=[TUMBLE(10000 ms)], groupBy=[k], select=[k, COUNT(*)])"), "{clock}");
    // No watermark speaks of such windows, nor are sessions that end together one window: what stands above is ordinary.
    for function in ["TUMBLE(TABLE events, DESCRIPTOR(p)", "SESSION(TABLE events PARTITION BY k, DESCRIPTOR(ts)"] {
        let above = plan(&format!(
            "INSERT INTO changed SELECT window_start, window_end, COUNT(*) FROM (SELECT window_start, window_end, k FROM \
             TABLE({function}, INTERVAL '10' SECOND)) GROUP BY window_start, window_end, k) t GROUP BY window_start, \
             window_end"
        ));
        assert!(above.contains("GroupAggregate(groupBy=[window_start, window_end]"), "{above}");
    }
    let read = refusal(SqlErrorKind::Type, "INSERT INTO counts SELECT p, ts, k, 1 FROM events");
    assert!(read.contains("PROCTIME()") || read.contains("is TIMESTAMP"), "{read}");
}

#[test]
fn what_is_wrong_with_a_window() {
    use SqlErrorKind::{Invalid, Syntax, Unsupported};
    let of = |function: &str| {
        format!(
            "INSERT INTO spans SELECT window_start, window_end, COUNT(*) FROM {function} GROUP BY window_start, window_end"
        )
    };
    let cases = [
        (
            Invalid,
            "TABLE(«HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '4' SECOND, INTERVAL '10' SECOND))",
            "the size of HOP (10000 ms) must be a multiple of its slide (4000 ms)",
        ),
        (
            Invalid,
            "TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL «'1' MONTH))",
            "TUMBLE takes constant intervals",
        ),
        (
            Invalid,
            "TABLE(«TUMBLE(TABLE events, DESCRIPTOR(ts)))",
            "TUMBLE needs SIZE: TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND [, offset])",
        ),
        (
            Invalid,
            "TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), «GAP => INTERVAL '1' DAY))",
            "TUMBLE has no parameter GAP: it has DATA, TIMECOL, SIZE, OFFSET",
        ),
        (
            Syntax,
            "TABLE(TUMBLE(TABLE events, «ts, INTERVAL '1' DAY))",
            "TUMBLE takes its time column as DESCRIPTOR(column)",
        ),
        (Unsupported, "TABLE(«EXPLODE(TABLE events))", "EXPLODE (a table function) is not supported yet"),
        (
            Unsupported,
            "TABLE(TUMBLE(TABLE events «PARTITION BY k, DESCRIPTOR(ts), INTERVAL '1' DAY))",
            "PARTITION BY in TUMBLE",
        ),
        (
            SqlErrorKind::UnknownTable,
            "TABLE(TUMBLE(TABLE «event, DESCRIPTOR(ts), INTERVAL '1' DAY))",
            "table 'event' does not exist; did you mean 'events'?",
        ),
        (SqlErrorKind::UnknownColumn, "TABLE(TUMBLE(TABLE events, DESCRIPTOR(«tss), INTERVAL '1' DAY))", "tss"),
    ];
    for (kind, function, message) in cases {
        let found = refusal(kind, &of(function));
        assert!(found.contains(message), "{function}: {found}");
    }
    let time = refusal(Invalid, &of("TABLE(TUMBLE(TABLE events, DESCRIPTOR(other), INTERVAL '1' DAY))"));
    assert!(time.starts_with("column 'other' in DESCRIPTOR is no time attribute"), "{time}");
    let computed = "CREATE VIEW c AS SELECT ts + INTERVAL '1' DAY AS ts FROM events; ";
    let time = refusal(Invalid, &format!("{computed}{}", of("TUMBLE(TABLE c, DESCRIPTOR(ts), INTERVAL '1' DAY)")));
    assert!(time.starts_with("column 'ts' in DESCRIPTOR is no time attribute"), "{time}");
    let changes = refusal(
        Invalid,
        "CREATE VIEW c AS SELECT MAX(ts) AS ts, k FROM events GROUP BY k; INSERT INTO spans SELECT window_start, window_end, \
         COUNT(*) FROM TABLE(TUMBLE(TABLE c, DESCRIPTOR(ts), INTERVAL '1' DAY)) GROUP BY window_start, window_end",
    );
    assert!(changes.contains("a window table function takes new rows only"), "{changes}");
    let text = refusal(
        Invalid,
        "INSERT INTO texts SELECT window_start, MIN(k) FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), \
         INTERVAL '1' DAY)) GROUP BY window_start, window_end",
    );
    assert!(text.contains("'MIN(k)' is not supported in a window yet"), "{text}");
    let grouping =
        mistake("INSERT INTO pv SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id, TUMBLE(ts, INTERVAL '1' DAY)");
    assert!(grouping.message.contains("TUMBLE"), "{grouping}");
}

const BY_DAY: &str =
    "FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' DAY)) GROUP BY window_start, window_end";

/// Two aggregations, of which the first has each value once.
#[test]
fn distinct_values_of_windows() {
    let plan = plan(&format!("INSERT INTO spans SELECT window_start, window_end, COUNT(DISTINCT k) {BY_DAY}"));
    for part in [
        "spans.window-aggregate(TUMBLE(86400000 ms)).distinct",
        "WindowAggregate(window=[TUMBLE(86400000 ms)], groupBy=[k], select=[k])",
        "WindowAggregate(window=[WINDOW(of the rows)], select=[COUNT(DISTINCT k)])",
    ] {
        assert!(plan.contains(part), "{part} in {plan}");
    }
    let refused = |select: &str, from: &str| {
        refusal(
            SqlErrorKind::Unsupported,
            &format!("INSERT INTO spans SELECT window_start, window_end, {select} {from}"),
        )
    };
    assert!(refused("COUNT(DISTINCT k) + COUNT(DISTINCT v)", BY_DAY).contains("DISTINCT of different values"));
    assert!(refused("COUNT(DISTINCT k) + AVG(v)", BY_DAY).contains("write SUM and COUNT"));
    let clock = BY_DAY.replace("(ts)", "(p)");
    assert!(refused("COUNT(DISTINCT k)", &clock).contains("DISTINCT in windows by PROCTIME()"));
    let sessions = "FROM TABLE(SESSION(TABLE events PARTITION BY k, DESCRIPTOR(ts), INTERVAL '1' DAY)) \
                    GROUP BY window_start, window_end, k";
    assert!(refused("COUNT(DISTINCT v)", sessions).contains("DISTINCT in SESSION"));
}

#[test]
fn windows_that_allow_lateness_give_changes() {
    let late = "SET 'table.exec.emit.allow-lateness' = '1 min'; ";
    let select = format!("SELECT window_start, window_end, COUNT(*) {BY_DAY}");
    let changes = plan(&format!("{late}INSERT INTO changed {select}"));
    assert!(changes.contains("WindowAggregate(window=[TUMBLE(86400000 ms)], select=[COUNT(*)]"), "{changes}");
    let refused = refusal(SqlErrorKind::Changelog, &format!("{late}INSERT INTO «spans {select}"));
    assert!(refused.contains("WindowAggregate"), "{refused}");
    plan(&format!("{late}SET 'table.exec.emit.allow-lateness' = '0'; INSERT INTO spans {select}"));
    let again = "SELECT window_start, window_end, SUM(n) FROM (SELECT window_start, window_end, k, COUNT(*) AS n FROM \
                 TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' DAY)) GROUP BY window_start, window_end, k) \
                 GROUP BY window_start, window_end";
    let again = plan(&format!("{late}INSERT INTO changed {again}"));
    assert!(again.contains("GroupAggregate(groupBy=[window_start, window_end]"), "an ordinary one: {again}");
    let sessions = "INSERT INTO counts SELECT window_start, window_end, k, COUNT(*) FROM TABLE(SESSION(TABLE events \
                    PARTITION BY k, DESCRIPTOR(ts), INTERVAL '1' DAY)) GROUP BY window_start, window_end, k";
    let refused = refusal(SqlErrorKind::Unsupported, &format!("{late}{sessions}"));
    assert!(refused.contains("SESSION with 'table.exec.emit.allow-lateness'"), "{refused}");
}

#[test]
fn late_rows_have_a_table() {
    let select = format!("SELECT window_start, window_end, COUNT(*) {BY_DAY}");
    let with = |columns: &str| {
        format!(
            "CREATE TABLE late ({columns}) WITH ('connector' = 'insert-only'); \
             SET 'table.exec.window-aggregate.late-rows' = «'late'; INSERT INTO spans {select}"
        )
    };
    let plan = plan(&with("row_time TIMESTAMP(3), operator STRING").replace('«', ""));
    for part in [
        "lateRowsOf=[spans.window-aggregate(TUMBLE(86400000 ms))]",
        "spans.window-aggregate(TUMBLE(86400000 ms)).late-rows",
    ] {
        assert!(plan.contains(part), "{part} in {plan}");
    }
    let refused = refusal(SqlErrorKind::Invalid, &with("row_time TIMESTAMP(3), what BIGINT"));
    assert!(refused.contains("table 'late' of late rows has a column what BIGINT"), "{refused}");
    assert!(refused.contains("row_time TIMESTAMP(3), and operator STRING"), "{refused}");
    let unknown = format!("SET 'table.exec.window-aggregate.late-rows' = «'none'; INSERT INTO spans {select}");
    let unknown = refusal(SqlErrorKind::Invalid, &unknown);
    assert!(unknown.contains("names 'none', which is no table"), "{unknown}");
    let keyed = refusal(SqlErrorKind::Invalid, &with("row_time TIMESTAMP(3), PRIMARY KEY (row_time) NOT ENFORCED"));
    assert!(keyed.contains("rows with one key would overwrite each other"), "{keyed}");
}

/// Columns that a source alone has are not written, and a name that several columns have says nothing.
#[test]
fn columns_of_a_table_of_late_rows() {
    let with = |columns: &str, select: &str| {
        format!(
            "CREATE TABLE late ({columns}) WITH ('connector' = 'insert-only'); \
             SET 'table.exec.window-aggregate.late-rows' = «'late'; INSERT INTO spans {select}"
        )
    };
    let counted = format!("SELECT window_start, window_end, COUNT(k) {BY_DAY}");
    let some = plan(
        &with("row_time TIMESTAMP(3), place BIGINT METADATA FROM 'offset' VIRTUAL, k STRING", &counted)
            .replace('«', ""),
    );
    assert!(some.contains("Sink(table=[late], fields=[row_time, k], lateRowsOf="), "{some}");
    let side =
        "(SELECT window_start, window_end, k FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' DAY)))";
    let joined = format!(
        "SELECT a.window_start, a.window_end, COUNT(a.k) + COUNT(b.k) FROM {side} AS a JOIN {side} AS b ON a.window_start = b.window_start \
         AND a.window_end = b.window_end AND a.k = b.k GROUP BY a.window_start, a.window_end"
    );
    let refused = refusal(SqlErrorKind::Invalid, &with("k STRING, operator STRING", &joined));
    assert!(refused.contains("a column k, of which the aggregation's input has several"), "{refused}");
    plan(&with("operator STRING", &joined).replace('«', ""));
}

/// Those of the rows; results of the inner windows are never late, nor have they the columns.
#[test]
fn of_windows_over_windows_the_inner_ones_have_late_rows() {
    let plan = plan(
        "CREATE TABLE late (k STRING, operator STRING) WITH ('connector' = 'insert-only'); \
         SET 'table.exec.window-aggregate.late-rows' = 'late'; INSERT INTO spans SELECT window_start, window_end, SUM(n) FROM \
         (SELECT window_start, window_end, k, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' DAY)) \
         GROUP BY window_start, window_end, k) GROUP BY window_start, window_end",
    );
    assert_eq!(plan.matches("lateRowsOf=").count(), 1, "{plan}");
    assert!(plan.contains("lateRowsOf=[spans.window-aggregate(TUMBLE(86400000 ms),k)]"), "{plan}");
}
