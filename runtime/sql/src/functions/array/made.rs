//! `ARRAY[a, b]` and `ARRAY_CONTAINS(array, value)`: the types of their arguments depend on each other.
//!
//! Elements are brought to the smallest type that takes them all, as in Flink; a text and a number have none.

use crate::types::{array_of, sql_name};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, make_comparator};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{SortOptions, interleave};
use arrow::datatypes::DataType;
use datafusion_common::{Result, ScalarValue, plan_err};
use datafusion_expr::type_coercion::binary::type_union_resolution;
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use std::cmp::Ordering;
use std::sync::Arc;

/// What `ARRAY[…]` becomes; nobody calls it by name.
pub(crate) const ARRAY: &str = "array_of";

const CONTAINS: &str = "array_contains";

/// Both functions.
pub(in crate::functions) fn udfs() -> [Arc<ScalarUDF>; 2] {
    [ARRAY, CONTAINS].map(|name| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(OfElements { name, signature }))
    })
}

/// One of them.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OfElements {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for OfElements {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        if self.name == ARRAY {
            return Ok(vec![common(arguments)?; arguments.len()]);
        }
        match arguments {
            [DataType::List(element), value] => {
                let common = common(&[element.data_type().clone(), value.clone()])?;
                Ok(vec![array_of(common.clone()), common])
            }
            _ => plan_err!(
                "ARRAY_CONTAINS({}) does not exist: it is ARRAY_CONTAINS(ARRAY, an element)",
                names(arguments)
            ),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match (self.name, arguments) {
            (ARRAY, [element, ..]) => Ok(array_of(element.clone())),
            _ => Ok(DataType::Boolean),
        }
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let are_constant = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let columns = ColumnarValue::values_to_arrays(&arguments.args)?;
        let made = if self.name == ARRAY { array(&columns)? } else { contains(&columns)? };
        if are_constant {
            return ScalarValue::try_from_array(&made, 0).map(ColumnarValue::Scalar);
        }
        Ok(ColumnarValue::Array(made))
    }
}

/// The smallest type that takes values of all of them.
fn common(types: &[DataType]) -> Result<DataType> {
    match type_union_resolution(types) {
        None => plan_err!("the elements of an array are of one type, not {}: write CAST(… AS …)", names(types)),
        Some(DataType::Utf8View | DataType::LargeUtf8) => Ok(DataType::Utf8),
        Some(found) => Ok(found),
    }
}

fn names(types: &[DataType]) -> String {
    types.iter().map(sql_name).collect::<Vec<_>>().join(", ")
}

/// The values of a row, one after the other.
fn array(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let rows = columns.first().map_or(0, Array::len);
    let places: Vec<(usize, usize)> =
        (0..rows).flat_map(|row| (0..columns.len()).map(move |column| (column, row))).collect();
    let columns: Vec<&dyn Array> = columns.iter().map(AsRef::as_ref).collect();
    let values = interleave(&columns, &places)?;
    let field = match array_of(values.data_type().clone()) {
        DataType::List(field) => field,
        other => return plan_err!("{other} is no array"),
    };
    let offsets = OffsetBuffer::from_repeated_length(columns.len(), rows);
    Ok(Arc::new(ListArray::try_new(field, offsets, values, None)?))
}

/// NULL is found among elements like any value; in no array there is nothing to look for.
fn contains(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let lists = columns[0].as_list::<i32>();
    let compare = make_comparator(lists.values(), &columns[1], SortOptions::default())?;
    let offset = |row: usize| usize::try_from(lists.value_offsets()[row]).unwrap_or_default();
    let found = (0..lists.len()).map(|row| {
        let mut places = offset(row)..offset(row + 1);
        lists.is_valid(row).then(|| places.any(|place| compare(place, row) == Ordering::Equal))
    });
    Ok(Arc::new(found.collect::<BooleanArray>()))
}
