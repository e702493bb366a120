//! The reasons that a condition of a StreamJob can have: each is here and in docs/operator.md, or it cannot be written.
//!
//! Most are the job's own words for a failure ([`sluice_protocol::failure`]), or the kubelet's and the scheduler's for a pod.
//! A word that is not listed, of a newer runtime for one, becomes [`Reason::Unlisted`] and begins the message.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why a condition is as it is; the table of docs/operator.md tells what to do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// As conditions say it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    // --- States and what is on its way
    /// Nothing is wrong.
    AsExpected,
    /// Pods start, or tasks are deployed for the first time.
    Starting,
    /// All tasks run.
    Running,
    /// All tasks run and the revision is on trial.
    Stabilizing,
    /// A failure is being recovered from.
    Restarting,
    /// All input was read; a last checkpoint is taken.
    Finishing,
    /// All results are out.
    Finished,
    /// The JobManager is about to end.
    Stopping,
    /// The job is stopped for another spec.
    Upgrading,
    /// The job is stopped for another parallelism.
    Rescaling,
    /// The job is stopped for another `restore`.
    Restoring,
    /// The job is stopped for `state: Suspended`.
    Suspending,
    /// The spec suspends it; it keeps its state.
    Suspended,
    /// A person stopped it through its JobManager; it keeps its state.
    Stopped,
    /// A person cancelled it through its JobManager.
    Cancelled,
    /// The StreamJob is being deleted.
    Deleting,
    /// The revision was not stable in time and is being stopped.
    RollingBack,
    /// The last stable spec runs again; the message says why.
    RolledBack,
    /// The revision was not stable within `stability.deadline`.
    NotStable,
    /// A later generation has taken the ledger over; the next one follows.
    Superseded,
    // --- The spec
    /// The spec cannot run; the message names every field.
    InvalidSpec,
    /// The ConfigMap or key of `program.sqlFrom` is not there.
    ProgramNotFound,
    /// The ConfigMap of the program that runs is gone, and the spec is another.
    ProgramMissing,
    /// This version of the operator cannot read the program that runs.
    ProgramUnreadable,
    /// A `podTemplate` does not make a pod; the message names the path.
    InvalidPodTemplate,
    /// The frozen program cannot be written.
    InvalidProgram,
    /// The job's process cannot read its manifest.
    BadManifest,
    /// A process cannot read its certificate.
    Certificate,
    /// The SQL, or an option in it, is wrong.
    BadProgram,
    /// `restartStrategy` contradicts itself.
    InvalidRestartStrategy,
    /// `maxConcurrent` has no effect beside `minPause`.
    MaxConcurrentOverruled,
    /// What was asked for needs `checkpointing`.
    CheckpointingDisabled,
    // --- What Kubernetes refuses or cannot do; no restart is spent
    /// A quota of the namespace is used up.
    QuotaExceeded,
    /// The operator lacks a right.
    Forbidden,
    /// An object of that name belongs to somebody else.
    NameTaken,
    /// The API server refused or did not answer.
    ApiError,
    /// No node takes a pod.
    Unschedulable,
    /// A gate keeps a pod from being scheduled.
    SchedulingGated,
    /// The scheduler failed.
    SchedulerError,
    /// An image cannot be pulled.
    ErrImagePull,
    /// As `ErrImagePull`; it is tried again.
    ImagePullBackOff,
    /// `imagePullPolicy: Never` and the node has no such image.
    ErrImageNeverPull,
    /// `image` is no image name.
    InvalidImageName,
    /// The node cannot read an image.
    ImageInspectError,
    /// The registry does not answer.
    RegistryUnavailable,
    /// An image's signature is refused.
    SignatureValidationFailed,
    /// A Secret, a ConfigMap or a key that a container names is not there.
    CreateContainerConfigError,
    /// The node cannot create a container.
    CreateContainerError,
    /// The node cannot start a container.
    RunContainerError,
    /// The node cannot start a container.
    StartError,
    /// A hook of a container in `podTemplate` fails.
    PostStartHookError,
    /// A container that `podTemplate` adds ends again and again.
    CrashLoopBackOff,
    /// A pod has waited for 30 s for its image, or for a Secret or ConfigMap that a volume names.
    ContainerCreating,
    // --- The JobManager
    /// It ended without a word.
    JobManagerLost,
    /// Its pod is gone.
    JobManagerGone,
    /// Its pod is being deleted.
    JobManagerDeleted,
    /// Its pod had to leave its node; no restart is spent.
    JobManagerDrained,
    /// It has not answered its probe for 30 s.
    JobManagerUnresponsive,
    /// Its status stream is down.
    JobManagerUnreachable,
    /// A certificate of the job's has expired.
    CertificateExpired,
    /// The job's certificates cannot be made or read.
    CertificateError,
    /// A TaskManager does not find its JobManager.
    JobManagerNotFound,
    /// Its node does not answer.
    NodeLost,
    /// Its pod was not made.
    NotCreated,
    /// Its pod has not started.
    NotStarted,
    /// It did not end in time.
    StopTimedOut,
    /// A promise of our own was broken.
    Internal,
    /// A process ended by a defect.
    Panicked,
    // --- Tasks and TaskManagers
    /// A TaskManager was lost.
    TaskManagerLost,
    /// A TaskManager left.
    TaskManagerLeft,
    /// A TaskManager was told to leave, and its tasks run elsewhere.
    Left,
    /// A connection between tasks broke.
    ConnectionLost,
    /// Tasks were not deployed in time.
    DeploymentTimeout,
    /// A TaskManager was given tasks that it cannot run.
    DeploymentMisfit,
    /// A TaskManager runs another program.
    WrongProgram,
    /// A message of another generation was refused.
    WrongGeneration,
    /// Tasks do not end.
    TasksStuck,
    /// The node gives no more threads.
    NoThreads,
    /// A port is taken in the pod.
    AddressInUse,
    /// A message for no task arrived.
    UnknownEdge,
    /// A row cannot be processed.
    BadData,
    /// Keyed state has outgrown its part of the memory.
    MemoryExceeded,
    /// The tasks of a TaskManager leave no memory to keyed state.
    MemoryTooSmall,
    /// A broker, a store or a peer does not answer or refuses.
    External,
    /// A topic, a table or the like is not there, or access to it is denied.
    Unavailable,
    // --- Checkpoints and savepoints
    /// The last checkpoints have failed.
    CheckpointsFail,
    /// Tasks run, but no checkpoint comes.
    CheckpointsStuck,
    /// A checkpoint has failed.
    CheckpointFailed,
    /// A checkpoint was not complete within `timeout`.
    CheckpointExpired,
    /// A checkpoint was given up.
    CheckpointAborted,
    /// A task could not take part in a checkpoint.
    CheckpointDeclined,
    /// A checkpoint could not be stored.
    CheckpointNotStored,
    /// A checkpoint could not be begun.
    CheckpointNotTriggered,
    /// More checkpoints failed than `tolerableFailures`.
    CheckpointFailuresExceeded,
    /// The latest checkpoint is older than `upgrade.maxCheckpointAge`.
    CheckpointTooOld,
    /// A checkpoint cannot be removed while it is needed.
    CheckpointInUse,
    /// The savepoint to stop with has failed; the change waits.
    SavepointFailed,
    /// It was not there in time; the change waits.
    SavepointExpired,
    /// It could not be completed.
    SavepointIncomplete,
    /// It cannot be removed while it is needed.
    SavepointInUse,
    /// There is no place for a savepoint.
    NoSavepointStorage,
    /// A drain did not reach its end.
    DrainFailed,
    /// What was asked for was overtaken by a new start.
    StartedAnew,
    /// The job had ended before.
    JobEnded,
    /// The job is about to end.
    JobEnding,
    /// What was asked for needs a job that has ended.
    JobNotEnded,
    /// Too much was asked for at once.
    TooManyRequests,
    /// What was asked for is long over.
    RequestTooOld,
    // --- State and storage
    /// The ledger ends before what has been seen of it.
    StateMissing,
    /// The checkpoints were in the memory of a JobManager that is gone.
    StateLost,
    /// The ledger has moved on since the start was decided.
    StateMoved,
    /// Another job has taken this one's directory over, and is not through with it.
    TakenOver,
    /// The job has gone to another directory.
    MovedTo,
    /// What was to be restored has gone to another directory.
    JobMoved,
    /// The directory of another job may not be written.
    TakeoverDenied,
    /// Another job is to be taken over, and this one keeps no ledger.
    TakeoverWithoutStorage,
    /// Staged output is not where it was staged.
    CommitLost,
    /// Staged output cannot be committed at the moment.
    CommitRetried,
    /// The job has ended without committing all that is staged.
    OutputUnsettled,
    /// Staged output was given up by name.
    OutputAbandoned,
    /// Staged output may be gone before it is committed.
    OutputExpires,
    /// Staged output is lost, and the sink's table says to go on without it.
    CommitGivenUp,
    /// A commit has had no answer for a minute.
    CommitUnanswered,
    /// A sink with uncommitted output is gone from the program.
    SinkMissing,
    /// It is not known whether output of an earlier program is uncommitted.
    StagedOutputUnknown,
    /// What lost attempts have staged cannot be removed.
    TransactionsLeftOpen,
    /// What is staged may be gone before a slow checkpoint is complete.
    TransactionTimeoutShort,
    /// How long what is staged lives is not known.
    TransactionTimeoutUnknown,
    /// Staged output without the ledger that tells what of it was committed.
    HandlesWithoutLedger,
    /// A sink commits with checkpoints, and the job takes none.
    ExactlyOnceRefused,
    /// A generation runs that this operator never started.
    ForeignGeneration,
    /// What was to be restored is not there.
    SnapshotNotFound,
    /// What was to be restored cannot be read.
    SnapshotUnreadable,
    /// What was to be restored does not fit the program.
    SnapshotIncompatible,
    /// Stored state does not fit the program.
    IncompatibleState,
    /// Files of a snapshot are damaged.
    StateDamaged,
    /// Files of a snapshot cannot be read.
    StateUnreadable,
    /// State cannot be stored.
    StateUnwritable,
    /// State is larger than the storage takes.
    StateTooLarge,
    /// State could not be uploaded.
    UploadFailed,
    /// A snapshot's description cannot be written.
    MetadataUnwritable,
    /// The ledger cannot be read by this version.
    LedgerUnreadable,
    /// An entry of the ledger would be too large.
    LedgerEntryTooLarge,
    /// `checkpointing.storage` or its options cannot be used.
    BadStorage,
    /// The storage does not answer; it is waited for.
    StoreUnreachable,
    /// The storage refuses access; it is waited for.
    StoreAccessDenied,
    /// The bucket is not there; it is waited for.
    StoreMissing,
    /// The storage lacks what the ledger rests on (protocol.md L7).
    StoreUnsuitable,
    /// A change goes to a storage that one start cannot reach together with the old one.
    StorageUnreachable,
    /// A directory holds no savepoint.
    NotASavepoint,
    /// A directory cannot be used.
    InvalidDirectory,
    /// An earlier job of this name has left checkpoints.
    OlderCheckpointsExist,
    /// Operators that the snapshot does not hold start empty.
    OperatorsStartEmpty,
    /// The job was started from an older snapshot of its own: output behind it is written again.
    OutputRepeats,
    /// The job of the snapshot that was restored ended with output uncommitted, which no start from the snapshot brings back.
    SnapshotUnsettled,
    /// Files of a savepoint are left.
    DisposalIncomplete,
    /// It was stopped before its tasks ran.
    StoppedBeforeStart,
    /// A pass of the controller took too long.
    TimedOut,
    /// The API server could not be asked.
    ObserveError,
    // --- Anything else
    /// The job's process names a reason that this version of the operator does not know; the message begins with it.
    Unlisted,
}

impl Reason {
    /// The one of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == name)
    }
}

/// A reason with its message, where the reason is any word.
#[must_use]
pub fn listed(reason: &str, message: &str) -> (Reason, String) {
    match Reason::parse(reason) {
        Some(reason) => (reason, message.to_owned()),
        None if message.is_empty() => (Reason::Unlisted, reason.to_owned()),
        None => (Reason::Unlisted, format!("{reason}: {message}")),
    }
}

#[cfg(test)]
mod tests;
