//! A job whose JobManager cannot be asked is ended by a closer (L6), until a deadline.

use super::*;
use sluice_protocol::commit::UnsettledOutput;
use sluice_protocol::failure::STOPPED_BEFORE_START;

fn seconds(n: u64) -> Timestamp {
    NOW.plus(TimeSpan::from_secs(n))
}

fn deleted(facts: Facts) -> Facts {
    Facts { deleting: true, ..facts }
}

fn suspended(facts: Facts) -> Facts {
    Facts { desired: DesiredState::Suspended, ..facts }
}

/// A change that stops by a last checkpoint.
fn stopping(facts: Facts) -> Facts {
    after(&facts, &plan(&facts))
}

fn killed(mut facts: Facts) -> Facts {
    kill(&mut facts);
    facts.report = None;
    facts
}

/// What the closer that a plan makes is told to do.
fn closes(plan: &Plan) -> serde_json::Value {
    assert_eq!(plan.create.len(), 1, "{plan:?}");
    assert!(plan.finalizer.is_none() && plan.service.is_none(), "nobody looks for it");
    directive(plan)
}

fn reasons(plan: &Plan) -> Vec<&str> {
    plan.events.iter().map(|event| event.reason.as_str()).collect()
}

#[test]
fn whatever_became_of_the_job_manager_a_job_with_a_ledger_is_closed() {
    type Make = fn() -> Facts;
    let gone: Make = || Facts { pods: Vec::new(), ..running() };
    let unread: Make = || {
        let mut facts = running();
        exit_with(&mut facts, ExitRecord::new(ExitKind::Stopped, STOPPED_BEFORE_START, "S3 is down"));
        facts
    };
    let makes: [(&str, Make); 6] = [
        ("killed", || killed(running())),
        ("gone", gone),
        ("being deleted", || {
            let mut facts = running();
            job_manager(&mut facts).terminating = true;
            facts
        }),
        ("its node is lost", || {
            let mut facts = Facts { connected: false, now: seconds(5), ..running() };
            (job_manager(&mut facts).unready_since, job_manager(&mut facts).on_lost_node) = (Some(NOW), true);
            facts
        }),
        ("starting again", || {
            let mut facts = running();
            job_manager(&mut facts).started = false;
            facts
        }),
        ("it could not use its storage", unread),
    ];
    for (case, make) in makes {
        let facts = deleted(make());
        let first = plan(&facts);
        let start = json!({"close": {"end": "cancelled"}});
        assert_eq!(closes(&first), json!({"id": "1-0", "seen": 7, "start": start}), "{case}");
        assert_eq!((created(&first), first.create[0].image.as_str()), (vec![(2, JM)], "runtime:1"), "{case}");
        assert_eq!(first.create[0].config_map, facts.memory.program, "{case}");
        assert_eq!(first.view.state, Some(StreamJobState::Stopping), "{case}");
        assert!(first.view.message.starts_with("a closer (generation 2) ends the job"), "{}", first.view.message);
        assert!(!first.memory.decides_like(&facts.memory), "intent is written before the pod is made");
        assert_eq!(first.memory.failures, facts.memory.failures, "no restart is spent");
        assert_eq!(reasons(&first), ["Closing"], "{case}");
    }
}

#[test]
fn every_phase_of_a_closer_for_a_deletion_against_every_event() {
    let facts = deleted(killed(running()));
    let closing = after(&facts, &plan(&facts));
    let with = |change: fn(&mut Facts)| {
        let mut facts = closing.clone();
        change(&mut facts);
        plan(&facts)
    };
    let waits = with(|_| {});
    assert_eq!((waits.acts(), waits.command, waits.finalizer), (false, None, None));
    assert!(waits.wake_at.is_some_and(|at| at > NOW), "every wait has an end");

    let not_made = with(|facts| facts.pods.retain(|pod| pod.generation == Generation(1)));
    assert_eq!(created(&not_made), [(2, JM)], "it is made, whoever crashed between intent and pod");
    assert_eq!(closes(&not_made)["start"], json!({"close": {"end": "cancelled"}}));

    for kind in [ExitKind::Stopped, ExitKind::Finished, ExitKind::Failed] {
        let mut facts = closing.clone();
        exit(&mut facts, kind);
        let ended = plan(&facts);
        assert_eq!((ended.finalizer, reasons(&ended)), (Some(Finalizer::Remove), vec![]), "{kind:?}");
    }
    for kind in [ExitKind::UserError, ExitKind::StateMissing, ExitKind::StateMoved] {
        let mut facts = closing.clone();
        exit(&mut facts, kind);
        let given_up = plan(&facts);
        assert_eq!((given_up.finalizer, reasons(&given_up)), (Some(Finalizer::Remove), vec!["NotClosed"]), "{kind:?}");
    }
    let late = with(|facts| facts.now = seconds(120));
    assert_eq!((late.finalizer, reasons(&late)), (Some(Finalizer::Remove), vec!["NotClosed"]), "S3 is down, for one");
    assert!(late.delete.iter().any(|pod| pod.name == "pv-2-jm"), "{:?}", late.delete);
    let namespace = with(|facts| facts.namespace_goes = true);
    assert_eq!((namespace.finalizer, namespace.create.len()), (Some(Finalizer::Remove), 0));
}

