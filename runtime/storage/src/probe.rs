//! Asks a store whether it keeps the promises that the ledger rests on (docs/protocol.md, L7).
//!
//! Leaves nothing behind when it ends; a probe that is killed leaves objects below `{prefix}/probe-…/`, which name
//! nothing that anyone reads, and which the job's sweeps remove (K6). Such a sweep may take them from under a probe that
//! is made meanwhile, so a promise is broken when it was broken twice.

use crate::{ObjectStore, PutOutcome, StoreFailure, StoreFailureKind, unsuitable};
use bytes::Bytes;
use futures::future::join_all;
use sluice_protocol::paths::JobPaths;

const RACERS: usize = 8;

/// Probes below `prefix`, which belongs to a job: 8 racing puts of one key of which one may win, GET of an absent key,
/// LIST order, start-after, LIST after PUT.
///
/// # Errors
/// [`StoreFailureKind::Unsuitable`] names the promise that the store broke and
/// what to do; other kinds say that the probe could not be made.
pub async fn probe(store: &dyn ObjectStore, prefix: &str) -> Result<(), StoreFailure> {
    match probe_once(store, prefix).await {
        Err(failure) if failure.kind == StoreFailureKind::Unsuitable => probe_once(store, prefix).await,
        outcome => outcome,
    }
}

async fn probe_once(store: &dyn ObjectStore, prefix: &str) -> Result<(), StoreFailure> {
    let directory = JobPaths::of_directory(prefix).probe_directory(&uuid::Uuid::new_v4().simple().to_string());
    let directory = directory.trim_start_matches('/');
    let outcome = ask(store, directory).await;
    if outcome.as_ref().is_err_and(|failure| failure.kind != StoreFailureKind::Unsuitable) {
        return outcome; // It does not answer: cleaning up would only wait once more.
    }
    let cleaned = clean(store, directory).await;
    outcome.and(cleaned)
}

async fn ask(store: &dyn ObjectStore, directory: &str) -> Result<(), StoreFailure> {
    check_absent(store, &format!("{directory}/absent")).await?;
    check_race(store, &format!("{directory}/0000000001")).await?;
    check_list(store, directory).await
}

fn broken(store: &dyn ObjectStore, promise: &str) -> StoreFailure {
    unsuitable(format!(
        "the store at {} cannot hold checkpoints: {promise}. Sluice needs conditional puts (If-None-Match: *) and \
         consistent lists, as Amazon S3, MinIO, versitygw and Ceph have them; use such a server, or a version of this \
         one that has them",
        store.uri()
    ))
}

async fn check_absent(store: &dyn ObjectStore, key: &str) -> Result<(), StoreFailure> {
    match store.get(key).await? {
        None => Ok(()),
        Some(_) => Err(broken(store, &format!("GET of '{key}', which was never put, returned an object"))),
    }
}

async fn check_race(store: &dyn ObjectStore, key: &str) -> Result<(), StoreFailure> {
    let body = |racer: usize| Bytes::from(format!("racer {racer}"));
    let puts = (0..RACERS).map(|racer| store.put_if_absent(key, body(racer)));
    let mut winners = Vec::new();
    for (racer, outcome) in join_all(puts).await.into_iter().enumerate() {
        if outcome? == PutOutcome::Created {
            winners.push(racer);
        }
    }
    let &[winner] = winners.as_slice() else {
        let count = winners.len();
        return Err(broken(
            store,
            &format!(
                "{count} of {RACERS} simultaneous puts of '{key}' with If-None-Match: * succeeded, instead of one"
            ),
        ));
    };
    if store.get(key).await? != Some(body(winner)) {
        return Err(broken(store, &format!("GET of '{key}' does not return what the only successful put stored")));
    }
    if store.put_if_absent(key, Bytes::from_static(b"late")).await? == PutOutcome::Created {
        return Err(broken(store, &format!("a put of '{key}' with If-None-Match: * replaced an existing object")));
    }
    Ok(())
}

async fn check_list(store: &dyn ObjectStore, directory: &str) -> Result<(), StoreFailure> {
    let key = |number: u32| format!("{directory}/{number:010}");
    // Put out of order, so that a list in order of arrival is noticed; 1 was put by the race.
    for number in [10, 2, 3] {
        store.put_if_absent(&key(number), Bytes::from_static(b"list")).await?;
        if !store.list(&format!("{directory}/"), None).await?.contains(&key(number)) {
            return Err(broken(store, &format!("LIST does not show '{}' right after it was put", key(number))));
        }
    }
    let expect = |numbers: &[u32]| numbers.iter().map(|number| key(*number)).collect::<Vec<_>>();
    let all = store.list(&format!("{directory}/"), None).await?;
    if all != expect(&[1, 2, 3, 10]) {
        return Err(broken(store, &format!("LIST of '{directory}/' is not in lexicographic order: {all:?}")));
    }
    let after = store.list(&format!("{directory}/"), Some(&key(2))).await?;
    if after != expect(&[3, 10]) {
        return Err(broken(store, &format!("LIST of '{directory}/' after '{}' returned {after:?}", key(2))));
    }
    Ok(())
}

async fn clean(store: &dyn ObjectStore, directory: &str) -> Result<(), StoreFailure> {
    let keys = store.list(&format!("{directory}/"), None).await?;
    store.delete(&keys).await
}
