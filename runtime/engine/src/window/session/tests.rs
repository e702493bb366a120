//! Sessions against a plain model that takes row by row.

use super::*;
use crate::aggregate::AggregateKind;
use crate::operator::RestoredList;
use crate::state::StateBackend;
use crate::testing::{Collected, Random, backends, context, lines, restored, written};
use arrow::array::{ArrayRef, StringArray, TimestampMillisecondArray};
use sluice_protocol::key_group::encode;
use std::collections::BTreeMap;

/// Key, value, time.
type Row = (i64, i64, Option<i64>);

const GAP: i64 = 10;

fn batch(rows: &[Row], text_keys: bool) -> RecordBatch {
    let keys: ArrayRef = if text_keys {
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| format!("k{}", row.0))))
    } else {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)))
    };
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)));
    let times: ArrayRef = Arc::new(rows.iter().map(|row| row.2).collect::<TimestampMillisecondArray>());
    RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("v", values, true), ("t", times, true)]).unwrap()
}

fn factory(text_keys: bool, keys: Vec<usize>, time: RowTime) -> SessionAggregateFactory {
    let call = |kind, argument, name| AggregateCall::new(kind, argument, name);
    SessionAggregateFactory::new(SessionAggregateSpec {
        input: batch(&[], text_keys).schema(),
        key_names: keys.iter().map(|_| "k".to_owned()).collect(),
        keys,
        calls: vec![
            call(AggregateKind::Count, None, "n"),
            call(AggregateKind::Sum, Some(1), "s"),
            call(AggregateKind::Min, Some(1), "m"),
        ],
        gap: GAP,
        time,
        window_time: DataType::Timestamp(TimeUnit::Millisecond, None),
    })
    .unwrap()
}

struct Job {
    text_keys: bool,
    operators: Vec<Box<dyn Operator>>,
}

impl Job {
    fn start(text_keys: bool, parallelism: u32, on: &StateBackend, state: &RestoredState) -> Self {
        let factory = factory(text_keys, vec![0], RowTime::Column(2));
        let open = |index: u32| {
            let mut operator = factory.create().unwrap();
            let context = OperatorContext { state_backend: on.clone(), ..context(index, parallelism) };
            operator.open(&context, state.clone()).unwrap();
            operator
        };
        Self { text_keys, operators: (0..parallelism).map(open).collect() }
    }

    fn process(&mut self, rows: &[Row]) {
        let parallelism = self.operators.len() as u32;
        let owner = |row: &Row| {
            let mut key = Vec::new();
            encode::bytes(&mut key, format!("k{}", row.0).as_bytes());
            let hash = if self.text_keys { key_group::hash(&key) } else { key_group::hash(&encode::bigint(row.0)) };
            key_group::owner(key_group::of_hash(hash, 128), parallelism, 128).0
        };
        for (index, operator) in (0..).zip(&mut self.operators) {
            let own: Vec<Row> = rows.iter().filter(|row| owner(row) == index).copied().collect();
            let mut out = Collected::default();
            operator.process(Batch::inserts(batch(&own, self.text_keys)), &mut out).unwrap();
            assert!(out.0.is_empty(), "a session waits for the watermark");
        }
    }

    fn watermark(&mut self, watermark: i64, most: usize) -> Vec<String> {
        let mut out = Collected::default();
        for operator in &mut self.operators {
            for _ in 0..most {
                if operator.watermark(watermark, &mut out).unwrap() == Progress::Done {
                    break;
                }
            }
        }
        out.0.iter().flat_map(lines).map(short).collect()
    }

    fn state(&mut self) -> RestoredState {
        let mut state = RestoredState { restored: true, ..RestoredState::default() };
        for operator in &mut self.operators {
            let own = written(operator.snapshot(CheckpointId(1)).unwrap().unwrap().as_ref());
            state.keyed.extend(own.keyed.iter().map(restored));
            let list = |list: crate::operator::ListPiece| RestoredList {
                name: list.name,
                redistribution: list.redistribution,
                items: list.items,
            };
            state.operator.extend(own.operator.into_iter().map(list));
        }
        state
    }
}

