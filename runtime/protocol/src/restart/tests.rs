//! The policies against hand-computed sequences of failures.
use super::*;
use crate::options::NoRestart;

const SECOND: u64 = 1000;

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * SECOND)
}

fn attempt(generation: u64, attempt: u32) -> CountedFailure {
    CountedFailure::Attempt(Generation(generation), Attempt(attempt))
}

fn fixed(attempts: u32) -> RestartPolicy {
    RestartPolicy::FixedDelay { attempts, delay: TimeSpan::from_secs(1) }
}

#[test]
fn without_a_spec_the_default_depends_on_checkpointing() {
    assert_eq!(RestartPolicy::from_spec(None, false), Ok(RestartPolicy::None));
    let expected = RestartPolicy::FixedDelay { attempts: 2_147_483_647, delay: TimeSpan::from_secs(1) };
    assert_eq!(RestartPolicy::from_spec(None, true), Ok(expected));
}

#[test]
fn two_strategies_are_refused_by_name() {
    let spec = RestartStrategySpec {
        fixed_delay: Some(FixedDelay::default()),
        none: Some(NoRestart {}),
        ..RestartStrategySpec::default()
    };
    let error = RestartPolicy::from_spec(Some(&spec), true).unwrap_err().to_string();
    assert!(error.contains("fixedDelay and none"), "{error}");
    assert_eq!(
        RestartPolicy::from_spec(Some(&RestartStrategySpec::default()), true),
        Err(InvalidRestartStrategy::Empty)
    );
}

#[test]
fn a_rate_beyond_the_window_is_refused() {
    let rate = FailureRate { max_failures: 64, ..FailureRate::default() };
    let spec = RestartStrategySpec { failure_rate: Some(rate), ..RestartStrategySpec::default() };
    assert_eq!(RestartPolicy::from_spec(Some(&spec), true), Err(InvalidRestartStrategy::WindowTooLarge { found: 64 }));
}

#[test]
fn fixed_delay_gives_up_after_its_attempts() {
    let policy = fixed(2);
    let mut counts = FailureCounts::new(1);
    let restart = |time: u64| RestartDecision::RestartAt(at(time));
    assert_eq!(policy.on_failure(&mut counts, attempt(1, 1), None, at(10)), restart(11));
    assert_eq!(policy.on_failure(&mut counts, attempt(1, 2), None, at(20)), restart(21));
    let RestartDecision::GiveUp { reason } = policy.on_failure(&mut counts, attempt(1, 3), None, at(30)) else {
        panic!("the third failure must end it");
    };
    assert!(reason.contains("allows 2 restarts") && reason.contains("failure 3"), "{reason}");
}

#[test]
fn a_failure_before_the_planned_restart_joins_it() {
    let policy = fixed(1);
    let mut counts = FailureCounts::new(1);
    let first = policy.on_failure(&mut counts, attempt(1, 1), None, at(10));
    assert_eq!(first, RestartDecision::RestartAt(at(11)));
    let joined =
        policy.on_failure(&mut counts, CountedFailure::JobManager(Generation(1)), Some(at(11)), Timestamp(10_500));
    assert_eq!(joined, first);
    assert_eq!(counts.total(), 1);
}

#[test]
fn failure_rate_slides() {
    let policy = RestartPolicy::FailureRate {
        max_failures: 1,
        interval: TimeSpan::from_secs(60),
        delay: TimeSpan::from_secs(1),
    };
    let mut counts = FailureCounts::new(1);
    assert_eq!(policy.on_failure(&mut counts, attempt(1, 1), None, at(0)), RestartDecision::RestartAt(at(1)));
    assert_eq!(policy.on_failure(&mut counts, attempt(1, 2), None, at(60)), RestartDecision::RestartAt(at(61)));
    let third = policy.on_failure(&mut counts, attempt(2, 1), None, at(119));
    assert!(matches!(third, RestartDecision::GiveUp { .. }), "{third:?}");
}

