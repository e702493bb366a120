//! The wire between controller, JobManager and TaskManager: gRPC services and the conversions to the types that
//! decisions use.
//!
//! It owns the `.proto` files and the code generated from them (`cargo xtask generate`), message limits and
//! keepalive. It decides nothing and knows neither Kubernetes nor the engine.
//!
//! The map:
//! - [`control`]: what the controller and the command line ask of a JobManager, with a thin client.
//! - [`gateway`]: the session between a TaskManager and its JobManager.
//! - [`convert`]: generated types to and from [`sluice_protocol::message`], with errors that name the field.
//! - [`connection`]: one HTTP/2 connection in little memory.
//! - [`transport`]: limits and keepalive that both sides use.
//! - [`tls`]: who may say what to whom: certificates of a job's own, and the roles in them.

pub mod connection;
pub mod control;
pub mod convert;
pub mod gateway;
pub mod tls;
pub mod transport;

/// The generated types of package `sluice.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    clippy::redundant_clone,
    clippy::cloned_instead_of_copied,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "generated code"
)]
pub mod v1 {
    include!("generated/sluice.v1.rs");
}
