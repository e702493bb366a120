//! Requests for passes: taken while this replica leads, dropped while it stands by (whoever begins to lead looks at
//! everything). How many objects wait is told by who takes them and knows which are the same ([`crate::passes`]).

use crate::metrics::Metrics;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Requests of one kind.
pub(crate) struct Queue<R> {
    kind: &'static str,
    taker: Mutex<Option<UnboundedSender<R>>>,
    metrics: Arc<Metrics>,
}

impl<R: Send + 'static> Queue<R> {
    /// A queue that nobody takes from.
    pub(crate) fn new(kind: &'static str, metrics: &Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { kind, taker: Mutex::default(), metrics: Arc::clone(metrics) })
    }

    /// Begins to take, in place of who did before.
    pub(crate) fn open(&self) -> impl Stream<Item = R> + Send + use<R> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.set(Some(sender));
        UnboundedReceiverStream::new(receiver)
    }

    /// So many objects wait for their turn.
    pub(crate) fn tell_waiting(&self, objects: usize) {
        self.metrics.set_queue(self.kind, objects);
    }

    /// Ends the stream of who takes.
    pub(crate) fn close(&self) {
        self.set(None);
        self.tell_waiting(0);
    }

    /// Adds a request, where anybody takes it.
    pub(crate) fn push(&self, request: R) {
        let taker = self.taker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taker) = &*taker {
            // Who took has just ended.
            let _ = taker.send(request);
        }
    }

    /// Adds requests until there are no more.
    pub(crate) async fn forward(self: Arc<Self>, mut requests: BoxStream<'static, R>) {
        while let Some(request) = requests.next().await {
            self.push(request);
        }
    }

    fn set(&self, taker: Option<UnboundedSender<R>>) {
        *self.taker.lock().unwrap_or_else(PoisonError::into_inner) = taker;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_dropped_while_nobody_takes_them() {
        let metrics = Arc::new(Metrics::default());
        let queue = Queue::new("StreamJob", &metrics);
        queue.push(1);
        let mut taken = Box::pin(queue.open());
        queue.push(2);
        queue.push(3);
        assert_eq!(taken.next().await, Some(2));
        queue.close();
        queue.push(4);
        assert_eq!(taken.next().await, Some(3));
        assert_eq!(taken.next().await, None);
        queue.tell_waiting(3);
        assert!(metrics.encode().contains(r#"queue_depth{kind="StreamJob"} 3"#));
    }
}
