//! Functions of Flink's that DataFusion lacks or means otherwise: how they are declared, typed and called.
//!
//! A [`Definition`] lists the forms of a call; the first that fits the arguments decides their types. All are
//! immutable. A NULL argument gives NULL, unless a definition says otherwise. What can be wrong with a constant (a
//! pattern, a unit of time) is found when the statement is planned.

use arrow::array::{Array, ArrayRef, AsArray, StringArray, StringBuilder};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, TimeUnit};
use datafusion_common::{Result, ScalarValue, exec_err, plan_err};
use datafusion_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The type of a parameter or result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// STRING.
    Text,
    /// STRING or BYTES, as bytes.
    Bytes,
    /// Any whole number, as BIGINT.
    Whole,
    /// INT, as a result.
    Int,
    /// BOOLEAN.
    Boolean,
    /// TIMESTAMP or TIMESTAMP_LTZ of any precision, or DATE, as it is.
    Moment,
    /// BOOLEAN, TIMESTAMP, TIMESTAMP_LTZ, TIME or DATE, as it is.
    Printed,
    /// TIMESTAMP(3).
    Timestamp,
    /// TIMESTAMP_LTZ(3).
    Local,
    /// DATE.
    Date,
    /// ARRAY of STRING.
    Texts,
    /// ARRAY, as it is.
    Array,
    /// The type of the elements of the argument at this position.
    ElementOf(usize),
    /// The type of the argument at this position.
    As(usize),
}

/// One way to call a function.
pub(super) struct Form {
    pub(super) parameters: &'static [Kind],
    pub(super) result: Kind,
}

/// A function.
pub(super) struct Definition {
    /// In small letters.
    pub(super) name: &'static str,
    pub(super) forms: &'static [Form],
    /// Checks constant arguments.
    pub(super) check: fn(&[Option<&str>]) -> Result<()>,
    /// Given columns of the parameters' types.
    pub(super) evaluate: fn(&[ArrayRef]) -> Result<ArrayRef>,
}

/// Nothing to check.
pub(super) const fn fine(_: &[Option<&str>]) -> Result<()> {
    Ok(())
}

/// A definition as DataFusion wants it.
pub(super) struct Own {
    definition: &'static Definition,
    signature: Signature,
}

impl Own {
    pub(super) fn udf(definition: &'static Definition) -> Arc<ScalarUDF> {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(Self { definition, signature }))
    }

    fn form(&self, arguments: &[DataType]) -> Result<&'static Form> {
        let fits = |form: &&Form| {
            form.parameters.len() == arguments.len()
                && form.parameters.iter().zip(arguments).all(|(kind, argument)| accepted(*kind, argument).is_some())
        };
        match self.definition.forms.iter().find(fits) {
            Some(form) => Ok(form),
            None => {
                let given: Vec<String> = arguments.iter().map(crate::types::sql_name).collect();
                let forms: Vec<String> = self.definition.forms.iter().map(|form| self.describe(form)).collect();
                plan_err!(
                    "{}({}) does not exist: it is {}",
                    self.definition.name.to_uppercase(),
                    given.join(", "),
                    forms.join(" or ")
                )
            }
        }
    }

    fn describe(&self, form: &Form) -> String {
        let parameters: Vec<&str> = form.parameters.iter().map(|kind| word(*kind)).collect();
        format!("{}({})", self.definition.name.to_uppercase(), parameters.join(", "))
    }
}

const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "STRING",
        Kind::Bytes => "STRING or BYTES",
        Kind::Whole => "BIGINT",
        Kind::Int => "INT",
        Kind::Boolean => "BOOLEAN",
        Kind::Moment => "TIMESTAMP or DATE",
        Kind::Printed => "a time or BOOLEAN",
        Kind::Timestamp => "TIMESTAMP(3)",
        Kind::Local => "TIMESTAMP_LTZ(3)",
        Kind::Date => "DATE",
        Kind::Texts => "ARRAY<STRING>",
        Kind::Array => "ARRAY",
        Kind::ElementOf(_) => "an element",
        Kind::As(_) => "the same type",
    }
}

/// The type that an argument is cast to.
fn accepted(kind: Kind, argument: &DataType) -> Option<DataType> {
    let is_text = matches!(argument, DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8 | DataType::Null);
    let is_time = matches!(argument, DataType::Timestamp(..) | DataType::Date32);
    match kind {
        Kind::Text if is_text => Some(DataType::Utf8),
        Kind::Bytes if is_text || matches!(argument, DataType::Binary) => Some(DataType::Binary),
        Kind::Whole if argument.is_integer() || argument.is_null() => Some(DataType::Int64),
        Kind::Boolean if matches!(argument, DataType::Boolean | DataType::Null) => Some(DataType::Boolean),
        Kind::Array if matches!(argument, DataType::List(_)) => Some(argument.clone()),
        Kind::Moment if is_time => Some(argument.clone()),
        Kind::Moment if argument.is_null() => Some(result(Kind::Timestamp, &[])),
        Kind::Printed
            if is_time || matches!(argument, DataType::Boolean | DataType::Time32(_) | DataType::Time64(_)) =>
        {
            Some(argument.clone())
        }
        _ => None,
    }
}

