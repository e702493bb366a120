//! Bugs that are planted on purpose: tests show that CI's seeds find each.

use sluice_protocol::job_master::Planted;

/// A bug planted on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// L3 and L4 broken: no supersession, first entries trimmed.
    Fence,
    /// L2 broken: an append without a clear answer counts as failed.
    UnclearAppend,
    /// L2 broken: 412 of the own put is taken for another's entry.
    OwnAppend,
    /// N3 broken: a directive is carried out again.
    Directive,
    /// Barriers are not aligned.
    Alignment,
    /// K6 broken: nobody looks for what is dead.
    Sweep,
    /// B2 broken: what a barrier overtook at the sender is not saved.
    SenderShare,
    /// B3 broken: restored batches that were not read yet are not saved again.
    RestoredShare,
    /// B3 broken: what the sender saved is restored before what the receiver saved.
    InFlightOrder,
    /// B3 broken: barriers overtake rows of broadcast edges.
    Broadcast,
    /// K4 broken: the clock decides that a savepoint has failed, not the ledger.
    Deadline,
    /// K5 broken: savepoints are taken beside unaligned checkpoints.
    Overlap,
    /// K6 broken: a subtask refers to a file of an attempt before, because its rows were as many.
    ForeignFile,
    /// K6 broken: with a checkpoint go all its files, whatever else refers to them.
    References,
    /// K4 broken: after a drain that was given up the tasks go on without their sources.
    Drain,
    /// N3 broken: entries of an older revision beyond m stop a start again and again.
    OlderRevision,
    /// L6, K4 broken: a closer does not finish a stop that had reached its checkpoint.
    Closer,
    /// K7 broken: what an upgrade went on from is displaced as any other checkpoint.
    Pin,
    /// K3 broken: the handles of a checkpoint that failed are not carried on.
    Handles,
    /// K1 broken: what a checkpoint stages is committed before its entry stands.
    EarlyCommit,
    /// G5 broken: another job's state is taken without an entry in its ledger.
    Takeover,
    /// W1 broken: the watermarks of splits are not restored.
    SplitTime,
    /// W1 broken: which windows have fired is not restored.
    Fired,
    /// Files are divided among subtasks by the number of key groups that the job has now.
    KeyGroups,
    /// A start on disk takes whole files of state, and no deltas.
    DiskDeltas,
    /// K6 broken: uploads that were begun and never completed are not given up.
    Uploads,
    /// L7 broken: the job starts empty when the memory that held its checkpoints is lost.
    LostMemory,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 27] = [
        Self::Fence,
        Self::UnclearAppend,
        Self::OwnAppend,
        Self::Directive,
        Self::Alignment,
        Self::Sweep,
        Self::SenderShare,
        Self::RestoredShare,
        Self::InFlightOrder,
        Self::Broadcast,
        Self::Deadline,
        Self::Overlap,
        Self::ForeignFile,
        Self::References,
        Self::Drain,
        Self::OlderRevision,
        Self::Closer,
        Self::Pin,
        Self::Handles,
        Self::EarlyCommit,
        Self::Takeover,
        Self::SplitTime,
        Self::Fired,
        Self::KeyGroups,
        Self::DiskDeltas,
        Self::LostMemory,
        Self::Uploads,
    ];

    /// The JobMaster's switches.
    #[must_use]
    pub fn planted(bug: Option<Self>) -> Planted {
        Planted {
            no_fence: bug == Some(Self::Fence),
            unclear_append_is_failure: bug == Some(Self::UnclearAppend),
            own_append_is_foreign: bug == Some(Self::OwnAppend),
            no_directive_check: bug == Some(Self::Directive),
            keeps_dead: bug == Some(Self::Sweep),
            deadline_decides: bug == Some(Self::Deadline),
            overlapping_savepoints: bug == Some(Self::Overlap),
            forgets_references: bug == Some(Self::References),
            forgets_drains: bug == Some(Self::Drain),
            insists_on_m: bug == Some(Self::OlderRevision),
            closes_unfinished: bug == Some(Self::Closer),
            takes_over_unfenced: bug == Some(Self::Takeover),
            forgets_handles: bug == Some(Self::Handles),
            commits_early: bug == Some(Self::EarlyCommit),
            ignores_pins: bug == Some(Self::Pin),
            forgets_lost_memory: bug == Some(Self::LostMemory),
        }
    }
}
