//! Connectors in memory: `rows` reads the views and their owners in splits (with `'changes' = 'true'` as changes that come to
//! the same rows; with `'every' = '5'` it has rows at every fifth poll only; with `'silent' = 'true'` its first split, which
//! has no rows, may fall idle and ends with the last; with `'lingers' = '900'` it is asked so many times behind its last row before it
//! ends, and may fall idle meanwhile), `collect` keeps what is written with its kinds.

use super::job::Cut;
use super::views::{self, View};
use arrow::array::{
    ArrayRef, Decimal128Array, Float64Array, Int32Array, RecordBatch, StringArray, TimestampMillisecondArray,
    UInt8Array, UInt64Array,
};
use arrow::compute::take_record_batch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::json;
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::error::TaskError;
use sluice_engine::operator::RestoredState;
use sluice_engine::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use sluice_engine::source::{ProducedKinds, Source, SourceContext, SourceFactory, SourcePoll, SplitChange};
use sluice_engine::table::{ConnectorCatalog, TableDescriptor, TableError};
use sluice_protocol::SubtaskIndex;
use sluice_protocol::state::SplitState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Splits of the source.
const SPLITS: usize = 5;

/// Rows of a split of the short table.
const SHORT: usize = 20;

/// How often each row is in a sink, the row as text.
pub(crate) type SinkContent = BTreeMap<String, i64>;

/// A subtask of the sink of a table.
pub(crate) type Writer = (String, SubtaskIndex);

/// Rows that one subtask wrote, in order.
#[derive(Debug, Clone)]
struct Written {
    subtask: SubtaskIndex,
    kind: RowKind,
    row: Vec<String>,
}

#[derive(Debug)]
struct Collected {
    kinds: AcceptedKinds,
    primary_key: Vec<usize>,
    rows: Mutex<Vec<Written>>,
}

/// The catalog of one test.
pub(crate) struct Connectors {
    splits: Arc<Vec<RecordBatch>>,
    /// The first rows of each split.
    short: Arc<Vec<RecordBatch>>,
    owners: Arc<Vec<RecordBatch>>,
    rows_read: Arc<AtomicUsize>,
    /// Most rows of a poll.
    poll_rows: usize,
    collected: Mutex<BTreeMap<String, Arc<Collected>>>,
}

impl Connectors {
    pub(crate) fn new(views: &[View]) -> Self {
        let splits = (0..SPLITS).map(|split| batch(&of_split(views, split).collect::<Vec<_>>()));
        let splits = splits.collect::<Vec<_>>();
        let short = splits.iter().map(|split| split.slice(0, split.num_rows().min(SHORT))).collect();
        let owners = Arc::new(views::owners(views.len() as u64));
        Self {
            splits: Arc::new(splits),
            short: Arc::new(short),
            owners,
            rows_read: Arc::default(),
            poll_rows: 40,
            collected: Mutex::default(),
        }
    }

    /// The same with so many rows of a poll at most, and all rows in one split.
    pub(crate) fn in_one_split(views: &[View], poll_rows: usize) -> Self {
        let all = Arc::new(vec![batch(&views.iter().collect::<Vec<_>>())]);
        Self { splits: all, ..Self::new(views).with_poll_rows(poll_rows) }
    }

    /// The same with so many rows of a poll at most.
    pub(crate) fn with_poll_rows(self, poll_rows: usize) -> Self {
        Self { poll_rows, ..self }
    }

    /// The rows of a table, in splits: `page_views`, also with more behind that, the first of them
    /// (`page_views_short`), or `owners`.
    pub(crate) fn table(&self, name: &str) -> &Arc<Vec<RecordBatch>> {
        match name {
            "page_views_short" => &self.short,
            name if name.starts_with("page_views") => &self.splits,
            "owners" => &self.owners,
            other => panic!("there is no table '{other}'"),
        }
    }

    /// Rows of the input.
    pub(crate) fn rows(&self) -> usize {
        self.splits.iter().map(RecordBatch::num_rows).sum()
    }

    /// Rows that sources have read, repetitions included.
    pub(crate) fn rows_read(&self) -> usize {
        self.rows_read.load(Ordering::Relaxed)
    }

    fn collected(&self) -> BTreeMap<String, Arc<Collected>> {
        self.collected.lock().unwrap().clone()
    }

