//! Every function in the table of docs/sql.md gives the value that stands beside it, and every function stands there.

use super::TABLES;
use crate::catalog::Tables;
use crate::error::SourceText;
use crate::functions::{FunctionKind, Functions};
use crate::parse;
use crate::relational::Relational;
use arrow::array::{Array, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion_expr::LogicalPlan;
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use std::collections::BTreeSet;
use std::sync::Arc;

const DOCUMENT: &str = include_str!("../../../../docs/sql.md");

/// The examples: an expression and its value.
fn examples() -> Vec<(String, String)> {
    let (_, table) = DOCUMENT.split_once("## Functions").expect("the document has a section on functions");
    let table = table.split("\n## ").next().unwrap_or_default();
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
        let code = |cell: &str| cell.strip_prefix('`')?.strip_suffix('`').map(|code| code.replace("\\|", "|"));
        let [expression, value] = cells.as_slice() else { return None };
        Some((code(expression)?, code(value)?))
    };
    table.lines().filter_map(row).collect()
}

/// Evaluates an expression over a table with one row, `a` = 'abc' and `n` = 7; `folded` as a constant where it is one.
fn evaluate(expression: &str, folded: bool) -> Result<String, String> {
    let sql = format!(
        "{TABLES}CREATE TABLE one (a STRING, n INT) WITH ('connector' = 'source');
         INSERT INTO two SELECT {expression} FROM one"
    );
    let text = SourceText(&sql);
    let script = parse::parse(text).map_err(|error| error.to_string())?;
    let tables = Tables::new(text, script.tables).map_err(|error| error.to_string())?;
    let functions = Functions::new();
    let validator = crate::validate::Validator { text, tables: &tables, functions: &functions };
    let query = &script.inserts[0].query;
    validator.query(query).map_err(|error| error.to_string())?;
    let relational = Relational::new(&tables, &functions);
    let mut plan = relational.plan(query).map_err(|error| error.to_string())?;
    if folded {
        plan = relational.optimize(plan).map_err(|error| error.to_string())?;
    }
    let LogicalPlan::Projection(projection) = plan else { return Err(format!("no projection: {plan}")) };
    let fields = vec![Field::new("a", DataType::Utf8, true), Field::new("n", DataType::Int32, true)];
    let columns: Vec<Arc<dyn Array>> =
        vec![Arc::new(StringArray::from(vec!["abc"; 2])), Arc::new(Int32Array::from(vec![7; 2]))];
    let wanted: Vec<usize> =
        projection.input.schema().fields().iter().map(|field| usize::from(field.name() == "n")).collect();
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap().project(&wanted).unwrap();
    let physical = datafusion_physical_expr::create_physical_expr(
        &projection.expr[0],
        projection.input.schema(),
        &ExecutionProps::new(),
        &PhysicalPlanningContext::default(),
    );
    let value = physical.and_then(|physical| physical.evaluate(&rows)).and_then(|value| value.into_array(2));
    let value = value.map_err(|error| error.to_string())?;
    let options = FormatOptions::default().with_null("NULL");
    let formatter = ArrayFormatter::try_new(&value, &options).map_err(|error| error.to_string())?;
    let (first, second) = (formatter.value(0).to_string(), formatter.value(1).to_string());
    assert_eq!(first, second, "{expression} differs from row to row");
    Ok(first)
}

#[test]
fn documented_functions_give_the_documented_values() {
    let examples = examples();
    assert!(examples.len() > 100, "only {} examples were found", examples.len());
    let mut wrong = Vec::new();
    for (expression, value) in &examples {
        for folded in [false, true] {
            let found = evaluate(expression, folded);
            if found.as_ref() != Ok(value) {
                wrong.push(format!("{expression} is {found:?}, documented as {value}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_function_is_documented() {
    let words = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_lowercase).collect()
    };
    let documented: BTreeSet<String> = examples().iter().flat_map(|(expression, _)| words(expression)).collect();
    let functions = Functions::new();
    let missing: Vec<&String> = functions.called().filter(|name| !documented.contains(*name)).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
    assert_eq!(functions.kind("floor_to").ok(), None, "an internal function can be called");
    assert_eq!(functions.kind("Upper").ok(), Some(FunctionKind::Scalar));
}

#[test]
fn null_gives_null() {
    for call in
        ["SUBSTRING(a, CAST(NULL AS INT))", "SPLIT(CAST(NULL AS STRING), ',')", "CONCAT(a, NULL)", "IF(NULL, 1, NULL)"]
    {
        assert_eq!(evaluate(call, false), Ok("NULL".to_owned()), "{call}");
        assert_eq!(evaluate(call, true), Ok("NULL".to_owned()), "{call}");
    }
}

#[test]
fn like_escapes_only_what_it_is_told_to() {
    for (condition, value) in [
        (r"'a\b' LIKE 'a\b'", "true"),
        (r"'a\b' LIKE 'a\\b'", "false"),
        (r"'a\xb' LIKE 'a\%'", "true"),
        (r"'a%' LIKE 'a\%'", "false"),
        (r"'a%' LIKE 'a\%' ESCAPE '\'", "true"),
        (r"'ax' LIKE 'a\%' ESCAPE '\'", "false"),
        ("'a%b' LIKE 'a!%b' ESCAPE '!'", "true"),
        ("'axb' LIKE 'a!%b' ESCAPE '!'", "false"),
        ("'a!b' LIKE 'a!!_' ESCAPE '!'", "true"),
        ("'a_b' NOT LIKE 'a#_b' ESCAPE '#'", "false"),
        (r"'a\_b' LIKE '_\!_b' ESCAPE '!'", "true"),
        (r"'a\' || a LIKE 'a\' || a", "true"),
        (r"a LIKE 'ab\' || '%'", "false"),
    ] {
        for folded in [false, true] {
            assert_eq!(evaluate(condition, folded), Ok(value.to_owned()), "{condition}");
        }
    }
}