/// Times as they are, in milliseconds.
fn short(line: String) -> String {
    let words = line.split(' ').map(|word| {
        let time = chrono_less(word);
        time.map_or_else(|| word.to_owned(), |time| time.to_string())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// `1970-01-01T00:00:01.005` and the second before 1970, in milliseconds.
fn chrono_less(word: &str) -> Option<i64> {
    let (day, time) = word.split_once('T')?;
    let day = match day {
        "1970-01-01" => 0,
        "1969-12-31" => -86_400_000,
        _ => return None,
    };
    let mut parts = time.split(':');
    let (hours, minutes, seconds) = (parts.next()?, parts.next()?, parts.next()?);
    let milliseconds = (seconds.parse::<f64>().ok()? * 1000.0).round() as i64;
    Some(day + hours.parse::<i64>().ok()? * 3_600_000 + minutes.parse::<i64>().ok()? * 60_000 + milliseconds)
}

/// Sessions of each key: start, end, values.
#[derive(Default)]
struct Model {
    open: BTreeMap<i64, Vec<(i64, i64, Vec<i64>)>>,
    watermark: Option<i64>,
}

impl Model {
    fn process(&mut self, rows: &[Row]) {
        for (key, value, time) in rows {
            let Some(time) = *time else { continue };
            let sessions = self.open.entry(*key).or_default();
            let mut made = (time, time + GAP, vec![*value]);
            let joined = |session: &(i64, i64, Vec<i64>), made: &(i64, i64, Vec<i64>)| {
                session.0 <= made.1 && made.0 <= session.1
            };
            while let Some(position) = sessions.iter().position(|session| joined(session, &made)) {
                let other = sessions.remove(position);
                made = (made.0.min(other.0), made.1.max(other.1), [made.2, other.2].concat());
            }
            if self.watermark.is_none_or(|watermark| made.1 - 1 > watermark) {
                sessions.push(made);
            }
        }
    }

    fn watermark(&mut self, watermark: i64, text_keys: bool) -> Vec<String> {
        self.watermark = Some(watermark);
        let mut fired = Vec::new();
        for (key, sessions) in &mut self.open {
            sessions.retain(|(start, end, values)| {
                if end - 1 <= watermark {
                    let (n, sum, least) = (values.len(), values.iter().sum::<i64>(), values.iter().min().unwrap());
                    let key = if text_keys { format!("k{key}") } else { key.to_string() };
                    fired.push(format!("+I {key} {n} {sum} {least} {start} {end} {}", end - 1));
                }
                end - 1 > watermark
            });
        }
        fired
    }
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

#[test]
fn windows_that_meet_are_one_session_and_it_fires_a_gap_after_its_last_row() {
    let [hash, _] = backends();
    let mut job = Job::start(false, 1, &hash, &RestoredState::default());
    job.process(&[(1, 5, Some(0)), (1, 7, Some(10)), (1, 1, Some(31)), (2, 9, None)]);
    assert_eq!(job.watermark(18, 9), [""; 0]);
    assert_eq!(job.watermark(19, 9), ["+I 1 2 12 5 0 20 19"]);
    // The first is late; what is late by itself but joins a session that is open is not.
    job.process(&[(1, 2, Some(5)), (1, 4, Some(21))]);
    assert_eq!(job.watermark(30, 9), [""; 0]);
    job.process(&[(1, 8, Some(11)), (1, 3, Some(20)), (1, 6, Some(9))]);
    assert_eq!(job.operators[0].late_rows(), 2, "one is late, one has no time");
    assert_eq!(job.watermark(40, 9), ["+I 1 5 22 1 9 41 40"]);
}

/// Random streams with disorder beyond the watermark; batches of random sizes, killed and rescaled at random.
#[test]
fn whatever_happens_sessions_are_those_of_the_model() {
    let [hash, disk] = backends();
    let of_hash = (1..=12).map(|seed| (seed, &hash, seed % 2 == 0));
    for (seed, backend, text_keys) in of_hash.chain([(13, &disk, false), (14, &disk, true)]) {
        let mut random = Random(seed * 104_729);
        let mut job = Job::start(text_keys, 2, backend, &RestoredState::default());
        let mut model = Model::default();
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        let (mut time, mut several) = (-30_i64, 0);
        for step in 0..40 {
            let row = |_| {
                let at = time - 25 + random.below(60) as i64;
                (random.below(12) as i64, random.below(100) as i64 - 50, Some(at).filter(|at| at % 17 != 0))
            };
            let rows: Vec<Row> = (0..12).map(row).collect();
            model.process(&rows);
            let mut rest = rows.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(1 + random.below(rest.len() as u64) as usize);
                job.process(now);
                rest = later;
            }
            time += random.below(9) as i64;
            let watermark = time - 12;
            expected.extend(model.watermark(watermark, text_keys));
            let most = if random.below(2) == 0 { usize::MAX } else { 1 + random.below(3) as usize };
            found.extend(job.watermark(watermark, most));
            if step % 3 == 0 || most < usize::MAX {
                let state = job.state();
                several += state.keyed.iter().filter(|file| file.name == more::STATE_NAME).count();
                job = Job::start(text_keys, 1 + random.below(3) as u32, backend, &state);
                found.extend(job.watermark(i64::MIN, usize::MAX));
                found.extend(job.watermark(watermark, usize::MAX));
            }
        }
        expected.extend(model.watermark(1_000_000, text_keys));
        found.extend(job.watermark(i64::MAX, usize::MAX));
        assert_eq!(sorted(found), sorted(expected), "seed {seed}");
        assert!(several > 3, "keys had several sessions in {several} snapshots only");
        assert_eq!(job.state().keyed.len(), 0, "nothing is left");
    }
}

#[test]
fn sessions_without_keys_and_by_the_clock() {
    let clock = Arc::new(std::sync::atomic::AtomicU64::new(1000));
    let mut operator = factory(false, vec![], RowTime::Processing).create().unwrap();
    let read = Arc::clone(&clock);
    operator.set_clock(&(Arc::new(move || Timestamp(read.load(std::sync::atomic::Ordering::SeqCst))) as Clock));
    operator.open(&context(0, 1), RestoredState::default()).unwrap();
    let mut out = Collected::default();
    operator.process(Batch::inserts(batch(&[(1, 5, None), (2, 6, None)], false)), &mut out).unwrap();
    assert_eq!(operator.next_timer(), Some(Timestamp(1010)));
    clock.store(1007, std::sync::atomic::Ordering::SeqCst);
    operator.process(Batch::inserts(batch(&[(3, 7, None)], false)), &mut out).unwrap();
    while operator.on_timer(Timestamp(1010), &mut out).unwrap() == Progress::More {}
    assert!(out.0.is_empty(), "it was prolonged");
    assert_eq!(operator.next_timer(), Some(Timestamp(1017)));
    while operator.on_timer(Timestamp(1017), &mut out).unwrap() == Progress::More {}
    assert_eq!(out.0.iter().flat_map(lines).map(short).collect::<Vec<_>>(), ["+I 3 18 5 1000 1017 1016"]);
    assert_eq!(operator.next_timer(), None);
}
