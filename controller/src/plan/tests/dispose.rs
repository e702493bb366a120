//! Savepoints of a job that has ended are removed by a helper (L5), which changes nothing else.

use super::*;
use crate::facts::{Disposal, Helper, HelperTask, WantedDisposal};

const PATH: &str = "s3://bucket/path/savepoints/ns/pv-u/1-7";

fn seconds(n: u64) -> Timestamp {
    NOW.plus(TimeSpan::from_secs(n))
}

fn wanted(savepoint: &str) -> WantedDisposal {
    WantedDisposal { savepoint: savepoint.to_owned(), path: PATH.to_owned(), deadline: seconds(600) }
}

/// A job that has ended as `kind` says, and a savepoint of it that is to go.
fn ended(kind: ExitKind) -> Facts {
    let mut facts = running();
    exit(&mut facts, kind);
    let mut facts = after(&facts, &plan(&facts));
    facts.disposals = vec![wanted("sp")];
    facts
}

fn outcome(plan: &Plan) -> Option<&str> {
    match &plan.memory.helper {
        Some(Helper { task: HelperTask::Dispose(Disposal { outcome, .. }), .. }) => {
            outcome.as_ref().map(|outcome| outcome.reason.as_str())
        }
        _ => None,
    }
}

#[test]
fn whatever_end_a_job_has_come_to_a_helper_removes_a_savepoint_and_the_end_is_told_as_before() {
    for kind in [ExitKind::Finished, ExitKind::Failed, ExitKind::Stopped] {
        let facts = ended(kind);
        let first = plan(&facts);
        assert_eq!(created(&first), [(2, JM)], "{kind:?}");
        assert_eq!(directive(&first)["start"], json!({"dispose": {"path": PATH}}));
        assert_eq!((first.view.state, &first.view.reason), (facts.told.state, &facts.told.reason), "{kind:?}");
        assert!(first.service.is_none() && !first.memory.decides_like(&facts.memory));
        let mut at_work = after(&facts, &first);
        let waits = plan(&at_work);
        assert_eq!((waits.acts(), waits.wake_at), (false, Some(seconds(600))), "{kind:?}");
        let record =
            ExitRecord { ledger_entry: Some(11), ..ExitRecord::new(ExitKind::Stopped, "Disposed", "was removed") };
        exit_with(&mut at_work, record);
        let done = plan(&at_work);
        assert_eq!((outcome(&done), done.memory.ledger_entry), (Some("Disposed"), 11), "the next start knows m");
        assert_eq!((done.view.state, done.create.len()), (facts.told.state, 0));
        let told = after(&at_work, &done);
        assert_eq!(plan(&told).memory, told.memory, "it stays until the object is gone");
        let gone = plan(&Facts { disposals: Vec::new(), ..told.clone() });
        assert_eq!((gone.memory.helper.clone(), gone.view.state), (None, facts.told.state));
        // The next one follows, and a changed spec goes before any.
        let next = plan(&Facts { disposals: vec![wanted("other")], ..told.clone() });
        assert_eq!(created(&next), [(3, JM)]);
        let restarted = plan(&changed(Facts { disposals: vec![wanted("other")], ..told }));
        assert_eq!((restarted.memory.helper.clone(), restarted.memory.revision), (None, 2));
        assert_eq!(directive(&restarted)["start"], "resumeLatest");
        assert_eq!((created(&restarted)[0], directive(&restarted)["seen"].clone()), ((3, JM), json!(11)));
    }
}

#[test]
fn every_phase_of_a_disposal_against_every_event() {
    let facts = ended(ExitKind::Finished);
    let at_work = after(&facts, &plan(&facts));
    let with = |change: fn(&mut Facts)| {
        let mut facts = at_work.clone();
        change(&mut facts);
        plan(&facts)
    };
    let not_made = with(|facts| facts.pods.retain(|pod| pod.generation == Generation(1)));
    assert_eq!(created(&not_made), [(2, JM)]);
    for kind in [ExitKind::UserError, ExitKind::StateMissing] {
        let mut facts = at_work.clone();
        exit(&mut facts, kind);
        assert_eq!(outcome(&plan(&facts)), Some("Why"), "{kind:?}");
    }
    let lost = with(|facts| job_manager(facts).terminating = true);
    assert_eq!((lost.create.len(), lost.wake_at), (0, Some(seconds(5))), "not in a hurry");
    let again = with(|facts| {
        job_manager(facts).terminating = true;
        facts.now = seconds(5);
    });
    assert_eq!(created(&again), [(3, JM)]);
    let late = with(|facts| {
        facts.now = seconds(600);
        facts.disposals.clear();
    });
    assert_eq!((late.memory.helper.clone(), late.create.len()), (None, 0));
    assert!(late.delete.iter().any(|pod| pod.name == "pv-2-jm"), "its object has gone without it");
    let deleted = plan(&Facts { deleting: true, ..at_work });
    assert_eq!((deleted.finalizer, deleted.create.len()), (Some(Finalizer::Remove), 0), "and so has the job");
}

#[test]
fn a_savepoint_that_a_start_depends_on_stays_and_a_running_job_sends_no_helper() {
    let asked = plan(&Facts { disposals: vec![wanted("sp")], ..running() });
    assert_eq!((asked.create.len(), asked.memory.helper), (0, None), "its JobManager does it");

    let mut facts = Facts { report: None, ..ended(ExitKind::UserError) };
    facts.memory.started_revision = 0;
    let start = StartFrom::Path {
        from: format!("{PATH}/_metadata"),
        allow_non_restored_state: true,
        abandon_sinks: Vec::new(),
    };
    facts.memory.directive.as_mut().expect("is there").start = start;
    let held = plan(&facts);
    assert_eq!((held.create.len(), held.memory.helper.clone()), (0, None));
    assert_eq!(held.wake_at, Some(seconds(30)), "it is looked at again");
    facts.memory.started_revision = 1;
    assert_eq!(created(&plan(&facts)), [(2, JM)], "it was used");
    facts.memory.stopped_with = Some(PATH.to_owned());
    assert_eq!(plan(&facts).create.len(), 0);
}

#[test]
fn a_job_without_a_ledger_says_so() {
    let mut facts = Facts { report: None, ..ended(ExitKind::Finished) };
    facts.memory.ledger_entry = 0;
    let plan = plan(&facts);
    assert_eq!((plan.create.len(), outcome(&plan)), (0, Some("NoLedger")));
}