/// Whoever wrote the end; of a StreamJob that is deleted only the event is left to say it.
#[test]
fn output_that_an_end_left_uncommitted_is_told() {
    let left = UnsettledOutput { sink: "out.sink".into(), transactions: 3, until: Some(seconds(900)), more_sinks: 0 };
    let record = ExitRecord::new(ExitKind::Stopped, "Cancelled", "transactions of sink 'out.sink'");
    let unsettled = ExitRecord { unsettled: vec![left], ..record.clone() };
    assert_told(&unsettled, "OutputUnsettled");
    let open = Some("no broker answers".to_owned());
    assert_told(&ExitRecord { left_open: open.clone(), ..record }, "TransactionsLeftOpen");
    assert_told(&ExitRecord { left_open: open, ..unsettled }, "OutputUnsettled");
}

fn assert_told(record: &ExitRecord, reason: &str) {
    let ends = |mut facts: Facts| {
        exit_with(&mut facts, record.clone());
        plan(&facts)
    };
    let close = |facts: Facts| after(&facts, &plan(&facts));
    let cases = [
        ("deleted", ends(deleted(running()))),
        ("deleted by a closer", ends(close(deleted(killed(running()))))),
        ("suspended", ends(stopping(suspended(running())))),
        ("changed, by a closer", ends(close(killed(stopping(changed(running())))))),
        ("stopped by a person", ends(running())),
    ];
    for (case, plan) in cases {
        let told: Vec<_> = plan.events.iter().filter(|event| event.reason == reason).collect();
        assert_eq!(told.len(), 1, "{case}: {:?}", plan.events);
        assert!(told[0].warning && told[0].message.contains("'out.sink'"), "{case}");
        if case == "suspended" {
            assert_eq!((plan.view.state, plan.view.reason.as_str()), (Some(StreamJobState::Suspended), reason));
        }
    }
}

#[test]
fn a_closer_that_is_lost_is_followed_by_another_but_not_in_a_hurry() {
    let facts = deleted(killed(running()));
    let mut closing = after(&facts, &plan(&facts));
    job_manager(&mut closing).terminating = true;
    let waits = plan(&closing);
    assert_eq!((waits.create.len(), waits.finalizer, waits.memory.generation), (0, None, Generation(2)));
    closing.now = seconds(5);
    let again = plan(&closing);
    assert_eq!((created(&again), again.memory.helper.as_ref().map(|one| one.tries)), (vec![(3, JM)], Some(2)));
    let mut facts = after(&closing, &again);
    let record = ExitRecord { by_generation: Some(2), ..ExitRecord::new(ExitKind::Superseded, "Superseded", "late") };
    exit_with(&mut facts, record);
    facts.now = seconds(10);
    assert_eq!(created(&plan(&facts)), [(4, JM)], "its predecessor lived");
    let mut facts = after(&closing, &again);
    let record =
        ExitRecord { by_generation: Some(9), ..ExitRecord::new(ExitKind::Superseded, "Superseded", "foreign") };
    exit_with(&mut facts, record);
    assert_eq!(plan(&facts).finalizer, Some(Finalizer::Remove), "another cluster has it");
}

