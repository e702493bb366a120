//! A checkpoint as one JSON object, for scripts: numbers as numbers, rows as text.

use super::in_flight::EdgeInFlight;
use super::{Inspected, InspectedOperator};
use crate::checkpoint::rows::Rows;
use serde_json::{Map, Value, json};
use sluice_protocol::state::{InFlightHandle, KeyedStateHandle, OperatorStateHandle, StateData};

/// The whole object, with a line break at its end.
pub(super) fn describe(inspected: &Inspected<'_>) -> String {
    let metadata = inspected.metadata;
    let object = json!({
        "path": inspected.directory,
        "job": metadata.job,
        "checkpoint": metadata.checkpoint,
        "savepoint": metadata.savepoint,
        "generation": metadata.run.generation,
        "attempt": metadata.run.attempt,
        "triggeredAt": metadata.triggered_at,
        "stateBytes": metadata.state_bytes(),
        "maxParallelism": metadata.max_parallelism,
        "details": metadata.details,
        "operators": inspected.operators.iter().map(operator).collect::<Vec<_>>(),
        "inFlight": inspected.in_flight.iter().map(edge).collect::<Vec<_>>(),
    });
    format!("{object:#}\n")
}

fn operator(operator: &InspectedOperator<'_>) -> Value {
    let InspectedOperator { info, snapshots, rows } = operator;
    let splits: Vec<_> = snapshots.iter().flat_map(|snapshot| &snapshot.splits).collect();
    let keyed = super::keyed(snapshots).map(|(subtask, handle)| keyed(subtask, handle));
    let lists = snapshots.iter().flat_map(|one| one.operator.iter().map(|handle| list(one.subtask.0, handle)));
    let rows: Map<String, Value> = rows.iter().map(|(name, rows)| ((*name).to_owned(), table(rows))).collect();
    json!({
        "uid": info.uid,
        "kind": info.kind,
        "description": info.description,
        "splits": splits,
        "keyed": keyed.collect::<Vec<_>>(),
        "lists": lists.collect::<Vec<_>>(),
        "rows": rows,
    })
}

fn keyed(subtask: u32, handle: &KeyedStateHandle) -> Value {
    let KeyedStateHandle { name, key_groups, rows, kind, data } = handle;
    json!({
        "state": name, "subtask": subtask, "keyGroups": key_groups, "kind": kind, "rows": rows, "bytes": data.size(),
        "file": file(data),
    })
}

fn list(subtask: u32, handle: &OperatorStateHandle) -> Value {
    let OperatorStateHandle { name, redistribution, items, data, .. } = handle;
    json!({
        "state": name, "subtask": subtask, "redistribution": redistribution, "items": items, "bytes": data.size(),
        "file": file(data),
    })
}

fn edge(edge: &EdgeInFlight<'_>) -> Value {
    let part = |part: &&InFlightHandle| {
        json!({
            "from": part.from, "to": part.to, "restores": part.age, "batches": part.batches, "rows": part.rows,
            "bytes": part.length, "file": file(&part.data),
        })
    };
    let parts: Vec<Value> = edge.parts.iter().map(part).collect();
    json!({ "edge": edge.name, "parts": parts, "rows": edge.rows.as_ref().map(table) })
}

fn table(rows: &Rows) -> Value {
    json!({ "columns": rows.columns, "rows": rows.rows })
}

/// Its path, or `null` for what lies in `_metadata` itself.
fn file(data: &StateData) -> Option<&str> {
    match data {
        StateData::Inline { .. } => None,
        StateData::File { path, .. } => Some(path),
    }
}
