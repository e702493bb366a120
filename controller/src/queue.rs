//! Requests for passes: taken while this replica leads, dropped while it stands by (whoever begins to lead looks at
//! everything).

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
    pub(crate) fn open(self: &Arc<Self>) -> impl Stream<Item = R> + Send + use<R> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.metrics.clear_queue(self.kind);
        self.set(Some(sender));
        let queue = Arc::clone(self);
        UnboundedReceiverStream::new(receiver).inspect(move |_| queue.metrics.count_taken(queue.kind))
    }

    /// Ends the stream of who takes.
    pub(crate) fn close(&self) {
        self.set(None);
    }

    /// Adds a request, where anybody takes it.
    pub(crate) fn push(&self, request: R) {
        let taker = self.taker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taker) = &*taker {
            self.metrics.count_queued(self.kind);
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
    async fn requests_are_dropped_while_nobody_takes_them_and_counted_while_they_wait() {
        let metrics = Arc::new(Metrics::default());
        let queue = Queue::new("StreamJob", &metrics);
        queue.push(1);
        let mut taken = Box::pin(queue.open());
        queue.push(2);
        queue.push(3);
        assert!(metrics.encode().contains(r#"queue_depth{kind="StreamJob"} 2"#));
        assert_eq!(taken.next().await, Some(2));
        queue.close();
        queue.push(4);
        assert_eq!(taken.next().await, Some(3));
        assert_eq!(taken.next().await, None);
        assert!(metrics.encode().contains(r#"queue_depth{kind="StreamJob"} 0"#));
    }
}