#[test]
fn a_job_manager_that_cannot_be_asked_leaves_half_of_the_time_for_a_closer() {
    let facts = deleted(Facts { connected: false, ..running() });
    let mut facts = after(&facts, &plan(&facts));
    facts.now = seconds(59);
    assert_eq!(plan(&facts).create.len(), 0);
    facts.now = seconds(60);
    let first = plan(&facts);
    assert_eq!(created(&first), [(2, JM)]);
    assert!(first.delete.iter().any(|pod| pod.name == "pv-1-jm"));
    facts.connected = true;
    assert_eq!(plan(&facts).command, Some(Command::Cancel), "one that can be asked has the whole time");
}

#[test]
fn what_has_no_ledger_or_has_ended_needs_no_closer() {
    let without = |change: fn(&mut Facts)| {
        let mut facts = deleted(killed(running()));
        change(&mut facts);
        plan(&facts)
    };
    type Change = fn(&mut Facts);
    let changes: [(&str, Change); 4] = [
        ("no entry was seen", |facts| facts.memory.ledger_entry = 0),
        ("no program", |facts| facts.frozen = None),
        ("no checkpoints", |facts| facts.frozen.as_mut().expect("is there").checkpointing = None),
        ("suspended", |facts| facts.told.state = Some(StreamJobState::Suspended)),
    ];
    for (case, change) in changes {
        let plan = without(change);
        assert_eq!((plan.finalizer, plan.create.len()), (Some(Finalizer::Remove), 0), "{case}");
    }
    let mut invalid = deleted(Facts { report: None, ..running() });
    exit(&mut invalid, ExitKind::UserError);
    assert_eq!(created(&plan(&invalid)), [(2, JM)], "it ran, and cannot any more");
    invalid.memory.revision = 2;
    assert_eq!(plan(&invalid).finalizer, Some(Finalizer::Remove), "the revision before it has ended");
    // It has failed because its JobManager was lost too often: no entry says so.
    let failed = without(|facts| facts.told.state = Some(StreamJobState::Failed));
    assert_eq!(closes(&failed)["start"], json!({"close": {"end": "cancelled"}}));
}

#[test]
fn a_suspension_and_an_upgrade_by_last_state_are_closed_and_go_on_at_the_deadline() {
    for (case, facts) in [("suspend", suspended(running())), ("upgrade", changed(running()))] {
        let facts = killed(stopping(facts));
        let first = plan(&facts);
        assert_eq!(closes(&first)["start"], json!({"close": {"end": "stopped"}}), "{case}");
        assert_eq!((first.memory.failures.total(), first.memory.next_restart_at), (0, None), "{case}");
        assert!(first.view.message.contains("closer"), "{}", first.view.message);
        let mut closing = after(&facts, &first);
        let entry = Some(9);
        let record = ExitRecord { ledger_entry: entry, ..ExitRecord::new(ExitKind::Stopped, "Stopped", "stopped") };
        exit_with(&mut closing, record);
        let next = plan(&closing);
        assert_eq!(next.memory.helper, None, "{case}");
        if case == "suspend" {
            assert_eq!((next.view.state, next.create.len()), (Some(StreamJobState::Suspended), 0));
        } else {
            assert_eq!(created(&next)[0], (3, JM), "the generations go on");
            assert_eq!(directive(&next), json!({"id": "2-0", "seen": 9, "start": "resumeLatest"}));
        }

        let mut late = after(&facts, &first);
        late.now = seconds(59);
        assert!(!plan(&late).acts(), "{case}");
        late.now = seconds(60);
        let goes_on = plan(&late);
        assert!(reasons(&goes_on).contains(&"NotClosed"), "{case}");
        assert_eq!(goes_on.view.state == Some(StreamJobState::Suspended), case == "suspend");
        assert!(goes_on.delete.iter().any(|pod| pod.name == "pv-2-jm"), "{case}");
    }
}

#[test]
fn a_stop_whose_deadline_has_passed_is_closed() {
    let mut facts = stopping(suspended(running()));
    facts.now = seconds(600);
    let first = plan(&facts);
    assert_eq!(closes(&first)["start"], json!({"close": {"end": "stopped"}}));
    assert!(first.delete.iter().any(|pod| pod.name == "pv-1-jm"));
    // Whoever deletes it meanwhile waits for the same closer.
    let deleted = deleted(after(&facts, &first));
    let waits = plan(&deleted);
    assert_eq!((waits.create.len(), waits.finalizer, waits.view.reason.as_str()), (0, None, "Deleting"));
}

