//! Options that change while the job runs: those that neither its tasks nor its ledger depend on.
//!
//! Nothing is recorded: a later JobManager reads the same options from its manifest. Callers rely on: the status names the
//! options that are obeyed.

use super::{JobMaster, Reconfiguration};
use crate::restart::RestartPolicy;

impl JobMaster {
    /// Obeys other options from now on; checkpoints under way keep theirs.
    pub(super) fn reconfigure(&mut self, wanted: Reconfiguration) {
        let Reconfiguration { id, checkpointing, restart_strategy } = wanted;
        let takes_checkpoints = self.config.options.checkpointing.is_some();
        match RestartPolicy::from_spec(restart_strategy.as_ref(), takes_checkpoints) {
            Ok(policy) => self.policy = policy,
            // Whoever asks has validated it; a strategy that is none leaves the one that is obeyed.
            Err(error) => return self.set_notice("InvalidRestartStrategy", error.to_string()),
        }
        let options = &mut self.config.options;
        options.restart_strategy = restart_strategy;
        if let (Some(obeyed), Some(wanted)) = (&mut options.checkpointing, checkpointing) {
            *obeyed = obeyed.reconfigured(&wanted);
            if let Some(coordinator) = &mut self.coordinator {
                coordinator.reconfigure(obeyed.clone(), self.now);
            }
        }
        self.note_lives();
        self.status.options_id = Some(id);
    }
}
