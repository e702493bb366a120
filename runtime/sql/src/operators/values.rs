//! The source of VALUES: rows that stand in the statement itself, read once, by the first subtask.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use serde_json::json;
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::RestoredState;
use sluice_engine::source::{Source, SourceContext, SourceFactory, SourcePoll};
use sluice_protocol::SubtaskIndex;
use sluice_protocol::state::SplitState;

/// The only split.
const SPLIT: &str = "0";

/// Makes the reader of each subtask.
pub(crate) struct ValuesFactory {
    /// The rows.
    pub(crate) rows: RecordBatch,
}

impl SourceFactory for ValuesFactory {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        Ok(Box::new(Values { rows: self.rows.clone(), position: None }))
    }

    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    fn owner(&self, _: &str, _: u32) -> SubtaskIndex {
        SubtaskIndex(0)
    }
}

struct Values {
    rows: RecordBatch,
    /// The next row; `None`: another subtask reads them.
    position: Option<usize>,
}

impl Source for Values {
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError> {
        self.position = (context.operator.subtask == SubtaskIndex(0)).then_some(0);
        for SplitState { state, .. } in &state.splits {
            let position = state["position"].as_u64().and_then(|position| usize::try_from(position).ok());
            let Some(position) = position else {
                return Err(TaskError::IncompatibleState(format!(
                    "operator '{}' reads VALUES, but the checkpoint holds {state} as the position of it",
                    context.operator.uid
                )));
            };
            self.position = Some(position.min(self.rows.num_rows()));
        }
        Ok(())
    }

    fn poll(&mut self, max_rows: usize) -> Result<SourcePoll, TaskError> {
        let Some(position) = &mut self.position else { return Ok(SourcePoll::Finished) };
        let rows = (self.rows.num_rows() - *position).min(max_rows);
        if rows == 0 {
            return Ok(SourcePoll::Finished);
        }
        let batch = self.rows.slice(*position, rows);
        *position += rows;
        Ok(SourcePoll::Batch(Batch::inserts(batch)))
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let state = |position| SplitState { split: SPLIT.to_owned(), state: json!({ "position": position }) };
        Ok(self.position.map(state).into_iter().collect())
    }
}
