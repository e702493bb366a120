//! SQL types and their Arrow types, how people call them, and which casts are implicit at a sink.
//!
//! Follows Flink: default precisions (DECIMAL(10, 0), TIMESTAMP(6)), and its table of implicit casts. Lengths of CHAR
//! and VARCHAR are read but not enforced.

use crate::error::nearest;
use arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion_sql::sqlparser::ast::{ArrayElemTypeDef, DataType as SqlType, ExactNumberInfo, TimezoneInfo};
use std::sync::Arc;

/// The types by their names in Flink.
const KNOWN: [&str; 20] = [
    "STRING",
    "VARCHAR",
    "CHAR",
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "INTEGER",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL",
    "NUMERIC",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "TIMESTAMP_LTZ",
    "BYTES",
    "VARBINARY",
    "ARRAY",
];

/// Types of Flink that exist but are not supported yet.
const LATER: [&str; 6] = ["ROW", "MAP", "MULTISET", "RAW", "VARIANT", "STRUCT"];

/// Why a type is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TypeRefusal {
    /// It exists, but not here yet.
    Unsupported(String),
    /// It does not exist, or not with these parameters.
    Unknown(String),
}

/// Whether a word begins a type that is known but not supported; such types may not even parse.
pub(crate) fn is_later(word: &str) -> bool {
    LATER.contains(&word)
}

/// The Arrow type of a SQL type.
pub(crate) fn arrow_type(sql: &SqlType) -> Result<DataType, TypeRefusal> {
    Ok(match sql {
        SqlType::String(_)
        | SqlType::Varchar(_)
        | SqlType::Char(_)
        | SqlType::Character(_)
        | SqlType::CharacterVarying(_)
        | SqlType::CharVarying(_) => DataType::Utf8,
        SqlType::Boolean => DataType::Boolean,
        SqlType::TinyInt(_) => DataType::Int8,
        SqlType::SmallInt(_) => DataType::Int16,
        SqlType::Int(_) | SqlType::Integer(_) => DataType::Int32,
        SqlType::BigInt(_) => DataType::Int64,
        SqlType::Float(_) => DataType::Float32,
        SqlType::Double(_) | SqlType::DoublePrecision => DataType::Float64,
        SqlType::Decimal(info) | SqlType::Dec(info) | SqlType::Numeric(info) => decimal(info)?,
        SqlType::Date => DataType::Date32,
        SqlType::Time(precision, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => time(*precision)?,
        SqlType::Timestamp(precision, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            DataType::Timestamp(timestamp_unit(*precision)?, None)
        }
        SqlType::Bytes(_) | SqlType::Varbinary(_) | SqlType::Binary(_) => DataType::Binary,
        SqlType::Array(ArrayElemTypeDef::AngleBracket(element)) => array_of(arrow_type(element)?),
        SqlType::Custom(name, arguments) => custom(&name.to_string().to_uppercase(), arguments)?,
        SqlType::Array(_) | SqlType::Map(..) | SqlType::Struct(..) | SqlType::Timestamp(..) | SqlType::Time(..) => {
            return Err(TypeRefusal::Unsupported(format!("type {sql}")));
        }
        other => return Err(unknown(&other.to_string())),
    })
}

/// The type of arrays of it, as `SPLIT` gives them.
pub(crate) fn array_of(element: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(element, true)))
}

