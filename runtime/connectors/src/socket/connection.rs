//! A connection and the thread that reads it: bytes to lines, handed over through a queue of bounded length, so that a
//! server that sends too fast is held back by TCP. Knows nothing of formats.

use super::SocketOptions;
use sluice_engine::error::TaskError;
use sluice_engine::operator::Waker;
use std::io::{ErrorKind, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

/// How long the server may take to answer.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a thread that waits for bytes looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(100);
/// Chunks that wait to be taken.
const QUEUE: usize = 64;
/// Bytes read at once.
const CHUNK: usize = 64 * 1024;
/// The longest line.
const LINE: usize = 1024 * 1024;

/// What came.
pub(super) enum Received {
    /// Whole lines, without what ends them.
    Lines(Vec<Vec<u8>>),
    /// The server has closed the connection.
    End,
    /// It broke, or what comes is no lines.
    Broken(TaskError),
}

/// A connection; dropping it ends its thread.
pub(super) struct Connection {
    received: Receiver<Received>,
    unwanted: Arc<AtomicBool>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.unwanted.store(true, Ordering::Relaxed);
    }
}

impl Connection {
    /// Connects and starts the thread; `waker` is called whenever something has come.
    pub(super) fn open(options: &SocketOptions, waker: Waker) -> Result<Self, TaskError> {
        let SocketOptions { table, hostname, port, .. } = options;
        let failed = |error: &dyn std::fmt::Display| {
            TaskError::External(format!(
                "table '{table}': no connection to {hostname}:{port}: {error}. A server must listen there before the job starts, \
                 such as `nc -lk {port}`"
            ))
        };
        let addresses: Vec<_> = (hostname.as_str(), *port).to_socket_addrs().map_err(|error| failed(&error))?.collect();
        let mut last = None;
        let stream = addresses.iter().find_map(|address| match TcpStream::connect_timeout(address, CONNECT) {
            Ok(stream) => Some(stream),
            Err(error) => {
                last = Some(error);
                None
            }
        });
        let Some(stream) = stream else {
            return Err(last.map_or_else(|| failed(&"the name has no address"), |error| failed(&error)));
        };
        stream.set_read_timeout(Some(LOOK)).map_err(|error| failed(&error))?;
        let (sender, received) = sync_channel(QUEUE);
        let unwanted = Arc::new(AtomicBool::new(false));
        let lines = Lines {
            place: format!("table '{table}', {hostname}:{port}"),
            delimiter: options.delimiter,
            sender,
            waker,
            unwanted: Arc::clone(&unwanted),
        };
        let thread = std::thread::Builder::new().name("socket".to_owned());
        thread.spawn(move || lines.read(stream)).map_err(|error| failed(&error))?;
        Ok(Self { received, unwanted })
    }

    /// What has come next; nothing when it is on its way.
    pub(super) fn next(&self) -> Option<Received> {
        match self.received.try_recv() {
            Ok(received) => Some(received),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Received::End),
        }
    }
}

/// The thread.
struct Lines {
    place: String,
    delimiter: u8,
    sender: SyncSender<Received>,
    waker: Waker,
    unwanted: Arc<AtomicBool>,
}

impl Lines {
    fn read(self, mut stream: TcpStream) {
        let (mut chunk, mut rest) = (vec![0; CHUNK], Vec::new());
        loop {
            let count = match stream.read(&mut chunk) {
                Ok(0) => return self.end(rest),
                Ok(count) => count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.unwanted.load(Ordering::Relaxed) {
                        return;
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return self.fail(TaskError::External(format!("{}: {error}", self.place))),
            };
            rest.extend_from_slice(&chunk[..count]);
            let lines = split(&mut rest, self.delimiter);
            if rest.len() > LINE {
                let message = format!(
                    "{}: a line is longer than {LINE} bytes; is 'byte-delimiter' = '{}' what ends lines?",
                    self.place, self.delimiter
                );
                return self.fail(TaskError::BadData(message));
            }
            if !lines.is_empty() && !self.send(Received::Lines(lines)) {
                return;
            }
        }
    }

    /// What stands after the last delimiter is a line too.
    fn end(&self, rest: Vec<u8>) {
        if rest.is_empty() || self.send(Received::Lines(vec![rest])) {
            self.send(Received::End);
        }
    }

    fn fail(&self, error: TaskError) {
        self.send(Received::Broken(error));
    }

    /// Waits for room; whether anybody still wants it.
    fn send(&self, received: Received) -> bool {
        let mut received = received;
        loop {
            match self.sender.try_send(received) {
                Ok(()) => {
                    (self.waker)();
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(back)) => received = back,
            }
            if self.unwanted.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Takes whole lines off the front. A carriage return before the end of a line belongs to it no more than that end.
fn split(bytes: &mut Vec<u8>, delimiter: u8) -> Vec<Vec<u8>> {
    let Some(last) = bytes.iter().rposition(|byte| *byte == delimiter) else { return Vec::new() };
    let rest = bytes.split_off(last + 1);
    bytes.pop();
    let whole = std::mem::replace(bytes, rest);
    let trim = |line: &[u8]| match line {
        [line @ .., b'\r'] if delimiter == b'\n' => line.to_vec(),
        line => line.to_vec(),
    };
    whole.split(|byte| *byte == delimiter).map(trim).collect()
}
