//! The planner over many states: each test is a story told by facts, in milliseconds.

mod change;
mod close;
mod deletion;
mod dispose;
mod ended;
mod forgets;
mod frozen;
mod lost;
mod moved;
mod previous;
mod problems;
mod restarts;
mod resume;
mod start;
mod stuck;
mod table;
mod trial;
mod upgrade;

use super::*;
use crate::facts::{Lifecycle, PodEnd, StreamProblem, Told};
use crate::validate::validate_program;
use serde_json::json;
use sluice_crds::{StreamJob, UpgradeMode, UpgradeSpec};
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::job_master::{REPEATS_OUTPUT, SNAPSHOT_UNSETTLED, StartFrom};
use sluice_protocol::restart::{CountedFailure, FailureCounts};
use sluice_protocol::status::{CheckpointInfo, Notice};
use sluice_protocol::{Attempt, CheckpointId, TimeSpan};
use sluice_rpc::tls::CertificateProblem;

const NOW: Timestamp = Timestamp(1_767_225_600_000);

pub(crate) fn job() -> StreamJob {
    serde_json::from_value(json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob",
        "metadata": {"name": "pv", "namespace": "ns", "uid": "u", "generation": 1},
        "spec": {
            "program": {"sql": "INSERT INTO a SELECT * FROM b;"}, "parallelism": 2,
            "checkpointing": {"interval": "2s", "storage": "s3://bucket/path"},
            "restartStrategy": {"fixedDelay": {"attempts": 2, "delay": "1s"}},
        },
    }))
    .expect("is a StreamJob")
}

fn by_mode(mode: UpgradeMode) -> Lifecycle {
    Lifecycle { upgrade: UpgradeSpec { mode, ..UpgradeSpec::default() }, ..Lifecycle::default() }
}

/// A StreamJob that was just applied.
pub(crate) fn facts() -> Facts {
    Facts {
        now: NOW,
        name: "pv".to_owned(),
        directory: "ns/pv-u".to_owned(),
        default_image: "runtime:1".to_owned(),
        spec_generation: 1,
        desired: DesiredState::Running,
        program: validate_program(&job(), None),
        frozen: None,
        frozen_problem: None,
        stable: None,
        given_up: None,
        lifecycle: by_mode(UpgradeMode::LastState),
        deleting: false,
        namespace_goes: false,
        has_finalizer: true,
        memory: Memory::default(),
        told: Told::default(),
        pods: Vec::new(),
        disposals: Vec::new(),
        programs: Vec::new(),
        service_generation: None,
        report: None,
        connected: false,
        unreachable_since: None,
        stream_problem: None,
        mostly_unreachable: false,
        leading_since: Timestamp(0),
        tried_since: None,
    }
}

/// What the API server would hold after `plan`: its memory, its pods running, its Service and programs.
fn after(facts: &Facts, plan: &Plan) -> Facts {
    let mut pods = facts.pods.clone();
    pods.retain(|pod| !plan.delete.iter().any(|doomed| doomed.uid == pod.uid));
    pods.extend(plan.create.iter().map(running_pod));
    let (memory, old) = (&plan.memory, &facts.memory);
    let stable = |memory: &Memory| memory.stable.as_ref().map(|stable| stable.program.clone());
    let given_up = |memory: &Memory| memory.rolled_back.as_ref().map(|given_up| given_up.program.clone());
    let known = [
        (
            plan.program.as_ref().map(|program| program.config_map.clone()),
            plan.program.as_ref().map(|program| &program.spec),
        ),
        (Some(old.program.clone()), facts.frozen.as_ref()),
        (stable(old), facts.stable.as_ref()),
        (given_up(old), facts.given_up.as_ref()),
    ];
    let read = |name: Option<String>| {
        let name = name?;
        known.iter().find(|(known, _)| known.as_ref() == Some(&name)).and_then(|(_, spec)| spec.cloned())
    };
    Facts {
        memory: memory.clone(),
        told: Told {
            state: plan.view.state,
            reason: plan.view.reason.clone(),
            message: plan.view.message.clone(),
            failure: facts.report.as_ref().and_then(|report| Some(report.failures.first()?.failure.message.clone())),
            observed_generation: facts.spec_generation,
            generation: memory.generation,
            ready: plan.view.ready,
            degraded: plan.view.degraded.clone(),
        },
        service_generation: plan.service.map(|generation| generation.0).or(facts.service_generation),
        frozen: read(Some(memory.program.clone())),
        stable: read(stable(memory)),
        given_up: read(given_up(memory)),
        report: facts.report.clone().filter(|report| report.generation == memory.generation),
        connected: facts.connected && old.generation == memory.generation,
        pods,
        ..facts.clone()
    }
}

