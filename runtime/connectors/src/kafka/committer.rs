//! The second half of the exactly-once sink: commits by handles, and aborts what lost attempts left open (S2, S3, S6).

use super::cluster::Trouble;
use super::options::SinkOptions;
use super::slots::DEFAULT_TIMEOUT;
use super::transactions::{Handle, Transactions, Verdict};
use sluice_engine::sink::committer::commit_in_turn;
use sluice_engine::sink::{Commit, CommitError, Committer, CommitterContext, TransactionId};
use sluice_protocol::Run;
use sluice_protocol::commit::StagedLife;
use sluice_protocol::state::Committable;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The version of the sink's handles: the JSON of a [`Handle`].
pub(super) const HANDLE_VERSION: u32 = 1;

/// A coordinator that has begun a commit is waited for so long; then it is for the next pass.
const PATIENCE: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(3);

/// The committer of a table.
pub(super) struct KafkaCommitter {
    options: Arc<SinkOptions>,
    context: CommitterContext,
    transactions: Transactions,
}

impl KafkaCommitter {
    pub(super) fn new(options: Arc<SinkOptions>, context: CommitterContext) -> Self {
        let transactions = Transactions::new(&options.properties);
        Self { options, context, transactions }
    }
}

/// The transaction that a handle means.
pub(super) fn handle_of(committable: &Committable) -> Result<Handle, CommitError> {
    if committable.version > HANDLE_VERSION {
        return Err(CommitError::unknown_version(committable.version, HANDLE_VERSION));
    }
    serde_json::from_slice(&committable.bytes)
        .map_err(|error| CommitError::Lost(format!("the handle of a transaction cannot be read: {error}")))
}

fn again(trouble: impl ToString) -> CommitError {
    CommitError::Retriable(trouble.to_string())
}

impl KafkaCommitter {
    /// What is not where it is looked for: lost, unless another cluster was asked than the one that has it (S6).
    fn lost(&mut self, handle: &Handle, reason: String) -> CommitError {
        match self.other_cluster(handle) {
            Err(trouble) => again(trouble),
            Ok(Some(message)) => CommitError::Retriable(message),
            Ok(None) if self.options.skips_lost => CommitError::GivenUp(reason),
            Ok(None) => CommitError::Lost(reason),
        }
    }

    fn other_cluster(&mut self, handle: &Handle) -> Result<Option<String>, Trouble> {
        let Some(meant) = &handle.cluster else { return Ok(None) };
        let reached = self.transactions.cluster_id()?.filter(|reached| reached != meant);
        let message = |reached| {
            format!(
                "the transaction of '{}' is in the Kafka cluster with the id '{meant}', but 'properties.bootstrap.servers' ({}) of \
                 table '{}' leads to the cluster '{reached}', which does not have it: lead it to '{meant}' until all is \
                 committed, or, when that is gone for good, give the output up by restore.abandonSinks: [{}]",
                handle.transactional_id,
                self.options.properties.bootstrap_servers(),
                self.options.table,
                self.context.sink,
            )
        };
        Ok(reached.map(message))
    }

    fn begin_commit(&mut self, handle: &Handle) -> Result<(), Trouble> {
        let found = self.transactions.describe(&handle.transactional_id)?;
        if handle.judge(found.as_ref()) == Verdict::Commit { self.transactions.end(handle) } else { Ok(()) }
    }
}

impl Committer for KafkaCommitter {
    fn commit(&mut self, committable: &Committable) -> Result<Commit, CommitError> {
        let handle = handle_of(committable)?;
        let deadline = Instant::now() + PATIENCE;
        let mut sent = false;
        loop {
            let found = self.transactions.describe(&handle.transactional_id).map_err(again)?;
            match handle.judge(found.as_ref()) {
                Verdict::Commit | Verdict::Wait if Instant::now() >= deadline => {
                    let id = &handle.transactional_id;
                    return Err(again(format!(
                        "the commit of the transaction of '{id}' takes longer than {PATIENCE:?}"
                    )));
                }
                Verdict::Commit => {
                    if sent {
                        std::thread::sleep(PAUSE);
                    }
                    self.transactions.end(&handle).map_err(again)?;
                    sent = true;
                }
                Verdict::Wait => std::thread::sleep(PAUSE),
                Verdict::Committed => {
                    self.transactions.mend_markers(&handle).map_err(again)?;
                    return Ok(if sent { Commit::Committed } else { Commit::AlreadyCommitted });
                }
                Verdict::SettledBefore => return Ok(Commit::AlreadyCommitted),
                Verdict::Lost(reason) => return Err(self.lost(&handle, reason)),
            }
        }
    }

    /// All commits are sent before the first is waited for: a coordinator takes some ten milliseconds for each.
    fn commit_each(&mut self, committables: &[&Committable]) -> Vec<Result<Commit, CommitError>> {
        let handles = committables.iter().filter_map(|one| handle_of(one).ok());
        let sent = handles.into_iter().try_for_each(|handle| self.begin_commit(&handle));
        // What did not work is found again, and told, by the commit of that handle.
        drop(sent);
        commit_in_turn(self, committables)
    }

    fn abort(&mut self, older_than: Run, spared: &[Committable]) -> Result<u64, CommitError> {
        let spared = spared.iter().map(|one| handle_of(one).map(|handle| handle.transactional_id));
        let spared = spared.collect::<Result<BTreeSet<_>, _>>()?;
        let CommitterContext { job, sink } = &self.context;
        let is_left = |id: &String| {
            let name = id.strip_prefix(&self.options.transactional_id_prefix);
            !spared.contains(id) && name.is_some_and(|name| TransactionId::is_older(name, job, sink, older_than))
        };
        // What does not answer leaves nothing else open.
        let (mut open, mut trouble) = self.transactions.open().map_err(again)?;
        open.retain(is_left);
        for id in &open {
            if let Err(silent) = self.transactions.fence(id) {
                trouble.get_or_insert(silent);
            }
        }
        trouble.map_or(Ok(open.len() as u64), |trouble| Err(again(trouble)))
    }

    fn life(&mut self) -> Result<StagedLife, CommitError> {
        let table = &self.options.table;
        let limited = |span: Duration, by| StagedLife::Limited { span: span.into(), by };
        if let Some(timeout) = self.options.transaction_timeout {
            return Ok(limited(timeout, format!("the option 'properties.transaction.timeout.ms' of table '{table}'")));
        }
        let servers = self.options.properties.bootstrap_servers();
        match self.transactions.largest_timeout() {
            Ok(largest) => Ok(limited(
                largest,
                format!(
                    "transaction.max.timeout.ms of the Kafka brokers at {servers}, since table '{table}' does not set \
                     'properties.transaction.timeout.ms'"
                ),
            )),
            Err(refused @ Trouble::Refused { .. }) => Ok(StagedLife::Unknown(format!(
                "table '{table}': the Kafka brokers at {servers} do not tell how long a transaction may be open ({refused}); \
                 {DEFAULT_TIMEOUT:?} is taken. Grant the principal DESCRIBE_CONFIGS on the cluster, or set \
                 'properties.transaction.timeout.ms'"
            ))),
            Err(trouble) => Err(again(trouble)),
        }
    }
}