fn custom(name: &str, arguments: &[String]) -> Result<DataType, TypeRefusal> {
    match (name, arguments) {
        ("TIMESTAMP_LTZ", []) => Ok(DataType::Timestamp(timestamp_unit(None)?, Some(utc()))),
        ("TIMESTAMP_LTZ", [precision]) => {
            let precision = precision.parse().map_err(|_| unknown(&format!("{name}({precision})")))?;
            Ok(DataType::Timestamp(timestamp_unit(Some(precision))?, Some(utc())))
        }
        _ if is_later(name) => Err(TypeRefusal::Unsupported(format!("type {name}"))),
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> TypeRefusal {
    TypeRefusal::Unknown(format!("type {name} does not exist{}", nearest(name, KNOWN)))
}

fn utc() -> Arc<str> {
    Arc::from("UTC")
}

fn decimal(info: &ExactNumberInfo) -> Result<DataType, TypeRefusal> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => (10, 0),
        ExactNumberInfo::Precision(precision) => (*precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (*precision, *scale),
    };
    let fits = (1..=38).contains(&precision) && u64::try_from(scale).is_ok_and(|scale| scale <= precision);
    match (u8::try_from(precision), i8::try_from(scale)) {
        (Ok(precision), Ok(scale)) if fits => Ok(DataType::Decimal128(precision, scale)),
        _ => Err(TypeRefusal::Unknown(format!(
            "DECIMAL({precision}, {scale}) is out of range: the precision is 1 to 38, the scale 0 to the precision"
        ))),
    }
}

fn time(precision: Option<u64>) -> Result<DataType, TypeRefusal> {
    match precision.unwrap_or(0) {
        0..=3 => Ok(DataType::Time32(TimeUnit::Millisecond)),
        4..=6 => Ok(DataType::Time64(TimeUnit::Microsecond)),
        7..=9 => Ok(DataType::Time64(TimeUnit::Nanosecond)),
        other => Err(TypeRefusal::Unknown(format!("TIME({other}) is out of range: the precision is 0 to 9"))),
    }
}

fn timestamp_unit(precision: Option<u64>) -> Result<TimeUnit, TypeRefusal> {
    match precision.unwrap_or(6) {
        0..=3 => Ok(TimeUnit::Millisecond),
        4..=6 => Ok(TimeUnit::Microsecond),
        7..=9 => Ok(TimeUnit::Nanosecond),
        other => Err(TypeRefusal::Unknown(format!("TIMESTAMP({other}) is out of range: the precision is 0 to 9"))),
    }
}

/// How people call a type.
pub(crate) fn sql_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "STRING".to_owned(),
        DataType::Boolean => "BOOLEAN".to_owned(),
        DataType::Int8 => "TINYINT".to_owned(),
        DataType::Int16 => "SMALLINT".to_owned(),
        DataType::Int32 => "INT".to_owned(),
        DataType::Int64 => "BIGINT".to_owned(),
        DataType::Float32 => "FLOAT".to_owned(),
        DataType::Float64 => "DOUBLE".to_owned(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision}, {scale})"),
        DataType::Date32 => "DATE".to_owned(),
        DataType::Time32(unit) | DataType::Time64(unit) => format!("TIME({})", digits(*unit)),
        DataType::Timestamp(unit, None) => format!("TIMESTAMP({})", digits(*unit)),
        DataType::Timestamp(unit, Some(_)) => format!("TIMESTAMP_LTZ({})", digits(*unit)),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTES".to_owned(),
        DataType::List(element) => format!("ARRAY<{}>", sql_name(element.data_type())),
        DataType::Null => "NULL".to_owned(),
        other => other.to_string(),
    }
}

const fn digits(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

/// Whether a query's column may go into a sink's column without an explicit CAST, as Flink's LogicalTypeCasts says.
pub(crate) fn is_implicit(from: &DataType, to: &DataType) -> bool {
    if from == to || *from == DataType::Null {
        return true;
    }
    match to {
        DataType::Utf8 => matches!(from, DataType::Utf8View | DataType::LargeUtf8),
        DataType::Binary => matches!(from, DataType::BinaryView | DataType::LargeBinary),
        DataType::Int16 | DataType::Int32 | DataType::Int64 => integer_width(from) < integer_width(to),
        DataType::Float32 => integer_width(from) < u8::MAX || matches!(from, DataType::Decimal128(..)),
        DataType::Float64 => from.is_numeric(),
        DataType::Decimal128(..) => from.is_numeric(),
        DataType::Date32 => matches!(from, DataType::Timestamp(_, None)),
        DataType::Time32(_) | DataType::Time64(_) => {
            matches!(from, DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(_, None))
        }
        DataType::Timestamp(..) => matches!(from, DataType::Timestamp(..)),
        DataType::List(to) => matches!(from, DataType::List(from) if from.data_type() == to.data_type()),
        _ => false,
    }
}

/// Whether CAST goes from the one type to the other, as Flink's LogicalTypeCasts says.
pub(crate) fn is_castable(from: &DataType, to: &DataType) -> bool {
    let (is_number, is_text) = (from.is_numeric(), from.is_string());
    let is_timestamp = matches!(from, DataType::Timestamp(..));
    let is_time = matches!(from, DataType::Time32(_) | DataType::Time64(_));
    if from == to || *from == DataType::Null || to.is_string() {
        return true;
    }
    match to {
        DataType::Boolean => is_text || from.is_integer(),
        DataType::Date32 => is_text || is_timestamp,
        DataType::Time32(_) | DataType::Time64(_) => is_text || is_time || is_timestamp,
        DataType::Timestamp(..) => is_text || is_time || is_timestamp || *from == DataType::Date32,
        DataType::Binary => is_text || matches!(from, DataType::LargeBinary | DataType::BinaryView),
        DataType::List(to) => matches!(from, DataType::List(from) if is_castable(from.data_type(), to.data_type())),
        to if to.is_numeric() => is_text || is_number || *from == DataType::Boolean,
        _ => true,
    }
}

/// Whether different values stay different through the implicit cast: what a key may go through.
pub(crate) fn is_injective(from: &DataType, to: &DataType) -> bool {
    from == to
        || (integer_width(from) < integer_width(to) && integer_width(to) < u8::MAX)
        || matches!((from, to), (DataType::Utf8View | DataType::LargeUtf8, DataType::Utf8))
}

/// Bytes of a signed integer; the largest number for what is none.
const fn integer_width(data_type: &DataType) -> u8 {
    match data_type {
        DataType::Int8 => 1,
        DataType::Int16 => 2,
        DataType::Int32 => 4,
        DataType::Int64 => 8,
        _ => u8::MAX,
    }
}
