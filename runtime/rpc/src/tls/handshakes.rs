//! Handshakes under way: bounded in all, and by the address that they come from, so that one stranger who opens
//! connections and says nothing cannot keep others out.
//!
//! A place is held from the accept until the peer has shown who it is; what it does afterwards is not counted here.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// In all.
const LIMIT: usize = 256;

/// From one address: a node's pods may share it, a machine's processes do.
const LIMIT_OF_ADDRESS: usize = 64;

/// Why a connection is not even listened to.
pub const TOO_MANY: &str = "as many handshakes as are allowed from its address are under way";

/// The places of one listener.
#[derive(Debug)]
pub struct Handshakes {
    all: Arc<Semaphore>,
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// A place; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    handshakes: Arc<Handshakes>,
    address: IpAddr,
    _of_all: OwnedSemaphorePermit,
}

impl Handshakes {
    /// None under way.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { all: Arc::new(Semaphore::new(LIMIT)), by_address: Mutex::default() })
    }

    /// A place for a connection from there: `None` where that address has all that it may have. Waits as long as all places
    /// are taken by others.
    pub async fn begin(self: &Arc<Self>, from: SocketAddr) -> Option<Place> {
        let address = from.ip().to_canonical();
        if self.count(address) >= LIMIT_OF_ADDRESS {
            return None;
        }
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        *self.by_address.lock().unwrap_or_else(PoisonError::into_inner).entry(address).or_default() += 1;
        Some(Place { handshakes: Arc::clone(self), address, _of_all: of_all })
    }

    fn count(&self, address: IpAddr) -> usize {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner).get(&address).copied().unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_address = self.handshakes.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}
