//! Where Flink means something else than the parser or DataFusion, or more.

use super::{TABLES, mistake, plan, plan_text};
use crate::explain;

fn explained(statement: &str) -> String {
    explain(&plan(statement))
}

#[test]
fn is_distinct_from_binds_as_a_comparison() {
    let of =
        |condition: &str| explained(&format!("INSERT INTO log SELECT app_id, ms FROM page_views WHERE {condition}"));
    for (bare, bracketed) in [
        ("ms IS DISTINCT FROM 3 AND url = 'a'", "(ms IS DISTINCT FROM 3) AND url = 'a'"),
        ("ms IS NOT DISTINCT FROM 3 OR url = 'a'", "(ms IS NOT DISTINCT FROM 3) OR url = 'a'"),
        ("ms IS DISTINCT FROM 3 + 1 AND url = 'a'", "(ms IS DISTINCT FROM (3 + 1)) AND url = 'a'"),
        ("NOT ms IS DISTINCT FROM 3 AND url = 'a'", "(NOT (ms IS DISTINCT FROM 3)) AND url = 'a'"),
    ] {
        assert_eq!(of(bare), of(bracketed), "{bare}");
    }
}

#[test]
fn columns_without_a_name_are_called_by_their_place() {
    // Twice the same, and what DataFusion calls the same.
    for items in ["CAST(ms AS BIGINT), CAST(ms AS STRING)", "1, 1", "ms + 1, ms + 1", "'a', 'a'"] {
        let statement =
            format!("INSERT INTO log SELECT app_id, ms FROM (SELECT {items}, app_id, ms FROM page_views) t");
        plan_text(&format!("{TABLES}{statement}")).unwrap_or_else(|error| panic!("{items}: {error}"));
    }
    let named = "INSERT INTO log SELECT `EXPR$0`, `EXPR$1` FROM (SELECT UPPER(url), CAST(ms AS BIGINT) FROM page_views
                 UNION ALL SELECT UPPER(app_id), 1 FROM page_views) t";
    let text = explained(named);
    assert!(text.contains("UPPER(url) AS EXPR$0"), "{text}");
    plan("INSERT INTO log SELECT *, 1 FROM (SELECT app_id FROM page_views) t");
    plan(
        "CREATE VIEW v AS SELECT app_id, COUNT(*) FROM page_views GROUP BY app_id;
          INSERT INTO pv SELECT app_id, `EXPR$1` FROM v",
    );
}

#[test]
fn a_number_with_an_exponent_is_double() {
    for (number, data_type) in [("1.5e0", "DOUBLE"), ("-15E-1", "DOUBLE"), ("1.5", "DECIMAL(2, 1)")] {
        let error = mistake(&format!("INSERT INTO two SELECT app_id, {number} FROM page_views"));
        let message = format!("is STRING, but the query's column 2 is {data_type}");
        assert!(error.message.contains(&message), "{error}");
    }
}

#[test]
fn calls_that_mean_the_same_stand_side_by_side() {
    let text = explained(
        "INSERT INTO pv SELECT app_id, MIN(ms) + MIN(DISTINCT ms) + MAX(DISTINCT ms) + MAX(ms) + COUNT(*) + COUNT(1)
         FROM page_views GROUP BY app_id",
    );
    assert!(text.contains("GroupAggregate(groupBy=[app_id]"), "{text}");
}

#[test]
fn aggregates_in_plans_read_as_sql() {
    let text = explained(
        "INSERT INTO changes SELECT UPPER(url), SUM(CAST(ms AS BIGINT) + 1) FILTER (WHERE app_id = 'x')
         FROM page_views GROUP BY UPPER(url)",
    );
    let call = "GroupAggregate(groupBy=[UPPER(url)], select=[UPPER(url), SUM(CAST(ms AS BIGINT) + 1) FILTER (WHERE app_id = \
                'x')])";
    assert!(text.contains(call), "{text}");
}
