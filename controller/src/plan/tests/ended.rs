//! Pods that have ended go, once nothing is to be learnt from them.

use super::*;

fn seconds(n: u64) -> Timestamp {
    NOW.plus(TimeSpan::from_secs(n))
}

fn ended(mut pod: PodFacts, at: Timestamp, kind: Option<ExitKind>) -> PodFacts {
    let record = kind.map(|kind| ExitRecord::new(kind, "Why", "because"));
    pod.ended = Some(PodEnd { record, account: "Error (exit code 1)".to_owned(), last_log_lines: None, at });
    pod
}

/// A pod of a generation before, with an end.
fn earlier(generation: u64, role: Role) -> PodFacts {
    let name = format!("pv-{generation}-{role:?}");
    let pod = running_pod_of("pv-1-tm-0");
    let pod = PodFacts { uid: format!("uid-{name}"), name, generation: Generation(generation), role, ..pod };
    ended(pod, NOW, None)
}

fn doomed(plan: &Plan) -> Vec<&str> {
    plan.delete.iter().map(|pod| pod.name.as_str()).collect()
}

/// Generation 9 of a job, with what is left of those before.
fn late(left: impl IntoIterator<Item = PodFacts>) -> Facts {
    let mut facts = running();
    facts.pods.iter_mut().for_each(|pod| pod.generation = Generation(9));
    facts.memory.generation = Generation(9);
    facts.report.as_mut().expect("it runs").generation = Generation(9);
    facts.service_generation = Some(9);
    facts.pods.extend(left);
    facts
}

#[test]
fn of_the_pods_of_earlier_generations_the_last_three_stay_for_their_logs() {
    let few = late([earlier(7, JM), earlier(8, TM(0)), earlier(8, JM)]);
    assert!(!plan(&few).acts(), "{:?}", plan(&few).delete);
    let many = late((5..=8).flat_map(|generation| [earlier(generation, JM), earlier(generation, TM(0))]));
    let step = plan(&many);
    let expected =
        ["pv-5-TaskManager(0)", "pv-5-JobManager", "pv-6-TaskManager(0)", "pv-6-JobManager", "pv-7-TaskManager(0)"];
    assert_eq!(doomed(&step), expected);
    assert!(step.delete.iter().all(|pod| pod.uid == format!("uid-{}", pod.name)), "exactly these");
    let rests = after(&many, &step);
    assert!(!plan(&rests).acts());

    // One that is being deleted already is left to who does it; one of a generation that is newer than what was read, too.
    let mut going = late((1..=8).map(|generation| earlier(generation, JM)));
    going.pods.iter_mut().for_each(|pod| pod.terminating = pod.ended.is_some());
    going.pods.push(earlier(10, JM));
    assert_eq!(doomed(&plan(&going)), [""; 0]);
}

#[test]
fn a_pod_whose_sidecars_run_on_goes_after_a_minute() {
    let lingering = PodFacts { lingers: true, ..earlier(8, JM) };
    let mut facts = late([lingering]);
    let waits = plan(&facts);
    assert_eq!((doomed(&waits), waits.wake_at.is_some_and(|at| at <= seconds(60))), (vec![], true));
    facts.now = seconds(60);
    assert_eq!(doomed(&plan(&facts)), ["pv-8-JobManager"]);
}

#[test]
fn a_task_manager_whose_sidecars_run_on_is_replaced_and_removed_later() {
    let mut facts = running();
    let lost = facts.pods.iter_mut().find(|pod| pod.role == TM(1)).expect("is there");
    *lost = PodFacts { lingers: true, ..ended(lost.clone(), NOW, None) };
    let step = plan(&facts);
    assert_eq!((created(&step), doomed(&step)), (vec![(1, TM(2))], vec![]));
    let mut later = after(&facts, &step);
    later.now = seconds(60);
    assert_eq!(doomed(&plan(&later)), ["pv-1-tm-1"]);

    // One that ended as it was told to counts as there, and stays.
    let mut facts = running();
    let done = facts.pods.iter_mut().find(|pod| pod.role == TM(1)).expect("is there");
    *done = PodFacts { lingers: true, ..ended(done.clone(), NOW, Some(ExitKind::Finished)) };
    facts.now = seconds(600);
    let step = plan(&facts);
    assert_eq!((created(&step), doomed(&step)), (vec![], vec![]));
}

#[test]
fn surplus_task_managers_go_also_when_none_is_missing() {
    let mut facts = running();
    for index in 10..15 {
        let pod = PodFacts { generation: Generation(1), role: TM(index), ..earlier(1, TM(index)) };
        facts.pods.push(ended(pod, seconds(u64::from(index)), None));
    }
    facts.now = seconds(100);
    assert_eq!(doomed(&plan(&facts)), ["pv-1-TaskManager(10)", "pv-1-TaskManager(11)"]);
}

/// The JobManager's exit record says how the job ended until status says it.
#[test]
fn a_job_manager_that_lingers_goes_only_once_the_end_is_in_status() {
    let mut facts = running();
    exit(&mut facts, ExitKind::Finished);
    job_manager(&mut facts).lingers = true;
    facts.now = seconds(60);
    let end = plan(&facts);
    assert_eq!(end.view.state, Some(StreamJobState::Finished));
    assert!(!doomed(&end).contains(&"pv-1-jm"), "{:?}", doomed(&end));
    let rests = after(&facts, &end);
    let rest = plan(&rests);
    assert_eq!((doomed(&rest), rest.view.state), (vec!["pv-1-jm"], Some(StreamJobState::Finished)));
    let gone = after(&rests, &rest);
    let step = plan(&gone);
    assert_eq!((step.acts(), step.view.state), (false, Some(StreamJobState::Finished)));
    let deleted = Facts { deleting: true, ..gone };
    assert_eq!(plan(&deleted).finalizer, Some(Finalizer::Remove), "no closer is needed");
}

/// A closer that is lost again and again leaves no more than a few pods.
#[test]
fn ended_closers_do_not_pile_up() {
    let mut facts = Facts { deleting: true, ..running() };
    kill(&mut facts);
    for tries in 0..6 {
        let step = plan(&facts);
        assert_eq!(step.create.len(), 1, "try {tries}: {step:?}");
        facts = after(&facts, &step);
        facts.now = facts.now.plus(TimeSpan::from_secs(5));
        kill(&mut facts);
    }
    let left = facts.pods.iter().filter(|pod| pod.ended.is_some()).count();
    assert!(left <= 5, "{left} of 7 are left");
}
