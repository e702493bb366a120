//! Who may lead: decisions about the Lease, from what was read of it and a clock that only measures spans. Pure.
//!
//! As in client-go, no time that another process wrote is believed: a Lease has expired when this process has seen it
//! unchanged for as long as it says. Clocks may differ by any amount, and run at rates that differ by less than
//! [`LEASE`] : [`WRITES_END`].

use std::time::Duration;

/// How long a Lease stays its holder's without being renewed.
pub(super) const LEASE: Duration = Duration::from_secs(10);
/// How long after the start of its last successful renewal a leader sends requests that change something.
pub(super) const DEADLINE: Duration = Duration::from_secs(6);
/// How long after it a request that was under way is given up: well before another may lead.
pub(super) const WRITES_END: Duration = Duration::from_secs(8);
/// How often a leader renews.
pub(super) const RENEW: Duration = Duration::from_secs(2);
/// How often a standby looks, and a leader tries again when a renewal fails.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// What decisions look at of a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeaseView {
    /// Changes with each write.
    pub(super) version: String,
    /// Who holds it; `None` when it was released.
    pub(super) holder: Option<String>,
    /// How long without being renewed.
    pub(super) duration: Duration,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// There is none: make one.
    Create,
    /// It is ours: renew it.
    Renew,
    /// It was released or has expired: take it.
    Take,
    /// Another holds it; it may have expired after this long.
    Wait(Duration),
}

/// One candidate's view of the Lease over time.
#[derive(Debug)]
pub(super) struct Election {
    identity: String,
    seen: Option<Seen>,
}

/// Since when the Lease has looked like this.
#[derive(Debug)]
struct Seen {
    lease: Option<LeaseView>,
    since: Duration,
}

impl Election {
    /// `identity` is this process's alone, also among those that had its name before.
    pub(super) const fn new(identity: String) -> Self {
        Self { identity, seen: None }
    }

    /// This process's name in the Lease.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Decides, at `now` of a clock that never goes back.
    pub(super) fn decide(&mut self, now: Duration, lease: Option<LeaseView>) -> Decision {
        if self.seen.as_ref().is_none_or(|seen| seen.lease != lease) {
            // A Lease that was deleted under its holder counts as that holder's until it would have expired.
            let held = match self.seen.take().and_then(|seen| seen.lease) {
                Some(LeaseView { holder: Some(holder), duration, .. }) if holder != self.identity => duration,
                _ => Duration::ZERO,
            };
            let since = if lease.is_none() { now + held } else { now };
            self.seen = Some(Seen { lease, since });
        }
        let Some(seen) = &self.seen else { return Decision::Create };
        let quiet = now.saturating_sub(seen.since);
        match &seen.lease {
            None if now < seen.since => Decision::Wait(seen.since - now),
            None => Decision::Create,
            Some(LeaseView { holder: None, .. }) => Decision::Take,
            Some(LeaseView { holder: Some(holder), .. }) if *holder == self.identity => Decision::Renew,
            Some(LeaseView { duration, .. }) if quiet >= *duration => Decision::Take,
            Some(LeaseView { duration, .. }) => Decision::Wait(*duration - quiet),
        }
    }
}

#[cfg(test)]
mod tests;
