//! What mTLS costs between two TaskManagers: the same rows over the same connection, with and without, by CPU time of both
//! sides.

use anyhow::Result;
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use sluice_engine::batch::Batch;
use sluice_engine::channel::{ChannelId, DEFAULT_WINDOW, Frame, channel, sending_channel};
use sluice_node::data_plane::{DataPlane, Incoming, Outgoing};
use sluice_node::edge::now;
use sluice_protocol::{Attempt, Generation, Run, SubtaskIndex, TaskManagerId, TimeSpan};
use sluice_rpc::tls::authority::Authority;
use sluice_rpc::tls::{Role, Tls};
use sluice_tests::harness::measure::{median, own_cpu};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROWS: i64 = 4096;
const BATCHES: usize = 6_000;
const AT_MOST: Duration = Duration::from_secs(120);

pub(crate) fn print() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let authority = Authority::new("job", now(), TimeSpan::from_secs(3600))?;
    let certificate = || -> Result<Arc<Tls>> {
        let issued = authority.issue(Role::TaskManager, now(), TimeSpan::from_secs(3600))?;
        Ok(Arc::new(Tls::from_credentials(&issued)?))
    };
    let (mut plain, mut secured) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        plain.push(runtime.block_on(exchange([None, None]))?);
        secured.push(runtime.block_on(exchange([Some(certificate()?), Some(certificate()?)]))?);
    }
    let middle = |all: &[(f64, f64)]| median(all.iter().map(|(cpu, _)| *cpu).collect());
    println!("# CPU s, MB/s by the clock: plain {plain:.2?}, TLS {secured:.2?}");
    println!("data_plane_tls_ratio {:.3}", middle(&plain) / middle(&secured));
    Ok(())
}

/// CPU seconds, and megabytes per second by the clock.
async fn exchange([a, b]: [Option<Arc<Tls>>; 2]) -> Result<(f64, f64)> {
    let run = Run { generation: Generation(1), attempt: Attempt(1) };
    let id = ChannelId { edge: 0, from: SubtaskIndex(0), to: SubtaskIndex(0) };
    let bind = |name: &str, tls| {
        let (name, runtime) = (TaskManagerId::from(name), tokio::runtime::Handle::current());
        async move { DataPlane::bind("127.0.0.1:0", "job", name, DEFAULT_WINDOW, runtime, tls).await }
    };
    let (a, b) = (bind("a", a).await?, bind("b", b).await?);
    let rows = rows();
    let (output, queue) = sending_channel(id, DEFAULT_WINDOW);
    let (received, input) = channel(id, DEFAULT_WINDOW);
    let incoming = Incoming { peer: TaskManagerId::from("a"), queue: received, schema: rows.schema() };
    let outgoing = Outgoing { peer: "b".into(), address: b.address().to_string(), queues: vec![queue] };
    let ignore: sluice_node::data_plane::OnBroken = Arc::new(|_| {});
    let _receiver = b.open_run(run, vec![incoming], Vec::new(), Arc::clone(&ignore));
    let _sender = a.open_run(run, Vec::new(), vec![outgoing], ignore);
    let bytes = rows.get_array_memory_size() * BATCHES;
    let (cpu, began) = (own_cpu(), Instant::now());
    let (mut sent, mut taken) = (0, 0);
    while taken < BATCHES {
        while sent < BATCHES && output.has_room() {
            output.push(Frame::Batch(Batch::inserts(rows.clone())));
            sent += 1;
        }
        let mut moved = false;
        while input.pop().is_some() {
            taken += 1;
            moved = true;
        }
        if !moved {
            anyhow::ensure!(began.elapsed() < AT_MOST, "after {AT_MOST:?} {taken} of {BATCHES} batches have come");
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
    Ok((own_cpu() - cpu, bytes as f64 / 1e6 / began.elapsed().as_secs_f64()))
}

/// A number, a text and another number per row: about 130 kB a batch.
fn rows() -> RecordBatch {
    let fields = [("n", DataType::Int64), ("text", DataType::Utf8), ("m", DataType::Int64)];
    let fields: Vec<_> = fields.map(|(name, kind)| Field::new(name, kind, false)).to_vec();
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("page-{row:08}"))));
    RecordBatch::try_new(schema, vec![Arc::clone(&numbers), texts, numbers]).expect("columns fit the schema")
}
