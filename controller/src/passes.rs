//! Whose turn it is: one pass at a time over each object, so many over different ones, and whoever has waited longest comes
//! first. Under more requests than the API server can follow each waits, and none is forgotten: kube's own `applier` takes
//! those that are due in the order of a hash table, and one that is late in that order waits for as long as others come.
//!
//! Callers rely on: a request during a pass is followed by another pass; several that wait are one; who is due by itself
//! joins the line at that moment, however busy all turns are; of an object that is not in the cache no pass is made; when
//! the requests end, no pass is begun and those under way are waited for.

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

/// When the next pass over an object is made, if nothing else causes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Action(Option<Duration>);

impl Action {
    /// After this time.
    pub(crate) const fn requeue(wait: Duration) -> Self {
        Self(Some(wait))
    }

    /// Something will.
    pub(crate) const fn await_change() -> Self {
        Self(None)
    }
}

/// Why a pass panicked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Panicked(pub(crate) String);

/// One in a task of its own, so that its panic is a failure of this pass alone.
pub(crate) async fn by_itself<T: Send + 'static>(
    pass: impl Future<Output = T> + Send + 'static,
) -> Result<T, Panicked> {
    let ended = AbortOnDropHandle::new(tokio::spawn(pass)).await;
    let why = |error: JoinError| match error.try_into_panic() {
        Ok(payload) => said(&*payload),
        Err(error) => error.to_string(),
    };
    ended.map_err(|error| Panicked(why(error)))
}

/// What a panic has said.
fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".to_owned())
}

/// Makes passes until there are no more requests. `waiting` is told how many objects wait for their turn.
pub(crate) async fn make_passes<K, F>(
    requests: impl Stream<Item = ObjectRef<K>>,
    cache: &Store<K>,
    at_once: usize,
    waiting: impl Fn(usize),
    pass: impl Fn(Arc<K>) -> F,
) where
    K: Resource<DynamicType = ()> + Clone + 'static,
    F: Future<Output = Action>,
{
    let mut requests = pin!(requests.fuse());
    let (mut line, mut under_way) = (Line::default(), FuturesUnordered::new());
    let mut is_open = true;
    loop {
        line.join(Instant::now());
        while is_open && under_way.len() < at_once {
            let Some(object) = line.next() else { break };
            let (found, pass) = (cache.get(&object), &pass);
            under_way.push(async move {
                let action = match found {
                    Some(found) => pass(found).await,
                    None => Action::await_change(),
                };
                (object, action)
            });
        }
        waiting(if is_open { line.waiting.len() } else { 0 });
        if !is_open && under_way.is_empty() {
            return;
        }
        let due = line.due().filter(|_| is_open);
        tokio::select! {
            biased;
            Some((object, Action(wait))) = under_way.next() => line.ended(object, wait.map(|wait| Instant::now() + wait)),
            request = requests.next(), if is_open => match request {
                Some(object) => line.ask(&object),
                None => is_open = false,
            },
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

/// Who waits, and who has a turn.
#[derive(Debug)]
struct Line<T> {
    places: HashMap<Arc<T>, Place>,
    /// Whose turn it is, first come, first served.
    waiting: VecDeque<Arc<T>>,
    /// Who joins those when; the number tells those of one moment apart.
    later: BTreeMap<(Instant, u64), Arc<T>>,
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    Later((Instant, u64)),
    UnderWay { again: bool },
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { places: HashMap::new(), waiting: VecDeque::new(), later: BTreeMap::new(), number: 0 }
    }
}

impl<T: Eq + Hash + Clone> Line<T> {
    /// Joins those who wait.
    fn ask(&mut self, object: &T) {
        match self.places.get_mut(object) {
            Some(Place::Waiting) => {}
            Some(Place::UnderWay { again }) => *again = true,
            Some(Place::Later(at)) => {
                if let Some(object) = self.later.remove(at) {
                    self.wait(object);
                }
            }
            None => self.wait(Arc::new(object.clone())),
        }
    }

    fn wait(&mut self, object: Arc<T>) {
        self.places.insert(Arc::clone(&object), Place::Waiting);
        self.waiting.push_back(object);
    }

    /// Those who are due join the line.
    fn join(&mut self, now: Instant) {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let object = first.remove();
            self.wait(object);
        }
    }

    /// Who has a turn now.
    fn next(&mut self) -> Option<Arc<T>> {
        let object = self.waiting.pop_front()?;
        self.places.insert(Arc::clone(&object), Place::UnderWay { again: false });
        Some(object)
    }

    /// A turn is over; the next one is at `at`, or now when it was asked for meanwhile.
    fn ended(&mut self, object: Arc<T>, at: Option<Instant>) {
        match (self.places.remove(&object), at) {
            (Some(Place::UnderWay { again: true }), _) => self.wait(object),
            (_, Some(at)) => {
                self.number += 1;
                let at = (at, self.number);
                self.places.insert(Arc::clone(&object), Place::Later(at));
                self.later.insert(at, object);
            }
            (_, None) => {}
        }
    }

    /// When the next one joins the line by itself.
    fn due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }
}

#[cfg(test)]
mod tests;
