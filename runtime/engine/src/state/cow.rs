//! A value that a snapshot may share with its owner, who copies it when he writes while it is shared.

use std::mem;
use std::sync::Arc;

/// Owned, or shared with a snapshot. Reading and, while owned, writing cost no atomic operation.
#[derive(Debug)]
pub enum CopyOnWrite<T> {
    /// Nobody else has it.
    Owned(T),
    /// A snapshot has or had it.
    Shared(Arc<T>),
}

impl<T: Clone + Default> CopyOnWrite<T> {
    /// The value.
    #[inline]
    pub fn get(&self) -> &T {
        match self {
            Self::Owned(value) => value,
            Self::Shared(value) => value,
        }
    }

    /// The value, to be changed: taken back when the snapshot is done with it, copied otherwise.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        if let Self::Shared(_) = self {
            self.take_back();
        }
        match self {
            Self::Owned(value) => value,
            Self::Shared(value) => Arc::make_mut(value),
        }
    }

    #[cold]
    fn take_back(&mut self) {
        if let Self::Shared(value) = mem::replace(self, Self::Owned(T::default())) {
            *self = Self::Owned(Arc::unwrap_or_clone(value));
        }
    }

    /// Shares the value with a snapshot.
    pub fn freeze(&mut self) -> Arc<T> {
        let shared = match mem::replace(self, Self::Owned(T::default())) {
            Self::Owned(value) => Arc::new(value),
            Self::Shared(value) => value,
        };
        *self = Self::Shared(Arc::clone(&shared));
        shared
    }
}
