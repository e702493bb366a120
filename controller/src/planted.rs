//! Bugs planted on purpose, so that the simulation can prove that it would find them.

/// Which are planted. None outside tests.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Planted {
    /// C2 broken: what is intended is done before it is written.
    pub acts_before_intent: bool,
    /// C2 broken: a delete names no uid.
    pub deletes_any_uid: bool,
    /// C2 broken: pods of newer generations are deleted too.
    pub deletes_newer: bool,
    /// C2 broken: a status is written over whatever is there.
    pub overwrites_status: bool,
    /// N2, C2 broken: a lost JobManager is followed by one of the same number.
    pub reuses_generation: bool,
    /// A replica that does not lead changes things.
    pub no_leader_gate: bool,
    /// Nothing holds a StreamJob until its job has ended.
    pub no_finalizer: bool,
    /// A changed program starts without the state of the one before.
    pub forgets_state: bool,
}