/// A TaskManager of the first generation.
pub(crate) fn running_pod_of(name: &str) -> PodFacts {
    let first = facts();
    let made = plan(&first).create.iter().map(running_pod).find(|pod| pod.name == name);
    made.expect("is made")
}

fn running_pod(plan: &PodPlan) -> PodFacts {
    let generation = plan.generation;
    let name = match plan.role {
        Role::JobManager => format!("pv-{generation}-jm"),
        Role::TaskManager(index) => format!("pv-{generation}-tm-{index}"),
    };
    PodFacts {
        uid: format!("uid-{name}"),
        name,
        generation,
        role: plan.role,
        image: plan.image.clone(),
        ip: Some("10.0.0.1".to_owned()),
        tls: true,
        terminating: false,
        ended: None,
        lingers: false,
        started: true,
        ready_since: Some(NOW),
        unready_since: None,
        on_lost_node: false,
        drained: false,
        problem: None,
        created_at: NOW,
    }
}

/// A job of generation 1 that runs, with a report.
pub(crate) fn running() -> Facts {
    let first = facts();
    let mut facts = after(&first, &plan(&first));
    facts.report = Some(JobStatus {
        state: JobState::Running,
        generation: Generation(1),
        attempt: Attempt(1),
        ledger_entry: 7,
        completed_checkpoints: 5,
        last_checkpoint: Some(CheckpointInfo { id: CheckpointId(5), completed_at: NOW, ..CheckpointInfo::default() }),
        ..JobStatus::default()
    });
    facts.connected = true;
    after(&facts, &plan(&facts))
}

fn job_manager(facts: &mut Facts) -> &mut PodFacts {
    let generation = facts.memory.generation;
    let mut pods = facts.pods.iter_mut();
    pods.find(|pod| pod.role == Role::JobManager && pod.generation == generation).expect("there is one")
}

fn exit(facts: &mut Facts, kind: ExitKind) {
    exit_with(facts, ExitRecord::new(kind, "Why", "because"));
}

fn exit_with(facts: &mut Facts, record: ExitRecord) {
    let at = facts.now;
    job_manager(facts).ended = Some(PodEnd { record: Some(record), account: String::new(), last_log_lines: None, at });
}

fn kill(facts: &mut Facts) {
    let at = facts.now;
    job_manager(facts).ended =
        Some(PodEnd { record: None, account: "Error (exit code 137)".to_owned(), last_log_lines: None, at });
}

fn created(plan: &Plan) -> Vec<(u64, Role)> {
    plan.create.iter().map(|pod| (pod.generation.0, pod.role)).collect()
}

fn directive(plan: &Plan) -> serde_json::Value {
    serde_json::from_str(&plan.create[0].directive).expect("is JSON")
}

const JM: Role = Role::JobManager;
const TM: fn(u32) -> Role = Role::TaskManager;

fn stream_problem(certificate: Option<CertificateProblem>, message: &str) -> StreamProblem {
    StreamProblem { certificate, message: message.to_owned() }
}

#[test]
fn a_new_job_gets_its_first_generation() {
    let plan = plan(&facts());
    assert_eq!(created(&plan), [(1, JM), (1, TM(0)), (1, TM(1))]);
    assert_eq!((plan.memory.generation, plan.memory.revision), (Generation(1), 1));
    assert_eq!(plan.service, Some(Generation(1)));
    assert!(plan.program.is_some());
    assert_eq!(directive(&plan), json!({"id": "1-0", "seen": 0, "start": "continue"}));
    assert_eq!(plan.view.state, Some(StreamJobState::Starting));
    assert!(!plan.memory.decides_like(&facts().memory), "intent is written before pods are made");
}

