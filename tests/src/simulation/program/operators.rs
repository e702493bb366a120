//! The operators that are written for the simulation: they keep each kind of operator state, and look at what passes.

use super::shape::CONTROL_SPLIT;
use super::{column, schema};
use arrow::datatypes::SchemaRef;
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::{
    Collector, Operator, OperatorContext, OperatorFactory, OperatorState, RestoredState, SnapshotWriter,
};
use sluice_engine::state::list::{BroadcastState, ListState};
use sluice_protocol::CheckpointId;
use std::collections::BTreeMap;

/// How a broken order begins.
pub const ORDER: &str = "B3: order";

/// Makes an operator that takes rows of events and emits them.
pub struct PassOn(pub fn() -> Box<dyn Operator>);

impl OperatorFactory for PassOn {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok((self.0)())
    }

    fn output_schema(&self) -> SchemaRef {
        schema()
    }
}

/// Checks that the rows of a split with one key come in order, whatever they were in between.
#[derive(Default)]
pub struct Order(BTreeMap<(i64, i64), i64>);

impl Operator for Order {
    fn open(&mut self, _: &OperatorContext, _: RestoredState) -> Result<(), TaskError> {
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let rows = column(&batch, 0).into_iter().zip(column(&batch, 2)).zip(column(&batch, 3));
        for ((key, split), position) in rows {
            let last = self.0.insert((split, key), position);
            if last.is_some_and(|last| last >= position) {
                let text = format!("{ORDER}: row {position} of split {split}, key {key}, came after {last:?}");
                return Err(TaskError::Internal(text));
            }
        }
        out.collect(batch);
        Ok(())
    }
}

/// Keeps what the control source said last of each rule, and passes events on.
#[derive(Default)]
pub struct Rules(Option<BroadcastState<i64, i64>>);

impl Operator for Rules {
    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        self.0 = Some(BroadcastState::new("rules", context, &state)?);
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        out.collect(batch);
        Ok(())
    }

    fn process_input(&mut self, input: u8, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let is_control = column(&batch, 2).first() == Some(&i64::from(CONTROL_SPLIT));
        if is_control != (input == 1) {
            return Err(TaskError::Internal(format!("{ORDER}: rows came on input {input}, which is not theirs")));
        }
        match &mut self.0 {
            Some(rules) if is_control => {
                let all = column(&batch, 0).into_iter().zip(column(&batch, 1));
                all.for_each(|(rule, value)| rules.put(rule, value));
                Ok(())
            }
            _ => self.process(batch, out),
        }
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let operator = self.0.as_ref().map(BroadcastState::snapshot).transpose()?;
        Ok(Some(Box::new(OperatorState { operator: operator.into_iter().collect(), ..OperatorState::default() })))
    }
}

/// Counts rows twice: in a list that is split, and in one of which each subtask gets all. Passes them on.
#[derive(Default)]
pub struct Tally(Option<(ListState<i64>, ListState<i64>)>);

impl Operator for Tally {
    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        let split = ListState::split("split", context, &state)?;
        let mut union: ListState<i64> = ListState::union("union", context, &state)?;
        // One subtask takes what all had; the others begin anew.
        let all = if context.subtask.0 == 0 { union.get().iter().sum() } else { 0 };
        union.update(vec![all]);
        self.0 = Some((split, union));
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        if let Some((split, union)) = &mut self.0 {
            let rows = batch.len() as i64;
            union.update(vec![union.get().iter().sum::<i64>() + rows]);
            // A few items, so that there is something to deal out.
            match split.get() {
                [.., last] if split.get().len() > 4 => {
                    let mut items = split.get().to_vec();
                    items.pop();
                    items.push(last + rows);
                    split.update(items);
                }
                _ => split.add(rows),
            }
        }
        out.collect(batch);
        Ok(())
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let Some((split, union)) = &self.0 else { return Ok(None) };
        let operator = vec![split.snapshot()?, union.snapshot()?];
        Ok(Some(Box::new(OperatorState { operator, ..OperatorState::default() })))
    }
}
