//! `sluice checkpoint list`.

use super::find::find;
use super::place::Place;
use crate::error::CommandError;
use crate::output;
use sluice_node::edge::now;

pub(super) async fn list(place: &Place) -> Result<(), CommandError> {
    let found = find(place).await?;
    if found.is_empty() {
        let only = place.only.as_ref().map(|job| format!(" of {}/{}", job.namespace, job.name)).unwrap_or_default();
        output::print(&format!("no checkpoints{only} below {}\n", place.uri));
        return Ok(());
    }
    let now = now();
    let rows: Vec<Vec<String>> = found
        .into_iter()
        .map(|found| {
            vec![
                found.job,
                found.id.to_string(),
                output::time(found.at),
                output::age(now, found.at),
                output::bytes(found.bytes),
                found.job_state.map_or("no ledger".to_owned(), |state| format!("{state:?}").to_lowercase()),
                found.uri,
            ]
        })
        .collect();
    output::print(&output::table(&["JOB", "ID", "COMPLETED", "AGE", "STATE SIZE", "JOB STATE", "PATH"], &rows, ""));
    Ok(())
}
