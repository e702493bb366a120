//! Partitions as directories, `day=2026-01-01/app=a`, as Hive, Flink and Spark lay them out: which one a row belongs to, and
//! what the directories above a file say of its rows.

use arrow::array::{Array, ArrayRef, AsArray, StringArray, UInt8Array, UInt32Array};
use arrow::compute::{CastOptions, cast, cast_with_options, take, take_record_batch};
use arrow::datatypes::{DataType, UInt8Type};
use arrow::error::ArrowError;
use sluice_engine::batch::Batch;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Stands for NULL and for an empty text, as in Flink.
pub(super) const DEFAULT_NAME: &str = "__HIVE_DEFAULT_PARTITION__";

/// What Flink escapes in names of directories, beside control characters.
const ESCAPED: &str = "\"#%'*/:=?\\{[]^\u{7f}";

/// Bytes of a name that file systems take.
const MOST_NAME: usize = 255;

/// Bytes that the directories of a file take together at most: S3 takes 1,024 with the table's directory and the file's name.
const MOST_PATH: usize = 768;

/// Characters of a value that a message shows.
const SHOWN: usize = 40;

/// Why rows have no directories.
#[derive(Debug, thiserror::Error)]
pub(super) enum SplitError {
    /// A value is too long for a name.
    #[error(
        "a value of column '{column}' would make a directory's name of {bytes} bytes, but file systems take {MOST_NAME}; it \
         begins with '{start}': partition by something shorter, such as a part or a hash of it"
    )]
    Name { column: String, bytes: usize, start: String },
    /// The values of a row are too long together.
    #[error(
        "directories '{start}…' of a row have {bytes} bytes together, but {MOST_PATH} are the most: partition by fewer or \
         shorter columns"
    )]
    Path { bytes: usize, start: String },
    /// The columns are not those of the table.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}

/// Whether the text of its values is the same everywhere.
pub(super) const fn is_supported(data_type: &DataType) -> bool {
    use DataType::{Boolean, Date32, Int8, Int16, Int32, Int64, Utf8};
    matches!(data_type, Utf8 | Int8 | Int16 | Int32 | Int64 | Boolean | Date32)
}

fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        if character.is_control() && character.is_ascii() || ESCAPED.contains(character) {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{:02X}", u32::from(character));
        } else {
            out.push(character);
        }
    }
}

/// `None` when it is none of UTF-8.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let is_code = |code: &&[u8]| *first == b'%' && code.iter().all(u8::is_ascii_hexdigit);
        let code = after.get(..2).filter(is_code).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// The rows of each directory, given the names of the partition columns and the columns; `content` is what is written.
pub(super) fn split(
    names: &[String],
    columns: &[ArrayRef],
    default: &str,
    content: &Batch,
) -> Result<Vec<(String, Batch)>, SplitError> {
    let columns = columns.iter().map(|column| cast(column, &DataType::Utf8)).collect::<Result<Vec<_>, _>>()?;
    let columns: Vec<&StringArray> = columns.iter().map(|column| column.as_string::<i32>()).collect();
    let value = |column: &&StringArray, row: usize| match column.is_valid(row).then(|| column.value(row)) {
        None | Some("") => String::new(),
        Some(text) => text.to_owned(),
    };
    let mut rows_of: BTreeMap<Vec<String>, Vec<u32>> = BTreeMap::new();
    for row in 0..content.rows.num_rows() {
        let key = columns.iter().map(|column| value(column, row)).collect();
        rows_of.entry(key).or_default().push(u32::try_from(row).unwrap_or(u32::MAX));
    }
    let piece = |(values, rows): (Vec<String>, Vec<u32>)| {
        let rows = UInt32Array::from(rows);
        let kinds = content.kinds.as_ref().map(|kinds| take(kinds, &rows, None)).transpose()?;
        let kinds: Option<UInt8Array> = kinds.map(|kinds| kinds.as_primitive::<UInt8Type>().clone());
        let rows = take_record_batch(&content.rows, &rows)?;
        Ok((directory(names, &values, default)?, Batch { rows, kinds }))
    };
    rows_of.into_iter().map(piece).collect()
}

/// `day=2026-01-01/app=a`.
fn directory(names: &[String], values: &[String], default: &str) -> Result<String, SplitError> {
    let start = |text: &str| text.chars().take(SHOWN).collect();
    let mut path = String::new();
    for (name, value) in names.iter().zip(values) {
        if !path.is_empty() {
            path.push('/');
        }
        let before = path.len();
        escape(name, &mut path);
        path.push('=');
        escape(if value.is_empty() { default } else { value }, &mut path);
        let bytes = path.len() - before;
        if bytes > MOST_NAME {
            return Err(SplitError::Name { column: name.clone(), bytes, start: start(value) });
        }
    }
    if path.len() > MOST_PATH {
        return Err(SplitError::Path { bytes: path.len(), start: start(&path) });
    }
    Ok(path)
}

