//! Groups that expire, by a clock that the test moves.

use super::*;
use crate::operator::Clock;
use crate::state::StateBackend;
use crate::testing::backends;
use sluice_protocol::Timestamp;
use std::sync::atomic::{AtomicU64, Ordering};

struct Job {
    spec: GroupAggregateSpec,
    backend: StateBackend,
    time: Arc<AtomicU64>,
    operator: Box<dyn Operator>,
}

impl Job {
    fn new(backend: &StateBackend, ttl: Option<u64>, at: u64, state: RestoredState) -> Self {
        let calls = vec![
            call(AggregateKind::Count, None, "n"),
            call(AggregateKind::Max, 1, "m"),
            AggregateCall { distinct: true, ..call(AggregateKind::Count, 1, "d") },
        ];
        let spec = GroupAggregateSpec {
            input: rows(&[]).schema(),
            keys: vec![0],
            key_names: vec!["k".to_owned()],
            calls,
            emit_update_before: true,
            changelog: true,
            ttl: ttl.map(TimeSpan),
        };
        Self::of(spec, backend, at, state)
    }

    fn of(spec: GroupAggregateSpec, backend: &StateBackend, at: u64, state: RestoredState) -> Self {
        let mut operator = GroupAggregateFactory::new(spec.clone()).unwrap().create().unwrap();
        let time = Arc::new(AtomicU64::new(at));
        let clock: Clock = {
            let time = Arc::clone(&time);
            Arc::new(move || Timestamp(time.load(Ordering::SeqCst)))
        };
        operator.set_clock(&clock);
        let context = OperatorContext { state_backend: backend.clone(), ..context(0, 1) };
        operator.open(&context, state).unwrap();
        Self { spec, backend: backend.clone(), time, operator }
    }

    fn row(&mut self, at: u64, key: i64, value: i64) -> Vec<String> {
        self.time.store(at, Ordering::SeqCst);
        process(self.operator.as_mut(), Batch::inserts(rows(&[(key, Some(value))])))
    }

    fn state(&mut self) -> OperatorState {
        written(self.operator.snapshot(CheckpointId(1)).unwrap().unwrap().as_ref())
    }

    fn rows_of(state: &OperatorState, name: &str) -> u64 {
        state.keyed.iter().filter(|piece| piece.name == name).map(|piece| piece.rows).sum()
    }

    /// Killed, and started again with this TTL.
    fn restart(&mut self, ttl: Option<u64>, at: u64) -> Self {
        let keyed = self.state().keyed.iter().map(restored).collect();
        let spec = GroupAggregateSpec { ttl: ttl.map(TimeSpan), ..self.spec.clone() };
        Self::of(spec, &self.backend, at, RestoredState { restored: true, keyed, ..RestoredState::default() })
    }
}

#[test]
fn a_group_lives_so_long_after_its_last_row_and_is_then_never_seen_again() {
    for backend in backends() {
        let mut job = Job::new(&backend, Some(100), 1000, RestoredState::default());
        assert_eq!(job.row(1000, 1, 5), ["+I 1 1 5 1"]);
        assert_eq!(job.row(1099, 1, 5), ["-U 1 1 5 1", "+U 1 2 5 1"]);
        assert_eq!(job.row(1198, 1, 4), ["-U 1 2 5 1", "+U 1 3 5 2"]);
        // Of the group, and of the value 5, nothing is left; the retraction of a row of theirs says nothing.
        job.time.store(1298, Ordering::SeqCst);
        let gone = changes(&[Delete], rows(&[(1, Some(5))]));
        assert_eq!(process(job.operator.as_mut(), gone), [""; 0]);
        assert_eq!(job.row(1298, 1, 3), ["+I 1 1 3 1"]);
    }
}

#[test]
fn expired_state_is_removed_a_few_rows_at_a_time_also_when_no_row_comes_for_it() {
    for backend in backends() {
        let mut job = Job::new(&backend, Some(100), 1000, RestoredState::default());
        for key in 0..500 {
            job.row(1000, key, 1);
        }
        let before = job.state();
        assert_eq!((Job::rows_of(&before, "groups"), Job::rows_of(&before, "values-d")), (500, 500));
        for step in 0..30 {
            job.row(1200, 1000 + step, 1);
        }
        let after = job.state();
        assert_eq!((Job::rows_of(&after, "groups"), Job::rows_of(&after, "values-d")), (30, 30));
        job.time.store(9999, Ordering::SeqCst);
        assert_eq!(job.state().keyed.len(), 0, "a snapshot looks for them too");
    }
}

