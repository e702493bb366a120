//! A deletion ends, whatever state the job is in, and makes nothing but a closer.

use super::*;
use sluice_protocol::status::{RequestKind, RequestState, RequestStatus};

fn deleted(facts: Facts) -> Facts {
    Facts { deleting: true, ..facts }
}

fn seconds(n: u64) -> Timestamp {
    NOW.plus(TimeSpan::from_secs(n))
}

#[test]
fn the_finalizer_is_put_before_anything_is_made() {
    let new = Facts { has_finalizer: false, ..facts() };
    assert_eq!(plan(&new).finalizer, Some(Finalizer::Put));
    assert_eq!(plan(&facts()).finalizer, None);
    let suspended = Facts { desired: DesiredState::Suspended, ..new };
    assert_eq!(plan(&suspended).finalizer, None, "there is nothing to end");
}

#[test]
fn a_running_job_is_cancelled_and_goes_when_it_has_ended() {
    let facts = deleted(running());
    let asks = plan(&facts);
    assert_eq!((asks.command.clone(), asks.finalizer), (Some(Command::Cancel), None));
    assert_eq!((asks.view.state, asks.view.reason.as_str()), (Some(StreamJobState::Stopping), "Deleting"));
    let mut facts = after(&facts, &asks);
    facts.now = seconds(119);
    assert_eq!(plan(&facts).finalizer, None);
    exit(&mut facts, ExitKind::Stopped);
    let gone = plan(&facts);
    assert_eq!((gone.finalizer, gone.create.len()), (Some(Finalizer::Remove), 0));
    assert!(gone.delete.iter().any(|pod| pod.name == "pv-1-tm-0"));
}

#[test]
fn the_deadline_counts_from_when_the_controller_first_saw_it() {
    let facts = deleted(Facts { connected: false, ..running() });
    let asks = plan(&facts);
    assert_eq!((asks.command.clone(), asks.finalizer), (None, None), "its stream may come back");
    let mut facts = after(&facts, &asks);
    facts.now = seconds(120);
    assert_eq!(plan(&facts).finalizer, Some(Finalizer::Remove));
}

#[test]
fn in_bad_situations_it_ends_at_once() {
    let mut gone = running();
    gone.pods.clear();
    let first = facts();
    let mut pulls = after(&first, &plan(&first));
    job_manager(&mut pulls).started = false;
    let mut failed = running();
    exit(&mut failed, ExitKind::Failed);
    let failed = after(&failed, &plan(&failed));
    let broken = Facts { program: Err(rejection("InvalidSpec", "no".to_owned())), frozen: None, ..gone.clone() };
    let mut terminating = running();
    terminating.pods.iter_mut().for_each(|pod| pod.terminating = true);
    let cases = [
        ("its first image is not there", pulls),
        ("it has failed", failed),
        ("it was never deployed", facts()),
        ("neither spec nor program are there", broken),
        ("the namespace goes", Facts { namespace_goes: true, ..terminating }),
    ];
    for (case, facts) in cases {
        let plan = plan(&deleted(facts));
        assert_eq!((plan.finalizer, plan.create.len(), plan.command), (Some(Finalizer::Remove), 0, None), "{case}");
    }
}

#[test]
fn mid_upgrade_it_takes_the_place_of_the_upgrade() {
    let facts = changed(Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..running() });
    let stopping = after(&facts, &plan(&facts));
    assert!(stopping.memory.stop.is_some());
    let facts = deleted(stopping);
    let asks = plan(&facts);
    assert_eq!(asks.command, Some(Command::Cancel));
    let mut facts = after(&facts, &asks);
    exit(&mut facts, ExitKind::Stopped);
    let gone = plan(&facts);
    assert_eq!((gone.finalizer, gone.create.len()), (Some(Finalizer::Remove), 0), "no new revision starts");
}

#[test]
fn a_last_savepoint_is_waited_for_and_cancelled_when_it_fails() {
    let mut facts = deleted(running());
    facts.lifecycle.deletion.savepoint = true;
    let asks = plan(&facts);
    let Some(Command::Savepoint(request)) = &asks.command else { panic!("{:?}", asks.command) };
    assert_eq!((request.id.as_str(), request.timeout), ("deletion", TimeSpan::from_secs(90)));
    let mut facts = after(&facts, &asks);
    for (state, command) in
        [(RequestState::Pending, None), (RequestState::Completed, None), (RequestState::Failed, Some(Command::Cancel))]
    {
        let request = RequestStatus {
            id: "deletion".to_owned(),
            kind: RequestKind::Stop,
            state,
            path: None,
            failure: None,
            snapshot: None,
        };
        facts.report.as_mut().expect("is there").requests = vec![request];
        let plan = plan(&facts);
        assert_eq!((plan.command, plan.finalizer), (command, None), "{state:?}");
    }
}
