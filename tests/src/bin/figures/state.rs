//! Keyed state of 1 GB (10 M keys) in one subtask of a GROUP BY: how long a checkpoint stops it, what a checkpoint of
//! 1 % changed keys costs compared with a whole one, how fast it is restored from an S3 server, and the memory of
//! backend Disk at 4 GB.
//!
//! The operator is driven directly, on one thread; snapshots are written on another while rows go on, as in a job.
//! What needs a process of its own runs this program again, told by [`CHILD`] what to be.

use anyhow::{Context as _, Result, bail};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use sluice_engine::aggregate::{AggregateCall, AggregateKind, GroupAggregateFactory, GroupAggregateSpec};
use sluice_engine::batch::Batch;
use sluice_engine::operator::{
    Collector, KeyedPiece, Operator, OperatorContext, OperatorFactory as _, RestoredKeyed, RestoredState,
    SnapshotWriter, WriteOptions,
};
use sluice_engine::state::StateBackend;
use sluice_engine::state::disk::DiskSpace;
use sluice_protocol::state::{KeyedStateHandle, StateData};
use sluice_protocol::{CheckpointId, KeyGroupRange, SubtaskIndex};
use sluice_storage::{ObjectStore, S3Credentials, S3Settings, S3Store};
use sluice_test_s3::{Options, TestS3};
use sluice_tests::harness::measure::{median, scratch};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// What this process is to be instead of the program that prints figures.
const CHILD: &str = "SLUICE_FIGURES_CHILD";

const KEYS: u64 = 10_000_000;
const DISK_KEYS: u64 = 40_000_000;
const BATCH: u64 = 4096;
const BUCKET: &str = "figures";

/// Bytes of a key with its accumulators: a text of 56 bytes (and the 5 that encode it), and the words of COUNT and two
/// SUMs. 10 M of them are 1.01 GB.
const ROW_BYTES: u64 = 56 + 5 + 5 * 8;

struct Nowhere;

impl Collector for Nowhere {
    fn collect(&mut self, _: Batch) {}
}

fn schema() -> SchemaRef {
    let number = |name: &str| Field::new(name, DataType::Int64, false);
    Arc::new(Schema::new(vec![Field::new("k", DataType::Utf8, false), number("a"), number("b")]))
}

/// Rows of these keys.
fn batch(keys: impl Iterator<Item = u64>) -> Result<Batch> {
    let keys: Vec<u64> = keys.collect();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(keys.iter().map(|key| *key as i64)));
    let text = |key: &u64| format!("a session of one user on one page, numbered {key:013}");
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(keys.iter().map(text)));
    Ok(Batch::inserts(RecordBatch::try_new(schema(), vec![texts, Arc::clone(&numbers), numbers])?))
}

fn open(backend: StateBackend, state: RestoredState) -> Result<Box<dyn Operator>> {
    let factory = GroupAggregateFactory::new(GroupAggregateSpec {
        input: schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![
            AggregateCall::new(AggregateKind::Count, None, "n"),
            AggregateCall::new(AggregateKind::Sum, Some(1), "a"),
            AggregateCall::new(AggregateKind::Sum, Some(2), "b"),
        ],
        emit_update_before: false,
        changelog: false,
        ttl: None,
    })?;
    let mut operator = factory.create()?;
    let context = OperatorContext {
        uid: "figures".into(),
        subtask: SubtaskIndex(0),
        parallelism: 1,
        key_groups: KeyGroupRange { start: 0, end: 128 },
        max_parallelism: 128,
        state_backend: backend,
    };
    operator.open(&context, state)?;
    Ok(operator)
}

fn fill(operator: &mut dyn Operator, keys: u64) -> Result<()> {
    for start in (0..keys).step_by(BATCH as usize) {
        operator.process(batch(start..keys.min(start + BATCH))?, &mut Nowhere)?;
    }
    Ok(())
}

/// One written checkpoint.
struct Written {
    pieces: Vec<KeyedPiece>,
    seconds: f64,
}

impl Written {
    fn bytes(&self) -> f64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as f64).sum()
    }
}

/// Writes a frozen state as a checkpoint on this base, which is then complete.
fn write(frozen: &dyn SnapshotWriter, base: Option<CheckpointId>) -> Result<Written> {
    let started = Instant::now();
    let mut pieces = Vec::new();
    let options = WriteOptions { base, whole_below: 0 };
    let state = frozen.write(&options, &mut |piece| {
        pieces.push(piece);
        Ok(())
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let handle = |piece: &KeyedPiece| KeyedStateHandle {
        name: piece.name.clone(),
        key_groups: piece.key_groups,
        rows: piece.rows,
        kind: piece.kind,
        data: StateData::file(String::new(), &piece.bytes),
    };
    state.layers[0].recorder.stored(pieces.iter().map(handle).collect());
    Ok(Written { pieces, seconds })
}

/// Changes 1 % of the keys, spread at random.
fn change(operator: &mut dyn Operator, random: &mut fastrand::Rng) -> Result<()> {
    for _ in 0..KEYS / 100 / BATCH + 1 {
        operator.process(batch((0..BATCH).map(|_| random.u64(..KEYS)))?, &mut Nowhere)?;
    }
    Ok(())
}

pub(crate) fn print_checkpoints() -> Result<()> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut operator = open(StateBackend::Hash, RestoredState::default())?;
    fill(operator.as_mut(), KEYS)?;
    let (mut pauses, mut bytes, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let mut whole: Option<Written> = None;
    for id in 1..=40_u64 {
        let started = Instant::now();
        let frozen = operator.snapshot(CheckpointId(id))?.context("a GROUP BY has state")?;
        pauses.push(started.elapsed().as_secs_f64() * 1e3);
        let base = (id > 1).then(|| CheckpointId(id - 1));
        let writing = std::thread::spawn(move || write(frozen.as_ref(), base));
        change(operator.as_mut(), &mut random)?;
        let written = writing.join().map_err(|_| anyhow::anyhow!("writing the snapshot failed"))??;
        match &whole {
            None => whole = Some(written),
            Some(whole) => {
                bytes.push(written.bytes() / whole.bytes());
                times.push(written.seconds / whole.seconds);
            }
        }
    }
    let whole = whole.context("there was a first checkpoint")?;
    println!(
        "# a whole checkpoint: {:.0} MB in {:.2} s; pauses in ms: {pauses:.1?}",
        whole.bytes() / 1e6,
        whole.seconds
    );
    let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
    println!("# {} deltas of 1 %, merges among them: {mean:.4} of a whole one on average", bytes.len());
    pauses.sort_by(f64::total_cmp);
    println!("checkpoint_pause_p99_ms {:.2} ms", pauses[pauses.len() * 99 / 100]);
    println!("incremental_bytes_ratio {:.4} ratio", median(bytes));
    println!("incremental_time_ratio {:.4} ratio", median(times));
    Ok(())
}

/// Starts this program again as something else, and waits for its first line.
fn child(role: &str, figure: &str) -> Result<(Child, String)> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(figure)
        .env(CHILD, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("it is piped")?);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            bail!("the process that is '{role}' said nothing");
        }
        if let Some(said) = line.strip_prefix("child ") {
            return Ok((child, said.trim().to_owned()));
        }
    }
}

