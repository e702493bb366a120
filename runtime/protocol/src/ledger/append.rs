//! One append at a time, and the truth about whether it stands (L2).
//!
//! After any reply but success the number is read: the own append id means that it was appended; another's, that
//! somebody else has the number; nothing, that the same bytes are put again, or, for a checkpoint that is to be given
//! up, a `CheckpointFailed`. Whichever stands there decides. Callers execute one operation at a time and feed back
//! its reply, and wake the appender at [`Appender::next_wakeup`].

use crate::RandomSource;
use crate::history::RecordState;
use crate::ids::{AppendId, CheckpointId};
use crate::job_master::Planted;
use crate::ledger::entry::{Entry, EntryHeader, EntryKind, LedgerError};
use crate::ledger::read::unexpected;
use crate::paths::JobPaths;
use crate::store::{StoreFailure, StoreOperation, StoreReply};
use crate::time::{TimeSpan, Timestamp};

const FIRST_PAUSE: TimeSpan = TimeSpan::from_millis(100);
const LONGEST_PAUSE: TimeSpan = TimeSpan::from_secs(5);

/// Puts one entry at a time.
#[derive(Debug)]
pub struct Appender {
    paths: JobPaths,
    planted: Planted,
    in_flight: Option<InFlight>,
}

#[derive(Debug)]
struct InFlight {
    entry: Entry,
    bytes: Vec<u8>,
    /// An entry put at this number before, which may yet turn out to stand there.
    replaced: Option<Entry>,
    give_up: bool,
    /// A checkpoint must not be put later: its handles may not outlive their commit (S4).
    good_until: Option<Timestamp>,
    state: State,
    failures: u32,
    last_failure: Option<StoreFailure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Putting,
    Reading,
    ReadingAt(Timestamp),
}

/// What a reply led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendStep {
    /// Do this next.
    Store(StoreOperation),
    /// Nothing until the next wakeup or reply.
    Wait,
    /// This entry stands: the one given to [`Appender::begin`], or the `CheckpointFailed` that replaced it.
    Appended(Box<Entry>),
    /// Somebody else's entry has the number.
    Taken {
        /// Whose.
        header: EntryHeader,
        /// What was to be appended.
        entry: Box<Entry>,
    },
    /// Somebody else's entry has the number, and whose it is cannot be read.
    Unreadable(LedgerError),
    /// Planted bug: the append is said to have failed.
    GivenUp(Box<Entry>),
}

impl Appender {
    /// An idle one.
    #[must_use]
    pub const fn new(paths: JobPaths, planted: Planted) -> Self {
        Self { paths, planted, in_flight: None }
    }

    /// Whether an append is under way.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The entry under way.
    #[must_use]
    pub fn pending(&self) -> Option<&Entry> {
        self.in_flight.as_ref().map(|in_flight| &in_flight.entry)
    }

    /// Why the append under way has no answer yet, when the store failed.
    #[must_use]
    pub fn last_failure(&self) -> Option<&StoreFailure> {
        self.in_flight.as_ref().and_then(|in_flight| in_flight.last_failure.as_ref())
    }

    /// Starts an append; none may be under way. Behind `good_until` a checkpoint is given up where its number is free.
    ///
    /// # Errors
    /// When the entry cannot be written down.
    pub fn begin(&mut self, entry: Entry, good_until: Option<Timestamp>) -> Result<StoreOperation, LedgerError> {
        debug_assert!(!self.is_busy(), "one append at a time (L2)");
        let bytes = entry.to_bytes()?;
        let operation = self.put(&entry, &bytes);
        self.in_flight = Some(InFlight {
            entry,
            bytes,
            replaced: None,
            give_up: false,
            good_until,
            state: State::Putting,
            failures: 0,
            last_failure: None,
        });
        Ok(operation)
    }

    /// The checkpoint under way has taken too long: when its number turns out to be free, it is given up (L2).
    pub fn give_up_checkpoint(&mut self, id: CheckpointId) {
        if let Some(in_flight) = &mut self.in_flight {
            let is_it =
                matches!(&in_flight.entry.kind, EntryKind::Checkpoint { checkpoint, .. } if checkpoint.key.id == id);
            in_flight.give_up |= is_it;
        }
    }

