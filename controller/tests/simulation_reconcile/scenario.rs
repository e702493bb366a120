//! What a seed decides: how bad the world is, what people do, and what breaks, when.

use serde_json::{Value, json};

/// The StreamJobs.
pub(crate) const JOBS: [&str; 2] = ["pv", "clicks"];

/// What a program does; it stands in its SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// It runs.
    Good,
    /// Its tasks fail again and again.
    Crashing,
    /// It has no meaning.
    Refused,
}

impl Program {
    pub(crate) fn read(sql: &str) -> Self {
        match sql.split(' ').next() {
            Some("crashing") => Self::Crashing,
            Some("refused") => Self::Refused,
            _ => Self::Good,
        }
    }
}

/// Something that happens.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// People: a StreamJob is created, where there is none.
    Create(Value),
    /// People: its spec is changed so.
    Edit(Value),
    /// People: it is deleted.
    Delete,
    /// People: a savepoint is asked for.
    Savepoint,
    /// People: its spec is to go back to a savepoint of its own, under this nonce.
    Restore(u32),
    /// People: its spec is to start from a savepoint of the other job, under this nonce.
    RestoreForeign(u32),
    /// People: the namespace is deleted, with all that is in it.
    EndNamespace,
    /// People: a pod is deleted, some of them in a hurry.
    DeletePod,
    /// A replica dies and starts again after so long.
    KillReplica(usize, u64),
    /// All replicas die as soon as one has sent a delete, which is on its way for so long.
    DieDeleting(u64),
    /// A replica is asked to end, and starts again.
    StopReplica(usize),
    /// What a replica sends and hears takes very long.
    TangleReplica(usize, u64),
    /// The task of the replica that leads that would renew its lease is not run for so long, and what its passes send is
    /// slow: a process that was stopped and goes on.
    FreezeLeader(u64),
    /// All watches break.
    BreakWatches,
    /// The API server forgets what changed.
    Compact,
    /// The API server does not answer.
    ApiAway(u64),
    /// Watches are behind.
    Lag(u64),
    /// The object store does not answer.
    StoreAway(u64),
    /// Some process dies.
    KillPod,
    /// The node of some pod is silent.
    NodeLost(u64),
    /// A task fails.
    FailTask,
    /// There may be so many pods for so long.
    Quota(usize, u64),
}

/// All that a seed decides.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// Replicas of the controller; one makes no election.
    pub(crate) replicas: usize,
    /// Calls of the API server in a hundred that go wrong.
    pub(crate) api_failures: u32,
    /// Operations of the store in a hundred that go wrong.
    pub(crate) store_failures: u32,
    /// Commands in a hundred that are lost.
    pub(crate) lost_commands: u32,
    /// What happens, in order of time; people's acts to the StreamJob of this name.
    pub(crate) acts: Vec<(u64, &'static str, Act)>,
}

impl Scenario {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let replicas = if rng.u32(..3) == 0 { 2 } else { 1 };
        let is_calm = rng.u32(..8) == 0;
        let mut percent = |most: u32| if is_calm { 0 } else { rng.u32(..=most) };
        let (api_failures, store_failures, lost_commands) = (percent(12), percent(4), percent(15));
        let mut acts = Vec::new();
        let mut at = people(&mut rng, JOBS[0], &mut acts);
        if rng.u32(..3) == 0 {
            at = at.max(people(&mut rng, JOBS[1], &mut acts));
        }
        if rng.u32(..6) == 0 {
            at = at.max(to_and_fro(&mut rng, &mut acts));
        }
        at = at.max(others(seed, &mut acts));
        let faults = if is_calm { 0 } else { rng.u64(0..8) };
        for _ in 0..faults {
            let act = fault(&mut rng, replicas);
            acts.push((rng.u64(1000..at + 20_000), JOBS[0], act));
        }
        acts.extend(freeze(seed, replicas, &acts));
        acts.sort_by_key(|(at, ..)| *at);
        Self { seed, replicas, api_failures, store_failures, lost_commands, acts }
    }
}