#[test]
fn a_table_that_only_gets_new_keys_holds_little_more_than_those_that_live() {
    for backend in backends() {
        let mut job = Job::new(&backend, Some(100), 1000, RestoredState::default());
        for step in 0..8 {
            let keys: Vec<(i64, Option<i64>)> = (step * 2000..(step + 1) * 2000).map(|key| (key, Some(1))).collect();
            job.time.store(1000 + step as u64 * 100, Ordering::SeqCst);
            process(job.operator.as_mut(), Batch::inserts(rows(&keys)));
        }
        let left = job.state();
        for name in ["groups", "values-m", "values-d"] {
            let left = Job::rows_of(&left, name);
            assert!((2000..=4000).contains(&left), "{name}: {left} rows");
        }
    }
}

#[test]
fn the_time_of_the_last_row_survives_a_restore_under_another_ttl() {
    for backend in backends() {
        let mut job = Job::new(&backend, Some(100), 1000, RestoredState::default());
        job.row(1000, 1, 5);
        job.row(1050, 2, 5);
        let mut same = job.restart(Some(100), 1100);
        assert_eq!(same.row(1100, 1, 1), ["+I 1 1 1 1"], "it expired while the job was down");
        assert_eq!(same.row(1101, 2, 1), ["-U 2 1 5 1", "+U 2 2 5 2"]);
        let mut longer = job.restart(Some(1000), 1500);
        assert_eq!(longer.row(1500, 1, 1), ["-U 1 1 5 1", "+U 1 2 5 2"]);
        let mut shorter = job.restart(Some(20), 1075);
        assert_eq!(shorter.row(1075, 2, 1), ["+I 2 1 1 1"]);
    }
}

#[test]
fn a_ttl_may_come_and_go_with_a_restore() {
    for backend in backends() {
        let mut job = Job::new(&backend, None, 1000, RestoredState::default());
        job.row(1000, 1, 5);
        job.row(1000, 2, 5);
        let mut with = job.restart(Some(100), 5000);
        assert_eq!(with.row(5000, 1, 1), ["-U 1 1 5 1", "+U 1 2 5 2"], "its age was not known");
        assert_eq!(with.row(5099, 2, 1), ["-U 2 1 5 1", "+U 2 2 5 2"]);
        assert_eq!(with.row(5100, 1, 7), ["+I 1 1 7 1"]);
        let mut without = with.restart(None, 99_999);
        assert_eq!(without.row(99_999, 1, 7), ["-U 1 1 7 1", "+U 1 2 7 1"]);
    }
}

/// `SELECT k, MIN(s) …`.
fn minimum_of_text(backend: &StateBackend, changelog: bool) -> Job {
    let spec = GroupAggregateSpec {
        input: texts(&[]).schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![call(AggregateKind::Min, 1, "m")],
        emit_update_before: true,
        changelog,
        ttl: Some(TimeSpan(100)),
    };
    Job::of(spec, backend, 1000, RestoredState::default())
}

fn texts(rows: &[(i64, Option<&str>)]) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)));
    let values: ArrayRef = Arc::new(rows.iter().map(|row| row.1).collect::<StringArray>());
    RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("s", values, true)]).unwrap()
}

#[test]
fn an_extremum_of_text_lives_as_long_as_its_group_also_after_a_restore() {
    for (backend, changelog) in backends().into_iter().flat_map(|backend| [(backend.clone(), false), (backend, true)]) {
        for restarts in [false, true] {
            let mut job = minimum_of_text(&backend, changelog);
            let mut at = |at: u64, kind: RowKind, value: Option<&str>| {
                if restarts {
                    job = job.restart(Some(100), at);
                }
                job.time.store(at, Ordering::SeqCst);
                process(job.operator.as_mut(), changes(&[kind], texts(&[(1, value)])))
            };
            assert_eq!(at(1000, Insert, Some("b")), ["+I 1 b"]);
            assert_eq!(at(1050, Insert, Some("c")), ["-U 1 b", "+U 1 b"]);
            assert_eq!(at(1120, Insert, None), ["-U 1 b", "+U 1 b"]);
            assert_eq!(at(1210, Insert, Some("d")), ["-U 1 b", "+U 1 b"]);
            if changelog {
                assert_eq!(at(1220, Delete, Some("b")), ["-U 1 b", "+U 1 d"], "c has expired");
            }
            assert_eq!(
                at(1230, Insert, Some("a")),
                [format!("-U 1 {}", if changelog { "d" } else { "b" }), "+U 1 a".to_owned()]
            );
            assert_eq!(at(1330, Insert, Some("z")), ["+I 1 z"]);
        }
    }
}
