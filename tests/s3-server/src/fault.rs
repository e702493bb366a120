//! What tests do to requests: single faults by a hook, outages of the whole server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// A request as a hook sees it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// S3's name: `PutObject`, `GetObject`, `ListObjectsV2`, …
    pub operation: &'static str,
    /// The bucket.
    pub bucket: &'a str,
    /// The key; of a list the prefix; empty for DeleteObjects.
    pub key: &'a str,
}

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing unusual.
    Pass,
    /// It answers InternalError and has no effect.
    FailBefore,
    /// It takes effect, then answers InternalError: a lost response.
    FailAfter,
    /// It never answers and has no effect.
    HangBefore,
    /// It takes effect and never answers.
    HangAfter,
}

/// What is wrong with the whole server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outage {
    /// Nothing.
    #[default]
    None,
    /// Every request answers ServiceUnavailable.
    Errors,
    /// No request is answered until the outage ends; those whose clients still wait take effect then.
    Hangs,
    /// Connections are cut and refused.
    Refuses,
}

pub(crate) type Hook = dyn Fn(&Request<'_>) -> Fault + Send + Sync;

/// The switches, shared by the handle and the service.
#[derive(Default)]
pub(crate) struct Control {
    hook: Mutex<Option<Arc<Hook>>>,
    outage: watch::Sender<Outage>,
    requests: Mutex<BTreeMap<&'static str, usize>>,
}

impl Control {
    pub(crate) fn set_hook(&self, hook: Option<Arc<Hook>>) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    pub(crate) fn set_outage(&self, outage: Outage) {
        self.outage.send_replace(outage);
    }

    pub(crate) fn watch_outage(&self) -> watch::Receiver<Outage> {
        self.outage.subscribe()
    }

    pub(crate) fn requests(&self, operation: &str) -> usize {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.get(operation).copied().unwrap_or(0)
    }

    /// Counts a request and decides its fate, after waiting while the server hangs.
    pub(crate) async fn decide(&self, request: &Request<'_>) -> Fault {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(request.operation).or_default() += 1;
        let mut outage = self.watch_outage();
        let now = outage.wait_for(|outage| *outage != Outage::Hangs).await.map_or(Outage::None, |outage| *outage);
        if now != Outage::None {
            return Fault::FailBefore;
        }
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hook.map_or(Fault::Pass, |hook| hook(request))
    }
}
