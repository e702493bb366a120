//! The program that runs cannot be read: nothing is compared with it, and nothing restarts for it.

use super::upgrade::edit;
use super::*;

fn unknown(facts: Facts, reason: &str) -> Facts {
    let message = "ConfigMap pv-program-1 is not what it was".to_owned();
    Facts { frozen: None, frozen_problem: Some(Rejection { reason: reason.to_owned(), message }), ..facts }
}

/// As another version of the operator would write the same spec.
fn renamed(facts: Facts) -> Facts {
    let program = facts.program.clone().expect("is right");
    Facts { program: Ok(Program { config_map: "pv-program-renamed".to_owned(), ..program }), ..facts }
}

#[test]
fn a_program_that_cannot_be_read_restarts_no_job_and_is_told() {
    for reason in ["ProgramUnreadable", "ProgramMissing"] {
        let facts = unknown(renamed(running()), reason);
        let told = plan(&facts);
        assert_eq!((told.command.clone(), told.memory.stop.clone(), told.acts()), (None, None, false), "{reason}");
        let wrong = told.view.degraded.expect("is told");
        assert_eq!((wrong.reason.as_str(), told.view.ready), (reason, true));
        assert!(wrong.message.contains("set state: Suspended and then Running"), "{}", wrong.message);

        // By the way that it names it goes on, from its own state.
        let suspended = Facts { desired: DesiredState::Suspended, ..facts };
        let mut stopping = after(&suspended, &plan(&suspended));
        stopping.frozen_problem.clone_from(&suspended.frozen_problem);
        exit(&mut stopping, ExitKind::Stopped);
        let rests = after(&stopping, &plan(&stopping));
        let resumed = Facts { desired: DesiredState::Running, ..rests };
        assert_eq!(directive(&plan(&resumed))["start"], "resumeLatest");
    }
}

#[test]
fn nor_does_it_start_a_job_that_has_ended() {
    for (kind, state) in [(ExitKind::Finished, StreamJobState::Finished), (ExitKind::Failed, StreamJobState::Failed)] {
        let mut ended = running();
        exit(&mut ended, kind);
        let ended = after(&ended, &plan(&ended));
        let rests = plan(&unknown(renamed(ended.clone()), "ProgramUnreadable"));
        assert_eq!((rests.view.state, rests.create.len()), (Some(state), 0));
        assert_eq!(rests.view.degraded.expect("is told").reason, "ProgramUnreadable");
        // By name it is the same: there is nothing to tell.
        let same = plan(&unknown(ended, "ProgramUnreadable"));
        assert_ne!(same.view.degraded.map(|wrong| wrong.reason).as_deref(), Some("ProgramUnreadable"));
    }
}

#[test]
fn a_config_map_that_somebody_deleted_is_put_back() {
    let facts = unknown(running(), "ProgramMissing");
    let mends = plan(&facts);
    assert_eq!(mends.program.map(|program| program.config_map), Some(facts.memory.program));
    assert_eq!((mends.view.ready, mends.view.degraded, mends.memory.stop), (true, None, None));
    // One that cannot be read is immutable, and is left; an edit of the spec cannot take its place.
    assert!(plan(&unknown(running(), "ProgramUnreadable")).program.is_none());
    let edited = edit(running(), |job| job.spec.parallelism = 3);
    assert!(plan(&unknown(edited, "ProgramMissing")).program.is_none());
}