#[test]
fn a_running_job_is_left_alone() {
    let facts = running();
    let plan = plan(&facts);
    assert!(!plan.acts() && plan.memory.decides_like(&facts.memory), "{plan:?}");
    assert_eq!((plan.view.state, plan.view.ready), (Some(StreamJobState::Running), true));
    assert_eq!(plan.memory.ledger_entry, 7);
}

#[test]
fn what_a_start_tells_of_its_snapshot_is_told_once_and_is_nothing_wrong() {
    let mut facts = running();
    facts.memory.started_revision = 0;
    let notice = |reason: &str| Notice { reason: reason.to_owned(), message: format!("{reason} of s3://b/chk-5") };
    facts.report.as_mut().expect("it runs").notices =
        [STARTS_EMPTY, REPEATS_OUTPUT, SNAPSHOT_UNSETTLED].map(notice).to_vec();
    let first = plan(&facts);
    let told: Vec<_> =
        first.events.iter().map(|event| (event.warning, event.reason.as_str(), event.message.as_str())).collect();
    let empty = (false, "OperatorsStartEmpty", "OperatorsStartEmpty of s3://b/chk-5");
    let repeats = (true, "OutputRepeats", "OutputRepeats of s3://b/chk-5");
    assert_eq!(told, [empty, repeats, (true, "SnapshotUnsettled", "SnapshotUnsettled of s3://b/chk-5")]);
    assert_eq!((first.view.ready, &first.view.degraded), (true, &None));
    facts = after(&facts, &first);
    assert_eq!(plan(&facts).events, []);
}

#[test]
fn an_invalid_spec_does_not_start_and_does_not_stop_what_runs() {
    let rejection = Rejection { reason: "InvalidSpec".to_owned(), message: "spec.parallelism: no".to_owned() };
    let new = Facts { program: Err(rejection.clone()), ..facts() };
    let first = plan(&new);
    assert_eq!(first.view.state, Some(StreamJobState::Invalid));
    assert!(!first.acts());
    let mended = Facts { program: facts().program, ..after(&new, &first) };
    assert_eq!(created(&plan(&mended)).len(), 3);

    let runs = Facts { program: Err(rejection.clone()), ..running() };
    let plan = plan(&runs);
    assert!(!plan.acts() && plan.command.is_none());
    assert_eq!((plan.view.ready, plan.view.degraded), (true, Some(rejection)));
}

#[test]
fn ends_and_what_follows_from_them() {
    let cases = [
        (ExitKind::Finished, StreamJobState::Finished),
        (ExitKind::Stopped, StreamJobState::Suspended),
        (ExitKind::Failed, StreamJobState::Failed),
        (ExitKind::UserError, StreamJobState::Invalid),
        (ExitKind::StateMissing, StreamJobState::Failed),
        (ExitKind::StateLost, StreamJobState::Failed),
        (ExitKind::Internal, StreamJobState::Restarting),
    ];
    for (kind, state) in cases {
        let mut facts = running();
        exit(&mut facts, kind);
        let step = plan(&facts);
        assert_eq!(step.view.state, Some(state), "{kind:?}");
        assert!(created(&step).is_empty(), "{kind:?}");
        if state.is_terminal() {
            let rests = after(&facts, &step);
            let rest = plan(&rests);
            assert!(!rest.acts() && rest.memory.decides_like(&rests.memory), "{kind:?}");
            assert_eq!((rest.view.state, &rest.view.message), (Some(state), &step.view.message), "{kind:?}");
        }
    }
}

#[test]
fn superseded_by_an_own_generation_goes_on_and_by_a_foreign_one_ends() {
    let mut facts = running();
    exit(&mut facts, ExitKind::Superseded);
    let goes_on = plan(&facts);
    assert_eq!(created(&goes_on)[0], (2, JM));
    assert_eq!(goes_on.memory.failures.total(), 0);
    let end = job_manager(&mut facts).ended.as_mut().expect("ended");
    end.record.as_mut().expect("said why").by_generation = Some(5);
    let plan = plan(&facts);
    assert_eq!((plan.view.state, plan.view.reason.as_str()), (Some(StreamJobState::Failed), "ForeignGeneration"));
}

