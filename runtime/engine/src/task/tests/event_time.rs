//! Watermarks and timers in a task: slices, barriers between and behind them, ends with and without a drain.

use super::*;
use crate::event_time::alignment::{AlignmentGroups, AlignmentMember, WatermarkAlignment};
use crate::event_time::{WatermarkStatus, WatermarkStrategy};
use crate::operator::{Collector, ListPiece, Operator, OperatorFactory, Progress, SnapshotWriter};
use crate::operators::RowExpression;
use crate::source::{Source, SourceFactory, SplitChange};
use crate::testing::connectors::schema;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{Int64Type, SchemaRef};
use sluice_protocol::ledger::Ends;
use sluice_protocol::message::Alignment;
use sluice_protocol::state::{Redistribution, SplitState};
use std::collections::VecDeque;
use std::sync::Mutex;

type Rows = (&'static str, VecDeque<i64>);

/// The rows of each split that may be read, in turn.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Vec<Rows>>>);

struct ScriptReader {
    script: Script,
    told: bool,
    polled: &'static str,
    held: Vec<String>,
}

struct Scripted(Script, WatermarkStrategy);

struct Value;

impl RowExpression for Value {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
        Ok(Arc::clone(batch.column(1)))
    }
}

impl Source for ScriptReader {
    fn open(&mut self, context: SourceContext, _: RestoredState) -> Result<(), TaskError> {
        assert!(context.by_split);
        Ok(())
    }

    fn poll(&mut self, _: usize) -> Result<SourcePoll, TaskError> {
        let mut splits = self.script.0.lock().unwrap();
        splits.rotate_left(1);
        let Some((split, rows)) =
            splits.iter_mut().find(|(split, rows)| !rows.is_empty() && !self.held.iter().any(|held| held == split))
        else {
            return Ok(SourcePoll::Pending);
        };
        self.polled = split;
        let column: ArrayRef = Arc::new(Int64Array::from(rows.drain(..).collect::<Vec<_>>()));
        let rows = RecordBatch::try_new(schema(), vec![Arc::clone(&column), column]).unwrap();
        Ok(SourcePoll::Batch(Batch::inserts(rows)))
    }

    fn take_split_changes(&mut self) -> Option<Vec<SplitChange>> {
        if std::mem::replace(&mut self.told, true) {
            return Some(Vec::new());
        }
        let splits = self.script.0.lock().unwrap();
        let added = |split: &str| SplitChange::Added { split: split.to_owned(), may_idle: true };
        Some(splits.iter().map(|(split, _)| added(split)).collect())
    }

    fn polled_split(&self) -> Option<&str> {
        Some(self.polled)
    }

    fn hold_splits(&mut self, held: &[&str]) -> bool {
        self.held = held.iter().map(|split| (*split).to_owned()).collect();
        true
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let splits = self.script.0.lock().unwrap();
        let state = |split: &str| SplitState { split: split.to_owned(), state: serde_json::json!({}) };
        let mut states: Vec<_> = splits.iter().map(|(split, _)| state(split)).collect();
        states.sort_by(|one, other| one.split.cmp(&other.split));
        Ok(states)
    }
}

impl SourceFactory for Scripted {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        Ok(Box::new(ScriptReader { script: self.0.clone(), told: false, polled: "", held: Vec::new() }))
    }

    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn owner(&self, _: &str, _: u32) -> SubtaskIndex {
        SubtaskIndex(0)
    }

    fn watermarks(&self) -> Option<&WatermarkStrategy> {
        Some(&self.1)
    }
}

/// Keeps the rows until the watermark passes them, and emits one of them at a time; notes what it was told.
#[derive(Default)]
struct Waits {
    told: Arc<Mutex<Vec<String>>>,
    waiting: Vec<i64>,
    watermark: i64,
    timer: Option<Timestamp>,
}

impl Operator for Waits {
    fn open(&mut self, _: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        let items = state.operator.iter().flat_map(|list| &list.items).map(|item| item.as_i64().unwrap());
        self.waiting = items.collect();
        self.watermark = self.waiting.pop().unwrap_or(i64::MIN);
        Ok(())
    }

    fn process(&mut self, batch: Batch, _: &mut dyn Collector) -> Result<(), TaskError> {
        self.waiting.extend(batch.rows.column(1).as_primitive::<Int64Type>().values());
        self.timer = Some(Timestamp(70));
        Ok(())
    }

