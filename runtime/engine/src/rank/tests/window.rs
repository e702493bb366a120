//! Ranks of windows against sorting all rows, with watermarks behind them and restores in between.

use super::*;
use crate::operator::{Progress, RestoredList};
use arrow::array::{AsArray, TimestampMillisecondArray};
use arrow::datatypes::{Int64Type, TimeUnit};

/// A key, the end of a window, a value.
type Windowed = (i64, i64, i64);

fn windowed(rows: &[Windowed]) -> Batch {
    let number = |value: fn(&Windowed) -> i64| rows.iter().map(value).collect::<Vec<_>>();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(number(|row| row.0))),
        Arc::new(TimestampMillisecondArray::from(number(|row| row.1))),
        Arc::new(Int64Array::from(number(|row| row.2))),
    ];
    Batch::inserts(RecordBatch::try_new(window_schema(), columns).unwrap())
}

fn window_schema() -> SchemaRef {
    let end = Field::new("window_end", DataType::Timestamp(TimeUnit::Millisecond, None), true);
    let number = |name: &str| Field::new(name, DataType::Int64, true);
    Arc::new(Schema::new(vec![number("k"), end, number("v")]))
}

fn factory() -> WindowRankFactory {
    let spec = RankSpec {
        input: window_schema(),
        keys: vec![1, 0],
        by: RankBy::Columns(vec![RankOrder { column: 2, descending: true, nulls_first: false }]),
        limit: 2,
        number: Some("number".to_owned()),
        emit_update_before: true,
        changelog: false,
        ttl: None,
    };
    WindowRankFactory::new(spec, 1).unwrap()
}

fn rows_of(out: &Collected) -> Vec<Vec<i64>> {
    let mut rows = Vec::new();
    for batch in &out.0 {
        assert!(batch.kinds.is_none(), "new rows only: {:?}", lines(batch));
        let columns = batch.rows.columns().iter().map(|column| arrow::compute::cast(column, &DataType::Int64).unwrap());
        let columns: Vec<ArrayRef> = columns.collect();
        let row = |row: usize| columns.iter().map(|column| column.as_primitive::<Int64Type>().value(row)).collect();
        rows.extend((0..batch.len()).map(row));
    }
    rows
}

fn open(backend: &StateBackend, parallelism: u32, states: &[OperatorState]) -> Vec<Box<dyn Operator>> {
    let lists = states.iter().flat_map(|state| &state.operator).map(|list| RestoredList {
        name: list.name.clone(),
        redistribution: list.redistribution,
        items: list.items.clone(),
    });
    let state = RestoredState {
        restored: !states.is_empty(),
        keyed: states.iter().flat_map(|state| &state.keyed).map(restored).collect(),
        operator: lists.collect(),
        ..RestoredState::default()
    };
    let open = |index| {
        let mut operator = factory().create().unwrap();
        operator
            .open(&OperatorContext { state_backend: backend.clone(), ..context(index, parallelism) }, state.clone())
            .unwrap();
        operator
    };
    (0..parallelism).map(open).collect()
}

fn advance(operators: &mut [Box<dyn Operator>], watermark: i64, slices: u64, out: &mut Collected) {
    for operator in operators {
        let mut left = slices;
        while left > 0 && operator.watermark(watermark, out).unwrap() == Progress::More {
            left -= 1;
        }
    }
}

#[test]
fn each_window_comes_out_once_when_the_watermark_has_passed_it() {
    for (backend, rounds) in backends().iter().zip([40, 6]) {
        let (mut random, mut all, mut found) = (Random(77_777), Vec::new(), Vec::new());
        let mut operators = open(backend, 2, &[]);
        for round in 0..rounds {
            let row = |_| (random.below(6) as i64, 10 * (round + 1 + random.below(3) as i64), random.below(9) as i64);
            let rows: Vec<Windowed> = (0..12).map(row).collect();
            all.extend(rows.iter().copied());
            // The window that ends with the last round's watermark is over.
            let late = [(1, 10 * round, 100)];
            let mut out = Collected::default();
            let parallelism = operators.len() as u32;
            for (index, operator) in (0..).zip(&mut operators) {
                let both = windowed(&[&rows[..], if round > 0 { &late } else { &[] }].concat());
                let own = rows_of_subtask(both, &[1, 0], SubtaskIndex(index), parallelism, 128).unwrap();
                own.into_iter().for_each(|own| operator.process(own, &mut out).unwrap());
            }
            assert!(out.0.is_empty(), "nothing comes out before its time");
            let watermark = 10 * (round + 1) - 1;
            advance(&mut operators, watermark - 1, u64::MAX, &mut out);
            assert!(out.0.is_empty(), "nothing comes out before its time");
            if round % 3 == 0 {
                advance(&mut operators, watermark, random.below(4), &mut out);
                let frozen = operators.iter_mut().map(|operator| operator.snapshot(CheckpointId(1)).unwrap().unwrap());
                let states: Vec<OperatorState> = frozen.map(|writer| written(writer.as_ref())).collect();
                operators = open(backend, 1 + random.below(3) as u32, &states);
                advance(&mut operators, i64::MIN, u64::MAX, &mut out);
            }
            advance(&mut operators, watermark, u64::MAX, &mut out);
            found.extend(rows_of(&out));
        }
        let mut out = Collected::default();
        advance(&mut operators, i64::MAX, u64::MAX, &mut out);
        found.extend(rows_of(&out));
        found.sort();
        let mut partitions: BTreeMap<(i64, i64), Vec<i64>> = BTreeMap::new();
        all.iter().for_each(|(k, end, v)| partitions.entry((*k, *end)).or_default().push(*v));
        let mut expected = Vec::new();
        for ((k, end), mut values) in partitions {
            values.sort_by_key(|value| -value);
            expected.extend(values.into_iter().take(2).zip(1..).map(|(value, place)| vec![k, end, value, place]));
        }
        expected.sort();
        assert_eq!(found, expected);
    }
}
