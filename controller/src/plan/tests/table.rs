//! Every state × fate of the JobManager × class of change × moment, with what must hold of each plan: nothing waits without
//! an end, nothing starts empty unasked, nothing is done before it is remembered, and plans come to rest.

use super::upgrade::{SAVEPOINT, checkpointing, edit};
use super::*;
use crate::facts::{Stop, Trial};
use sluice_crds::StopCause;
use sluice_protocol::job_master::Directive;
use sluice_protocol::options::RestoreSpec;

const STATES: [StreamJobState; 10] = [
    StreamJobState::Starting,
    StreamJobState::Running,
    StreamJobState::Restarting,
    StreamJobState::Finishing,
    StreamJobState::Stopping,
    StreamJobState::Finished,
    StreamJobState::Suspended,
    StreamJobState::Cancelled,
    StreamJobState::Failed,
    StreamJobState::Invalid,
];

/// What became of the JobManager.
#[derive(Debug, Clone, Copy)]
enum End {
    Runs,
    Unheard,
    Starts,
    Gone,
    Deleted,
    Drained,
    Silent,
    Died,
    Exited(ExitKind),
}

const ENDS: [End; 17] = [
    End::Runs,
    End::Unheard,
    End::Starts,
    End::Gone,
    End::Deleted,
    End::Drained,
    End::Silent,
    End::Died,
    End::Exited(ExitKind::Finished),
    End::Exited(ExitKind::Stopped),
    End::Exited(ExitKind::Failed),
    End::Exited(ExitKind::UserError),
    End::Exited(ExitKind::Superseded),
    End::Exited(ExitKind::StateMoved),
    End::Exited(ExitKind::StateMissing),
    End::Exited(ExitKind::StateLost),
    End::Exited(ExitKind::Internal),
];

/// What people want now.
#[derive(Debug, Clone, Copy)]
enum Wish {
    Nothing,
    InPlace,
    Rescale,
    Upgrade,
    Move,
    Restore,
    Forget,
    Suspend,
    Nonsense,
    Deletion,
}

const WISHES: [Wish; 10] = [
    Wish::Nothing,
    Wish::InPlace,
    Wish::Rescale,
    Wish::Upgrade,
    Wish::Move,
    Wish::Restore,
    Wish::Forget,
    Wish::Suspend,
    Wish::Nonsense,
    Wish::Deletion,
];

/// What is under way.
#[derive(Debug, Clone, Copy)]
enum Way {
    None,
    Trial,
    Stop(StopCause),
    StopWithSavepoint,
    Stopped,
}

const WAYS: [Way; 9] = [
    Way::None,
    Way::Trial,
    Way::Stop(StopCause::Upgrade),
    Way::Stop(StopCause::Rescale),
    Way::Stop(StopCause::Restore),
    Way::Stop(StopCause::Suspend),
    Way::Stop(StopCause::RollBack),
    Way::StopWithSavepoint,
    Way::Stopped,
];

/// Now, and past every deadline there is.
const MOMENTS: [u64; 2] = [1, 3600];

fn at(seconds: u64) -> Timestamp {
    NOW.plus(TimeSpan::from_secs(seconds))
}

fn with_state(mut facts: Facts, state: StreamJobState) -> Facts {
    facts.told = Told { state: Some(state), reason: format!("{state:?}"), ..facts.told };
    facts
}

fn with_way(mut facts: Facts, way: Way) -> Facts {
    let stop = |cause| Stop { since: NOW, cause, savepoint_request: None, savepoint: None };
    match way {
        Way::None => {}
        Way::Trial => {
            let snapshot = Some("s3://bucket/path/ns/pv-u/1/chk-5".to_owned());
            facts.memory.trial = Some(Trial { since: NOW, snapshot, ..Trial::default() });
        }
        Way::Stop(cause) => facts.memory.stop = Some(stop(cause)),
        Way::StopWithSavepoint => {
            let savepoint_request = Some("upgrade-1-1".to_owned());
            facts.memory.stop = Some(Stop { savepoint_request, ..stop(StopCause::Upgrade) });
            facts.memory.savepoint_requests = 1;
        }
        Way::Stopped => facts.memory.stopped_with = Some(SAVEPOINT.to_owned()),
    }
    facts
}

fn with_wish(facts: Facts, wish: Wish) -> Facts {
    match wish {
        Wish::Nothing => facts,
        Wish::InPlace => edit(facts, |job| checkpointing(job).interval = TimeSpan::from_secs(9)),
        Wish::Rescale => edit(facts, |job| job.spec.parallelism = 3),
        Wish::Upgrade => changed(facts),
        Wish::Move => edit(facts, |job| checkpointing(job).storage = "s3://other/place".to_owned()),
        Wish::Restore => edit(facts, |job| {
            let from = "s3://x/y".to_owned();
            let restore = RestoreSpec { from, nonce: 7, allow_non_restored_state: false, abandon_sinks: Vec::new() };
            job.spec.restore = Some(restore);
        }),
        Wish::Forget => edit(facts, |job| job.spec.checkpointing = None),
        Wish::Suspend => Facts { desired: DesiredState::Suspended, ..facts },
        Wish::Nonsense => {
            let program = Err(rejection("InvalidSpec", "spec.parallelism: no".to_owned()));
            Facts { program, spec_generation: 2, ..facts }
        }
        Wish::Deletion => Facts { deleting: true, ..facts },
    }
}