#[test]
fn a_job_that_another_took_over_ends_with_where_it_went_and_is_not_started_again() {
    let told = [
        ExitRecord { by_generation: Some(9), ..ExitRecord::new(ExitKind::Superseded, "TakenOver", "went to s3://b/x") },
        ExitRecord { ledger_entry: Some(99), ..ExitRecord::new(ExitKind::StateMoved, "MovedTo", "went to s3://b/x") },
    ];
    for record in told {
        let mut facts = running();
        exit(&mut facts, record.kind);
        job_manager(&mut facts).ended.as_mut().expect("ended").record = Some(record.clone());
        let step = plan(&facts);
        assert_eq!((step.view.state, &step.view.reason), (Some(StreamJobState::Failed), &record.reason));
        assert!(step.view.message.contains("s3://b/x") && created(&step).is_empty());
        let rests = after(&facts, &step);
        assert!(!plan(&rests).acts());
    }
}

fn changed(facts: Facts) -> Facts {
    let mut job = job();
    job.spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned());
    Facts { program: validate_program(&job, None), spec_generation: 2, ..facts }
}

#[test]
fn a_changed_spec_stops_the_job_and_starts_the_next_revision() {
    let facts = changed(running());
    let stop = plan(&facts);
    assert_eq!(stop.command, Some(Command::Stop));
    assert_eq!(stop.view.state, Some(StreamJobState::Stopping));
    assert_eq!(stop.memory.stop.as_ref().map(|stop| stop.since), Some(NOW));

    let mut stopping = after(&facts, &stop);
    stopping.now = NOW.plus(TimeSpan::from_secs(5));
    stopping.report.as_mut().expect("is there").ledger_entry = 9;
    exit(&mut stopping, ExitKind::Stopped);
    let next = plan(&stopping);
    assert_eq!(created(&next), [(2, JM), (2, TM(0)), (2, TM(1))]);
    assert_eq!(next.memory.revision, 2);
    assert_eq!(directive(&next), json!({"id": "2-0", "seen": 9, "start": "resumeLatest"}));
    assert_eq!(next.memory.stop, None);
    assert_eq!(next.memory.failures.total(), 0);
}

#[test]
fn a_stop_has_a_deadline() {
    let facts = changed(running());
    let stop = plan(&facts);
    let mut late = after(&facts, &stop);
    late.now = NOW.plus(TimeSpan::from_secs(600));
    let plan = plan(&late);
    assert_eq!(created(&plan)[0], (2, JM));
    assert!(plan.delete.iter().any(|pod| pod.name == "pv-1-jm"));
}

#[test]
fn a_stop_that_is_no_longer_wanted_is_followed_by_a_start() {
    let suspended = Facts { desired: DesiredState::Suspended, ..running() };
    let stop = plan(&suspended);
    let mut wanted = Facts { desired: DesiredState::Running, ..after(&suspended, &stop) };
    assert_eq!(plan(&wanted).view.state, Some(StreamJobState::Stopping));
    exit(&mut wanted, ExitKind::Stopped);
    let plan = plan(&wanted);
    assert_eq!((created(&plan)[0], plan.memory.revision), ((2, JM), 2));
    assert_eq!(directive(&plan)["start"], "resumeLatest");
}

#[test]
fn suspend_and_resume() {
    let suspended = Facts { desired: DesiredState::Suspended, spec_generation: 2, ..running() };
    let mut stopping = after(&suspended, &plan(&suspended));
    exit(&mut stopping, ExitKind::Stopped);
    let end = plan(&stopping);
    assert_eq!(end.view.state, Some(StreamJobState::Suspended));
    let rests = after(&stopping, &end);
    assert!(!plan(&rests).acts());
    let resumed = Facts { desired: DesiredState::Running, spec_generation: 3, ..rests };
    let plan = plan(&resumed);
    assert_eq!(created(&plan)[0], (2, JM));
    assert_eq!(directive(&plan), json!({"id": "2-0", "seen": 7, "start": "resumeLatest"}));
}

