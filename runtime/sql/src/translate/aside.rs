//! Rows that an operator hands out beside its results and that go into a table of their own: dead letters, late rows.
//!
//! It emits both, as rows of which either the results' columns or the others' are NULL, and a column of the latter marks them.
//! Its vertex has two edges: behind one only results are kept, behind the other only the others, which go on into their sink.
//! So the graph carries them, and what a checkpoint holds of the operator it holds of them.

use super::Translator;
use super::scan::names;
use super::sink::delivery;
use crate::calc::{Calc, Output};
use crate::error::SqlError;
use crate::graph::{Chain, calc_info};
use crate::operators;
use arrow::datatypes::SchemaRef;
use datafusion_physical_expr::expressions::{Column, is_not_null, is_null};
use sluice_engine::sink::SinkFactory;
use sluice_protocol::OperatorUid;
use sluice_protocol::graph::{OperatorInfo, Partitioning};
use std::sync::Arc;

/// What goes aside, and where to.
pub(super) struct Aside {
    /// The column that is NULL in results, and in these rows never.
    pub(super) marker: &'static str,
    /// What is written of them.
    pub(super) outputs: Vec<Output>,
    /// What they are, for the plan: `deadLettersOf=[t]`.
    pub(super) of: String,
    /// The uid of the sink.
    pub(super) uid: OperatorUid,
    /// The name of its table.
    pub(super) table: String,
    /// The sink.
    pub(super) factory: Arc<dyn SinkFactory>,
}

impl Translator<'_> {
    /// The chain of the results behind an operator that marks other rows; those go aside. `is_single`: it has one subtask.
    pub(super) fn divide_by_marker(
        &mut self,
        chain: Chain,
        results: &SchemaRef,
        is_single: bool,
        aside: Aside,
    ) -> Result<Chain, SqlError> {
        let Aside { marker: name, outputs, of, uid, table, factory } = aside;
        let wide = Arc::clone(chain.schema());
        let parallelism = self.statement.options.parallelism;
        let upstreams = self.close(chain)?;
        let edge = || {
            let edge = Chain::from_edge(upstreams.clone(), Partitioning::Forward, parallelism, Arc::clone(&wide));
            if is_single { edge.single() } else { edge }
        };
        let marker = wide.index_of(name).map_err(|error| self.statement.planning(&error.into()))?;
        let marker = || Arc::new(Column::new(name, marker));

        let mut of_results = Calc::identity(&wide);
        of_results.outputs.truncate(results.fields().len());
        for (output, field) in of_results.outputs.iter_mut().zip(results.fields()) {
            output.field = Arc::clone(field);
        }
        of_results.restrict(is_null(marker()).map_err(|error| self.statement.planning(&error))?);
        let mut kept = edge();
        self.calcs += 1;
        let info = calc_info(self.uids, self.calcs, of_results.describe());
        kept.push(info, "Calc", operators::filter_project(&of_results));

        let mut of_others = Calc::identity(&wide);
        of_others.outputs = outputs;
        of_others.restrict(is_not_null(marker()).map_err(|error| self.statement.planning(&error))?);
        let mut sent = edge();
        self.calcs += 1;
        let info = calc_info(self.uids, self.calcs, of_others.describe());
        sent.push(info, "Calc", operators::filter_project(&of_others));
        let (kind, delivery) = delivery(factory.as_ref());
        let fields = names(&of_others.schema());
        let description = format!("Sink(table=[{table}], fields=[{fields}], {of}{delivery})");
        sent.end_with(OperatorInfo { uid, kind, description }, format!("Sink: {table}"), factory);
        self.close(sent)?;
        Ok(kept)
    }
}
