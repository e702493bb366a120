//! How much of a group's values is read to know its extremum.

use super::*;
use crate::testing::{backends, context};
use arrow::array::{Int64Array, StringArray};

const KEY: usize = 0;
const TEXT: usize = 1;

fn rows_of_group_1(texts: &[&str]) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1; texts.len()]));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("s", texts, true)]).unwrap()
}

fn opened(backend: &crate::state::StateBackend) -> Values {
    let schema = rows_of_group_1(&[]).schema();
    let keys = [schema.field(KEY).clone()];
    let role = Role::Text { most: true, alone: false };
    let plan = Arc::new(ValuesPlan::new(role, "m", (&[KEY], &keys), (TEXT, schema.field(TEXT)), false));
    let context = OperatorContext { state_backend: backend.clone(), ..context(0, 1) };
    Values::open(&plan, &context, &RestoredState::default(), None).unwrap()
}

/// The maximum before and after rows with these signs, and how many values were read to look for it.
fn maximum(values: &mut Values, lives: bool, texts: &[&str], signs: &[i64]) -> (Option<String>, Option<String>, usize) {
    let rows = rows_of_group_1(texts);
    let key = rows.schema().field(KEY).clone();
    let layout = TableLayout { keys: vec![key], accumulators: Vec::new(), words: 1, prefix: None, updated: None };
    let mut groups = TouchedKeys::default();
    context(0, 1).keyed_table("groups", Arc::new(layout)).unwrap().touch(&rows, &[KEY], &mut groups).unwrap();
    values.found = FoundRows::default();
    let signs = Signs { signs: signs.to_vec() };
    values.count_text((true, false), &rows, &groups, &signs, |_| lives).unwrap();
    let text = |encoded: &Option<Vec<u8>>| Some(String::from_utf8(encoded.as_ref()?[5..].to_vec()).unwrap());
    (text(&values.before[0]), text(&values.after[0]), values.found.len())
}

#[test]
fn the_values_of_a_group_are_read_only_when_its_extremum_goes_or_is_not_remembered() {
    let some = |text: &str| Some(text.to_owned());
    for backend in backends() {
        let mut values = opened(&backend);
        let texts: Vec<String> = (100..300).map(|number| number.to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(maximum(&mut values, false, &texts, &[1; 200]), (None, some("299"), 0));
        assert_eq!(maximum(&mut values, true, &["200", "150"], &[1, -1]), (some("299"), some("299"), 0));
        assert_eq!(maximum(&mut values, true, &["3", "301"], &[1, 1]), (some("299"), some("301"), 0));
        assert_eq!(maximum(&mut values, true, &["301", "4"], &[-1, 0]), (some("301"), some("3"), 200));
        values.recent = Recent::default();
        assert_eq!(maximum(&mut values, true, &["120"], &[1]), (some("3"), some("3"), 200));
    }
}