#[test]
fn a_ledger_that_is_left_for_another_storage_is_closed_without_a_deadline() {
    let mut program = facts().program.expect("is right");
    program.config_map = "pv-program-moved".to_owned();
    program.spec.checkpointing.as_mut().expect("is there").storage = "s3://other/place".to_owned();
    let facts = killed(stopping(Facts { program: Ok(program), ..running() }));
    let mut closing = after(&facts, &plan(&facts));
    assert!(closing.memory.helper.is_some());
    closing.now = seconds(3600);
    assert!(!plan(&closing).acts(), "nothing else fences what may still write there");
    exit(&mut closing, ExitKind::Stopped);
    assert_eq!(directive(&plan(&closing))["start"]["path"]["from"], "s3://bucket/path/ns/pv-u");
}

/// A job whose last restart a lost JobManager has spent: the pass that finds it, and what the API server holds then.
fn spent() -> (Plan, Facts) {
    let mut facts = killed(running());
    let mut counts = FailureCounts::new(1);
    counts.record(CountedFailure::Attempt(Generation(1), Attempt(1)), NOW);
    counts.record(CountedFailure::Attempt(Generation(1), Attempt(2)), NOW);
    facts.memory.failures = counts;
    let found = plan(&facts);
    let failed = after(&facts, &found);
    (found, failed)
}

/// F1: the JobManager that would write `Failed` is gone.
#[test]
fn lost_job_managers_that_spend_the_restarts_end_the_ledger_by_a_closer() {
    let (found, failed) = spent();
    assert_eq!(closes(&found), json!({"id": "1-0", "seen": 7, "start": {"close": {"end": "failed"}}}));
    assert_eq!((found.view.state, created(&found)), (Some(StreamJobState::Failed), vec![(2, JM)]));
    assert_eq!(reasons(&found), ["Closing"]);
    let waits = plan(&failed);
    assert_eq!((waits.view.clone(), waits.acts()), (found.view, false), "the job has failed all the same");
    assert!(waits.wake_at.is_some_and(|at| at <= seconds(60)), "every wait has an end");
    let crashed = Facts { pods: Vec::new(), ..failed.clone() };
    assert_eq!(closes(&plan(&crashed))["start"], json!({"close": {"end": "failed"}}), "between intent and pod");

    let mut ended = failed;
    exit(&mut ended, ExitKind::Failed);
    let rests = plan(&ended);
    assert_eq!((rests.memory.helper.clone(), rests.view.state), (None, Some(StreamJobState::Failed)));
    let ended = after(&ended, &rests);
    assert!(!plan(&ended).acts());
    let gone = plan(&deleted(ended));
    assert_eq!((gone.finalizer, gone.create.len()), (Some(Finalizer::Remove), 0), "there is nothing more to close");
}

#[test]
fn a_failed_job_whose_ledger_cannot_be_ended_rests_after_a_while_and_starts_again_at_any_time() {
    let (_, failed) = spent();
    let late = plan(&Facts { now: seconds(60), ..failed.clone() });
    assert_eq!((late.memory.helper.clone(), reasons(&late)), (None, vec!["NotClosed"]), "S3 is down, for one");
    assert!(late.delete.iter().any(|pod| pod.name == "pv-2-jm"), "{:?}", late.delete);
    let deleted = plan(&deleted(failed.clone()));
    assert_eq!((deleted.finalizer, deleted.view.state), (None, Some(StreamJobState::Stopping)), "it is waited for");
    let next = plan(&changed(failed));
    assert_eq!((created(&next)[0], next.memory.revision), ((3, JM), 2));
    assert_eq!(next.memory.helper, None);
    let mut unkept = killed(running());
    unkept.memory.failures.record(CountedFailure::Attempt(Generation(1), Attempt(1)), NOW);
    unkept.memory.failures.record(CountedFailure::Attempt(Generation(1), Attempt(2)), NOW);
    unkept.memory.ledger_entry = 0;
    let nothing = plan(&unkept);
    assert_eq!((nothing.view.state, nothing.create.len()), (Some(StreamJobState::Failed), 0), "no ledger, no closer");
}
