//! What became of the JobManager of the current generation (C1).

use super::{Planner, rejection};
use crate::facts::{Facts, PodFacts, Rejection, Role};
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::{TimeSpan, Timestamp};

/// A JobManager whose control loop has not answered for this long is lost; so is one on a node that is lost.
pub(super) const UNRESPONSIVE: TimeSpan = TimeSpan::from_secs(30);

/// A pod whose node does not answer is given up after this long, unless it answers itself.
pub(super) const NODE_LOST: TimeSpan = TimeSpan::from_secs(5);

/// A pod that answers while its node does not: a kubelet that is only replaced is back sooner.
const NODE_LOST_ALONE: TimeSpan = TimeSpan::from_secs(20);

/// A JobManager whose stream stays down for this long, or never comes up, is lost, although its pod says that it is ready.
pub(super) const UNREACHABLE: TimeSpan = TimeSpan::from_secs(120);
/// How much longer the controller waits when it has lost most of its streams at once.
pub(super) const HOLD: TimeSpan = TimeSpan::from_secs(60);

/// What became of a JobManager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate<'a> {
    /// Its pod has not been made yet.
    NotCreated,
    /// It lives, as far as is known.
    Alive(&'a PodFacts),
    /// It ended and said why.
    Exited(&'a ExitRecord),
    /// It was sent away with its node: no failure (F1).
    Drained(Rejection),
    /// It ended without a word, or for no fault of the job.
    Lost(Rejection),
}

impl<'a> Planner<'a> {
    pub(super) fn fate(&self) -> Fate<'a> {
        let Some(pod) = self.job_manager() else {
            let gone = || rejection("JobManagerGone", "its pod is gone".to_owned());
            return if self.plan.memory.job_manager_pod.is_none() { Fate::NotCreated } else { Fate::Lost(gone()) };
        };
        let drained = || rejection("JobManagerDrained", format!("pod {} was sent away from its node", pod.name));
        if let Some(end) = &pod.ended {
            return match &end.record {
                Some(record) if record.kind != ExitKind::Internal => Fate::Exited(record),
                _ if pod.drained => Fate::Drained(drained()),
                Some(record) => Fate::Lost(rejection(&record.reason, record.message.clone())),
                None => Fate::Lost(rejection("JobManagerLost", format!("pod {}: {}", pod.name, end.account))),
            };
        }
        if pod.terminating && pod.drained {
            return Fate::Drained(drained());
        }
        if pod.terminating {
            return Fate::Lost(rejection("JobManagerDeleted", format!("pod {} is being deleted", pod.name)));
        }
        match pod.unready_since {
            Some(since) if pod.on_lost_node && self.facts.now.since(since) >= self.node_patience() => {
                Fate::Lost(rejection("NodeLost", format!("the node of pod {} does not answer", pod.name)))
            }
            Some(since) if self.facts.now.since(since) >= UNRESPONSIVE => {
                let message = format!("pod {} has not answered for {UNRESPONSIVE}", pod.name);
                Fate::Lost(rejection("JobManagerUnresponsive", message))
            }
            _ if self.is_unreachable() => {
                Fate::Lost(rejection("JobManagerUnreachable", format!("pod {} cannot be reached", pod.name)))
            }
            _ => Fate::Alive(pod),
        }
    }

    const fn node_patience(&self) -> TimeSpan {
        if self.facts.connected { NODE_LOST_ALONE } else { NODE_LOST }
    }

    /// The pod of the current generation's JobManager.
    pub(super) fn job_manager(&self) -> Option<&'a PodFacts> {
        let (generation, known) = (self.facts.memory.generation, self.plan.memory.job_manager_pod.as_ref());
        let is_it =
            |pod: &&PodFacts| pod.role == Role::JobManager && pod.generation == generation && known == Some(&pod.uid);
        self.facts.pods.iter().find(is_it)
    }

    /// Since when the JobManager should be heard and is not: its stream broke, or its control loop answers the kubelet and
    /// this controller has tried to hear it in vain. The kubelet's word may come late, so it alone counts for nothing. A
    /// helper need not be heard: its exit record tells all.
    pub(super) fn silent_since(&self) -> Option<Timestamp> {
        let Facts { report, connected, unreachable_since, tried_since, now, .. } = self.facts;
        let needs_no_word = *connected || report.is_some() || self.plan.memory.helper.is_some();
        let unheard = || self.job_manager()?.ready_since.map(|since| since.max(tried_since.unwrap_or(*now)));
        unreachable_since.or_else(|| if needs_no_word { None } else { unheard() })
    }

    fn is_unreachable(&self) -> bool {
        let patience = if self.facts.mostly_unreachable { TimeSpan(UNREACHABLE.0 + HOLD.0) } else { UNREACHABLE };
        self.silent_since().is_some_and(|since| self.facts.now.since(since) >= patience)
    }
}