fn with_end(mut facts: Facts, end: End) -> Facts {
    if !matches!(end, End::Runs) {
        facts.connected = false;
    }
    match end {
        End::Runs => {}
        End::Unheard => facts.unreachable_since = Some(NOW),
        End::Starts => job_manager(&mut facts).started = false,
        End::Gone => facts.pods.retain(|pod| pod.role != JM),
        End::Deleted => job_manager(&mut facts).terminating = true,
        End::Drained => {
            job_manager(&mut facts).terminating = true;
            job_manager(&mut facts).drained = true;
        }
        End::Silent => job_manager(&mut facts).unready_since = Some(NOW),
        End::Died => kill(&mut facts),
        End::Exited(kind) => exit(&mut facts, kind),
    }
    facts
}

/// Calls `check` with each combination and its name.
fn each(check: impl Fn(&str, &Facts)) {
    for mode in [UpgradeMode::Savepoint, UpgradeMode::LastState, UpgradeMode::Stateless] {
        let runs = Facts { lifecycle: by_mode(mode), ..running() };
        for (state, way) in STATES.into_iter().flat_map(|state| WAYS.map(|way| (state, way))) {
            let before = with_way(with_state(runs.clone(), state), way);
            for (end, wish) in ENDS.into_iter().flat_map(|end| WISHES.map(|wish| (end, wish))) {
                for seconds in MOMENTS {
                    let facts = Facts { now: at(seconds), ..with_wish(with_end(before.clone(), end), wish) };
                    check(&format!("{mode:?} {state:?} {way:?} {end:?} {wish:?} after {seconds} s"), &facts);
                }
            }
        }
    }
}

fn is_at_rest(facts: &Facts, plan: &Plan) -> bool {
    !plan.acts() && plan.memory.decides_like(&facts.memory)
}

/// What is to be waited for comes by itself, or there is a moment at which it is looked at again.
#[test]
fn nothing_waits_without_an_end() {
    each(|name, facts| {
        let plan = plan(facts);
        let Some(wake_at) = plan.wake_at else {
            let stops = plan.memory.stop.is_some() && plan.memory.helper.is_none();
            assert!(!stops || !is_at_rest(facts, &plan), "{name}: a stop waits for ever: {plan:?}");
            let is_planned = plan.memory.next_restart_at.is_some() || plan.memory.held.is_some();
            assert!(!is_planned || !is_at_rest(facts, &plan), "{name}: nobody looks when it is due: {plan:?}");
            return;
        };
        assert!(wake_at > facts.now || !is_at_rest(facts, &plan), "{name}: it looks again at once, for ever: {plan:?}");
    });
}

#[test]
fn nothing_starts_empty_unasked() {
    each(|name, facts| {
        let plan = plan(facts);
        let Some(start) = plan.create.iter().find(|pod| pod.role == JM) else { return };
        let directive: Directive = serde_json::from_str(&start.directive).expect("is JSON");
        let keeps_state = plan.spec.as_ref().is_some_and(|spec| spec.checkpointing.is_some());
        let may_be_empty = match &directive.start {
            StartFrom::Empty => true,
            StartFrom::Continue | StartFrom::ResumeLatest if !keeps_state => true,
            StartFrom::Continue | StartFrom::ResumeLatest => directive.seen == 0,
            StartFrom::Path { .. } | StartFrom::Close { .. } | StartFrom::Dispose { .. } => false,
        };
        let is_asked = facts.lifecycle.upgrade.mode == UpgradeMode::Stateless;
        assert!(is_asked || !may_be_empty, "{name}: starts empty: {directive:?}");
    });
}

/// C2: pods belong to what is remembered, which differs from before where they do; those of other generations go.
#[test]
fn nothing_is_made_before_it_is_remembered() {
    each(|name, facts| {
        let plan = plan(facts);
        let (known, next) = (facts.memory.generation, plan.memory.generation);
        assert!(next >= known && plan.memory.revision >= facts.memory.revision, "{name}: back to {next}");
        assert!(plan.create.iter().all(|pod| pod.generation == next), "{name}: {:?}", plan.create);
        if next > known {
            assert!(!plan.memory.decides_like(&facts.memory), "{name}");
            let is_doomed = |pod: &PodFacts| plan.delete.iter().any(|doomed| doomed.uid == pod.uid);
            let left: Vec<_> = facts.pods.iter().filter(|pod| pod.is_alive() && !is_doomed(pod)).collect();
            assert!(left.is_empty(), "{name}: generation {next} is made beside {left:?}");
        }
    });
}

/// What is being deleted begins nothing, and is let go only when nothing of it is made.
#[test]
fn a_deletion_begins_nothing() {
    each(|name, facts| {
        let plan = plan(facts);
        let lets_go = plan.finalizer == Some(Finalizer::Remove);
        assert!(!lets_go || (facts.deleting && plan.create.is_empty()), "{name}: let go");
        if facts.deleting {
            assert_eq!(plan.memory.revision, facts.memory.revision, "{name}: a new revision");
            assert!(plan.create.iter().all(|pod| pod.role == JM), "{name}: TaskManagers of a job that goes");
        }
    });
}

/// Where nothing happens any more, a few passes lead to one that has nothing to do.
#[test]
fn plans_come_to_rest() {
    each(|name, facts| {
        let mut facts = facts.clone();
        for _ in 0..8 {
            let plan = plan(&facts);
            if is_at_rest(&facts, &plan) || plan.finalizer == Some(Finalizer::Remove) {
                return;
            }
            facts = after(&facts, &plan);
        }
        panic!("{name}: goes on and on: {:?}", plan(&facts));
    });
}
