//! Operator state: state of a subtask that is not divided by key (design §4).
//!
//! [`ListState`] is a list whose items a restore deals out: split among the subtasks, or all to each (union).
//! [`BroadcastState`] is a map that is alike in every subtask, because all of them see the same broadcast rows. Items
//! are JSON values, so that `_metadata` stays readable; a larger list lies in a file of its own. It is for little
//! state: an operator's offsets, rules, patterns.
//!
//! An operator takes its states from [`RestoredState`] when it is opened, and gives [`ListState::snapshot`] or
//! [`BroadcastState::snapshot`] to [`crate::operator::OperatorState::operator`] when it is frozen.

use crate::error::TaskError;
use crate::operator::{ListPiece, OperatorContext, RestoredState};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_protocol::SubtaskIndex;
use sluice_protocol::state::Redistribution;
use std::collections::BTreeMap;

/// A list whose items are dealt out at a restore.
#[derive(Debug, Clone)]
pub struct ListState<T> {
    name: String,
    redistribution: Redistribution,
    items: Vec<T>,
}

impl<T: Serialize + DeserializeOwned> ListState<T> {
    /// A list of which each item belongs to one subtask, whatever the parallelism.
    ///
    /// # Errors
    /// When its stored items are of another kind.
    pub fn split(name: &str, context: &OperatorContext, state: &RestoredState) -> Result<Self, TaskError> {
        Self::restore(name, Redistribution::Split, context, state)
    }

    /// A list of which each subtask gets all items of all subtasks at a restore.
    ///
    /// # Errors
    /// When its stored items are of another kind.
    pub fn union(name: &str, context: &OperatorContext, state: &RestoredState) -> Result<Self, TaskError> {
        Self::restore(name, Redistribution::Union, context, state)
    }

    fn restore(
        name: &str,
        redistribution: Redistribution,
        context: &OperatorContext,
        state: &RestoredState,
    ) -> Result<Self, TaskError> {
        let items = restored_items(name, redistribution, context, state)?;
        let items = items.map(|item| read(name, context, item)).collect::<Result<_, _>>()?;
        Ok(Self { name: name.to_owned(), redistribution, items })
    }

    /// The items.
    #[must_use]
    pub fn get(&self) -> &[T] {
        &self.items
    }

    /// Adds an item.
    pub fn add(&mut self, item: T) {
        self.items.push(item);
    }

    /// Replaces all items.
    pub fn update(&mut self, items: Vec<T>) {
        self.items = items;
    }

    /// Drops all items.
    pub fn clear(&mut self) {
        self.items.clear();
    }

    /// What a checkpoint stores of it.
    ///
    /// # Errors
    /// When an item cannot be written as JSON.
    pub fn snapshot(&self) -> Result<ListPiece, TaskError> {
        let items = self.items.iter().map(|item| write(&self.name, item)).collect::<Result<_, _>>()?;
        Ok(ListPiece { name: self.name.clone(), redistribution: self.redistribution, items })
    }
}

/// A map that is alike in every subtask.
#[derive(Debug, Clone)]
pub struct BroadcastState<K, V> {
    name: String,
    writes: bool,
    entries: BTreeMap<K, V>,
}

impl<K: Ord + Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> BroadcastState<K, V> {
    /// The map as it was restored, or an empty one.
    ///
    /// # Errors
    /// When its stored entries are of another kind.
    pub fn new(name: &str, context: &OperatorContext, state: &RestoredState) -> Result<Self, TaskError> {
        let items = restored_items(name, Redistribution::Broadcast, context, state)?;
        let entries = items.map(|item| read(name, context, item)).collect::<Result<_, _>>()?;
        Ok(Self { name: name.to_owned(), writes: context.subtask == SubtaskIndex(0), entries })
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: K, value: V) {
        self.entries.insert(key, value);
    }

    /// Drops a key.
    pub fn remove(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// All entries, by key.
    pub fn entries(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter()
    }

    /// What a checkpoint stores of it. It is alike everywhere, so one subtask stores it for all.
    ///
    /// # Errors
    /// When an entry cannot be written as JSON.
    pub fn snapshot(&self) -> Result<ListPiece, TaskError> {
        let entries = self.entries.iter().filter(|_| self.writes);
        let items = entries.map(|entry| write(&self.name, &entry)).collect::<Result<_, _>>()?;
        Ok(ListPiece { name: self.name.clone(), redistribution: Redistribution::Broadcast, items })
    }
}

fn restored_items<'a>(
    name: &'a str,
    redistribution: Redistribution,
    context: &OperatorContext,
    state: &'a RestoredState,
) -> Result<impl Iterator<Item = &'a Value>, TaskError> {
    let pieces = state.operator.iter().filter(move |piece| piece.name == name);
    if let Some(other) = pieces.clone().find(|piece| piece.redistribution != redistribution) {
        return Err(TaskError::IncompatibleState(format!(
            "state '{name}' of operator '{}' is {redistribution:?}, but the checkpoint holds it as {:?}; give the \
             changed state another name",
            context.uid, other.redistribution
        )));
    }
    Ok(pieces.flat_map(|piece| &piece.items))
}

fn read<T: DeserializeOwned>(name: &str, context: &OperatorContext, item: &Value) -> Result<T, TaskError> {
    T::deserialize(item).map_err(|error| {
        TaskError::IncompatibleState(format!(
            "an item of state '{name}' of operator '{}' cannot be read: {error}; give the changed state another name",
            context.uid
        ))
    })
}

fn write<T: Serialize>(name: &str, item: &T) -> Result<Value, TaskError> {
    serde_json::to_value(item)
        .map_err(|error| TaskError::Internal(format!("an item of state '{name}' cannot be written as JSON: {error}")))
}
