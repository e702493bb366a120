//! Tables whose rows are found by a prefix of their keys, against a map: rows come and go at random, a whole checkpoint and
//! a delta on it are restored at another parallelism, in both backends.

use super::*;
use crate::operator::{KeyedPiece, RestoredKeyed, WriteOptions};
use crate::state::prefix::{FoundRows, Prefixes};
use crate::testing::{Random, backends, context, restored};
use sluice_protocol::state::{KeyedStateHandle, KeyedStateKind, StateData};

type Model = BTreeMap<(Option<String>, i64), u64>;

fn prefixed() -> Arc<TableLayout> {
    let mut layout = layout(&[("group", DataType::Utf8), ("value", DataType::Int64)]).as_ref().clone();
    layout.prefix = Some(1);
    Arc::new(layout)
}

fn batch(keys: &[(Option<String>, i64)]) -> RecordBatch {
    let groups: ArrayRef = Arc::new(keys.iter().map(|(group, _)| group.clone()).collect::<StringArray>());
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(keys.iter().map(|(_, value)| *value)));
    RecordBatch::try_from_iter_with_nullable([("group", groups, true), ("value", values, true)]).unwrap()
}

fn draw(random: &mut Random, count: u64) -> Vec<(Option<String>, i64)> {
    let mut one =
        || (Some("g".repeat(random.below(9) as usize)).filter(|group| group.len() != 4), random.below(40) as i64);
    (0..count).map(|_| one()).collect()
}

/// Some keys gain 1 and others go.
fn change(table: &mut dyn KeyedTable, model: &mut Model, random: &mut Random) {
    let (count, gone) = (random.below(60), random.below(45));
    for (keys, fate) in [(draw(random, count), Fate::Write), (draw(random, gone), Fate::Remove)] {
        let (mut touched, mut words) = (TouchedKeys::default(), Vec::new());
        table.touch(&batch(&keys), &[0, 1], &mut touched).unwrap();
        table.load(&touched, &mut words);
        touched.slots.iter().for_each(|slot| words[*slot as usize] += 1);
        table.store(&touched, &words, &vec![fate; touched.keys.len()]).unwrap();
        for key in keys {
            if fate == Fate::Remove {
                model.remove(&key);
            } else {
                *model.entry(key).or_default() += 1;
            }
        }
    }
}

/// The values and counts of each group that the tables find.
fn found(tables: &mut [Box<dyn KeyedTable>], groups: &[Option<String>]) -> Model {
    let mut all = Model::new();
    for table in tables {
        for group in groups {
            let (mut touched, mut prefixes, mut rows) =
                (TouchedKeys::default(), Prefixes::default(), FoundRows::default());
            touched.hash(table.layout(), &batch(&[(group.clone(), 0)]), &[0, 1]).unwrap();
            prefixes.number(&touched, 0);
            let Ok(()) = table.find_by_prefix(&prefixes, &mut rows) else { continue };
            let mut words = Vec::new();
            table.load(&rows.touched, &mut words);
            for (row, count) in words.iter().enumerate() {
                let value = i64::from_le_bytes(rows.key(row)[prefixes.bytes(0).len() + 1..].try_into().unwrap());
                assert_eq!(all.insert((group.clone(), value), *count), None, "a row stands in one table once");
            }
        }
    }
    all
}

fn stored(table: &mut dyn KeyedTable, checkpoint: u64, base: Option<u64>) -> Vec<KeyedPiece> {
    let frozen = table.freeze(CheckpointId(checkpoint)).unwrap();
    let mut pieces = Vec::new();
    let options = WriteOptions { base: base.map(CheckpointId), whole_below: 0 };
    let mut take = |piece| {
        pieces.push(piece);
        Ok(())
    };
    let state = frozen.write(&options, &mut take).unwrap();
    let handle = |piece: &KeyedPiece| KeyedStateHandle {
        name: piece.name.clone(),
        key_groups: piece.key_groups,
        rows: piece.rows,
        kind: piece.kind,
        data: StateData::file(format!("{checkpoint}"), &piece.bytes),
    };
    state.layers[0].recorder.stored(pieces.iter().map(handle).collect());
    pieces
}

#[test]
fn rows_are_found_by_prefix_while_they_come_and_go_and_after_a_whole_checkpoint_with_a_delta() {
    let groups: Vec<_> = (0..9).map(|length| Some("g".repeat(length)).filter(|group| group.len() != 4)).collect();
    for backend in backends() {
        let open = |index, parallelism| {
            let context = OperatorContext { state_backend: backend.clone(), ..context(index, parallelism) };
            context.keyed_table("values", prefixed()).unwrap()
        };
        let (mut tables, mut model, mut random) = ([open(0, 1)], Model::new(), Random(4242));
        for _ in 0..100 {
            change(tables[0].as_mut(), &mut model, &mut random);
            assert_eq!(found(&mut tables, &groups), model);
        }
        let mut pieces = stored(tables[0].as_mut(), 1, None);
        let keys = draw(&mut random, 5);
        let (mut touched, mut words) = (TouchedKeys::default(), Vec::new());
        tables[0].touch(&batch(&keys), &[0, 1], &mut touched).unwrap();
        tables[0].load(&touched, &mut words);
        tables[0].store(&touched, &words, &vec![Fate::Remove; touched.keys.len()]).unwrap();
        keys.iter().for_each(|key| {
            model.remove(key);
        });
        let delta = stored(tables[0].as_mut(), 2, Some(1));
        assert!(delta.iter().all(|piece| piece.kind == KeyedStateKind::Delta));
        pieces.extend(delta);
        let files: Vec<RestoredKeyed> = pieces.iter().map(restored).collect();
        let mut tables = [0, 1, 2].map(|index| open(index, 3));
        tables.iter_mut().for_each(|table| table.restore(&OperatorUid::from("op"), &files).unwrap());
        assert_eq!(found(&mut tables, &groups), model);
        change_all(&mut tables, &mut model, &mut random, &groups);
    }
}

/// Restored tables go on.
fn change_all(tables: &mut [Box<dyn KeyedTable>], model: &mut Model, random: &mut Random, groups: &[Option<String>]) {
    let keys = draw(random, 50);
    for key in keys {
        let (mut touched, mut words) = (TouchedKeys::default(), Vec::new());
        let owner = tables.iter_mut().find_map(|table| {
            let own = table.touch(&batch(std::slice::from_ref(&key)), &[0, 1], &mut touched).is_ok();
            own.then_some(table)
        });
        let table = owner.unwrap();
        table.load(&touched, &mut words);
        words[0] += 1;
        table.store(&touched, &words, &[Fate::Write]).unwrap();
        *model.entry(key).or_default() += 1;
    }
    assert_eq!(&found(tables, groups), model);
}