    /// When to call [`Appender::on_wakeup`].
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        match self.in_flight.as_ref()?.state {
            State::ReadingAt(at) => Some(at),
            State::Putting | State::Reading => None,
        }
    }

    /// The next operation when a pause is over.
    pub fn on_wakeup(&mut self, now: Timestamp) -> Option<StoreOperation> {
        let in_flight = self.in_flight.as_mut()?;
        if !matches!(in_flight.state, State::ReadingAt(at) if at <= now) {
            return None;
        }
        in_flight.state = State::Reading;
        Some(StoreOperation::Get { key: self.paths.ledger_entry(in_flight.entry.number) })
    }

    /// Takes the reply to the last operation.
    pub fn on_reply(&mut self, reply: StoreReply, now: Timestamp, random: &mut dyn RandomSource) -> AppendStep {
        let Some(in_flight) = &mut self.in_flight else { return AppendStep::Wait };
        match (in_flight.state, reply) {
            (State::Putting, StoreReply::Put) => self.stands(),
            (State::Putting, StoreReply::Exists) => {
                if self.planted.own_append_is_foreign {
                    return self.take_own_for_foreign();
                }
                in_flight.state = State::Reading;
                AppendStep::Store(StoreOperation::Get { key: self.paths.ledger_entry(in_flight.entry.number) })
            }
            (State::Reading, StoreReply::Object(bytes)) => self.found(&bytes),
            (State::Reading, StoreReply::Absent) => self.put_again(now, random),
            (_, StoreReply::Failed(failure)) => self.pause(failure, now, random),
            (_, reply) => self.pause(unexpected(&reply), now, random),
        }
    }

    fn put(&self, entry: &Entry, bytes: &[u8]) -> StoreOperation {
        StoreOperation::PutIfAbsent { key: self.paths.ledger_entry(entry.number), bytes: bytes.to_vec() }
    }

    fn stands(&mut self) -> AppendStep {
        match self.in_flight.take() {
            Some(in_flight) => AppendStep::Appended(Box::new(in_flight.entry)),
            None => AppendStep::Wait,
        }
    }

    fn found(&mut self, bytes: &[u8]) -> AppendStep {
        let Some(in_flight) = self.in_flight.take() else { return AppendStep::Wait };
        let place = self.paths.ledger_entry(in_flight.entry.number);
        match EntryHeader::from_bytes(bytes, &place) {
            Err(error) => AppendStep::Unreadable(error),
            Ok(header) if header.append_id == in_flight.entry.append_id => {
                AppendStep::Appended(Box::new(in_flight.entry))
            }
            Ok(header) => match in_flight.replaced.filter(|earlier| earlier.append_id == header.append_id) {
                Some(earlier) => AppendStep::Appended(Box::new(earlier)),
                None => AppendStep::Taken { header, entry: Box::new(in_flight.entry) },
            },
        }
    }

    /// The number is free: the same bytes again, or `CheckpointFailed` in their place.
    fn put_again(&mut self, now: Timestamp, random: &mut dyn RandomSource) -> AppendStep {
        let Some(in_flight) = &mut self.in_flight else { return AppendStep::Wait };
        in_flight.give_up |= in_flight.good_until.is_some_and(|until| until < now);
        if in_flight.give_up && in_flight.replaced.is_none() {
            let failed = give_up(&in_flight.entry, random);
            // A fold that could be written a moment ago can be written with a smaller kind.
            if let Ok(bytes) = failed.to_bytes() {
                in_flight.bytes = bytes;
                in_flight.replaced = Some(std::mem::replace(&mut in_flight.entry, failed));
            }
        }
        in_flight.state = State::Putting;
        let (key, bytes) = (self.paths.ledger_entry(in_flight.entry.number), in_flight.bytes.clone());
        AppendStep::Store(StoreOperation::PutIfAbsent { key, bytes })
    }

    fn pause(&mut self, failure: StoreFailure, now: Timestamp, random: &mut dyn RandomSource) -> AppendStep {
        if self.planted.unclear_append_is_failure {
            return match self.in_flight.take() {
                Some(in_flight) => AppendStep::GivenUp(Box::new(in_flight.entry)),
                None => AppendStep::Wait,
            };
        }
        let Some(in_flight) = &mut self.in_flight else { return AppendStep::Wait };
        let pause = backoff(in_flight.failures, FIRST_PAUSE, LONGEST_PAUSE, random);
        in_flight.failures += 1;
        in_flight.last_failure = Some(failure);
        in_flight.state = State::ReadingAt(now.plus(pause));
        AppendStep::Wait
    }

    fn take_own_for_foreign(&mut self) -> AppendStep {
        let Some(in_flight) = self.in_flight.take() else { return AppendStep::Wait };
        match EntryHeader::from_bytes(&in_flight.bytes, "") {
            Ok(header) => AppendStep::Taken { header, entry: Box::new(in_flight.entry) },
            Err(error) => AppendStep::Unreadable(error),
        }
    }
}

/// The entry that gives a checkpoint up, at the same number.
fn give_up(entry: &Entry, random: &mut dyn RandomSource) -> Entry {
    let (id, mut record) = match &entry.kind {
        EntryKind::Checkpoint { checkpoint, record, .. } => (checkpoint.key.id, record.clone()),
        _ => (CheckpointId::default(), None),
    };
    let message = format!("checkpoint {id} was given up: the object store gave no answer to its ledger entry in time");
    let failure = crate::failure::Failure::external("CheckpointExpired", message);
    if let Some(record) = &mut record {
        record.end(RecordState::Failed, Some(&failure), entry.time);
    }
    let kind = EntryKind::CheckpointFailed { id, failure, record };
    Entry { append_id: new_append_id(random), kind, ..entry.clone() }
}

/// A random identity for an append.
#[must_use]
pub fn new_append_id(random: &mut dyn RandomSource) -> AppendId {
    AppendId(format!("{:016x}{:016x}", random.next_u64(), random.next_u64()))
}

/// A pause before the next try: doubling from `first` to `longest`, with half of it random, so that many do not
/// come at once.
#[must_use]
pub fn backoff(failures: u32, first: TimeSpan, longest: TimeSpan, random: &mut dyn RandomSource) -> TimeSpan {
    let full = first.0.saturating_mul(1 << failures.min(20)).min(longest.0).max(1);
    TimeSpan(full / 2 + random.next_u64() % (full / 2 + 1))
}