    fn watermark(&mut self, watermark: i64, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        self.told.lock().unwrap().push(if watermark == i64::MAX { "end".to_owned() } else { watermark.to_string() });
        self.watermark = self.watermark.max(watermark);
        self.waiting.sort_unstable_by(|one, other| other.cmp(one));
        let Some(due) = self.waiting.pop_if(|time| *time <= self.watermark) else { return Ok(Progress::Done) };
        let column: ArrayRef = Arc::new(Int64Array::from(vec![due]));
        let rows = RecordBatch::try_new(schema(), vec![Arc::clone(&column), column]).unwrap();
        out.collect(Batch::inserts(rows));
        Ok(Progress::More)
    }

    fn next_timer(&self) -> Option<Timestamp> {
        self.timer
    }

    fn on_timer(&mut self, now: Timestamp, _: &mut dyn Collector) -> Result<Progress, TaskError> {
        self.told.lock().unwrap().push(format!("timer {}", now.0));
        self.timer = None;
        Ok(Progress::Done)
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let items = self.waiting.iter().chain([&self.watermark]).map(|item| (*item).into()).collect();
        let list = ListPiece { name: "waiting".to_owned(), redistribution: Redistribution::Split, items };
        Ok(Some(Box::new(OperatorState { operator: vec![list], ..OperatorState::default() })))
    }
}

fn aligned() -> WatermarkAlignment {
    WatermarkAlignment { group: "g".to_owned(), max_drift: TimeSpan(10), update_interval: TimeSpan(300) }
}

struct WaitsFactory(Arc<Mutex<Vec<String>>>);

impl OperatorFactory for WaitsFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(Waits { told: Arc::clone(&self.0), ..Waits::default() }))
    }

    fn output_schema(&self) -> SchemaRef {
        schema()
    }
}

struct World {
    script: Script,
    told: Arc<Mutex<Vec<String>>>,
    task: Task,
    output: InputChannel,
}

