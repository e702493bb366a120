//! Rows of a side that expire, by a clock that the test moves.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

struct Job {
    time: Arc<AtomicU64>,
    operator: Box<dyn Operator>,
}

impl Job {
    fn new(factory: &JoinFactory, backend: &StateBackend, at: u64, state: Option<&OperatorState>) -> Self {
        let time = Arc::new(AtomicU64::new(at));
        let clock: Clock = {
            let time = Arc::clone(&time);
            Arc::new(move || Timestamp(time.load(Ordering::SeqCst)))
        };
        let mut operator = factory.create().unwrap();
        operator.set_clock(&clock);
        let keyed = state.map_or_else(Vec::new, |state| state.keyed.iter().map(restored).collect());
        let state = RestoredState { restored: true, keyed, ..RestoredState::default() };
        operator.open(&OperatorContext { state_backend: backend.clone(), ..context(0, 1) }, state).unwrap();
        Self { time, operator }
    }

    /// What comes out, sorted: the backends find rows in different orders.
    fn at(&mut self, at: u64, side: u8, kind: RowKind, row: Row) -> Vec<String> {
        self.time.store(at, Ordering::SeqCst);
        let mut out = Collected::default();
        self.operator.process_input(side, batch(side.into(), &[(kind, row)]), &mut out).unwrap();
        let mut out: Vec<String> = out.0.iter().flat_map(lines).collect();
        out.sort();
        out
    }

    fn state(&mut self, at: u64) -> OperatorState {
        self.time.store(at, Ordering::SeqCst);
        written(self.operator.snapshot(CheckpointId(1)).unwrap().unwrap().as_ref())
    }
}

#[test]
fn an_expired_row_matches_no_more_its_retraction_says_nothing_and_it_is_removed() {
    use RowKind::{Delete, Insert};
    for backend in backends() {
        let factory = factory(JoinKind::Inner, false, [Some(100), None]);
        let mut job = Job::new(&factory, &backend, 1000, None);
        job.at(1000, 0, Insert, row(1, 7));
        job.at(1050, 0, Insert, row(2, 7));
        assert_eq!(job.at(1099, 1, Insert, row(5, 7)), ["+I 1 7 x 0.0 x 5 7", "+I 2 7 x 0.0 x 5 7"]);
        assert_eq!(job.at(1100, 1, Insert, row(6, 7)), ["+I 2 7 x 0.0 x 6 7"]);
        assert_eq!(job.at(1120, 0, Delete, row(1, 7)), [""; 0]);
        let kept = job.state(1130);
        let mut restored = Job::new(&factory, &backend, 1149, Some(&kept));
        assert_eq!(restored.at(1149, 1, Insert, row(8, 7)), ["+I 2 7 x 0.0 x 8 7"]);
        let mut later = Job::new(&factory, &backend, 1150, Some(&kept));
        assert_eq!(later.at(1150, 1, Insert, row(8, 7)), [""; 0], "it expired while the job was down");
        let left = later.state(1150);
        let names: Vec<&str> = left.keyed.iter().map(|piece| piece.name.as_str()).collect();
        assert_eq!(names, ["right"], "the left side's rows were removed");
    }
}

#[test]
fn a_side_that_only_gets_new_rows_holds_little_more_than_those_that_live() {
    for backend in backends() {
        let mut job = Job::new(&factory(JoinKind::Inner, false, [Some(100), None]), &backend, 1000, None);
        for step in 0..8 {
            let rows: Vec<(RowKind, Row)> =
                (0..2000).map(|number| (RowKind::Insert, row(step * 2000 + number, number))).collect();
            job.time.store(1000 + step as u64 * 100, Ordering::SeqCst);
            job.operator.process_input(0, batch(0, &rows), &mut Collected::default()).unwrap();
        }
        let left: u64 = job.state(1700).keyed.iter().map(|piece| piece.rows).sum();
        assert!((2000..=4000).contains(&left), "{left} rows");
    }
}

#[test]
fn another_ttl_is_taken_with_a_restore() {
    use RowKind::Insert;
    for backend in backends() {
        let none = factory(JoinKind::LeftOuter, false, [None, None]);
        let some = factory(JoinKind::LeftOuter, false, [Some(100), Some(200)]);
        let mut job = Job::new(&none, &backend, 1000, None);
        job.at(1000, 0, Insert, row(1, 7));
        let mut with = Job::new(&some, &backend, 5000, Some(&job.state(1000)));
        assert_eq!(with.at(5000, 0, Insert, row(9, 9)).len(), 1);
        let expected = ["+I 1 7 x 0.0 x 5 7", "-D 1 7 x 0.0 NULL NULL NULL"];
        assert_eq!(with.at(5099, 1, Insert, row(5, 7)), expected, "its age was not known");
        let kept = with.state(5100);
        let mut without = Job::new(&none, &backend, 99_999, Some(&kept));
        assert_eq!(without.at(99_999, 1, Insert, row(6, 7)), ["+I 1 7 x 0.0 x 6 7"]);
    }
}