    /// Gives a sink's table another name, under which the next job writes into it.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        let mut collected = self.collected.lock().unwrap();
        let table = collected.remove(from).expect("it was written");
        collected.insert(to.to_owned(), table);
    }

    /// Forgets what was written after a checkpoint.
    pub(crate) fn take_back(&self, cut: &Cut) {
        for (table, collected) in self.collected() {
            let mut seen: BTreeMap<SubtaskIndex, usize> = BTreeMap::new();
            collected.rows.lock().unwrap().retain(|written| {
                let position = seen.entry(written.subtask).or_default();
                *position += 1;
                *position <= cut.written_by.get(&(table.clone(), written.subtask)).copied().unwrap_or(0)
            });
        }
    }

    /// Rows written by one subtask of a table's sink so far.
    pub(crate) fn written_by(&self, (table, subtask): &Writer) -> usize {
        let Some(collected) = self.collected().remove(table) else { return 0 };
        let rows = collected.rows.lock().unwrap();
        rows.iter().filter(|written| written.subtask == *subtask).count()
    }

    /// Subtasks that have written at all, also those of earlier jobs under another parallelism.
    pub(crate) fn writers(&self) -> BTreeSet<Writer> {
        let of_table = |(table, collected): (String, Arc<Collected>)| -> Vec<Writer> {
            collected.rows.lock().unwrap().iter().map(|written| (table.clone(), written.subtask)).collect()
        };
        self.collected().into_iter().flat_map(of_table).collect()
    }

    /// What the sinks hold after applying all changes in order; of several sinks with the name of each.
    pub(crate) fn content(&self) -> SinkContent {
        let tables = self.collected();
        let mut all = SinkContent::new();
        for (table, collected) in &tables {
            let rows = collected.rows.lock().unwrap();
            let content = match collected.kinds {
                AcceptedKinds::Upsert => upserted(&rows, &collected.primary_key),
                AcceptedKinds::All | AcceptedKinds::InsertOnly => changed(&rows),
            };
            add(&mut all, (tables.len() > 1).then_some(table), content);
        }
        all
    }
}

/// Adds the content of a table.
pub(crate) fn add(all: &mut SinkContent, table: Option<&String>, content: SinkContent) {
    let named = |row: String| table.map_or(row.clone(), |table| format!("{table}: {row}"));
    all.extend(content.into_iter().map(|(row, count)| (named(row), count)));
}

/// Splits of different lengths, the first one empty.
fn of_split(views: &[View], split: usize) -> impl Iterator<Item = &View> {
    views.iter().enumerate().filter(move |(row, _)| 1 + row % 7 % (SPLITS - 1) == split).map(|(_, view)| view)
}

/// The views that the sources of a job had read at the cut, and those that they had not.
pub(crate) fn read_before(views: &[View], cut: &Cut) -> (Vec<View>, Vec<View>) {
    let metadata = cut.metadata();
    let positions =
        metadata.operators.iter().flat_map(|operator| &operator.splits).map(|SplitState { split, state }| {
            let position = state["position"].as_u64().and_then(|position| usize::try_from(position).ok());
            (split.parse::<usize>().expect("splits are numbers"), position.expect("a position"))
        });
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (split, position) in positions {
        before.extend(of_split(views, split).take(position).cloned());
        after.extend(of_split(views, split).skip(position).cloned());
    }
    assert_eq!(before.len() + after.len(), views.len(), "each split has one position");
    (before, after)
}

fn upserted(rows: &[Written], primary_key: &[usize]) -> SinkContent {
    let mut by_key: BTreeMap<Vec<&str>, String> = BTreeMap::new();
    for written in rows {
        let key = primary_key.iter().map(|column| written.row[*column].as_str()).collect();
        match written.kind {
            RowKind::Insert | RowKind::UpdateAfter => drop(by_key.insert(key, written.row.join(", "))),
            RowKind::Delete => drop(by_key.remove(&key)),
            RowKind::UpdateBefore => panic!("an upsert sink was given -U: {written:?}"),
        }
    }
    by_key.into_values().map(|row| (row, 1)).collect()
}

fn changed(rows: &[Written]) -> SinkContent {
    let mut content = SinkContent::new();
    for written in rows {
        let count = content.entry(written.row.join(", ")).or_default();
        *count += match written.kind {
            RowKind::Insert | RowKind::UpdateAfter => 1,
            RowKind::UpdateBefore | RowKind::Delete => -1,
        };
        assert!(*count >= 0, "a row was retracted that was not there: {written:?}");
    }
    content.retain(|_, count| *count != 0);
    content
}

