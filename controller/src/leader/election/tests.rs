//! Tests of the election's decisions.

use super::*;

fn lease(version: u64, holder: &str) -> Option<LeaseView> {
    let holder = Some(holder.to_owned()).filter(|holder| !holder.is_empty());
    Some(LeaseView { version: version.to_string(), holder, duration: LEASE })
}

fn candidate(name: &str) -> Election {
    Election::new(name.to_owned())
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_lease_that_never_was_is_made_and_a_released_one_is_taken_at_once() {
    assert_eq!(candidate("a").decide(s(0), None), Decision::Create);
    assert_eq!(candidate("a").decide(s(0), lease(1, "")), Decision::Take);
}

#[test]
fn the_holder_renews_and_another_process_of_the_same_pod_does_not() {
    assert_eq!(candidate("pod_1").decide(s(0), lease(1, "pod_1")), Decision::Renew);
    assert_eq!(candidate("pod_2").decide(s(0), lease(1, "pod_1")), Decision::Wait(LEASE));
}

#[test]
fn a_lease_is_taken_when_it_was_seen_unchanged_for_its_duration() {
    let mut standby = candidate("b");
    assert_eq!(standby.decide(s(100), lease(1, "a")), Decision::Wait(LEASE), "however old it looks");
    assert_eq!(standby.decide(s(109), lease(1, "a")), Decision::Wait(s(1)));
    assert_eq!(standby.decide(s(109), lease(2, "a")), Decision::Wait(LEASE), "it was renewed");
    assert_eq!(standby.decide(s(118), lease(2, "a")), Decision::Wait(s(1)));
    assert_eq!(standby.decide(s(119), lease(2, "a")), Decision::Take);
}

#[test]
fn a_lease_deleted_under_its_holder_is_waited_for_like_one_that_is_not_renewed() {
    let mut standby = candidate("b");
    assert_eq!(standby.decide(s(0), lease(1, "a")), Decision::Wait(LEASE));
    assert_eq!(standby.decide(s(3), None), Decision::Wait(LEASE));
    assert_eq!(standby.decide(s(12), None), Decision::Wait(s(1)));
    assert_eq!(standby.decide(s(13), None), Decision::Create);
}

#[test]
fn the_holder_makes_a_deleted_lease_anew_at_once() {
    let mut leader = candidate("a");
    assert_eq!(leader.decide(s(0), lease(1, "a")), Decision::Renew);
    assert_eq!(leader.decide(s(2), None), Decision::Create);
}

/// One candidate in a world where clocks differ: how it starts, and at which rate its clock runs.
struct Process {
    election: Election,
    offset: Duration,
    rate: f64,
    writes_until: Option<Duration>,
    dead_from: Duration,
}

impl Process {
    fn new(name: &str, offset: u64, rate: f64, dead_from: u64) -> Self {
        Self { election: candidate(name), offset: s(offset), rate, writes_until: None, dead_from: s(dead_from) }
    }

    fn clock(&self, now: Duration) -> Duration {
        self.offset + now.mul_f64(self.rate)
    }
}

/// Runs candidates over one Lease in steps of a tenth of a second; says who took it when, and fails when one may take
/// it while another still writes.
fn elect(mut processes: Vec<Process>, until: Duration) -> Vec<(Duration, String)> {
    let (mut lease, mut taken) = (None::<LeaseView>, Vec::new());
    let mut version = 0;
    for tick in 0.. {
        let now = Duration::from_millis(tick * 100);
        if now > until {
            break;
        }
        for index in 0..processes.len() {
            let process = &mut processes[index];
            let clock = process.clock(now);
            let is_due = tick % if process.writes_until.is_some() { 20 } else { 10 } == index as u64;
            if now >= process.dead_from || !is_due {
                continue;
            }
            let decision = process.election.decide(clock, lease.clone());
            let name = process.election.identity().to_owned();
            if matches!(decision, Decision::Wait(_)) {
                continue;
            }
            process.writes_until = Some(clock + WRITES_END);
            if decision != Decision::Renew {
                taken.push((now, name.clone()));
                for other in processes.iter().filter(|other| other.election.identity() != name) {
                    let ended = other.writes_until.is_none_or(|end| other.clock(now) >= end);
                    assert!(ended, "{name} leads at {now:?} while {} writes", other.election.identity());
                }
            }
            version += 1;
            lease = self::lease(version, &name);
        }
    }
    taken
}

#[test]
fn two_never_write_at_once_and_a_dead_leader_is_followed_within_fifteen_seconds_whatever_the_clocks_say() {
    for (offset, rate) in [(0, 1.0), (100_000, 1.0), (5, 1.2), (5, 0.85)] {
        let processes = vec![Process::new("a", 50, 1.0, 31), Process::new("b", offset, rate, 1_000)];
        let taken = elect(processes, s(100));
        let [(_, first), (at, second)] = &taken[..] else { panic!("{taken:?}") };
        assert_eq!((first.as_str(), second.as_str()), ("a", "b"));
        assert!(*at < s(31 + 15), "offset {offset} rate {rate}: after {at:?}");
    }
}