fn result(kind: Kind, arguments: &[DataType]) -> DataType {
    match kind {
        Kind::Text | Kind::Printed => DataType::Utf8,
        Kind::Bytes => DataType::Binary,
        Kind::Whole => DataType::Int64,
        Kind::Int => DataType::Int32,
        Kind::Boolean => DataType::Boolean,
        Kind::Timestamp | Kind::Moment => DataType::Timestamp(TimeUnit::Millisecond, None),
        Kind::Local => DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
        Kind::Date => DataType::Date32,
        Kind::Texts => DataType::new_list(DataType::Utf8, true),
        Kind::Array => DataType::Null,
        Kind::ElementOf(position) => match arguments.get(position) {
            Some(DataType::List(element)) => element.data_type().clone(),
            _ => DataType::Null,
        },
        Kind::As(position) => arguments.get(position).cloned().unwrap_or(DataType::Null),
    }
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.definition.name)
    }
}

impl PartialEq for Own {
    fn eq(&self, other: &Self) -> bool {
        self.definition.name == other.definition.name
    }
}

impl Eq for Own {}

impl Hash for Own {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.definition.name.hash(state);
    }
}

impl ScalarUDFImpl for Own {
    fn name(&self) -> &str {
        self.definition.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let form = self.form(arguments)?;
        Ok(form.parameters.iter().zip(arguments).filter_map(|(kind, argument)| accepted(*kind, argument)).collect())
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(result(self.form(arguments)?.result, &self.coerce_types(arguments)?))
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let constant = |argument: &Option<&ScalarValue>| match argument {
            Some(ScalarValue::Utf8(Some(text))) => Some(text.clone()),
            _ => None,
        };
        let constants: Vec<Option<String>> = arguments.scalar_arguments.iter().map(constant).collect();
        (self.definition.check)(&constants.iter().map(Option::as_deref).collect::<Vec<_>>())?;
        let types: Vec<DataType> = arguments.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, true)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let are_constant = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let columns = ColumnarValue::values_to_arrays(&arguments.args)?;
        let made = (self.definition.evaluate)(&columns)?;
        if made.data_type() != arguments.return_type() {
            return exec_err!("{} made {} instead of {}", self.name(), made.data_type(), arguments.return_type());
        }
        if are_constant {
            return ScalarValue::try_from_array(&made, 0).map(ColumnarValue::Scalar);
        }
        Ok(ColumnarValue::Array(made))
    }
}

/// A STRING column.
pub(super) fn texts(column: &ArrayRef) -> &StringArray {
    column.as_string::<i32>()
}

/// A BIGINT at a row.
pub(super) fn whole(column: &ArrayRef, row: usize) -> i64 {
    column.as_primitive::<Int64Type>().value(row)
}

/// Whether no argument is NULL at a row.
pub(super) fn is_given(columns: &[ArrayRef], row: usize) -> bool {
    columns.iter().all(|column| column.is_valid(row))
}

/// Evaluates row by row, NULL where an argument is.
pub(super) fn rows<T>(
    columns: &[ArrayRef],
    mut value: impl FnMut(usize) -> Option<T>,
) -> impl Iterator<Item = Option<T>> {
    let length = columns.first().map_or(0, Array::len);
    let columns = columns.to_vec();
    (0..length).map(move |row| if is_given(&columns, row) { value(row) } else { None })
}

/// The same, as a STRING column.
pub(super) fn text_rows(columns: &[ArrayRef], value: impl FnMut(usize) -> Option<String>) -> Result<ArrayRef> {
    text_rows_within(MOST_TEXT, columns, value)
}

/// Bytes of a STRING column, whose positions are 32 bits wide.
const MOST_TEXT: usize = i32::MAX as usize;

fn text_rows_within(most: usize, columns: &[ArrayRef], value: impl FnMut(usize) -> Option<String>) -> Result<ArrayRef> {
    let mut made = StringBuilder::new();
    for text in rows(columns, value) {
        let all = made.values_slice().len() + text.as_ref().map_or(0, String::len);
        if all > most {
            return exec_err!("its values for one batch of rows are more than {most} bytes: make them shorter");
        }
        made.append_option(text);
    }
    Ok(Arc::new(made.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Int64Array;

    #[test]
    fn a_column_of_texts_has_a_limit() {
        let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![1; 10]))];
        let make = |most: usize| text_rows_within(most, &columns, |_| Some("x".repeat(5)));
        assert_eq!(make(50).unwrap().len(), 10);
        let error = make(49).unwrap_err().to_string();
        assert!(error.contains("more than 49 bytes"), "{error}");
    }
}
