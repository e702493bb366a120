//! ROW_NUMBER with a bound: rows are exchanged by the partition columns, then ranked per partition.
//!
//! Partition and order columns that are computed are columns before the exchange and end at the rank. Without PARTITION
//! BY there is one partition, so one subtask.

use super::join::Side;
use super::time::Times;
use super::window::WindowColumns;
use super::{Lineage, Stream, Translator, Updates};
use crate::calc::{Calc, Output, Value};
use crate::error::SqlError;
use crate::graph::Chain;
use crate::rank::Rank;
use crate::uid::{Stateful, StatefulKind};
use arrow::datatypes::{DataType, Field};
use datafusion_expr::{Expr, UserDefinedLogicalNodeCore};
use datafusion_physical_expr::expressions::lit;
use sluice_engine::error::TaskError;
use sluice_engine::operator::OperatorFactory;
use sluice_engine::rank::{FirstRowFactory, RankBy, RankFactory, RankOrder, RankSpec, WindowRankFactory};
use sluice_protocol::TimeSpan;
use sluice_protocol::graph::{OperatorInfo, OperatorKind, Partitioning};
use std::sync::Arc;

/// What the column of numbers is called in the dataflow.
const NUMBER: &str = "$rank";

impl Translator<'_> {
    /// A rank. `needs_before`: whether updates are sent with the row as it was before.
    pub(super) fn rank(&mut self, node: &Rank, needs_before: bool) -> Result<Stream, SqlError> {
        let stream = self.stream(&node.input, true)?;
        let stateful = self.next_stateful(StatefulKind::Rank)?;
        if node.order.is_empty() {
            self.check_arrival(node, &stream)?;
        }
        let order = node.order.iter().map(|sort| sort.expr.clone());
        let named: Vec<Expr> = node.partition.iter().cloned().chain(order).collect();
        let side = self.side(stream, &named)?;
        let (keys, ordered) = side.keys.split_at(node.partition.len());
        let order = ordered.iter().zip(&node.order).map(|(column, sort)| RankOrder {
            column: *column,
            descending: !sort.asc,
            nulls_first: sort.nulls_first,
        });
        let changelog = side.stream.updates.is_some();
        if node.order.is_empty() && !node.last_first {
            return self.first_rows(node, side, stateful);
        }
        let by = if node.order.is_empty() { RankBy::LastArrival } else { RankBy::Columns(order.collect()) };
        let spec = RankSpec {
            input: Arc::clone(side.stream.chain.schema()),
            keys: keys.to_vec(),
            by,
            limit: node.limit,
            number: node.has_number.then(|| NUMBER.to_owned()),
            emit_update_before: needs_before,
            changelog,
            ttl: stateful.ttl[0].map(TimeSpan::from),
        };
        let by_window = |windows: &WindowColumns| {
            windows.are_made()
                && !changelog
                && !node.order.is_empty()
                && keys.contains(&windows.start)
                && keys.contains(&windows.end)
        };
        let windows = side.stream.windows.clone().filter(by_window);
        let description = describe(node, &side.key_names, changelog, windows.is_some());
        let refused = |error: TaskError| self.statement.invalid(&error.to_string());
        let factory: Arc<dyn OperatorFactory> = match &windows {
            Some(windows) => Arc::new(WindowRankFactory::new(spec, windows.end).map_err(refused)?),
            None => Arc::new(RankFactory::new(spec).map_err(refused)?),
        };
        let (mut lineage, mut updates) =
            traced(node, &side.stream, (keys, &side.key_names), side.columns, &description);
        if windows.is_some() {
            // A window comes out once.
            (lineage, updates) = (vec![Lineage::Other; lineage.len()], None);
        }
        let (keys, columns) = (keys.to_vec(), side.columns);
        let mut chain = self.partitioned(side.stream.chain, keys)?;
        let info = OperatorInfo { uid: stateful.uid, kind: OperatorKind::Keyed, description };
        chain.push(info, if windows.is_some() { "WindowRank" } else { "Rank" }, factory);
        let mut calc = Calc::identity(chain.schema());
        let number = calc.outputs.len() - usize::from(node.has_number);
        calc.outputs.drain(columns..number);
        let (schema, times) = (Arc::clone(node.schema()), Times::default());
        Ok(Stream { chain, calc, schema, lineage, updates, times, windows: None })
    }
}

