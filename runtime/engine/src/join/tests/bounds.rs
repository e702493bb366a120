//! Joins that time bounds against nested loops over all rows, with watermarks behind them, and restores in between, also
//! between two slices of one watermark.

use super::*;
use arrow::array::TimestampMillisecondArray;
use arrow::datatypes::{Int64Type, TimeUnit};

/// `right - left` of pairs.
const INTERVAL: std::ops::RangeInclusive<i64> = -20..=35;

/// A key and a time, which may be missing.
type Timed = (i64, Option<i64>);

struct Within;

impl RowExpression for Within {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
        let time = |column: usize| {
            let column = arrow::compute::cast(batch.column(column), &DataType::Int64).unwrap();
            column.as_primitive::<Int64Type>().iter().collect::<Vec<_>>()
        };
        let pairs = time(1).into_iter().zip(time(3));
        let holds = pairs.map(|(left, right)| Some(INTERVAL.contains(&(right? - left?))));
        Ok(Arc::new(holds.collect::<BooleanArray>()))
    }
}

fn timed_schema(names: [&str; 2]) -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    Arc::new(Schema::new(vec![Field::new(names[0], DataType::Int64, true), Field::new(names[1], time, true)]))
}

fn bounded(kind: JoinKind, drops_late: bool, bucket: i64) -> JoinFactory {
    let (left, right) = (timed_schema(["k", "t"]), timed_schema(["j", "u"]));
    let fields = left.fields().iter().chain(right.fields()).cloned().collect::<Vec<_>>();
    let sides = [*INTERVAL.end(), -INTERVAL.start()].map(|keep| RowBound { column: 1, keep });
    let spec = JoinSpec {
        kind,
        left,
        right,
        left_keys: vec![0],
        right_keys: vec![0],
        condition: Some(Box::new(|| Ok(Box::new(Within)))),
        output: Arc::new(Schema::new(fields)),
        left_ttl: None,
        right_ttl: None,
        bounds: Some(JoinBounds { sides, drops_late, bucket }),
    };
    JoinFactory::new(spec).unwrap()
}

fn timed(side: usize, rows: &[Timed]) -> Batch {
    let keys: ArrayRef = Arc::new(rows.iter().map(|(key, _)| Some(*key)).collect::<Int64Array>());
    let times: ArrayRef = Arc::new(rows.iter().map(|(_, time)| *time).collect::<TimestampMillisecondArray>());
    let schema = timed_schema([["k", "t"], ["j", "u"]][side]);
    Batch::inserts(RecordBatch::try_new(schema, vec![keys, times]).unwrap())
}

/// Rows of the output with how often each came out.
type Content = BTreeMap<Vec<Option<i64>>, usize>;

fn add_all(content: &mut Content, out: &Collected) {
    for batch in &out.0 {
        assert!(batch.kinds.is_none(), "new rows only: {:?}", lines(batch));
        let columns = batch.rows.columns().iter().map(|column| arrow::compute::cast(column, &DataType::Int64).unwrap());
        let columns: Vec<ArrayRef> = columns.collect();
        for row in 0..batch.len() {
            let values = columns.iter().map(|column| column.as_primitive::<Int64Type>());
            *content
                .entry(values.map(|column| column.is_valid(row).then(|| column.value(row))).collect())
                .or_default() += 1;
        }
    }
}

fn expected(kind: JoinKind, [left, right]: &[Vec<Timed>; 2]) -> Content {
    let mut content = Content::new();
    let matches = |one: &Timed, other: &Timed| {
        one.0 == other.0 && one.1.zip(other.1).is_some_and(|(left, right)| INTERVAL.contains(&(right - left)))
    };
    for one in left {
        let found: Vec<&Timed> = right.iter().filter(|other| matches(one, other)).collect();
        found
            .iter()
            .for_each(|other| *content.entry(vec![Some(one.0), one.1, Some(other.0), other.1]).or_default() += 1);
        if found.is_empty() && kind.is_outer(0) {
            *content.entry(vec![Some(one.0), one.1, None, None]).or_default() += 1;
        }
    }
    for other in right.iter().filter(|other| kind.is_outer(1) && !left.iter().any(|one| matches(one, other))) {
        *content.entry(vec![None, None, Some(other.0), other.1]).or_default() += 1;
    }
    content
}

/// All subtasks with what came out of them.
struct Job<'a> {
    factory: &'a JoinFactory,
    backend: &'a StateBackend,
    operators: Vec<Box<dyn Operator>>,
    content: Content,
}

