//! Functions over arrays: positions begin with 1. [`made`] has those whose types depend on their elements.

mod made;

pub(crate) use made::ARRAY;
pub(super) use made::udfs;

use super::own::{Definition, Form, Kind, fine, rows, whole};
use arrow::array::{ArrayRef, AsArray, Int32Array, UInt32Array};
use arrow::compute::take;
use datafusion_common::Result;
use std::sync::Arc;

/// What `array[position]` becomes; nobody calls it by name.
pub(crate) const ELEMENT: &str = "element_at";

/// All of them.
pub(super) static DEFINITIONS: &[Definition] = &[
    Definition {
        name: "cardinality",
        forms: &[Form { parameters: &[Kind::Array], result: Kind::Int }],
        check: fine,
        evaluate: cardinality,
    },
    Definition {
        name: ELEMENT,
        forms: &[Form { parameters: &[Kind::Array, Kind::Whole], result: Kind::ElementOf(0) }],
        check: fine,
        evaluate: element,
    },
];

fn cardinality(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let lists = columns[0].as_list::<i32>();
    Ok(Arc::new(rows(columns, |row| Some(lists.value_length(row))).collect::<Int32Array>()))
}

/// NULL where there is none.
fn element(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let lists = columns[0].as_list::<i32>();
    let place = |row: usize| {
        let (begin, length) = (lists.value_offsets()[row], lists.value_length(row));
        let position =
            i32::try_from(whole(&columns[1], row)).ok().filter(|position| (1..=length).contains(position))?;
        u32::try_from(begin + position - 1).ok()
    };
    let places: UInt32Array = rows(columns, place).collect();
    Ok(take(lists.values(), &places, None)?)
}
