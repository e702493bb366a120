//! Two data planes over loopback: order, credits, refusals, breaks.

use super::{Broken, DataPlane, Incoming, OnBroken, OpenRun, Outgoing};
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use sluice_engine::batch::Batch;
use sluice_engine::channel::{ChannelId, Frame, InputChannel, NumberedFrame, OutputChannel, channel, sending_channel};
use sluice_protocol::message::{Alignment, Barrier};
use sluice_protocol::{Attempt, CheckpointId, Generation, Run, SubtaskIndex, TaskManagerId, TimeSpan, Timestamp};
use sluice_rpc::tls::authority::Authority;
use sluice_rpc::tls::{Role, Tls};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

const WINDOW: usize = 16 * 1024;

fn run(attempt: u32) -> Run {
    Run { generation: Generation(1), attempt: Attempt(attempt) }
}

fn id(to: u32) -> ChannelId {
    ChannelId { edge: 0, from: SubtaskIndex(0), to: SubtaskIndex(to) }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]))
}

fn batch(first: i64, rows: i64) -> Frame {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    Frame::Batch(Batch::inserts(RecordBatch::try_new(schema(), vec![numbers]).unwrap()))
}

fn barrier(checkpoint: u64) -> Frame {
    Frame::Barrier(Barrier::aligned(CheckpointId(checkpoint), Timestamp(1), None))
}

async fn plane(name: &str, job: &str) -> DataPlane {
    plane_with(name, job, None).await
}

async fn plane_with(name: &str, job: &str, tls: Option<Arc<Tls>>) -> DataPlane {
    let runtime = tokio::runtime::Handle::current();
    DataPlane::bind("127.0.0.1:0", job, TaskManagerId::from(name), WINDOW, runtime, tls).await.unwrap()
}

fn certificate(authority: &Authority, role: Role) -> Option<Arc<Tls>> {
    let issued = authority.issue(role, crate::edge::now(), TimeSpan::from_secs(600)).unwrap();
    Some(Arc::new(Tls::from_credentials(&issued).unwrap()))
}

fn authority() -> Authority {
    Authority::new("job", crate::edge::now(), TimeSpan::from_secs(600)).unwrap()
}

fn watched() -> (OnBroken, mpsc::UnboundedReceiver<Broken>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Arc::new(move |broken| sender.send(broken).unwrap_or(())), receiver)
}

/// The queues of `channels` from `a` to `b`, as the tasks on either side hold them.
struct Pair {
    outputs: Vec<OutputChannel>,
    inputs: Vec<InputChannel>,
    sender: OpenRun,
    receiver: OpenRun,
    sender_broken: mpsc::UnboundedReceiver<Broken>,
    receiver_broken: mpsc::UnboundedReceiver<Broken>,
}

fn open_sender(
    a: &DataPlane,
    b: &DataPlane,
    of: Run,
    channels: u32,
) -> (Vec<OutputChannel>, OpenRun, mpsc::UnboundedReceiver<Broken>) {
    let (outputs, queues) = (0..channels).map(|to| sending_channel(id(to), WINDOW)).unzip();
    let (on_broken, broken) = watched();
    let peer = TaskManagerId::from("b");
    let outgoing = Outgoing { peer, address: b.address().to_string(), queues };
    (outputs, a.open_run(of, Vec::new(), vec![outgoing], on_broken), broken)
}

fn open_receiver(
    b: &DataPlane,
    of: Run,
    channels: u32,
) -> (Vec<InputChannel>, OpenRun, mpsc::UnboundedReceiver<Broken>) {
    let (queues, inputs): (Vec<OutputChannel>, Vec<InputChannel>) =
        (0..channels).map(|to| channel(id(to), WINDOW)).unzip();
    let incoming = queues.into_iter().map(|queue| Incoming { peer: TaskManagerId::from("a"), queue, schema: schema() });
    let (on_broken, broken) = watched();
    (inputs, b.open_run(of, incoming.collect(), Vec::new(), on_broken), broken)
}

fn pair(a: &DataPlane, b: &DataPlane, channels: u32) -> Pair {
    let (outputs, sender, sender_broken) = open_sender(a, b, run(1), channels);
    let (inputs, receiver, receiver_broken) = open_receiver(b, run(1), channels);
    Pair { outputs, inputs, sender, receiver, sender_broken, receiver_broken }
}