/// One world of four moves its storage, with `SLUICE_SIM_MOVES=3` to and fro; one of four, where there are two jobs, starts one from what the other has
/// written; one of twelve ends with its namespace. When the last of it is.
fn others(seed: u64, acts: &mut Vec<(u64, &'static str, Act)>) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x307e);
    let mut at = acts.iter().map(|(at, ..)| *at).max().unwrap_or_default();
    if rng.u32(..4) == 0 {
        let mut moved = rng.u64(8000..40_000);
        let most = crate::number("SLUICE_SIM_MOVES").unwrap_or(1);
        for number in 0..rng.usize(1..=3).min(usize::try_from(most).unwrap_or(usize::MAX)) {
            let root = [crate::store::OTHER_ROOT, crate::store::ROOT][number % 2];
            acts.push((moved, JOBS[0], Act::Edit(json!({"checkpointing": {"storage": root}}))));
            moved += rng.u64(500..60_000);
        }
        at = at.max(moved);
    }
    let has_two = acts.iter().any(|(_, job, _)| *job == JOBS[1]);
    if has_two && rng.u32(..4) == 0 {
        let taken = rng.u64(15_000..50_000);
        acts.push((taken, JOBS[1], Act::Savepoint));
        let restored = taken + rng.u64(3000..30_000);
        acts.push((restored, JOBS[0], Act::RestoreForeign(rng.u32(1_000_000..2_000_000))));
        at = at.max(restored);
    }
    if rng.u32(..12) == 0 {
        at += rng.u64(..20_000);
        acts.push((at, JOBS[0], Act::EndNamespace));
    }
    at
}

/// In one of three worlds with an election the leader freezes while it is busy with what somebody has just done.
fn freeze(seed: u64, replicas: usize, acts: &[(u64, &'static str, Act)]) -> Option<(u64, &'static str, Act)> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xf4ee);
    let (at, job, _) = acts.get(rng.usize(..acts.len()))?;
    let freezes = replicas > 1 && rng.u32(..3) == 0;
    freezes.then(|| (at + rng.u64(..100), *job, Act::FreezeLeader(rng.u64(20_000..60_000))))
}

/// What people do with one StreamJob; when the last of it is.
fn people(rng: &mut fastrand::Rng, job: &'static str, acts: &mut Vec<(u64, &'static str, Act)>) -> u64 {
    acts.push((rng.u64(..2000), job, Act::Create(spec(rng))));
    let mut at = 3000;
    for _ in 0..rng.u64(1..7) {
        let longest = [3000, 20_000, 60_000][rng.usize(..3)];
        at += rng.u64(100..longest);
        let act = person(rng);
        let recreates = matches!(act, Act::Delete) && rng.bool();
        acts.push((at, job, act));
        if recreates {
            acts.push((at + rng.u64(10..40_000), job, Act::Create(spec(rng))));
        }
    }
    at
}

/// People go from one program to another and back: what is made again has the name that it had, and a delete that was sent
/// before must not hit it.
fn to_and_fro(rng: &mut fastrand::Rng, acts: &mut Vec<(u64, &'static str, Act)>) -> u64 {
    let mut at = 12_000;
    for number in 0..6 {
        at += rng.u64(9000..22_000);
        acts.push((at, JOBS[0], Act::Edit(json!({"program": {"sql": format!("good {}", number % 2)}}))));
        if rng.bool() {
            acts.push((at + rng.u64(0..1000), JOBS[0], Act::DieDeleting(rng.u64(5000..40_000))));
        }
    }
    at
}

fn spec(rng: &mut fastrand::Rng) -> Value {
    let mut spec = json!({
        "program": {"sql": "good 0"},
        "parallelism": rng.u32(1..4),
        "taskManager": {"slots": rng.u32(1..3)},
        "checkpointing": {"interval": "5s", "timeout": "20s", "storage": crate::store::ROOT,
            "savepointStorage": crate::store::SAVEPOINTS},
        "stability": {"duration": "5s", "deadline": "90s"},
        "deletion": {"timeout": "40s", "savepoint": rng.u32(..4) == 0},
        "upgrade": upgrade(rng),
    });
    if rng.u32(..12) == 0 {
        spec["program"]["sql"] = json!("refused 0");
    }
    if rng.u32(..4) == 0 {
        let interval = format!("{}s", rng.u32(15..40));
        spec["savepoints"] = json!({"interval": interval, "historyLimit": {"count": rng.u32(1..4)}});
    }
    spec
}

fn upgrade(rng: &mut fastrand::Rng) -> Value {
    let mode = ["Savepoint", "Savepoint", "LastState", "LastState", "Stateless"][rng.usize(..5)];
    let fallback = if rng.bool() { "LastState" } else { "None" };
    json!({"mode": mode, "fallback": fallback, "savepointTimeout": "20s"})
}

fn person(rng: &mut fastrand::Rng) -> Act {
    let number = rng.u32(1..1_000_000);
    match rng.u32(..22) {
        20 => Act::Restore(number),
        0..=4 => Act::Edit(json!({"program": {"sql": format!("good {number}")}})),
        5 => Act::Edit(json!({"program": {"sql": format!("crashing {number}")}})),
        6 => Act::Edit(json!({"program": {"sql": format!("refused {number}")}})),
        7..=8 => Act::Edit(json!({"parallelism": rng.u32(1..4)})),
        9 => Act::Edit(json!({"checkpointing": {"interval": format!("{}s", rng.u32(4..9))}})),
        10..=11 => Act::Edit(json!({"state": "Suspended"})),
        12..=13 => Act::Edit(json!({"state": "Running", "program": {"sql": "good 7"}})),
        14 => Act::Edit(json!({"restartNonce": number})),
        15 => Act::Edit(json!({"upgrade": upgrade(rng)})),
        16 => Act::Savepoint,
        17 => Act::DeletePod,
        _ => Act::Delete,
    }
}

fn fault(rng: &mut fastrand::Rng, replicas: usize) -> Act {
    let replica = rng.usize(..replicas);
    match rng.u32(..18) {
        0..=3 => Act::KillReplica(replica, rng.u64(50..20_000)),
        4 => Act::StopReplica(replica),
        5..=6 => Act::TangleReplica(replica, rng.u64(3000..40_000)),
        7 => Act::BreakWatches,
        8 => Act::Compact,
        9 => Act::ApiAway(rng.u64(500..30_000)),
        10 => Act::Lag(rng.u64(1000..30_000)),
        11 => Act::StoreAway(rng.u64(500..30_000)),
        12..=14 => Act::KillPod,
        15 => Act::NodeLost(rng.u64(1000..40_000)),
        16 => Act::FailTask,
        _ => Act::Quota(rng.usize(..4), rng.u64(1000..60_000)),
    }
}