impl Job<'_> {
    fn restart(&mut self, parallelism: u32) {
        let frozen = self.operators.iter_mut().map(|operator| operator.snapshot(CheckpointId(1)).unwrap().unwrap());
        let states: Vec<OperatorState> = frozen.map(|writer| written(writer.as_ref())).collect();
        let lists = states.iter().flat_map(|state| &state.operator).map(|list| crate::operator::RestoredList {
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
            let mut operator = self.factory.create().unwrap();
            let context = OperatorContext { state_backend: self.backend.clone(), ..context(index, parallelism) };
            operator.open(&context, state.clone()).unwrap();
            operator
        };
        self.operators = (0..parallelism).map(open).collect();
        self.watermark(i64::MIN, None);
    }

    fn process(&mut self, side: usize, rows: &[Timed]) {
        let (parallelism, mut out) = (self.operators.len() as u32, Collected::default());
        for (index, operator) in (0..).zip(&mut self.operators) {
            let own = rows_of_subtask(timed(side, rows), &[0], SubtaskIndex(index), parallelism, 128).unwrap();
            own.into_iter().for_each(|own| operator.process_input(side as u8, own, &mut out).unwrap());
        }
        add_all(&mut self.content, &out);
    }

    /// To its end, or so many slices of each subtask.
    fn watermark(&mut self, watermark: i64, slices: Option<u64>) {
        let mut out = Collected::default();
        for operator in &mut self.operators {
            let mut left = slices;
            while left != Some(0) && operator.watermark(watermark, &mut out).unwrap() == Progress::More {
                left = left.map(|left| left - 1);
            }
        }
        add_all(&mut self.content, &out);
    }
}

#[test]
fn rows_in_time_give_all_pairs_and_each_lonely_row_once_also_after_restores() {
    let kinds = [JoinKind::Inner, JoinKind::LeftOuter, JoinKind::RightOuter, JoinKind::FullOuter];
    for (backend, rounds) in backends().iter().zip([40, 5]) {
        for (seed, kind) in (1..).zip(kinds) {
            let factory = bounded(kind, false, 3);
            let (mut random, mut all) = (Random(seed * 7_777_777), [Vec::new(), Vec::new()]);
            let mut job = Job { factory: &factory, backend, operators: Vec::new(), content: Content::new() };
            job.restart(2);
            for round in 0..rounds {
                let begin = 10 * round;
                for side in [0, 1, 0] {
                    let row = |_| {
                        let time = begin + random.below(60) as i64;
                        (random.below(5) as i64, Some(time).filter(|time| time % 17 > 0))
                    };
                    let rows: Vec<Timed> = (0..4).map(row).collect();
                    job.process(side, &rows);
                    all[side].extend(rows);
                }
                if round % 3 == 0 {
                    job.watermark(begin + 9, Some(random.below(3)));
                    job.restart(1 + random.below(3) as u32);
                }
                job.watermark(begin + 9, None);
            }
            job.watermark(i64::MAX, None);
            assert_eq!(job.content, expected(kind, &all), "{kind:?}");
            let left: u64 = job
                .operators
                .iter_mut()
                .flat_map(|operator| written(operator.snapshot(CheckpointId(2)).unwrap().unwrap().as_ref()).keyed)
                .map(|piece| piece.rows)
                .sum();
            assert_eq!(left, 0, "nothing is kept at the end");
        }
    }
}

#[test]
fn rows_go_with_the_watermark_and_late_ones_meet_what_is_kept_or_are_dropped() {
    let backend = StateBackend::Hash;
    for drops_late in [false, true] {
        let factory = bounded(JoinKind::LeftOuter, drops_late, 3);
        let mut job = Job { factory: &factory, backend: &backend, operators: Vec::new(), content: Content::new() };
        job.restart(1);
        job.process(0, &[(1, Some(100)), (2, Some(100))]);
        job.process(1, &[(1, Some(130))]);
        job.watermark(134, None);
        assert_eq!(job.content, Content::from([(vec![Some(1), Some(100), Some(1), Some(130)], 1)]));
        job.watermark(140, None);
        assert_eq!(job.content.len(), 2, "the lonely one came out: {:?}", job.content);
        // Over since 135; the right one at 130 waits until 150.
        job.process(0, &[(1, Some(100)), (1, Some(90))]);
        let late = [(vec![Some(1), Some(100), Some(1), Some(130)], 2), (vec![Some(1), Some(90), None, None], 1)];
        let found = late.into_iter().all(|(row, count)| job.content.get(&row) == Some(&count));
        assert_eq!(found, !drops_late, "{:?}", job.content);
    }
}

#[test]
fn a_late_row_like_one_that_waits_to_be_taken_out_leaves_that_where_it_is() {
    for (backend, (drops_late, count)) in backends().iter().flat_map(|one| [(one, (false, 2)), (one, (true, 1))]) {
        let factory = bounded(JoinKind::LeftOuter, drops_late, 1000);
        let mut job = Job { factory: &factory, backend, operators: Vec::new(), content: Content::new() };
        job.restart(1);
        job.process(0, &[(1, Some(100))]);
        job.watermark(140, None);
        assert!(job.content.is_empty(), "over since 135, but its bucket is not");
        job.process(0, &[(1, Some(100))]);
        job.watermark(i64::MAX, None);
        assert_eq!(job.content, Content::from([(vec![Some(1), Some(100), None, None], count)]));
    }
}
