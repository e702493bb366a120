//! Which objects go, and when (K6).

use super::*;

#[test]
fn displaced_checkpoints_are_removed() {
    let mut bench = Bench::running(config(1));
    for id in 1..=3 {
        bench.pass(1000);
        bench.acknowledge_all(id);
    }
    assert!(
        !bench.store.holds("default/pv-1/1/chk-2/_metadata") && bench.store.holds("default/pv-1/1/chk-3/_metadata")
    );
}

#[test]
fn the_next_generation_continues_and_sweeps_what_the_old_one_left() {
    let mut bench = Bench::running(config(1));
    bench.pass(1000);
    bench.acknowledge_all(1);
    bench.store.put("default/pv-1/1/chk-2/litter", b"x");
    let mut next = config(1);
    next.generation = Generation(2);
    next.directive.seen = 1;
    let mut next = bench.succeeded_by(next);
    next.register(1);
    assert_eq!(next.status().restored_from.as_ref().unwrap().id, CheckpointId(1));
    assert!(!next.store.holds("default/pv-1/1/chk-2/litter") && next.store.holds("default/pv-1/1/chk-1/_metadata"));
}

/// K6: what an older process uploads while this one runs is found within the hour, unfinished uploads too; what is
/// under way is left alone.
#[test]
fn what_is_dead_is_swept_every_hour() {
    let mut config = config(1);
    config.generation = Generation(2);
    let checkpointing = config.options.checkpointing.as_mut().unwrap();
    (checkpointing.retained, checkpointing.interval) = (2, TimeSpan::from_secs(1000));
    checkpointing.timeout = TimeSpan::from_secs(2000);
    let mut bench = Bench::running(config);
    for id in 1..=3 {
        bench.pass(1_000_000);
        bench.acknowledge_all(id);
    }
    let upload = |key: &str| UnfinishedUpload { key: key.to_owned(), id: "u".to_owned() };
    bench.command(Command::TriggerCheckpoint { id: "under-way".into() });
    assert_eq!(bench.last_barrier().checkpoint, CheckpointId(4));
    let dead = ["1/chk-7/state", "2/chk-1/late", "probe-0a1b/0000000001"].map(|key| format!("default/pv-1/{key}"));
    let retained = ["2/chk-2/state", "2/chk-3/state"].map(|key| format!("default/pv-1/{key}"));
    let open = ["2/chk-4/state", "2/shared/4-state", "3/chk-9/state", "3/shared/9-state", "2/shared/state", "notes"];
    let open = open.map(|key| format!("default/pv-1/{key}"));
    for key in dead.iter().chain(&retained).chain(&open) {
        bench.store.put(key, b"x");
        bench.store.uploads.push(upload(key));
    }
    let ledger = ["0000000001.json", "0000000009.json"].map(|entry| upload(&format!("default/pv-1/ledger/{entry}")));
    bench.store.uploads.extend(ledger.clone());
    bench.pass(600_000);
    assert!(dead.iter().all(|key| !bench.store.holds(key)));
    assert!(retained.iter().chain(&open).all(|key| bench.store.holds(key)));
    // A checkpoint that is complete has all its objects, and so has an entry that stands.
    let left: Vec<_> = open.iter().map(|key| upload(key)).chain([ledger[1].clone()]).collect();
    assert_eq!(bench.store.uploads, left);
}

#[test]
fn a_sweep_that_is_not_allowed_delays_no_end() {
    let mut bench = Bench::running(config(1));
    bench.store.hides_uploads = true;
    bench.event(Event::Command(Command::Cancel));
    let exit = bench.exit.as_ref().unwrap();
    assert_eq!(exit.kind, ExitKind::Stopped);
    let told = exit.message.contains("unfinished uploads below s3://bucket/root/default/pv-1/");
    assert!(told && exit.message.contains("`sluice checkpoint gc s3://bucket/root/default/pv-1`"), "{}", exit.message);
}

/// K6: when the terminal entry stands, the store holds the ledger and what is retained, and nothing else.
#[test]
fn at_the_end_only_what_is_retained_is_left() {
    let mut bench = Bench::running(config(1));
    bench.pass(1000);
    bench.acknowledge_all(1);
    for number in 0..1200 {
        bench.store.put(&format!("default/pv-1/1/chk-2/state-{number}"), b"x");
    }
    for number in 0..900 {
        let key = format!("default/pv-1/1/shared/{number}-state");
        bench.store.uploads.push(UnfinishedUpload { key, id: "u".into() });
    }
    bench.event(Event::Command(Command::Stop));
    bench.acknowledge_all(2);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Stopped);
    let left: Vec<_> = bench.store.keys().filter(|key| !key.contains("/ledger/")).collect();
    assert_eq!(left.len(), 1201, "what lies in the retained checkpoint's directory stays: {left:?}");
    assert!(bench.store.uploads.is_empty() && !bench.store.holds("default/pv-1/1/chk-1/_metadata"));

    let mut bench = Bench::running(config(1));
    (0..1200).for_each(|number| bench.store.put(&format!("default/pv-1/1/chk-1/state-{number}"), b"x"));
    bench.event(Event::Command(Command::Cancel));
    assert_eq!(bench.store.keys().filter(|key| !key.contains("/ledger/")).count(), 0);
}

