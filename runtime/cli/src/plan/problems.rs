//! All that is wrong with a manifest at once: the values out of their limits, and the statements that cannot be planned,
//! each with its line and a caret.
//!
//! The planner stops at its first mistake. Here it is asked again without the INSERT that it stopped at, until nothing is
//! wrong any more; what stands outside of INSERTs others depend on, so a mistake there is the last one that is told.

use sluice_crds::{Problem, StreamJob, validate};
use sluice_node::excerpt;
use sluice_sql::{PlanOptions, SqlError};

/// Sentences, each with its place.
pub(super) fn find(text: &str, manifest: &StreamJob) -> Vec<String> {
    let mut found: Vec<String> = validate(&manifest.spec).iter().map(|problem| with_place(text, problem)).collect();
    if let Some(sql) = &manifest.spec.program.sql {
        let options = manifest.spec.job_options();
        let options = PlanOptions { parallelism: options.parallelism, max_parallelism: options.max_parallelism };
        let catalog = sluice_connectors::catalog();
        let plan = |sql: &str| sluice_sql::plan(sql, &options, &catalog).map(drop);
        found.extend(sql_errors(sql, plan).iter().map(ToString::to_string));
    }
    found
}

/// A problem with the line that its field stands in: the last one on the way along its path.
fn with_place(text: &str, problem: &Problem) -> String {
    let (mut line, mut key) = (0, "");
    for segment in problem.field.split('.') {
        let segment = segment.split('[').next().unwrap_or(segment);
        let stands = |line: &str| line.split(" #").next().unwrap_or(line).contains(&format!("{segment}:"));
        if let Some(further) = text.lines().skip(usize::saturating_sub(line, 1)).position(stands) {
            line = usize::saturating_sub(line, 1) + further + 1;
            key = segment;
        }
    }
    if line == 0 {
        return problem.to_string();
    }
    format!("line {line}: {problem}{}", excerpt(text, line, key))
}

/// What `plan` says of the text, and of it without each INSERT that it has complained about.
fn sql_errors(sql: &str, plan: impl Fn(&str) -> Result<(), SqlError>) -> Vec<SqlError> {
    let mut sql = sql.to_owned();
    let mut errors: Vec<SqlError> = Vec::new();
    while let Err(error) = plan(&sql) {
        // Without any INSERT left there is nothing to plan, which says nothing new.
        let only_empty = !errors.is_empty() && error.line == 0;
        let insert = insert_at(&sql, error.line, error.column);
        if !only_empty {
            errors.push(error);
        }
        let Some((start, end)) = insert else { break };
        // Lines stay what they are.
        let blank: String = sql[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        sql.replace_range(start..end, &blank);
        if !sql.to_uppercase().contains("INSERT") {
            break;
        }
    }
    errors
}

/// The statement around a place (line and column from 1), as bytes, if it is an INSERT.
fn insert_at(sql: &str, line: u64, column: u64) -> Option<(usize, usize)> {
    let index = usize::try_from(line).ok()?.checked_sub(1)?;
    let line_start: usize = sql.split_inclusive('\n').take(index).map(str::len).sum();
    let column = usize::try_from(column).ok()?.saturating_sub(1);
    let at = line_start + sql[line_start..].chars().take(column).map(char::len_utf8).sum::<usize>();
    let (start, end) = statements(sql).into_iter().find(|(_, end)| at < *end)?;
    let words = sql[start..end].lines().filter(|line| !line.trim_start().starts_with("--"));
    let is_insert =
        words.flat_map(str::split_whitespace).next().is_some_and(|word| word.eq_ignore_ascii_case("INSERT"));
    is_insert.then_some((start, end))
}

/// Where statements begin and end, their semicolons included; those in texts, names and comments end nothing.
fn statements(sql: &str) -> Vec<(usize, usize)> {
    let (mut all, mut start, mut quote, mut in_comment) = (Vec::new(), 0, None, false);
    let mut before = ' ';
    for (at, c) in sql.char_indices() {
        match quote {
            _ if in_comment => in_comment = c != '\n',
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '\'' | '"' | '`') => quote = Some(c),
            None if c == '-' && before == '-' => in_comment = true,
            None if c == ';' => {
                all.push((start, at + 1));
                start = at + 1;
            }
            None => {}
        }
        before = c;
    }
    if start < sql.len() {
        all.push((start, sql.len()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_crds::parse_manifest;

    const MANIFEST: &str = "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {name: wrong}
spec:
  program:
    sql: |
      CREATE TABLE t (k BIGINT) WITH ('connector'='datagen', 'fields.k.max'='3'); -- all; of it
      CREATE TABLE a (k BIGINT) WITH ('connector'='blackhole');
      CREATE TABLE b (k STRING) WITH ('connector'='blackhole');
      INSERT INTO a SELECT kk FROM t;
      INSERT INTO a SELECT k FROM t WHERE ';' <> 'x';
      INSERT INTO b
        SELECT missing(k) FROM t;
  parallelism: 0
  checkpointing:
    interval: 1s
    retained: 1000
";

    #[test]
    fn all_problems_are_told_with_line_and_caret() {
        let found = find(MANIFEST, &parse_manifest(MANIFEST).unwrap());
        let text = found.join("\n");
        assert_eq!(found.len(), 4, "{text}");
        for words in [
            "spec.parallelism",
            "14 |   parallelism: 0\n   |   ^",
            "17 |     retained: 1000\n   |     ^",
            "4 | INSERT INTO a SELECT kk FROM t;\n  |                      ^",
            "7 |   SELECT missing(k) FROM t;\n  |          ^",
        ] {
            assert!(text.contains(words), "no {words:?} in\n{text}");
        }
    }

    #[test]
    fn a_mistake_in_a_table_is_told_once() {
        let sql = MANIFEST
            .replace("'connector'='datagen'", "'connector'='datagem'")
            .replace("parallelism: 0", "parallelism: 1");
        let found = find(&sql, &parse_manifest(&sql).unwrap());
        assert_eq!(found.iter().filter(|problem| problem.contains("datagem")).count(), 1, "{found:?}");
    }

    #[test]
    fn statements_end_at_their_own_semicolons() {
        let sql = "A ';' x; -- no; end\nB `;`;\nC";
        let texts: Vec<&str> = statements(sql).into_iter().map(|(start, end)| sql[start..end].trim()).collect();
        assert_eq!(texts, ["A ';' x;", "-- no; end\nB `;`;", "C"]);
    }
}