impl World {
    /// A source with these splits, a second of idle timeout, and an operator that waits.
    fn new(splits: &[&'static str], state: Option<BTreeMap<OperatorUid, RestoredState>>) -> Self {
        Self::made(splits, state, None, 0)
    }

    /// The same beside others with which it is aligned.
    fn in_group(splits: &[&'static str], groups: &Arc<AlignmentGroups>, vertex: u32) -> Self {
        Self::made(splits, None, Some(groups), vertex)
    }

    fn made(
        splits: &[&'static str],
        state: Option<BTreeMap<OperatorUid, RestoredState>>,
        groups: Option<&Arc<AlignmentGroups>>,
        vertex: u32,
    ) -> Self {
        let script = Script(Arc::new(Mutex::new(splits.iter().map(|split| (*split, VecDeque::new())).collect())));
        let strategy = WatermarkStrategy {
            time: Box::new(|| Ok(Box::new(Value))),
            watermark: Box::new(|| Ok(Box::new(Value))),
            idle_timeout: Some(TimeSpan(1000)),
            alignment: Some(aligned()),
        };
        let source: Arc<dyn SourceFactory> = Arc::new(Scripted(script.clone(), strategy));
        let told = Arc::default();
        let waits: Arc<dyn OperatorFactory> = Arc::new(WaitsFactory(Arc::clone(&told)));
        let program = VertexProgram {
            source: Some(("source".into(), source)),
            operators: vec![("waits".into(), waits)],
            sink: None,
            output_schema: schema(),
        };
        let (output, input) = channel(id(0, 0), 1 << 20);
        let outputs = vec![EdgeOutput { partitioning: Partitioning::Forward, channels: vec![output] }];
        let setup = Setup { vertex, index: 0, parallelism: 1, program, inputs: Vec::new(), outputs, state };
        let subtask = SubtaskId { vertex: VertexId(vertex), index: SubtaskIndex(0) };
        let alignment = groups.map(|groups| AlignmentMember::new(Arc::clone(groups), subtask, aligned()));
        let description = TaskDescription { alignment, ..describe(setup) };
        Self { script, told, task: Task::new(description, Arc::new(|| {})), output: input }
    }

    fn give(&self, split: &str, rows: &[i64]) {
        let mut splits = self.script.0.lock().unwrap();
        splits.iter_mut().find(|(name, _)| *name == split).unwrap().1.extend(rows);
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    /// What came out: rows, `W5`, `|1`.
    fn out(&self) -> Vec<String> {
        let word = |frame: Frame| match frame {
            Frame::Batch(batch) => {
                let values = batch.rows.column(1).as_primitive::<Int64Type>().values().iter();
                values.map(ToString::to_string).collect::<Vec<_>>().join(" ")
            }
            Frame::Watermark(WatermarkStatus { watermark, idle }) => {
                format!("W{watermark}{}", if idle { " idle" } else { "" })
            }
            Frame::Barrier(barrier) => format!("|{}", barrier.checkpoint),
            Frame::Overtaking { barrier, .. } => format!("^{}", barrier.checkpoint),
            Frame::EndOfInput => "end".to_owned(),
        };
        std::iter::from_fn(|| self.output.pop()).map(|numbered| word(numbered.frame)).collect()
    }
}

#[test]
fn a_watermark_fires_in_slices_and_goes_out_behind_what_it_made_due() {
    let mut world = World::new(&["a"], None);
    world.give("a", &[1, 2, 3]);
    settle(&mut world.task, 0);
    assert_eq!(world.out(), ["1 2 3", "W3"]);
    assert_eq!(world.told(), [&i64::MIN.to_string(), "3", "3", "3", "3"].map(String::from), "again until it is done");
    settle(&mut world.task, 70);
    assert_eq!(world.told(), ["timer 70"]);
}

/// One silent partition: FLINK-5479 and many questions of users.
#[test]
fn a_silent_split_is_not_waited_for_when_its_time_is_up() {
    let mut world = World::new(&["a", "b"], None);
    world.give("a", &[10]);
    assert_eq!(settle(&mut world.task, 0), Step::Idle { until: Some(Timestamp(70)) });
    assert_eq!(world.out(), [""; 0], "b holds it back");
    settle(&mut world.task, 70);
    let Step::Idle { until: Some(until) } = settle(&mut world.task, 500) else { panic!("it sleeps") };
    world.give("a", &[20]);
    settle(&mut world.task, until.0 - 10);
    assert_eq!(world.out(), [""; 0]);
    settle(&mut world.task, until.0 + 100);
    settle(&mut world.task, until.0 + 300);
    assert_eq!(world.out(), ["10 20", "W20"]);
    world.give("b", &[30]);
    settle(&mut world.task, until.0 + 310);
    assert_eq!(world.out(), [""; 0], "b is back, and a is waited for");
}

fn trigger(world: &World, alignment: Alignment, ends: Ends) {
    let barrier = Barrier { alignment, ends, ..Barrier::aligned(CheckpointId(1), Timestamp(0), None) };
    world.task.handle().trigger(barrier);
}

#[test]
fn what_is_known_is_said_right_before_an_aligned_barrier_and_all_of_it_done() {
    let mut world = World::new(&["a"], None);
    world.give("a", &[1]);
    settle(&mut world.task, 0);
    world.give("a", &[5, 6]);
    settle(&mut world.task, 10);
    assert_eq!(world.out(), ["1", "W1"], "the next one has time");
    trigger(&world, Alignment::Aligned, Ends::None);
    settle(&mut world.task, 20);
    assert_eq!(world.out(), ["5 6", "W6", "|1"]);
    let snapshot = snapshots(world.task.take_events()).remove(0);
    let states = snapshot.write(&WriteOptions::default()).unwrap();
    assert_eq!(states[0].1.splits[0].state.to_string(), r#"{"watermark":6}"#);
}

/// B4: a barrier that overtakes between two slices; the restored operator goes on before any input.
#[test]
fn a_snapshot_between_two_slices_holds_what_is_still_due() {
    let mut world = World::new(&["a"], None);
    world.give("a", &[1, 2, 3]);
    while world.told.lock().unwrap().len() < 2 {
        world.task.step(Timestamp(0));
    }
    trigger(&world, Alignment::Unaligned { after: TimeSpan(0) }, Ends::None);
    settle(&mut world.task, 10);
    let snapshot = snapshots(world.task.take_events()).remove(0);
    let states = snapshot.write(&WriteOptions::default()).unwrap();
    let restored = states.iter().map(|(uid, state)| {
        let list = |piece: &ListPiece| crate::operator::RestoredList {
            name: piece.name.clone(),
            redistribution: piece.redistribution,
            items: piece.items.clone(),
        };
        let operator = state.operator.iter().map(list).collect();
        (uid.clone(), RestoredState { operator, splits: state.splits.clone(), ..RestoredState::default() })
    });
    assert_eq!(states[1].1.operator[0].items, [3, 2, 3], "two that are due, and the watermark");
    let mut again = World::new(&["a"], Some(restored.collect()));
    settle(&mut again.task, 200);
    settle(&mut again.task, 300);
    assert_eq!(again.out(), ["2 3", "W3"], "what was still due, each once");
    assert_eq!(again.told(), [vec![i64::MIN.to_string(); 3], vec!["3".to_owned()]].concat(), "before anything else");
}

/// FLINK-21132: a stop fired what waited.
#[test]
fn a_drain_fires_everything_and_a_stop_nothing() {
    for (ends, expected) in [(Ends::Finish, vec!["5", "9", "end", "|1"]), (Ends::Stop, vec!["|1"])] {
        let mut world = World::new(&["a", "b"], None);
        world.give("a", &[5]);
        settle(&mut world.task, 0);
        world.give("a", &[9]);
        settle(&mut world.task, 60);
        trigger(&world, Alignment::Aligned, ends);
        settle(&mut world.task, 61);
        let joined = world.out().join(" ");
        assert_eq!(joined, expected.join(" "), "{ends:?}");
    }
}

/// FLINK-35886: time in which it waits is no silence of its splits; nor does it wait for such as have ended.
#[test]
fn a_source_that_is_ahead_of_its_group_is_not_read_but_takes_barriers() {
    let groups = Arc::new(AlignmentGroups::new(false));
    let (mut fast, mut slow) = (World::in_group(&["a"], &groups, 0), World::in_group(&["b"], &groups, 1));
    fast.give("a", &[20]);
    slow.give("b", &[1]);
    assert!(matches!(settle(&mut fast.task, 0), Step::Idle { .. }));
    assert_eq!(fast.out(), ["20", "W20"], "what it had begun with");
    fast.give("a", &[30]);
    assert_eq!(settle(&mut fast.task, 100), Step::Idle { until: Some(Timestamp(400)) }, "and it looks again");
    assert_eq!(fast.out(), [""; 0], "the other is not up yet");
    trigger(&fast, Alignment::Aligned, Ends::None);
    settle(&mut fast.task, 110);
    assert_eq!(fast.out(), ["|1"]);
    settle(&mut slow.task, 120);
    settle(&mut fast.task, 130);
    assert_eq!(fast.out(), [""; 0], "19 ahead");
    slow.give("b", &[10]);
    settle(&mut slow.task, 140);
    settle(&mut fast.task, 150);
    assert_eq!(fast.out(), ["30", "W30"]);
    fast.give("a", &[40]);
    settle(&mut fast.task, 160);
    assert_eq!(fast.out(), [""; 0], "20 ahead");
    trigger(&slow, Alignment::Aligned, Ends::Finish);
    settle(&mut slow.task, 170);
    settle(&mut fast.task, 250);
    assert_eq!(fast.out(), ["40", "W40"], "one that has ended is not waited for");
    trigger(&fast, Alignment::Aligned, Ends::Stop);
    settle(&mut fast.task, 260);
    assert_eq!(fast.out(), ["|1"]);
}

/// The splits of the other fall silent: it is idle, and not waited for.
#[test]
fn an_idle_source_holds_no_other_back() {
    let groups = Arc::new(AlignmentGroups::new(false));
    let (mut fast, mut slow) = (World::in_group(&["a"], &groups, 0), World::in_group(&["b"], &groups, 1));
    fast.give("a", &[20]);
    settle(&mut fast.task, 0);
    settle(&mut slow.task, 0);
    fast.give("a", &[30]);
    settle(&mut slow.task, 900);
    settle(&mut fast.task, 900);
    assert_eq!(fast.out(), ["20", "W20"]);
    settle(&mut slow.task, 1100);
    settle(&mut fast.task, 1110);
    assert_eq!(fast.out(), ["30", "W30"]);
}