#[test]
fn a_job_that_is_suspended_from_the_start_does_not_start() {
    let facts = Facts { desired: DesiredState::Suspended, ..facts() };
    let plan = plan(&facts);
    assert_eq!((plan.view.state, plan.acts()), (Some(StreamJobState::Suspended), false));
}

#[test]
fn a_failed_job_starts_again_when_its_spec_changes() {
    let mut failed = running();
    exit(&mut failed, ExitKind::Failed);
    let failed = changed(after(&failed, &plan(&failed)));
    let plan = plan(&failed);
    assert_eq!((created(&plan)[0], plan.memory.revision), ((2, JM), 2));
}

#[test]
fn the_next_generation_is_above_what_is_reported() {
    let mut facts = running();
    facts.report.as_mut().expect("is there").generation = Generation(8);
    exit(&mut facts, ExitKind::Superseded);
    assert_eq!(plan(&facts).memory.generation, Generation(9));
}

#[test]
fn all_pods_of_a_generation_have_one_image() {
    let mut facts = running();
    facts.default_image = "runtime:2".to_owned();
    facts.pods.retain(|pod| pod.role != TM(1));
    assert_eq!(plan(&facts).create[0].image, "runtime:1");
    let mut job = job();
    job.spec.image = Some("mine:1".to_owned());
    let program = validate_program(&job, None);
    facts.frozen = program.as_ref().ok().map(|program| program.spec.clone());
    facts.program = program;
    assert_eq!(plan(&facts).create[0].image, "mine:1");
}

#[test]
fn programs_of_past_revisions_are_removed_once_the_job_runs() {
    let mut facts = running();
    let identity = |name: &str| ObjectIdentity { name: name.to_owned(), uid: format!("uid of {name}"), version: None };
    facts.programs = vec![identity(&facts.memory.program), identity("pv-program-old")];
    assert_eq!(plan(&facts).delete_programs, [identity("pv-program-old")]);
    facts.report.as_mut().expect("is there").state = JobState::Starting;
    assert!(plan(&facts).delete_programs.is_empty());
}

#[test]
fn start_is_a_word_or_an_object_in_json() {
    // The contract with the runtime's SLUICE_DIRECTIVE.
    let written = serde_json::to_value(StartFrom::Path {
        from: "s3://b/c".to_owned(),
        allow_non_restored_state: true,
        abandon_sinks: Vec::new(),
    });
    let expected = json!({"path": {"from": "s3://b/c", "allowNonRestoredState": true}});
    assert_eq!(written.expect("is JSON"), expected);
}

/// What a JobManager says and what a StreamJob's status says are one vocabulary: each state has its counterpart of the
/// same name. The one that differs is the manifest's own word: a stopped job is one with `state: Suspended`.
#[test]
fn every_state_of_a_job_has_its_counterpart_in_the_status() {
    let counterpart = |state| match state {
        JobState::Starting => StreamJobState::Starting,
        JobState::Running => StreamJobState::Running,
        JobState::Restarting => StreamJobState::Restarting,
        JobState::Finishing => StreamJobState::Finishing,
        JobState::Stopping => StreamJobState::Stopping,
        JobState::Finished => StreamJobState::Finished,
        JobState::Stopped => StreamJobState::Suspended,
        JobState::Cancelled => StreamJobState::Cancelled,
        JobState::Failed => StreamJobState::Failed,
    };
    let names = "Starting Running Restarting Finishing Stopping Finished Stopped Cancelled Failed";
    for name in names.split(' ') {
        let state: JobState = serde_json::from_value(json!(name)).expect("is a state of a job");
        let expected = if name == "Stopped" { "Suspended" } else { name };
        assert_eq!(serde_json::to_value(counterpart(state)).expect("is JSON"), json!(expected));
        assert_eq!(counterpart(state).is_terminal(), state.is_terminal(), "{name}");

        // While the JobManager says it, status tells it; an end only once the exit record is there.
        let mut facts = running();
        facts.report.as_mut().expect("is there").state = state;
        let told = plan(&facts).view.state.expect("is told");
        if state.is_terminal() {
            assert!(!told.is_terminal(), "{name} is told as {told:?} before the end");
        } else {
            assert_eq!(serde_json::to_value(told).expect("is JSON"), json!(name));
        }
    }
}
