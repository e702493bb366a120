//! People who ask a running job for something: savepoints, checkpoints, disposals, an end (K4, K5).
//!
//! They ask the JobManager that the controller believes in, again and again under the same id until the status tells the
//! answer, as `sluice savepoint` does; a request may thus meet any number of JobManagers.

use crate::simulation::scenario::{OptionChange, Scenario};
use crate::simulation::store::ROOT;
use crate::simulation::world::{Event, Process, World};
use sluice_protocol::TimeSpan;
use sluice_protocol::job_master::{Command, Event as MasterEvent, Reconfiguration, SavepointRequest};
use sluice_protocol::ledger::SavepointKind;
use sluice_protocol::options::JobOptions;
use sluice_protocol::status::{RequestState, RequestStatus};

/// Where savepoints go.
pub const SAVEPOINTS: &str = "archive";

/// What people ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// A savepoint within so many milliseconds.
    Savepoint {
        /// Its timeout.
        millis: u64,
    },
    /// A checkpoint now.
    Checkpoint,
    /// That the oldest savepoint is removed.
    Dispose,
    /// Other options, without a restart.
    Reconfigure(OptionChange),
}

impl World {
    /// One look at what is asked for.
    pub(super) fn ask(&mut self) {
        let asks = self.scenario.asks.clone();
        for (number, (at, ask)) in asks.into_iter().enumerate() {
            if at > self.now || self.controller_is_ending() || self.rng.u32(..3) > 0 {
                continue;
            }
            let id = format!("{:04}-ask", number + 1);
            if self.answer_to(&id).is_some_and(|answer| answer.state != RequestState::Pending) {
                continue;
            }
            if let Some(command) = self.command(ask, id) {
                self.tell(command);
            }
        }
    }

    fn command(&mut self, ask: Ask, id: String) -> Option<Command> {
        Some(match ask {
            Ask::Savepoint { millis } => Command::Savepoint(SavepointRequest {
                id,
                kind: SavepointKind::Savepoint,
                directory: Some(format!("{ROOT}/{SAVEPOINTS}")),
                timeout: TimeSpan(millis),
            }),
            Ask::Checkpoint => Command::TriggerCheckpoint { id },
            Ask::Reconfigure(change) => {
                let obeys = |index: usize| self.job_managers[index].status().options_id.as_ref() == Some(&id);
                if self.current().is_some_and(obeys) {
                    return None;
                }
                // The manifest changes: later JobManagers begin with it.
                let OptionChange { interval_millis, timeout_millis, retained, tolerable } = change;
                self.scenario =
                    Scenario { interval_millis, timeout_millis, retained, tolerable, ..self.scenario.clone() };
                let JobOptions { checkpointing, restart_strategy, .. } = self.options();
                Command::Reconfigure(Box::new(Reconfiguration { id, checkpointing, restart_strategy }))
            }
            Ask::Dispose => {
                let path = self.check.fold().savepoints.first()?.path.clone();
                Command::Dispose { id, path }
            }
        })
    }

    /// Asks the job to stop with a savepoint; one that has failed is asked for anew.
    pub(super) fn ask_to_stop(&mut self, kind: SavepointKind, millis: impl Fn(u64) -> u64) {
        let mut number = 1;
        let id = loop {
            let id = format!("{:04}-stop", 1000 + number);
            match self.answer_to(&id).map(|answer| answer.state) {
                Some(RequestState::Failed) => number += 1,
                _ => break id,
            }
        };
        let (directory, timeout) = (Some(format!("{ROOT}/{SAVEPOINTS}")), TimeSpan(millis(number)));
        self.tell(Command::Savepoint(SavepointRequest { id, kind, directory, timeout }));
    }

    /// The savepoint that the job stopped with.
    pub(super) fn stopped_with(&self) -> Option<String> {
        self.check.fold().savepoints.last().map(|savepoint| savepoint.path.clone())
    }

    pub(super) fn tell(&mut self, command: Command) {
        let Some(index) = self.current().filter(|index| self.job_managers[*index].alive) else { return };
        self.deliver(Process::JobManager(index), Event::Master(index, MasterEvent::Command(command)));
    }

    fn answer_to(&self, id: &str) -> Option<RequestStatus> {
        let index = self.current().filter(|index| self.job_managers[*index].alive)?;
        self.job_managers[index].status().requests.iter().find(|request| request.id == id).cloned()
    }
}