impl Translator<'_> {
    /// A chain behind the exchange by partitions.
    fn partitioned(&mut self, below: Chain, keys: Vec<usize>) -> Result<Chain, SqlError> {
        let (is_single, schema) = (keys.is_empty(), Arc::clone(below.schema()));
        let from = self.close(below)?;
        let chain = Chain::from_edge(from, Partitioning::Hash { keys }, self.statement.options.parallelism, schema);
        Ok(if is_single { chain.single() } else { chain })
    }

    /// By arrival, one row of each partition is kept, of rows that do not change.
    fn check_arrival(&self, node: &Rank, input: &Stream) -> Result<(), SqlError> {
        if node.limit != 1 {
            let what = "ROW_NUMBER in the order of PROCTIME() with a bound other than 1";
            return Err(self.statement.unsupported(what));
        }
        match &input.updates {
            Some(updates) => {
                let what = format!("ROW_NUMBER in the order of PROCTIME() over the changing rows of {}", updates.node);
                Err(self.statement.unsupported(&what))
            }
            None => Ok(()),
        }
    }

    /// The first row that arrives of each partition: never taken back.
    fn first_rows(&mut self, node: &Rank, side: Side, stateful: Stateful) -> Result<Stream, SqlError> {
        let Side { stream, columns, keys, key_names } = side;
        let (input, ttl) = (Arc::clone(stream.chain.schema()), stateful.ttl[0].map(TimeSpan::from));
        let factory = FirstRowFactory::new(input, keys.clone(), ttl);
        let factory = factory.map_err(|error| self.statement.invalid(&error.to_string()))?;
        let description = format!("Deduplicate(keep=[FirstRow], key=[{}], order=[PROCTIME])", key_names.join(", "));
        let mut chain = self.partitioned(stream.chain, keys)?;
        let info = OperatorInfo { uid: stateful.uid, kind: OperatorKind::Keyed, description };
        chain.push(info, "Deduplicate", Arc::new(factory));
        let mut calc = Calc::identity(chain.schema());
        calc.outputs.truncate(columns);
        let mut lineage = vec![Lineage::Other; columns];
        if node.has_number {
            let field = Arc::new(Field::new(NUMBER, DataType::Int64, false));
            calc.outputs.push(Output { field, value: Value::Computed(lit(1_i64)), not_null: None });
            lineage.push(Lineage::Constant);
        }
        // A row that comes out comes at once, before any watermark behind it.
        let (times, windows) = (stream.times, stream.windows);
        Ok(Stream { chain, calc, schema: Arc::clone(node.schema()), lineage, updates: None, times, windows })
    }
}

/// Where the columns of a rank come from, and how its rows change.
///
/// Where each partition has one row, or each place a number, that is what an update replaces. Else rows leave and enter:
/// they keep the key they have below when it decides the partition, since rows of different partitions overtake each
/// other.
fn traced(
    node: &Rank,
    input: &Stream,
    (keys, names): (&[usize], &[String]),
    columns: usize,
    description: &str,
) -> (Vec<Lineage>, Option<Updates>) {
    let updates = |keys, in_pairs| Updates { node: description.to_owned(), keys, are_filtered: false, in_pairs };
    if node.has_number || node.limit == 1 {
        let of_column = |column: usize| match keys.iter().position(|key| *key == column) {
            Some(key) => Lineage::Key(key),
            None => Lineage::Other,
        };
        let mut lineage: Vec<Lineage> = (0..columns).map(of_column).collect();
        let mut names = names[..keys.len()].to_vec();
        if node.has_number {
            lineage.push(if node.limit == 1 { Lineage::Constant } else { Lineage::Key(keys.len()) });
            names.extend((node.limit > 1).then(|| "ROW_NUMBER".to_owned()));
        }
        return (lineage, Some(updates(Some(names), true)));
    }
    let of = |column: &usize| input.lineage.get(*column).copied().unwrap_or(Lineage::Other);
    let below = input.updates.as_ref().and_then(|updates| updates.keys.clone());
    match below.filter(|_| keys.iter().all(|key| of(key) != Lineage::Other)) {
        Some(below) => ((0..columns).map(|column| of(&column)).collect(), Some(updates(Some(below), false))),
        None => (vec![Lineage::Other; columns], Some(updates(None, false))),
    }
}

/// `Rank(strategy=[…], rankType=[ROW_NUMBER], …)`, as Flink's EXPLAIN says it.
fn describe(node: &Rank, names: &[String], changelog: bool, of_windows: bool) -> String {
    let (partition, order) = names.split_at(node.partition.len());
    let order = order.iter().zip(&node.order).map(|(name, sort)| {
        let nulls = if sort.nulls_first == sort.asc {
            ""
        } else if sort.asc {
            " NULLS LAST"
        } else {
            " NULLS FIRST"
        };
        format!("{name} {}{nulls}", if sort.asc { "ASC" } else { "DESC" })
    });
    if node.order.is_empty() {
        return format!("Deduplicate(keep=[LastRow], key=[{}], order=[PROCTIME])", partition.join(", "));
    }
    let rank = if of_windows { "WindowRank(" } else { "Rank(" };
    let strategy = match changelog {
        _ if of_windows => "",
        true => "strategy=[RetractStrategy], ",
        false => "strategy=[AppendFastStrategy], ",
    };
    let number = if node.has_number { ", outputRankNumber=[true]" } else { "" };
    let partition =
        if partition.is_empty() { String::new() } else { format!("partitionBy=[{}], ", partition.join(", ")) };
    format!(
        "{rank}{strategy}rankType=[ROW_NUMBER], rankRange=[rankStart=1, rankEnd={}], {partition}\
         orderBy=[{}]{number})",
        node.limit,
        order.collect::<Vec<_>>().join(", "),
    )
}
