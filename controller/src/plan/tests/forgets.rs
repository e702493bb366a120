//! `checkpointing` that is removed from a job that has state: it is never started without that state unless somebody says so.

use super::upgrade::edit;
use super::*;
use sluice_protocol::options::RestoreSpec;

fn without_checkpointing(facts: Facts) -> Facts {
    edit(facts, |job| job.spec.checkpointing = None)
}

/// A job that runs, whose spec has lost its checkpointing.
fn wanted_without(mode: UpgradeMode) -> Facts {
    without_checkpointing(Facts { lifecycle: by_mode(mode), ..running() })
}

fn problem(plan: &Plan) -> &str {
    plan.view.degraded.as_ref().map_or("", |wrong| wrong.reason.as_str())
}

#[test]
fn the_change_waits_and_says_what_to_do() {
    for mode in [UpgradeMode::Savepoint, UpgradeMode::LastState] {
        let facts = wanted_without(mode);
        let held = plan(&facts);
        assert!(!held.acts() && held.command.is_none() && held.memory.stop.is_none(), "{mode:?}: {held:?}");
        assert_eq!((problem(&held), held.view.ready), ("CheckpointingDisabled", true));
        let message = &held.view.degraded.as_ref().expect("is told").message;
        assert!(message.contains("upgrade.mode to Stateless") && message.contains("put spec.checkpointing back"));
        let told = |plan: &Plan| plan.events.iter().filter(|event| event.reason == "CheckpointingDisabled").count();
        assert_eq!(told(&held), 1);
        assert_eq!(told(&plan(&after(&facts, &held))), 0, "told once");
        // Back, and nothing has happened.
        let back = Facts { program: facts_program(), ..after(&facts, &held) };
        assert_eq!((problem(&plan(&back)), plan(&back).acts()), ("", false));
    }
}

fn facts_program() -> Result<Program, Rejection> {
    facts().program
}

#[test]
fn stateless_lets_it_through_and_so_does_another_place_to_restore_from() {
    let facts = wanted_without(UpgradeMode::Stateless);
    let stop = plan(&facts);
    assert_eq!(stop.command, Some(Command::Stop));
    let mut stopped = after(&facts, &stop);
    exit(&mut stopped, ExitKind::Stopped);
    let next = plan(&stopped);
    assert_eq!(directive(&next)["start"], "empty");
    assert!(next.spec.as_ref().is_some_and(|spec| spec.checkpointing.is_none()));

    let from = "s3://bucket/savepoints/sp-1".to_owned();
    let restore = RestoreSpec { from, nonce: 1, allow_non_restored_state: false, abandon_sinks: Vec::new() };
    let restores = edit(running(), |job| {
        job.spec.checkpointing = None;
        job.spec.restore = Some(restore.clone());
    });
    assert_eq!(plan(&restores).command, Some(Command::Stop), "what is left behind was asked to be");
}

#[test]
fn a_job_that_rests_stays_until_it_is_said() {
    for kind in [ExitKind::Failed, ExitKind::Finished] {
        let mut facts = running();
        exit(&mut facts, kind);
        let rests = without_checkpointing(after(&facts, &plan(&facts)));
        let held = plan(&rests);
        assert!(!held.acts(), "{kind:?}: {held:?}");
        assert_eq!((problem(&held), held.view.state), ("CheckpointingDisabled", rests.told.state));
        let asked = Facts { lifecycle: by_mode(UpgradeMode::Stateless), ..after(&rests, &held) };
        assert_eq!(directive(&plan(&asked))["start"], "empty", "{kind:?}");
    }
}

#[test]
fn a_suspended_job_is_not_resumed_without_its_state() {
    let suspended = Facts { desired: DesiredState::Suspended, spec_generation: 2, ..running() };
    let mut stopping = after(&suspended, &plan(&suspended));
    exit(&mut stopping, ExitKind::Stopped);
    let rests = after(&stopping, &plan(&stopping));
    let resumed = without_checkpointing(Facts { desired: DesiredState::Running, ..rests });
    let held = plan(&resumed);
    assert!(!held.acts(), "{held:?}");
    assert_eq!((problem(&held), held.view.state), ("CheckpointingDisabled", Some(StreamJobState::Suspended)));
    let back = Facts { program: facts_program(), ..after(&resumed, &held) };
    assert_eq!(directive(&plan(&back))["start"], "resumeLatest");
}

/// The spec loses its checkpointing while the job is being stopped for another change: what ran goes on.
#[test]
fn a_stop_that_is_under_way_ends_in_what_ran() {
    let facts = changed(running());
    let mut stopping = without_checkpointing(after(&facts, &plan(&facts)));
    exit(&mut stopping, ExitKind::Stopped);
    let next = plan(&stopping);
    assert_eq!(directive(&next)["start"], "resumeLatest");
    assert!(next.spec.as_ref().is_some_and(|spec| spec.checkpointing.is_some()));
    let gone = Facts { frozen: None, ..stopping };
    let rests = plan(&gone);
    assert!(rests.create.is_empty() && problem(&rests) == "CheckpointingDisabled", "{rests:?}");
    assert_eq!(rests.view.state, Some(StreamJobState::Suspended));
}

#[test]
fn a_job_without_state_needs_no_word() {
    let mut facts = running();
    facts.memory.started_revision = 0;
    (facts.memory.ledger_entry, facts.memory.last_checkpoint, facts.report) = (0, None, None);
    assert!(plan(&without_checkpointing(facts)).memory.stop.is_some(), "it is replaced");

    // Nor one that never had any: adding it is a change as any other.
    let first = without_checkpointing(super::facts());
    let mut runs = after(&first, &plan(&first));
    let (state, generation, attempt) = (JobState::Running, Generation(1), Attempt(1));
    runs.report = Some(JobStatus { state, generation, attempt, ..JobStatus::default() });
    runs.connected = true;
    let runs = after(&runs, &plan(&runs));
    assert_eq!(plan(&changed_without(runs.clone())).command, Some(Command::Stop));
    assert_eq!(plan(&Facts { program: facts_program(), ..runs }).command, Some(Command::Stop));
}

fn changed_without(facts: Facts) -> Facts {
    edit(facts, |job| {
        job.spec.checkpointing = None;
        job.spec.parallelism = 3;
    })
}

/// Nobody wants the end of a job whose change waits.
#[test]
fn a_job_that_a_person_stopped_stays_so() {
    let mut facts = wanted_without(UpgradeMode::LastState);
    exit(&mut facts, ExitKind::Stopped);
    let end = plan(&facts);
    assert_eq!((end.view.state, end.create.len()), (Some(StreamJobState::Suspended), 0));
}
