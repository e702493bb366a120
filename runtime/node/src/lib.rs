//! The processes of a job: JobManager, TaskManager, and both in one for a local run.
//!
//! This crate is the edge: it reads clocks and random numbers, opens sockets and files, and starts threads. What is
//! decided, `sluice_protocol` decides; what is computed, `sluice_engine` and the program compute.
//!
//! The map:
//! - [`job`]: from a manifest to a job, alike in every process.
//! - [`job_manager`]: drives the decisions; serves TaskManagers, the controller and the command line.
//! - [`task_manager`]: runs tasks, stores snapshots. [`data_plane`]: rows between TaskManagers.
//! - [`local`]: a whole job in one process.
//! - [`rest`], [`metrics`]: status, metrics and probes over HTTP.
//! - [`logs`]: what the processes log, changed while they run.
//! - [`memory`]: who gets how much of the process's memory.
//! - [`edge`]: clock, randomness, exit records. - [`steps`]: for tests that stop a process at one of them.
//!
//! A run of the tasks, through the processes:
//! 1. A TaskManager registers ([`task_manager`]); the JobManager has slots enough and sends a deployment.
//! 2. TaskManagers connect to each other ([`data_plane`]), fetch state and start threads.
//! 3. The JobManager triggers sources; barriers flow; each task's frozen state is stored and acknowledged.
//! 4. A failure, wherever, ends the run: tasks are cancelled everywhere, and the next run is deployed.

pub mod data_plane;
pub mod edge;
pub mod job;
pub mod job_manager;
pub mod local;
pub mod logs;
pub mod memory;
pub mod metrics;
pub mod rest;
pub mod secrets;
pub mod steps;
pub mod task_manager;
#[cfg(test)]
mod tests;

pub use job::{JobDescription, build_job, excerpt, explain_job, read_manifest};
pub use job_manager::{JobManagerArgs, run_job_manager};
pub use local::{LocalRun, LocalStart, run_local};
pub use task_manager::{TaskManagerArgs, run_task_manager};
