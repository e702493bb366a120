//! The statements of a case as they are translated to a job, for those that compute by themselves what its sinks must hold.

use super::memory::Connectors;
use crate::PlanOptions;
use crate::catalog::Tables;
use crate::error::SourceText;
use crate::expand::Expander;
use crate::functions::Functions;
use crate::parse;
use crate::relational::Relational;
use crate::translate::Statement;
use datafusion_expr::LogicalPlan;
use std::collections::BTreeMap;

/// One INSERT.
pub(super) struct Planned {
    /// The table that it writes to, where there are several.
    pub(super) sink: Option<String>,
    /// What it writes, in the shape of that table.
    pub(super) plan: LogicalPlan,
}

/// All INSERTs of a text.
pub(super) fn planned(sql: &str, connectors: &Connectors) -> Vec<Planned> {
    let text = SourceText(sql);
    let script = parse::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let tables = Tables::new(text, script.tables).unwrap();
    let functions = Functions::new();
    let relational = Relational::new(&tables, &functions);
    let mut inserts = script.inserts;
    let mut expander = Expander::new(text, &tables, script.views).unwrap();
    inserts.iter_mut().for_each(|insert| expander.query(&mut insert.query).unwrap());
    let options = PlanOptions { parallelism: 1, max_parallelism: 1 };
    let times = BTreeMap::new();
    let shaped = |insert| {
        let statement = Statement { text, tables: &tables, times: &times, connectors, options: &options, insert };
        let plan = relational.plan(&statement.insert.query).unwrap();
        let target = statement.target(&plan).unwrap_or_else(|error| panic!("{error}"));
        let sink = (inserts.len() > 1).then(|| statement.insert.table.value.clone());
        Planned { sink, plan: statement.shaped(plan, &target).unwrap() }
    };
    inserts.iter().map(shaped).collect()
}