#[test]
fn the_same_loss_counts_once() {
    let mut counts = FailureCounts::new(1);
    counts.record(CountedFailure::JobManager(Generation(3)), at(1));
    counts.record(CountedFailure::JobManager(Generation(3)), at(9));
    counts.record(attempt(3, 1), at(2));
    counts.record(attempt(3, 1), at(3));
    assert_eq!(counts.total(), 2);
}

#[test]
fn ledger_and_status_merge_by_maximum() {
    let mut ledger = FailureCounts::new(1);
    ledger.record(attempt(1, 1), at(1));
    ledger.record(attempt(1, 2), at(2));
    let mut status = FailureCounts::new(1);
    status.record(attempt(1, 1), at(1));
    status.record(CountedFailure::JobManager(Generation(1)), at(3));
    let mut one_way = ledger.clone();
    one_way.merge(&status);
    let mut other_way = status.clone();
    other_way.merge(&ledger);
    assert_eq!(one_way, other_way);
    assert_eq!(one_way.total(), 3);
    let again = one_way.clone();
    one_way.merge(&again);
    assert_eq!(one_way, again);
}

#[test]
fn a_new_revision_starts_a_new_count() {
    let mut old = FailureCounts::new(1);
    old.record(attempt(1, 1), at(1));
    let mut new = FailureCounts::new(2);
    new.merge(&old);
    assert_eq!(new.total(), 0);
    old.merge(&new);
    assert_eq!(old, new);
}

#[test]
fn many_generations_are_summed_without_losing_one() {
    let mut all = FailureCounts::new(1);
    for generation in 1..=100 {
        all.record(attempt(generation, 1), at(generation));
        all.record(CountedFailure::JobManager(Generation(generation)), at(generation));
    }
    assert_eq!(all.total(), 200);
    assert!(all.generations.len() <= GENERATIONS_LIMIT && all.window.len() <= WINDOW_LIMIT);
    let mut partial = FailureCounts::new(1);
    for generation in 90..=101 {
        partial.record(CountedFailure::JobManager(Generation(generation)), at(generation));
    }
    partial.merge(&all);
    assert_eq!(partial.total(), 201);
}

fn failures() -> impl proptest::strategy::Strategy<Value = Vec<(u64, Option<u32>, u64)>> {
    proptest::collection::vec((1_u64..8, proptest::option::of(1_u32..5), 0_u64..1000), 0..30)
}

fn counted(failures: &[(u64, Option<u32>, u64)]) -> FailureCounts {
    let mut counts = FailureCounts::new(1);
    for (generation, number, time) in failures {
        let failure = match number {
            Some(number) => attempt(*generation, *number),
            None => CountedFailure::JobManager(Generation(*generation)),
        };
        counts.record(failure, at(*time));
    }
    counts
}

proptest::proptest! {
    /// However counts come together, the outcome is the same, never less than either, and merging again changes
    /// nothing.
    #[test]
    fn merging_is_a_maximum(a in failures(), b in failures()) {
        let (a, b) = (counted(&a), counted(&b));
        let (mut one, mut other) = (a.clone(), b.clone());
        one.merge(&b);
        other.merge(&a);
        proptest::prop_assert_eq!(&one, &other);
        proptest::prop_assert!(one.total() >= a.total().max(b.total()) && one.total() <= a.total() + b.total());
        let merged = one.clone();
        one.merge(&a);
        proptest::prop_assert_eq!(one, merged);
    }
}

fn exponential(text: &str) -> Result<RestartPolicy, InvalidRestartStrategy> {
    let spec: ExponentialDelay = serde_json::from_str(text).unwrap();
    let spec = RestartStrategySpec { exponential_delay: Some(spec), ..RestartStrategySpec::default() };
    RestartPolicy::from_spec(Some(&spec), true)
}