fn batch(views: &[&View]) -> RecordBatch {
    let cost = Decimal128Array::from_iter(views.iter().map(|view| view.cost)).with_precision_and_scale(10, 2);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("app_id", Arc::new(StringArray::from_iter(views.iter().map(|view| view.app_id.as_deref())))),
        ("url", Arc::new(StringArray::from_iter(views.iter().map(|view| view.url.as_deref())))),
        ("ms", Arc::new(Int32Array::from_iter(views.iter().map(|view| view.ms)))),
        ("cost", Arc::new(cost.expect("it fits"))),
        ("ratio", Arc::new(Float64Array::from_iter(views.iter().map(|view| view.ratio)))),
        ("at", Arc::new(TimestampMillisecondArray::from_iter(views.iter().map(|view| view.at)))),
    ];
    let fields = columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true));
    let schema = Schema::new(fields.collect::<Vec<Field>>());
    RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|(_, column)| column).collect()).expect("it fits")
}

impl ConnectorCatalog for Connectors {
    fn source(&self, table: &TableDescriptor) -> Result<Arc<dyn SourceFactory>, TableError> {
        assert_eq!(table.option("connector"), Some("rows"));
        let schema = Arc::clone(&table.schema);
        let splits = Arc::clone(self.table(&table.name));
        let has_changes = table.option("changes") == Some("true");
        let is_silent = table.option("silent") == Some("true");
        let every = table.option("every").map_or(1, |every| every.parse().expect("a number"));
        let lingers = table.option("lingers").map_or(0, |polls| polls.parse().expect("a number"));
        let rows_read = Arc::clone(&self.rows_read);
        let poll_rows = self.poll_rows;
        Ok(Arc::new(Rows { schema, splits, has_changes, is_silent, every, lingers, rows_read, poll_rows }))
    }

    fn sink(&self, table: &TableDescriptor) -> Result<Arc<dyn SinkFactory>, TableError> {
        assert_eq!(table.option("connector"), Some("collect"));
        let kinds = match table.option("kinds") {
            Some("upsert") => AcceptedKinds::Upsert,
            Some("insert-only") => AcceptedKinds::InsertOnly,
            _ => AcceptedKinds::All,
        };
        // A restored job writes into the same table.
        let mut collected = self.collected.lock().unwrap();
        let table = collected.entry(table.name.clone()).or_insert_with(|| {
            Arc::new(Collected { kinds, primary_key: table.primary_key.clone(), rows: Mutex::default() })
        });
        Ok(Arc::new(Collect(Arc::clone(table))))
    }
}

#[derive(Clone)]
struct Rows {
    schema: SchemaRef,
    splits: Arc<Vec<RecordBatch>>,
    has_changes: bool,
    is_silent: bool,
    every: usize,
    lingers: usize,
    poll_rows: usize,
    rows_read: Arc<AtomicUsize>,
}

impl SourceFactory for Rows {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        Ok(Box::new(RowsReader {
            rows: self.clone(),
            positions: BTreeMap::new(),
            polls: 0,
            next: 0,
            polled: String::new(),
            told: BTreeSet::new(),
            held: BTreeSet::new(),
            lingered: 0,
        }))
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn produced_kinds(&self) -> ProducedKinds {
        if self.has_changes { ProducedKinds::All } else { ProducedKinds::InsertOnly }
    }

    fn owner(&self, split: &str, parallelism: u32) -> SubtaskIndex {
        SubtaskIndex(split.parse::<u32>().expect("splits are numbers") % parallelism)
    }
}

/// Reads its splits in turn, a few rows at a time.
struct RowsReader {
    rows: Rows,
    positions: BTreeMap<usize, usize>,
    polls: usize,
    next: usize,
    /// The split of the last rows.
    polled: String,
    /// Splits of which it was told that they are there, and that they are at their end.
    told: BTreeSet<(usize, bool)>,
    held: BTreeSet<usize>,
    /// Polls behind the last row.
    lingered: usize,
}

impl Source for RowsReader {
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError> {
        let operator = &context.operator;
        let own =
            |split: &usize| u32::try_from(*split).is_ok_and(|split| split % operator.parallelism == operator.subtask.0);
        self.positions = (0..self.rows.splits.len()).filter(own).map(|split| (split, 0)).collect();
        for SplitState { split, state } in state.splits {
            let position = state["position"].as_u64().and_then(|position| usize::try_from(position).ok());
            let known =
                self.positions.insert(split.parse().expect("splits are numbers"), position.expect("a position"));
            assert!(known.is_some(), "split {split} was given to subtask {}, which does not own it", operator.subtask);
        }
        Ok(())
    }

