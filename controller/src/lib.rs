//! The controller: keeps the pods of every StreamJob what its spec asks for, and tells in its status what happens.
//!
//! It uses the CRDs, the protocol and the RPC client, and never the engine, SQL or a store: credentials stay with
//! the job. Reconciling is level-triggered: each pass derives everything anew from facts.
//!
//! One pass ([`reconcile`]):
//! 1. [`observe`]: what the API server and the status streams say, as [`facts::Facts`].
//! 2. [`validate`]: the spec with its SQL inlined, or why it cannot run. Pure.
//! 3. [`plan`]: facts to a plan: what to remember, create, delete and command, and what to tell. Pure.
//! 4. [`status`]: the plan as a StreamJob's status; what must be remembered is written before it is acted on (C2).
//! 5. [`build`]: the plan's pods, Service and ConfigMap as Kubernetes objects. Pure.
//! 6. [`apply`]: the API calls.
//!
//! Savepoint objects have passes of their own: [`savepoint`].
//!
//! Around it: [`watches`] feed passes, [`streams`] hold one status stream per JobManager (nothing is polled),
//! [`events`], [`metrics`] and [`http`] tell about it. Of several replicas one makes passes: [`leader`]; what changes
//! something is sent by it alone ([`client`]).

pub mod apply;
mod arguments;
pub mod backoff;
pub mod build;
pub mod certificates;
mod client;
pub mod connection;
mod context;
pub mod events;
pub mod facts;
#[cfg(test)]
mod fake_api;
mod http;
pub mod leader;
pub mod metrics;
pub mod observe;
pub mod outdated;
mod panics;
mod passes;
pub mod plan;
mod planted;
mod pulse;
mod queue;
mod reconcile;
mod run;
pub mod savepoint;
#[cfg(test)]
mod secrecy;
pub mod status;
pub mod streams;
pub mod time;
mod unreadable;
pub mod validate;
mod watches;

pub use arguments::Arguments;
pub use planted::Planted;
pub use run::{run, run_over};
