//! Bugs planted on purpose, so that the simulation can prove that it would find them.

/// Which are planted. None outside tests.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Planted {
    /// C2 broken: what is intended is done before it is written.
    pub acts_before_intent: bool,
    /// C2 broken: a status is written over whatever is there.
    pub overwrites_status: bool,
    /// C2 broken: a delete names an object by its name alone.
    pub deletes_by_name: bool,
    /// Nothing holds a StreamJob until its job has ended.
    pub no_finalizer: bool,
    /// A replica that does not lead any more sends what changes something all the same.
    pub no_leader_gate: bool,
}
