//! Hashes of batches against hashes of single, hand-encoded keys.

use super::*;
use arrow::array::{Float64Array, Int32Array, Int64Array, ListBuilder, StringArray, StringBuilder, StringViewArray};
use std::sync::Arc;

#[test]
fn the_fast_path_hashes_as_the_generic_one() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-5), Some(i64::MAX)]));
    let rows = RecordBatch::try_from_iter_with_nullable([("k", Arc::clone(&column), true)]).unwrap();
    let (mut fast, mut generic) = (HashedKeys::default(), HashedKeys::default());
    fast.hash_bigint(&column);
    generic.encode(&rows, &[0]).unwrap();
    assert_eq!(fast.hashes, generic.hashes);
    assert_eq!(generic.key(1), [0]);
    assert_eq!(generic.key(0), encode::bigint(1));
}

#[test]
fn strings_hash_alike_whatever_holds_them_and_zero_is_one_key() {
    let texts = vec![Some("app1"), None, Some("a text that is longer than twelve bytes")];
    let plain: ArrayRef = Arc::new(StringArray::from(texts.clone()));
    let view: ArrayRef = Arc::new(StringViewArray::from(texts));
    let numbers: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN]));
    let rows = RecordBatch::try_from_iter_with_nullable([("p", plain, true), ("v", view, true), ("n", numbers, true)]);
    let rows = rows.unwrap();
    let (mut left, mut right, mut zeros) = (HashedKeys::default(), HashedKeys::default(), HashedKeys::default());
    left.encode(&rows, &[0]).unwrap();
    right.encode(&rows, &[1]).unwrap();
    zeros.encode(&rows, &[2]).unwrap();
    assert_eq!(left.hashes, right.hashes);
    assert_eq!(zeros.hashes[0], zeros.hashes[1]);
    let mut expected = Vec::new();
    encode::bytes(&mut expected, b"app1");
    assert_eq!(left.key(0), expected);
}

#[test]
fn several_columns_are_encoded_one_after_the_other() {
    let number: ArrayRef = Arc::new(Int32Array::from(vec![7]));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let rows = RecordBatch::try_from_iter([("n", number), ("t", text)]).unwrap();
    let mut keys = HashedKeys::default();
    keys.encode(&rows, &[1, 0]).unwrap();
    assert_eq!(keys.key(0), [1, 1, 0, 0, 0, b'x', 1, 7, 0, 0, 0]);
    keys.encode(&rows, &[]).unwrap();
    assert_eq!(keys.key(0), [0_u8; 0]);
}

#[test]
fn arrays_are_keys_and_come_back() {
    type Words<'a> = Option<&'a [Option<&'a str>]>;
    let mut texts = ListBuilder::new(ListBuilder::new(StringBuilder::new()));
    let rows: [Option<&[Words<'_>]>; 5] = [
        Some(&[Some(&[Some("a"), None]), None]),
        None,
        Some(&[]),
        Some(&[Some(&[])]),
        Some(&[Some(&[Some("a")]), None]),
    ];
    for row in rows {
        for words in row.unwrap_or_default() {
            words.unwrap_or_default().iter().for_each(|word| texts.values().values().append_option(*word));
            texts.values().append(words.is_some());
        }
        texts.append(row.is_some());
    }
    let texts: ArrayRef = Arc::new(texts.finish());
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4), Some(5)]));
    let all = RecordBatch::try_from_iter_with_nullable([("t", texts, true), ("n", numbers, true)]).unwrap();
    // A part, whose elements do not begin with the first.
    for rows in [all.clone(), all.slice(2, 3)] {
        let mut keys = HashedKeys::default();
        keys.encode(&rows, &[0, 1]).unwrap();
        let encoded: Vec<&[u8]> = (0..rows.num_rows()).map(|row| keys.key(row)).collect();
        let types: Vec<DataType> = rows.columns().iter().map(|column| column.data_type().clone()).collect();
        let decoded = decode::decode(&encoded, &types).unwrap();
        assert_eq!(decoded, rows.columns());
        let different: std::collections::BTreeSet<&[u8]> = encoded.iter().copied().collect();
        assert_eq!(different.len(), rows.num_rows());
    }
    let mut keys = HashedKeys::default();
    keys.encode(&all.slice(4, 1), &[0]).unwrap();
    assert_eq!(keys.key(0), [1, 2, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, b'a', 0]);
}