/// What the directories of a file say of a partition column, for so many rows.
pub(super) fn column(
    file: &str,
    name: &str,
    data_type: &DataType,
    default: &str,
    count: usize,
) -> Result<ArrayRef, ArrowError> {
    let directories = file.rsplit_once('/').map_or("", |(directories, _)| directories);
    let of_column = |part: &str| {
        let (key, value) = part.split_once('=')?;
        (unescape(key)? == name).then(|| unescape(value))?
    };
    let Some(value) = directories.split('/').find_map(of_column) else {
        let message = format!("it lies in no directory '{name}=…', as PARTITIONED BY says");
        return Err(ArrowError::InvalidArgumentError(message));
    };
    let text = StringArray::from(vec![(value != default).then_some(value.as_str())]);
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let one = cast_with_options(&text, data_type, &strict)?;
    take(&one, &UInt32Array::from(vec![0; count]), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Date32Array, Int32Array, RecordBatch};
    use arrow::datatypes::{Field, Schema};
    use std::sync::Arc;

    #[test]
    fn rows_lie_in_the_directories_of_their_values_and_come_back() {
        let names = ["a b".to_owned(), "n".to_owned(), "d".to_owned()];
        let texts = [Some("x/y=ä%"), None, Some(""), Some("x/y=ä%")];
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(texts.to_vec())),
            Arc::new(Int32Array::from(vec![Some(-1), Some(2), Some(2), Some(-1)])),
            Arc::new(Date32Array::from(vec![Some(20_000), None, None, Some(20_000)])),
        ];
        let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int32, true)]));
        let values: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3, 4]));
        let content = Batch::inserts(RecordBatch::try_new(schema, vec![values]).unwrap());
        let pieces = split(&names, &columns, DEFAULT_NAME, &content).unwrap();
        let found: Vec<(&str, usize)> = pieces.iter().map(|(path, batch)| (path.as_str(), batch.len())).collect();
        let default = format!("a b={DEFAULT_NAME}/n=2/d={DEFAULT_NAME}");
        assert_eq!(found, [(default.as_str(), 2), ("a b=x%2Fy%3Dä%25/n=-1/d=2024-10-04", 2)]);

        let file = format!("deep/{}/part-1.json", found[1].0);
        let back = |name: &str, kind: DataType| column(&file, name, &kind, DEFAULT_NAME, 2);
        let text = back("a b", DataType::Utf8).unwrap();
        assert_eq!(text.as_string::<i32>().iter().collect::<Vec<_>>(), [Some("x/y=ä%"); 2]);
        assert_eq!(*back("d", DataType::Date32).unwrap(), Date32Array::from(vec![20_000; 2]));
        assert_eq!(*back("n", DataType::Int32).unwrap(), Int32Array::from(vec![-1; 2]));
        assert!(back("a b", DataType::Int32).is_err(), "a text became a number");
        let error = back("m", DataType::Int32).unwrap_err().to_string();
        assert!(error.contains("in no directory 'm=…'"), "{error}");
        let file = format!("{default}/part-1.json");
        assert_eq!(column(&file, "a b", &DataType::Utf8, DEFAULT_NAME, 3).unwrap().null_count(), 3);
    }

    #[test]
    fn what_is_no_code_stays_as_it_is() {
        let texts = ["%+5", "%4", "%", "%zz", "%-1x"];
        for text in texts {
            assert_eq!(unescape(text).as_deref(), Some(text));
        }
        assert_eq!(unescape("%2f%2F%41").as_deref(), Some("//A"));
    }

    #[test]
    fn directories_that_are_too_long_together_are_refused() {
        let names: Vec<String> = (0..6).map(|number| format!("c{number}")).collect();
        let column: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(200)]));
        let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int32, true)]));
        let values: ArrayRef = Arc::new(Int32Array::from(vec![1]));
        let content = Batch::inserts(RecordBatch::try_new(schema, vec![values]).unwrap());
        let split = |count: usize| split(&names[..count], &vec![Arc::clone(&column); count], DEFAULT_NAME, &content);
        assert_eq!(split(3).unwrap().len(), 1);
        let error = split(6).unwrap_err().to_string();
        assert!(error.contains("'c0=xxx") && error.contains("1223 bytes"), "{error}");
    }
}