async fn pop(input: &InputChannel) -> Frame {
    wait_for(input, InputChannel::pop).await
}

/// Takes a frame as soon as there is one, for at most 5 s.
async fn wait_for(input: &InputChannel, take: impl Fn(&InputChannel) -> Option<NumberedFrame>) -> Frame {
    for _ in 0..500 {
        if let Some(numbered) = take(input) {
            return numbered.frame;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing came on {}", input.id());
}

fn first_number(frame: &Frame) -> i64 {
    let Frame::Batch(batch) = frame else { panic!("no batch: {frame:?}") };
    batch.rows.column(0).as_any().downcast_ref::<Int64Array>().unwrap().value(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_arrive_in_order_with_barriers_in_their_place() {
    let authority = authority();
    for tls in [false, true] {
        let tls = || certificate(&authority, Role::TaskManager).filter(|_| tls);
        let (a, b) = (plane_with("a", "job", tls()).await, plane_with("b", "job", tls()).await);
        exchange(&a, &b).await;
    }
}

/// Who is no TaskManager of this job gets no channel, whatever it says about itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_task_managers_of_the_job_open_data_channels() {
    let (own, other) = (authority(), authority());
    let b = plane_with("b", "job", certificate(&own, Role::TaskManager)).await;
    let strangers = [
        (certificate(&other, Role::TaskManager), "of another job"),
        (certificate(&own, Role::JobManager), "the connection ended"),
        (certificate(&own, Role::Client), "the connection ended"),
        (None, "does it ask for a certificate?"),
    ];
    for (stranger, reason) in strangers {
        let a = plane_with("a", "job", stranger).await;
        let mut pair = pair(&a, &b, 1);
        pair.outputs[0].push(barrier(1));
        let broken = tokio::time::timeout(Duration::from_secs(5), pair.sender_broken.recv()).await.unwrap().unwrap();
        assert!(broken.message.contains(reason), "{}", broken.message);
        assert!(pair.inputs[0].pop().is_none(), "{reason}");
    }
}

async fn exchange(a: &DataPlane, b: &DataPlane) {
    let pair = pair(a, b, 1);
    // Ten times the window: it only goes through when consumption gives credit back.
    let frames = 10 * WINDOW as i64 / 800;
    let output = &pair.outputs[0];
    for number in 0..frames {
        output.push(batch(number * 100, 100));
        if number % 10 == 9 {
            output.push(barrier(number as u64));
        }
    }
    output.push(Frame::EndOfInput);
    for number in 0..frames {
        assert_eq!(first_number(&pop(&pair.inputs[0]).await), number * 100);
        if number % 10 == 9 {
            let frame = pop(&pair.inputs[0]).await;
            assert!(matches!(frame, Frame::Barrier(barrier) if barrier.checkpoint.0 == number as u64));
        }
    }
    assert!(matches!(pop(&pair.inputs[0]).await, Frame::EndOfInput));
}

/// B1, B2: without a row being read, and what had not left is the sender's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_that_overtakes_arrives_though_nobody_reads() {
    let authority = authority();
    let tls = || certificate(&authority, Role::TaskManager);
    let (a, b) = (plane_with("a", "job", tls()).await, plane_with("b", "job", tls()).await);
    let pair = pair(&a, &b, 2);
    let (output, input) = (&pair.outputs[0], &pair.inputs[0]);
    let frames = 10 * WINDOW as i64 / 800;
    (0..frames).for_each(|number| output.push(batch(number * 100, 100)));
    let mut queued = 0;
    while input.queued_bytes() > queued || queued == 0 {
        queued = input.queued_bytes();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let arrived = input.queued_frames(u64::MAX).len();
    assert!(arrived < frames as usize / 2, "the window holds {arrived} batches of {frames}");
    let unaligned = Alignment::Unaligned { after: TimeSpan(0) };
    let barrier = Barrier { alignment: unaligned, ..Barrier::aligned(CheckpointId(1), Timestamp(1), None) };
    let kept = output.push_ahead(barrier);
    assert_eq!((kept.first as usize, kept.frames.len()), (arrived, frames as usize - arrived));
    let word = wait_for(input, InputChannel::pop_overtaking).await;
    assert!(matches!(word, Frame::Overtaking { first, .. } if first == arrived as u64), "{word:?}");
    for number in 0..frames {
        assert_eq!(first_number(&pop(input).await), number * 100, "rows keep their order");
    }
    assert!(matches!(pop(input).await, Frame::Barrier(_)), "the barrier stands at its place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_consumer_blocks_only_its_channel() {
    let (a, b) = (plane("a", "job").await, plane("b", "job").await);
    let pair = pair(&a, &b, 2);
    let frames = 10 * WINDOW as i64 / 800;
    for number in 0..frames {
        pair.outputs[0].push(batch(number, 100));
    }
    // Nobody takes from channel 0; all of channel 1 still comes, and its barrier.
    for number in 0..frames {
        pair.outputs[1].push(batch(number, 100));
    }
    pair.outputs[1].push(barrier(1));
    for number in 0..frames {
        assert_eq!(first_number(&pop(&pair.inputs[1]).await), number);
    }
    assert!(matches!(pop(&pair.inputs[1]).await, Frame::Barrier(_)));
    // What came on channel 0 is bounded by the window and the one batch that may overdraw it.
    let most = (WINDOW + 2048) as u64;
    assert!(pair.inputs[0].queued_bytes() <= most, "{} bytes", pair.inputs[0].queued_bytes());
    assert!(pair.inputs[0].queued_bytes() > WINDOW as u64 / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_run_is_refused_and_a_newer_one_waited_for() {
    let (a, b) = (plane("a", "job").await, plane("b", "job").await);
    let (_inputs, receiver, mut receiver_broken) = open_receiver(&b, run(2), 1);
    let (_outputs, _sender, mut broken) = open_sender(&a, &b, run(1), 1);
    let message = broken.recv().await.unwrap().message;
    assert!(message.contains("run 1.1 is over; run 1.2 is deployed here") && message.contains("'b'"), "{message}");

    let (outputs, _sender, mut broken) = open_sender(&a, &b, run(3), 1);
    outputs[0].push(barrier(7));
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(receiver);
    let (inputs, _receiver, _) = open_receiver(&b, run(3), 1);
    assert!(matches!(pop(&inputs[0]).await, Frame::Barrier(_)));
    assert!(broken.try_recv().is_err() && receiver_broken.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_job_is_refused() {
    let (a, b) = (plane("a", "job").await, plane("b", "another").await);
    let Pair { mut sender_broken, outputs: _outputs, sender: _sender, receiver: _receiver, .. } = pair(&a, &b, 1);
    let broken = sender_broken.recv().await.unwrap();
    assert!(broken.message.contains("of job another"), "{}", broken.message);
    assert_eq!(broken.channels, vec![id(0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_is_told_to_both_sides_and_a_closed_run_to_none() {
    let (a, b) = (plane("a", "job").await, plane("b", "job").await);
    let mut pair = pair(&a, &b, 1);
    pair.outputs[0].push(barrier(1));
    let _ = pop(&pair.inputs[0]).await;
    drop(pair.sender);
    let broken = pair.receiver_broken.recv().await.unwrap();
    assert_eq!(broken.peer, TaskManagerId::from("a"));
    assert!(pair.sender_broken.try_recv().is_err());
    drop(pair.receiver);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_not_there_is_named() {
    let a = plane("a", "job").await;
    let b = plane("b", "job").await;
    let address = b.address();
    drop(b);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (_output, queue) = channel(id(0), WINDOW);
    let (on_broken, mut broken) = watched();
    let outgoing = Outgoing { peer: TaskManagerId::from("b"), address: address.to_string(), queues: vec![queue] };
    let _open = a.open_run(run(1), Vec::new(), vec![outgoing], on_broken);
    let broken = broken.recv().await.unwrap();
    assert!(broken.message.contains("'b'") && broken.message.contains(&address.to_string()), "{}", broken.message);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_who_says_nothing_gets_no_more_than_its_share() {
    let plane = plane("b", "job").await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(plane.address()).await.unwrap());
    }
    let has_ended = |stream: &&tokio::net::TcpStream| match stream.try_read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    let refused = || silent.iter().filter(has_ended).count();
    for _ in 0..250 {
        if refused() >= 100 - 64 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(refused(), 100 - 64);
}