/// Fails after each of these seconds, and gives the delays in milliseconds.
fn delays(policy: RestartPolicy, times: &[u64]) -> Vec<Option<u64>> {
    let mut counts = FailureCounts::new(1);
    let fail = |(number, time): (usize, &u64)| {
        let failure = attempt(1, u32::try_from(number).unwrap() + 1);
        match policy.on_failure(&mut counts, failure, None, at(*time)) {
            RestartDecision::RestartAt(due) => Some(due.since(at(*time)).0),
            RestartDecision::GiveUp { .. } => None,
        }
    };
    times.iter().enumerate().map(fail).collect()
}

#[test]
fn exponential_delays_grow_to_their_limit_and_begin_anew_after_a_quiet_time() {
    let defaults = exponential("{}").unwrap();
    assert_eq!(
        defaults,
        RestartPolicy::ExponentialDelay {
            initial: TimeSpan::from_secs(1),
            max: TimeSpan::from_secs(60),
            multiplier: Decimal(1500),
            jitter: Decimal(100),
            reset_after: TimeSpan::from_secs(3600),
            attempts: None,
        }
    );
    let policy = exponential(r#"{"jitter": 0, "maxBackoff": "4s", "resetAfter": "100s"}"#).unwrap();
    let some = |delays: &[u64]| delays.iter().copied().map(Some).collect::<Vec<_>>();
    assert_eq!(delays(policy, &[10, 20, 30, 40, 50]), some(&[1000, 1500, 2250, 3375, 4000]));
    assert_eq!(delays(policy, &[10, 20, 119, 219]), some(&[1000, 1500, 2250, 1000]), "219 s is 100 s after 119 s");
    let endless: Vec<_> = (0..200).collect();
    assert_eq!(delays(policy, &endless).last(), Some(&Some(4000)), "also when the window is full");
}

#[test]
fn exponential_attempts_count_from_the_last_quiet_time() {
    let policy = exponential(r#"{"jitter": 0, "multiplier": 2, "attempts": 2, "resetAfter": "100s"}"#).unwrap();
    assert_eq!(delays(policy, &[10, 20, 30]), [Some(1000), Some(2000), None]);
    assert_eq!(delays(policy, &[10, 20, 130]), [Some(1000), Some(2000), Some(1000)]);
}

#[test]
fn jitter_varies_the_delay_within_its_share_and_alike_for_all_who_decide() {
    let policy =
        exponential(r#"{"initialBackoff": "10s", "jitter": 0.5, "multiplier": 1, "resetAfter": "1h"}"#).unwrap();
    let times: Vec<_> = (0..60).map(|n| n * 7).collect();
    let first = delays(policy, &times);
    assert_eq!(first, delays(policy, &times));
    let found: std::collections::BTreeSet<_> = first.into_iter().flatten().collect();
    assert!(found.iter().all(|delay| (5000..=15_000).contains(delay)), "{found:?}");
    assert!(found.len() > 30 && found.first() < Some(&7000) && found.last() > Some(&13_000), "{found:?}");
}

#[test]
fn exponential_delays_that_contradict_each_other_are_refused_by_name() {
    for (text, words) in [
        (r#"{"maxBackoff": "100ms"}"#, "maxBackoff is 100ms, shorter than initialBackoff, which is 1s"),
        (r#"{"multiplier": 0.9}"#, "multiplier is 0.9, must be at least 1"),
        (r#"{"jitter": 1.1}"#, "jitter is 1.1, must be from 0 to 1"),
        (r#"{"resetAfter": "30s"}"#, "resetAfter is 30s, must be longer than maxBackoff, which is 1m"),
        (r#"{"attempts": 64}"#, "attempts is 64; at most 63"),
    ] {
        let error = exponential(text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = serde_json::from_str::<ExponentialDelay>(r#"{"jitter": -1}"#).unwrap_err().to_string();
    assert!(error.contains("-1 is out of range"), "{error}");
}