    fn poll(&mut self, max_rows: usize) -> Result<SourcePoll, TaskError> {
        let Rows { schema, splits, has_changes, every, rows_read, poll_rows, .. } = &self.rows;
        let rest = |split: usize, position: usize| splits[split].num_rows() - position;
        let open: Vec<usize> = self.positions.iter().filter(|(s, p)| rest(**s, **p) > 0).map(|(s, _)| *s).collect();
        if open.is_empty() {
            self.lingered += 1;
            return Ok(if self.lingered > self.rows.lingers { SourcePoll::Finished } else { SourcePoll::Pending });
        }
        let open: Vec<usize> = open.into_iter().filter(|split| !self.held.contains(split)).collect();
        let Some(split) = open.get(self.next % open.len().max(1)).copied() else { return Ok(SourcePoll::Pending) };
        self.polls += 1;
        if !self.polls.is_multiple_of(*every) {
            return Ok(SourcePoll::Pending);
        }
        self.next += 1;
        self.polled = split.to_string();
        let position = self.positions[&split];
        let rows = rest(split, position).min(max_rows).min(1 + self.next % poll_rows);
        self.positions.insert(split, position + rows);
        rows_read.fetch_add(rows, Ordering::Relaxed);
        let all = &splits[split];
        let changes: Vec<(usize, RowKind)> = (position..position + rows)
            .flat_map(|row| if *has_changes { changes_of(row, all.num_rows()) } else { vec![(row, RowKind::Insert)] })
            .collect();
        let indices = UInt64Array::from_iter_values(changes.iter().map(|(row, _)| *row as u64));
        let all = take_record_batch(all, &indices).map_err(|error| TaskError::BadData(error.to_string()))?;
        let kinds = has_changes.then(|| UInt8Array::from_iter_values(changes.iter().map(|(_, kind)| *kind as u8)));
        let columns = schema.fields().iter().map(|field| all.column_by_name(field.name()).expect("declared").clone());
        let rows = RecordBatch::try_new(Arc::clone(schema), columns.collect());
        Ok(SourcePoll::Batch(Batch { rows: rows.map_err(|error| TaskError::BadData(error.to_string()))?, kinds }))
    }

    fn take_split_changes(&mut self) -> Option<Vec<SplitChange>> {
        let mut changes = Vec::new();
        for (split, position) in &self.positions {
            let is_silent = (self.rows.is_silent && *split == 0) || self.rows.lingers > 0;
            if self.told.insert((*split, false)) {
                changes.push(SplitChange::Added { split: split.to_string(), may_idle: is_silent });
            }
            if !is_silent && *position == self.rows.splits[*split].num_rows() && self.told.insert((*split, true)) {
                changes.push(SplitChange::Finished { split: split.to_string() });
            }
        }
        Some(changes)
    }

    fn polled_split(&self) -> Option<&str> {
        Some(&self.polled)
    }

    fn hold_splits(&mut self, held: &[&str]) -> bool {
        self.held = held.iter().map(|split| split.parse().expect("splits are numbers")).collect();
        true
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let state = |(split, position): (&usize, &usize)| SplitState {
            split: split.to_string(),
            state: json!({ "position": position }),
        };
        Ok(self.positions.iter().map(state).collect())
    }
}

/// Changes that come to a row: some rows are another one first, some are deleted and come again.
fn changes_of(row: usize, rows: usize) -> Vec<(usize, RowKind)> {
    let other = (row + 1) % rows;
    match row % 3 {
        0 => vec![(other, RowKind::Insert), (other, RowKind::UpdateBefore), (row, RowKind::UpdateAfter)],
        1 => vec![(row, RowKind::Insert), (row, RowKind::Delete), (row, RowKind::Insert)],
        _ => vec![(row, RowKind::Insert)],
    }
}

struct Collect(Arc<Collected>);

impl SinkFactory for Collect {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(Collector { table: Arc::clone(&self.0), subtask: SubtaskIndex(0) }))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        self.0.kinds
    }
}

struct Collector {
    table: Arc<Collected>,
    subtask: SubtaskIndex,
}

impl Sink for Collector {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        self.subtask = context.operator.subtask;
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let options = FormatOptions::default().with_null("NULL");
        let formatters = batch.rows.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
        let formatters =
            formatters.collect::<Result<Vec<_>, _>>().map_err(|error| TaskError::BadData(error.to_string()))?;
        let mut rows = self.table.rows.lock().unwrap();
        for row in 0..batch.len() {
            let number = batch.kinds.as_ref().map_or(0, |kinds| kinds.value(row));
            let kind = RowKind::from_number(number).expect("a kind");
            let is_taken = match self.table.kinds {
                AcceptedKinds::InsertOnly => kind == RowKind::Insert,
                AcceptedKinds::Upsert => kind != RowKind::UpdateBefore,
                AcceptedKinds::All => true,
            };
            assert!(is_taken, "a sink that takes {:?} was given {}", self.table.kinds, kind.short());
            let row = formatters.iter().map(|formatter| formatter.value(row).to_string()).collect();
            rows.push(Written { subtask: self.subtask, kind, row });
        }
        Ok(())
    }
}
