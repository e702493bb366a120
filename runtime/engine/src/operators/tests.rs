//! Filters and projections over batches with kinds.

use super::filter_project::ExpressionFactory;
use super::*;
use crate::batch::Batch;
use crate::operator::{OperatorFactory, RestoredState};
use crate::testing::{Collected, context, lines};
use arrow::array::{AsArray, BooleanArray, Int64Array, UInt8Array};
use arrow::datatypes::{Int64Type, SchemaRef};
use std::sync::Arc;

/// `v > bound`, NULL for NULL.
struct Above(i64);

impl RowExpression for Above {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
        let column = batch.column(0).as_primitive::<Int64Type>();
        Ok(Arc::new(column.iter().map(|value| value.map(|value| value > self.0)).collect::<BooleanArray>()))
    }
}

/// `v * 2`.
struct Doubled;

impl RowExpression for Doubled {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
        Ok(Arc::new(batch.column(0).as_primitive::<Int64Type>().unary::<_, Int64Type>(|value| value * 2)))
    }
}

fn batch() -> Batch {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(5), Some(9)]));
    let rows = RecordBatch::try_from_iter_with_nullable([("v", column, true)]).unwrap();
    Batch { rows, kinds: Some(UInt8Array::from(vec![0, 1, 2, 3])) }
}

fn run(filter: Option<i64>, projected: bool) -> Vec<String> {
    let output: SchemaRef = batch().rows.schema();
    let filter = filter.map(|bound| -> ExpressionFactory { Box::new(move || Ok(Box::new(Above(bound)))) });
    let projection = projected.then(|| -> Vec<ExpressionFactory> { vec![Box::new(|| Ok(Box::new(Doubled)))] });
    let mut operator = FilterProjectFactory { filter, projection, output }.create().unwrap();
    operator.open(&context(0, 1), RestoredState::default()).unwrap();
    let mut out = Collected::default();
    operator.process(batch(), &mut out).unwrap();
    out.0.iter().flat_map(lines).collect()
}

#[test]
fn rows_pass_with_their_kinds() {
    assert_eq!(run(Some(4), false), ["+U 5", "-D 9"]);
    assert_eq!(run(Some(4), true), ["+U 10", "-D 18"]);
    assert_eq!(run(None, true), ["+I 2", "-U NULL", "+U 10", "-D 18"]);
    assert_eq!(run(Some(100), true), [""; 0]);
}
