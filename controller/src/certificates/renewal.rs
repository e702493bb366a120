//! When what of a job's certificates is made anew. Pure.
//!
//! A certificate is renewed at two thirds of its life. An authority is followed by the next in three steps, each long
//! enough after the one before for every process to have it: the next one is believed beside the old
//! ([`Step::Introduce`]); after [`OVERLAP`] it signs ([`Step::Switch`]), while the old one is still believed; with the
//! renewal after that the old one is dropped.

use serde::{Deserialize, Serialize};
use sluice_protocol::{TimeSpan, Timestamp};
use sluice_rpc::tls::authority::SKEW;

/// How long the kubelet may take to bring a changed Secret into every pod, and more.
pub(super) const OVERLAP: TimeSpan = TimeSpan::from_secs(3600);

const DAY: TimeSpan = TimeSpan::from_secs(86_400);

/// How long what is made is valid.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lives {
    pub(super) authority: TimeSpan,
    pub(super) leaf: TimeSpan,
}

impl Default for Lives {
    fn default() -> Self {
        Self { authority: TimeSpan(DAY.0 * 365), leaf: TimeSpan(DAY.0 * 30) }
    }
}

/// Since when what is in force; it stands beside the certificates in the Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Held {
    pub(super) authority_since: Timestamp,
    pub(super) leaves_since: Timestamp,
    /// The next authority, once it is believed and does not sign yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) next_since: Option<Timestamp>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing yet.
    Keep,
    /// All: there is nothing, or nothing that still counts.
    Make,
    /// New certificates of the same authority.
    Renew,
    /// A next authority beside the one that signs.
    Introduce,
    /// The next authority signs.
    Switch,
}

const fn two_thirds(life: TimeSpan) -> TimeSpan {
    TimeSpan(life.0 / 3 * 2)
}

/// What is to be done now.
pub(super) fn step(held: Option<&Held>, now: Timestamp, lives: &Lives) -> Step {
    let Some(held) = held else { return Step::Make };
    // What was made by a clock that was ahead is valid for nobody yet.
    let is_early = |since: Timestamp| since > now.plus(SKEW);
    if now >= held.authority_since.plus(lives.authority) || is_early(held.authority_since) {
        return Step::Make;
    }
    if is_early(held.leaves_since) {
        return Step::Renew;
    }
    match held.next_since {
        Some(since) if now >= since.plus(OVERLAP) => Step::Switch,
        None if now >= held.authority_since.plus(two_thirds(lives.authority)) => Step::Introduce,
        _ if now >= held.leaves_since.plus(two_thirds(lives.leaf)) => Step::Renew,
        _ => Step::Keep,
    }
}

/// When the next step comes.
pub(super) fn due(held: &Held, lives: &Lives) -> Timestamp {
    let authority = match held.next_since {
        Some(since) => since.plus(OVERLAP),
        None => held.authority_since.plus(two_thirds(lives.authority)),
    };
    authority.min(held.leaves_since.plus(two_thirds(lives.leaf)))
}