fn is_child(role: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|wanted| wanted == role)
}

/// User and system seconds of this process.
fn own_cpu() -> Result<f64> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

const RESTORE: &str = "restore_mb_per_core";

/// The server is a process of its own, whose work does not count.
pub(crate) fn print_restore() -> Result<()> {
    if is_child("s3") {
        return serve_s3();
    }
    let (mut server, endpoint) = child("s3", RESTORE)?;
    let result = restore(&endpoint);
    server.kill()?;
    server.wait()?;
    println!("{RESTORE} {:.0} MB/s", result?);
    Ok(())
}

fn serve_s3() -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let server = TestS3::start(Options { buckets: vec![BUCKET.to_owned()], ..Options::default() }).await?;
        println!("child {}", server.endpoint());
        // Until it is killed.
        std::future::pending::<()>().await;
        Ok(())
    })
}

fn restore(endpoint: &str) -> Result<f64> {
    let options = Options::default();
    let credentials = S3Credentials {
        access_key_id: options.access_key_id,
        secret_access_key: options.secret_access_key,
        session_token: None,
    };
    let store = S3Store::new(S3Settings {
        bucket: BUCKET.to_owned(),
        endpoint: Some(endpoint.to_owned()),
        path_style: true,
        credentials: Some(credentials),
        ..S3Settings::default()
    })?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut operator = open(StateBackend::Hash, RestoredState::default())?;
    fill(operator.as_mut(), KEYS)?;
    let frozen = operator.snapshot(CheckpointId(1))?.context("a GROUP BY has state")?;
    let mut files = Vec::new();
    for (number, piece) in write(frozen.as_ref(), None)?.pieces.into_iter().enumerate() {
        let key = format!("state-{number}");
        files.push((key.clone(), piece.name, piece.kind, piece.bytes.len()));
        runtime.block_on(store.put_if_absent(&key, piece.bytes.into()))?;
    }
    drop((operator, frozen));
    let stored: usize = files.iter().map(|(.., size)| size).sum();
    let (cpu, started) = (own_cpu()?, Instant::now());
    let mut keyed = Vec::new();
    for (key, name, kind, _) in files {
        let bytes = runtime.block_on(store.get(&key))?.context("it was stored")?;
        keyed.push(RestoredKeyed { name, kind, divided_into: None, bytes: bytes.into() });
    }
    let operator = open(StateBackend::Hash, RestoredState { restored: true, keyed, ..RestoredState::default() })?;
    let (cpu, wall) = (own_cpu()? - cpu, started.elapsed().as_secs_f64());
    drop(operator);
    println!(
        "# {} MB in {stored} bytes of files restored in {wall:.2} s, {cpu:.2} s of them computing",
        KEYS * ROW_BYTES / 1_000_000
    );
    Ok((KEYS * ROW_BYTES) as f64 / 1e6 / cpu)
}

const DISK: &str = "disk_state_rss_mb";

/// In a process of its own, which has no other memory to show.
pub(crate) fn print_disk() -> Result<()> {
    if is_child("disk") {
        return fill_disk();
    }
    let (mut child, said) = child("disk", DISK)?;
    child.wait()?;
    println!("{DISK} {said}");
    Ok(())
}

fn fill_disk() -> Result<()> {
    let directory = scratch()?;
    let space = DiskSpace::create(&directory, "figures", 256 << 20)?;
    let started = Instant::now();
    let mut operator = open(StateBackend::Disk(Arc::clone(&space)), RestoredState::default())?;
    fill(operator.as_mut(), DISK_KEYS)?;
    let filled = started.elapsed().as_secs_f64();
    let frozen = operator.snapshot(CheckpointId(1))?.context("a GROUP BY has state")?;
    let mut stored = 0;
    frozen.write(&WriteOptions::default(), &mut |piece| {
        stored += piece.bytes.len();
        Ok(())
    })?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("a peak of memory")?;
    let kilobytes: f64 = peak.trim().trim_end_matches("kB").trim().parse()?;
    println!(
        "child {:.0} MB (at most; {} MB of state filled in {filled:.0} s, written as {} MB)",
        kilobytes / 1024.0,
        DISK_KEYS * ROW_BYTES / 1_000_000,
        stored / 1_000_000
    );
    drop((frozen, operator, space));
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