#[test]
fn older_directories_of_the_same_name_are_noticed() {
    let mut first = Bench::running(config(1));
    first.pass(1000);
    first.acknowledge_all(1);
    let mut second = config(1);
    second.job.uid = "2".into();
    let second = first.clone_store_for(second);
    let notice = &second.status().notices[0];
    assert_eq!(notice.reason, "OlderCheckpointsExist");
    assert!(notice.message.contains("s3://bucket/root/default/pv-1/1/chk-1"), "{}", notice.message);
}

/// Completes checkpoint `id` of generation 1, which stores the last of these shared files and refers to all.
fn complete_with_files(bench: &mut Bench, id: u64, files: &[&str]) {
    bench.pass(1000);
    bench.files = files.iter().map(|file| (*file).to_owned()).collect();
    bench.store.put(&shared(files.last().unwrap()), b"state");
    bench.acknowledge_all(id);
    assert_eq!(bench.status().last_checkpoint.as_ref().unwrap().id, CheckpointId(id));
}

fn shared(file: &str) -> String {
    format!("default/pv-1/1/shared/{file}")
}

#[test]
fn shared_files_go_with_the_last_checkpoint_that_refers_to_them() {
    let mut bench = Bench::running(config(1));
    complete_with_files(&mut bench, 1, &["1-whole"]);
    complete_with_files(&mut bench, 2, &["1-whole", "2-delta"]);
    assert!(!bench.store.holds("default/pv-1/1/chk-1/_metadata"));
    assert!(bench.store.holds(&shared("1-whole")), "checkpoint 2 refers to it");
    complete_with_files(&mut bench, 3, &["1-whole", "3-merged"]);
    assert!(bench.store.holds(&shared("1-whole")) && !bench.store.holds(&shared("2-delta")));
    complete_with_files(&mut bench, 4, &["4-whole"]);
    assert!(!bench.store.holds(&shared("1-whole")) && !bench.store.holds(&shared("3-merged")));
    assert!(bench.store.holds(&shared("4-whole")));
}

#[test]
fn shared_files_of_a_failed_checkpoint_go_once_a_later_one_is_complete() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().tolerable_failures = TolerableFailures::Count(5);
    let mut bench = Bench::running(config);
    complete_with_files(&mut bench, 1, &["1-whole"]);
    bench.pass(1000);
    bench.store.put(&shared("2-lost"), b"state");
    bench.decline(2, failure());
    assert!(bench.store.holds(&shared("2-lost")));
    bench.pass(1000);
    complete_with_files(&mut bench, 3, &["1-whole", "3-delta"]);
    assert!(!bench.store.holds(&shared("2-lost")) && bench.store.holds(&shared("1-whole")));
}

#[test]
fn what_the_base_of_a_pending_checkpoint_refers_to_stays() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().max_concurrent = 2;
    let mut bench = Bench::running(config);
    complete_with_files(&mut bench, 1, &["1-whole"]);
    // 2 and 3 both build on 1.
    bench.pass(1000);
    complete_with_files(&mut bench, 2, &["2-whole"]);
    assert!(bench.store.holds(&shared("1-whole")), "checkpoint 3 may refer to it");
    bench.files = vec!["1-whole".to_owned(), "3-delta".to_owned()];
    bench.store.put(&shared("3-delta"), b"state");
    bench.acknowledge_all(3);
    assert!(bench.store.holds(&shared("1-whole")) && bench.store.holds(&shared("3-delta")));
    assert!(!bench.store.holds(&shared("2-whole")));
}

#[test]
fn the_next_generation_sweeps_shared_files_that_no_retained_checkpoint_refers_to() {
    let mut retained = config(1);
    retained.options.checkpointing.as_mut().unwrap().retained = 2;
    let mut bench = Bench::running(retained.clone());
    complete_with_files(&mut bench, 1, &["1-whole"]);
    complete_with_files(&mut bench, 2, &["2-whole"]);
    bench.store.put(&shared("3-lost"), b"state");
    retained.generation = Generation(2);
    let mut bench = bench.succeeded_by(retained);
    bench.register(1);
    assert!(!bench.store.holds(&shared("3-lost")));
    assert!(bench.store.holds(&shared("1-whole")) && bench.store.holds(&shared("2-whole")));
    bench.files = vec![];
    bench.pass(1000);
    bench.acknowledge_all(3);
    assert!(!bench.store.holds(&shared("1-whole")), "checkpoint 1 is not retained any more");
    assert!(bench.store.holds(&shared("2-whole")));
}
