//! Tasks that run without a checkpoint for too long: told, and restarted where the spec says so.

use super::*;

/// 2 s interval, 10 minutes timeout, no failure tolerable: stuck after 20 minutes.
fn stuck(restart: bool) -> Facts {
    let mut facts = running();
    facts.lifecycle.stability.restart_stuck = restart;
    facts.now = NOW.plus(TimeSpan::from_secs(1200));
    facts
}

#[test]
fn a_stuck_job_is_restarted_where_the_spec_says_so_and_spends_a_restart_each_time() {
    let told = plan(&stuck(false));
    assert_eq!(told.view.degraded.as_ref().map(|wrong| wrong.reason.as_str()), Some("CheckpointsStuck"));
    assert!(!told.acts() && told.memory.failures.total() == 0);

    let mut facts = stuck(true);
    facts.now = NOW.plus(TimeSpan::from_secs(1199));
    assert!(plan(&facts).view.degraded.is_none());
    let mut facts = stuck(true);
    for (generation, failures) in [(2, 1), (3, 2)] {
        let lost = plan(&facts);
        assert_eq!((lost.view.reason.as_str(), lost.memory.failures.total()), ("CheckpointsStuck", failures));
        assert_eq!(lost.lost.as_ref().map(|lost| lost.cause.reason.as_str()), Some("CheckpointsStuck"));
        assert!(lost.view.message.contains("no checkpoint was completed within 20m"), "{}", lost.view.message);
        let mut waiting = after(&facts, &lost);
        waiting.now = facts.now.plus(TimeSpan::from_secs(1));
        let next = plan(&waiting);
        assert_eq!((created(&next)[0], next.memory.revision), ((generation, JM), 1));
        assert_eq!(directive(&next)["start"], "continue");
        facts = after(&waiting, &next);
        facts.pods.retain(|pod| pod.generation == Generation(generation));
        let report = running().report.expect("runs");
        facts.report = Some(JobStatus { generation: Generation(generation), since: facts.now, ..report });
        facts.connected = true;
        assert!(plan(&facts).view.ready, "its time begins anew");
        facts.now = facts.now.plus(TimeSpan::from_secs(1200));
    }
    // The strategy allows two.
    let spent = plan(&facts);
    assert_eq!((spent.view.state, spent.view.reason.as_str()), (Some(StreamJobState::Failed), "CheckpointsStuck"));
}

#[test]
fn a_stuck_job_is_not_restarted_on_old_news_nor_where_that_would_cost_its_checkpoints() {
    let mut unheard = stuck(true);
    (unheard.connected, unheard.unreachable_since) = (false, Some(unheard.now));
    let mut in_memory = stuck(true);
    let frozen = in_memory.frozen.as_mut().expect("runs");
    frozen.checkpointing.as_mut().expect("has one").storage = "JobManager".to_owned();
    in_memory.program = Ok(Program { spec: frozen.clone(), config_map: in_memory.memory.program.clone() });
    for facts in [unheard, in_memory] {
        let told = plan(&facts);
        assert_eq!(told.view.degraded.as_ref().map(|wrong| wrong.reason.as_str()), Some("CheckpointsStuck"));
        assert!(!told.acts() && told.memory.failures.total() == 0, "{told:?}");
    }
}

/// A new leader may never hear a JobManager whose pod says that it is ready.
#[test]
fn a_job_manager_that_was_never_heard_is_told_of_and_lost_like_one_that_fell_silent() {
    let seconds = |n| NOW.plus(TimeSpan::from_secs(n));
    let unheard = Facts {
        report: None,
        connected: false,
        stream_problem: Some(stream_problem(None, "connection refused")),
        tried_since: Some(seconds(50)),
        ..running()
    };
    let at = |n| plan(&Facts { now: seconds(n), ..unheard.clone() });
    assert_eq!((at(109).view.degraded, at(109).wake_at), (None, Some(seconds(110))));
    let told = at(110).view.degraded.expect("is told");
    assert_eq!(told.reason, "JobManagerUnreachable");
    assert!(told.message.contains("connection refused") && !told.message.contains("reported"), "{}", told.message);
    assert_eq!((at(110).wake_at, at(169).view.reason.as_str()), (Some(seconds(170)), "JobManagerUnreachable"));
    let lost = at(170);
    assert_eq!((lost.view.state, lost.memory.failures.total()), (Some(StreamJobState::Restarting), 1));
    let cut_off = Facts { mostly_unreachable: true, now: seconds(170), ..unheard.clone() };
    assert_eq!(plan(&cut_off).memory.failures.total(), 0);
    // The kubelet's word may come long after: the time counts from the first try.
    let untried = Facts { tried_since: None, now: seconds(170), ..unheard.clone() };
    assert_eq!((plan(&untried).memory.failures.total(), plan(&untried).wake_at), (0, Some(seconds(230))));
    // One that starts is not silent: its probe says when it is there.
    let mut starts = Facts { now: seconds(170), ..unheard };
    job_manager(&mut starts).ready_since = None;
    assert_eq!(plan(&starts).memory.failures.total(), 0);
}

/// A failover is nobody's restart: what was told of a job that runs stands until its JobManager has had the time to speak.
#[test]
fn a_new_leader_tells_of_a_running_job_what_was_told_until_it_has_heard_it() {
    let seconds = |seconds: u64| NOW.plus(TimeSpan::from_secs(seconds));
    let mut facts = running();
    facts = after(&facts.clone(), &plan(&facts));
    let told = plan(&facts).view;
    assert!(told.ready, "{told:?}");
    let unheard = Facts { leading_since: seconds(100), now: seconds(101), report: None, connected: false, ..facts };
    let unheard = Facts { tried_since: Some(seconds(100)), ..unheard };
    assert_eq!(plan(&unheard).view, told);
    let late = plan(&Facts { now: seconds(160), ..unheard.clone() }).view;
    assert_eq!((late.ready, late.reason.as_str()), (false, "JobManagerUnreachable"), "{late:?}");
    // Of another generation nothing was told, and one that was not ready before has to say so itself.
    let mut other = unheard.clone();
    other.told.generation = Generation(7);
    let mut started = unheard;
    job_manager(&mut started).ready_since = Some(seconds(100));
    for facts in [other, started] {
        assert!(!plan(&facts).view.ready);
    }
}
