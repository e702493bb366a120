//! What a start is told: where it goes on from, and what it has to find there (N3).

use super::*;

pub(super) fn restoring(nonce: u64) -> Result<Program, Rejection> {
    let mut job = job();
    job.spec.restore = Some(sluice_protocol::options::RestoreSpec {
        from: "s3://bucket/chk-50".to_owned(),
        allow_non_restored_state: false,
        nonce,
        abandon_sinks: vec!["out.sink".into()],
    });
    validate_program(&job, None)
}

#[test]
fn restore_is_used_once_for_each_nonce() {
    let path = |plan: &Plan| directive(plan)["start"].get("path").is_some();
    let new = Facts { program: restoring(1), ..facts() };
    let first = plan(&new);
    assert_eq!(directive(&first)["start"]["path"]["abandonSinks"], json!(["out.sink"]), "{}", directive(&first));

    // The JobManager is lost before anything was deployed: the same directive again.
    let mut unused = after(&new, &first);
    let adopted = plan(&unused);
    unused = after(&unused, &adopted);
    kill(&mut unused);
    let counted = plan(&unused);
    let mut due = after(&unused, &counted);
    due.now = NOW.plus(TimeSpan::from_secs(1));
    let again = plan(&due);
    assert_eq!(directive(&again), directive(&first));

    // It was used: the next generation continues, and another revision resumes.
    let mut used = running();
    used.frozen = restoring(1).ok().map(|program| program.spec);
    used.program = restoring(1);
    assert!(!plan(&used).acts());
    kill(&mut used);
    let counted = plan(&used);
    let mut due = after(&used, &counted);
    due.now = NOW.plus(TimeSpan::from_secs(1));
    assert_eq!(directive(&plan(&due))["start"], "continue");

    // A new nonce restores once more.
    let mut raised = Facts { program: restoring(2), ..due };
    raised.told.state = Some(StreamJobState::Failed);
    let plan = plan(&raised);
    assert!(path(&plan), "{}", directive(&plan));
    assert_eq!(directive(&plan)["id"], "2-2");
}

#[test]
fn a_moved_ledger_is_decided_on_anew() {
    let mut facts = changed(running());
    facts.told.state = Some(StreamJobState::Failed);
    let next = plan(&facts);
    let mut facts = after(&facts, &next);
    let adopted = plan(&facts);
    facts = after(&facts, &adopted);
    facts.report = Some(JobStatus { generation: Generation(2), ledger_entry: 12, ..JobStatus::default() });
    exit(&mut facts, ExitKind::StateMoved);
    let plan = plan(&facts);
    assert_eq!(created(&plan)[0], (3, JM));
    assert_eq!(directive(&plan), json!({"id": "2-0", "seen": 12, "start": "resumeLatest"}));
    assert_eq!(plan.memory.failures.total(), 0);

    // The last report was missed, but the JobManager's last word tells the entry all the same.
    facts.report = None;
    let told = ExitRecord { ledger_entry: Some(13), ..ExitRecord::new(ExitKind::StateMoved, "StateMoved", "moved") };
    exit_with(&mut facts, told);
    let plan = super::plan(&facts);
    assert_eq!(created(&plan)[0], (3, JM));
    assert_eq!(directive(&plan), json!({"id": "2-0", "seen": 13, "start": "resumeLatest"}));
    assert_eq!((plan.memory.ledger_entry, plan.memory.failures.total()), (13, 0));

    exit(&mut facts, ExitKind::StateMoved);
    let unknown = super::plan(&facts);
    assert_eq!((unknown.view.state, unknown.view.reason.as_str()), (Some(StreamJobState::Failed), "StateMoved"));
}

#[test]
fn the_last_word_of_a_job_manager_tells_its_last_entry() {
    let facts = changed(running());
    let mut stopping = after(&facts, &plan(&facts));
    stopping.report = None;
    let stopped = ExitRecord { ledger_entry: Some(11), ..ExitRecord::new(ExitKind::Stopped, "Stopped", "stopped") };
    exit_with(&mut stopping, stopped);
    let next = plan(&stopping);
    assert_eq!(directive(&next), json!({"id": "2-0", "seen": 11, "start": "resumeLatest"}));
}

#[test]
fn checkpoints_in_the_memory_of_a_lost_job_manager_are_lost() {
    let mut facts = running();
    let frozen = facts.frozen.as_mut().expect("is there");
    frozen.checkpointing.as_mut().expect("is there").storage = "JobManager".to_owned();
    facts.program = Ok(Program { spec: frozen.clone(), config_map: facts.memory.program.clone() });
    kill(&mut facts);
    let plan = plan(&facts);
    assert_eq!((plan.view.state, plan.view.reason.as_str()), (Some(StreamJobState::Failed), "StateLost"));
}
