//! DISTINCT in an aggregation by windows: two of them, one behind the other.
//!
//! The first goes by the keys and the value that is to be distinct, and keeps its slices as any; a window fires with a row for
//! each value that occurs in it. The second goes by the keys, and by the window that those rows say; in it each value is
//! there once. What is not distinct the first one aggregates in part, and the second puts the parts together.

use super::aggregate::Readable;
use super::late_rows::Lateness;
use super::window::{Grouping, operator};
use super::{Stream, Translator};
use crate::error::SqlError;
use crate::graph::Chain;
use crate::window::Windows;
use arrow::datatypes::{DataType, SchemaRef};
use sluice_engine::aggregate::{AggregateCall, AggregateKind};
use sluice_engine::window::{RowTime, WindowKind};
use sluice_protocol::OperatorUid;
use sluice_protocol::graph::{OperatorInfo, OperatorKind};
use std::sync::Arc;

/// Both aggregations.
struct Split {
    /// The first one's keys, and what it aggregates.
    keys: Vec<usize>,
    parts: Vec<AggregateCall>,
    /// What the second one aggregates, over the first one's output.
    calls: Vec<AggregateCall>,
}

impl Translator<'_> {
    /// The aggregation by these windows, of which some calls are distinct, and its chain.
    pub(super) fn distinct_by_window(
        &mut self,
        stream: Stream,
        ((input, keys, key_names, calls), readable): (Grouping, &Readable),
        (windows, time, window_time): (Windows, RowTime, DataType),
        (uid, at, late): (&OperatorUid, usize, &Lateness),
    ) -> Result<(Chain, SchemaRef), SqlError> {
        self.check_distinct(&windows, time, late)?;
        let split = self.split(&keys, &calls)?;
        let name_of = |key: &usize| input.field(*key).name().clone();
        let names: Vec<String> = split.keys.iter().map(name_of).collect();
        let description = super::window::describe(&windows, &names, &split.parts, readable);
        let grouping = (Arc::clone(&input), split.keys.clone(), names.clone(), split.parts);
        let first = operator(windows, grouping, (time, window_time.clone()), late);
        let (factory, results) = first.map_err(|error| self.statement.invalid(&error.to_string()))?;
        let first_uid = OperatorUid(format!("{uid}.distinct"));
        let info = OperatorInfo { uid: first_uid, kind: OperatorKind::Keyed, description };
        let name = format!("WindowAggregate[{}]", readable.list(&names));
        let mut chain = self.keyed(stream.chain, (split.keys, input), info, &name, factory)?;
        if late.to.is_some() {
            chain = self.send_late_rows(chain, &results, (uid, at), false)?;
        }

        let (input, end) = (Arc::clone(chain.schema()), results.fields().len() - 2);
        let windows = Windows::Aligned(WindowKind::Attached { start: end - 1, end });
        let keys: Vec<usize> = (0..keys.len()).collect();
        let description = super::window::describe(&windows, &key_names, &split.calls, readable);
        let name = format!("WindowAggregate[{}]", readable.list(&key_names));
        let grouping = (Arc::clone(&input), keys.clone(), key_names, split.calls);
        let second = operator(windows, grouping, (RowTime::Column(end - 1), window_time), &Lateness::default());
        let (factory, results) = second.map_err(|error| self.statement.invalid(&error.to_string()))?;
        let info = OperatorInfo { uid: uid.clone(), kind: OperatorKind::Keyed, description };
        Ok((self.keyed(chain, (keys, input), info, &name, factory)?, results))
    }

    fn check_distinct(&self, windows: &Windows, time: RowTime, late: &Lateness) -> Result<(), SqlError> {
        let what = match windows {
            Windows::Session { .. } => "in SESSION",
            _ if time == RowTime::Processing => "in windows by PROCTIME()",
            _ if late.allowed.is_some() => "with 'table.exec.emit.allow-lateness'",
            _ => return Ok(()),
        };
        Err(self.statement.unsupported(&format!("an aggregate with DISTINCT {what}")))
    }

    fn split(&self, own: &[usize], calls: &[AggregateCall]) -> Result<Split, SqlError> {
        let mut distinct = calls.iter().filter(|call| call.distinct).map(|call| (call.argument, call.filter));
        let first = distinct.next().unwrap_or_default();
        if distinct.any(|other| other != first) {
            return Err(self.statement.unsupported(
                "DISTINCT of different values, or with different FILTERs, in one aggregation by windows",
            ));
        }
        let (argument, filter) = first;
        let mut keys = own.to_vec();
        for more in argument.into_iter().chain(filter) {
            if !keys.contains(&more) {
                keys.push(more);
            }
        }
        let place = |of: Option<usize>| of.and_then(|of| keys.iter().position(|key| *key == of));
        let (argument, filter) = (place(argument), place(filter));
        let (mut parts, mut merged) = (Vec::new(), Vec::new());
        for call in calls {
            let name = call.name.clone();
            merged.push(if call.distinct {
                AggregateCall { kind: call.kind, argument, distinct: false, filter, name }
            } else {
                let kind = match call.kind {
                    AggregateKind::Count | AggregateKind::Sum => AggregateKind::Sum,
                    AggregateKind::Min | AggregateKind::Max => call.kind,
                    AggregateKind::Avg => {
                        let text =
                            format!("{name} beside an aggregate with DISTINCT in windows: write SUM and COUNT, and");
                        return Err(self.statement.unsupported(&text));
                    }
                };
                parts.push(call.clone());
                AggregateCall::new(kind, Some(keys.len() + parts.len() - 1), &name)
            });
        }
        Ok(Split { keys, parts, calls: merged })
    }
}
