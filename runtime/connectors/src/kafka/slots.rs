//! The producers of a writer's transactional ids, made, renewed and ended on a thread of their own (S2, S3).
//!
//! librdkafka's calls for transactions block, some for a second; the task's thread makes none of them. Callers rely on: a
//! slot that is handed out has begun a transaction and sent nothing, and an id is initialised or begins anew only after its
//! handle is settled.

use super::client::{Lookup, OPEN_TIMEOUT};
use super::cluster::Trouble;
use super::options::SinkOptions;
use super::sink::{Deliveries, KafkaProducer, Writing, build_producer};
use super::transactions::{Described, Handle, State, Transactions};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::Producer as _;
use sluice_engine::error::TaskError;
use sluice_engine::operator::Waker;
use sluice_engine::sink::{SinkContext, TransactionId};
use sluice_protocol::{SubtaskIndex, TimeSpan};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// A producer that could not be made is tried again after so long.
const PAUSE: Duration = Duration::from_millis(500);

/// Rows that wait so long for a producer, which cannot be made, fail the task: it begins again by the restart strategy and says
/// why. Counted from the first row that waits: what was in the way before, and has gone since, is no reason.
const PATIENCE: Duration = Duration::from_secs(60);

/// The brokers' default for the largest timeout, where they do not tell theirs.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(900);

/// How long the end of a transaction that is committed already may take at the producer.
const RENEWAL: Duration = Duration::from_secs(10);

/// One transactional id and its producer.
pub(super) struct Slot {
    number: u64,
    /// The transactional id.
    pub(super) id: String,
    /// What is written to it.
    pub(super) writing: Writing,
}

/// What the coordinator says of a transaction to which all was delivered.
pub(super) struct Ready {
    id: String,
    found: Option<Described>,
    cluster: Option<String>,
}

impl Ready {
    /// The transaction's name for ever, and how long after its start it is gone unless it is committed.
    pub(super) fn to_handle(&self, options: &SinkOptions) -> Result<(Handle, TimeSpan), TaskError> {
        let found = self.found.as_ref().filter(|found| found.state == State::Ongoing && found.started_at >= 0);
        let Some(found) = found else {
            return Err(TaskError::External(format!(
                "table '{}': rows were written to topic '{}' in a transaction of '{}' which the Kafka brokers do not hold \
                 open ({}). The job restarts from its last checkpoint and writes them again",
                options.table,
                options.topic,
                self.id,
                self.found
                    .as_ref()
                    .map_or_else(|| "the id is unknown".to_owned(), |found| format!("{:?}", found.state)),
            )));
        };
        let handle = Handle {
            cluster: self.cluster.clone(),
            transactional_id: self.id.clone(),
            producer_id: found.producer_id,
            epoch: found.epoch,
            started_at: found.started_at,
            partitions: found.partitions.clone(),
        };
        Ok((handle, found.timeout.into()))
    }
}

enum Order {
    Prepare(u64),
    Renew(Box<Slot>),
    End(Vec<Slot>),
}

enum Answer {
    Made(Box<Slot>),
    Renewed(Box<Slot>),
    /// Neither yet: it is tried again.
    Delayed(TaskError),
    /// Neither, and it is not tried again.
    Failed {
        is_renewed: bool,
        error: TaskError,
    },
}

/// Makes slots, in the order they are asked for.
struct Maker {
    options: Arc<SinkOptions>,
    /// After how long brokers abort a transaction, in milliseconds.
    timeout: String,
    /// Names the transactions, but for the slot.
    name: TransactionId,
    waker: Waker,
    /// The writer is gone.
    is_over: Arc<AtomicBool>,
}

/// What became of a try, for who waits.
type Tell<'a> = &'a dyn Fn(TaskError);

impl Maker {
    fn id(&self, number: u64) -> String {
        let name = TransactionId { slot: number, ..self.name.clone() };
        format!("{}{name}", self.options.transactional_id_prefix)
    }

    fn build(&self, number: u64) -> Result<(String, KafkaProducer, Arc<Deliveries>), TaskError> {
        let id = self.id(number);
        let deliveries = Arc::new(Deliveries::new(Arc::clone(&self.waker)));
        let producer = build_producer(
            &self.options,
            Arc::clone(&deliveries),
            &[("transactional.id", &id), ("transaction.timeout.ms", &self.timeout)],
        )?;
        Ok((id, producer, deliveries))
    }

    fn begin(
        &self,
        number: u64,
        (id, producer, deliveries): (String, KafkaProducer, Arc<Deliveries>),
    ) -> Result<Slot, TaskError> {
        let begun = producer.init_transactions(OPEN_TIMEOUT).and_then(|()| producer.begin_transaction());
        match begun {
            Ok(()) => Ok(Slot { number, id, writing: Writing::new(producer, deliveries) }),
            Err(error) => Err(self.refusal(&id, &error)),
        }
    }

    /// Why there is no transaction. A timeout that is not allowed is the user's to mend in the program; anything else may pass,
    /// rights too, once they are granted.
    fn refusal(&self, id: &str, error: &KafkaError) -> TaskError {
        let code = error.rdkafka_error_code();
        let SinkOptions { table, topic, transactional_id_prefix: prefix, properties, .. } = &*self.options;
        let hint = match code {
            Some(Code::TransactionalIdAuthorizationFailed) => {
                format!("Grant the principal WRITE and DESCRIBE on the transactional ids that begin with '{prefix}'")
            }
            Some(Code::TopicAuthorizationFailed) => {
                format!("Grant the principal WRITE and DESCRIBE on topic '{topic}'")
            }
            Some(Code::ClusterAuthorizationFailed) => "Grant the principal IDEMPOTENT_WRITE on the cluster".to_owned(),
            Some(Code::InvalidTransactionTimeout) => {
                "'properties.transaction.timeout.ms' must not be above the brokers' transaction.max.timeout.ms"
                    .to_owned()
            }
            _ => "Look whether the brokers run, and their log".to_owned(),
        };
        let message = format!(
            "table '{table}': the Kafka brokers at {} do not take a transaction with transactional id '{id}': {error}. {hint}",
            properties.bootstrap_servers(),
        );
        match code {
            Some(Code::InvalidTransactionTimeout) => TaskError::BadProgram(message),
            _ => TaskError::Unavailable(message),
        }
    }

    /// Tried again until it is made, unless it is refused for good; `None`: the writer is gone. Each failure is told.
    fn make(&self, number: u64, tell: Tell<'_>) -> Option<Result<Slot, TaskError>> {
        while !self.is_over.load(Ordering::Acquire) {
            match self.build(number).and_then(|parts| self.begin(number, parts)) {
                Ok(slot) => return Some(Ok(slot)),
                Err(error @ TaskError::BadProgram(_)) => return Some(Err(error)),
                Err(error) => {
                    tracing::warn!(%error, "tried again");
                    tell(error);
                }
            }
            std::thread::sleep(PAUSE);
        }
        None
    }

    /// The transaction is committed, of which librdkafka has not heard: it commits again, which the coordinator takes for
    /// done. Where that is not so (the transaction was lost, and given up) the id is initialised anew.
    fn renew(&self, slot: Slot, tell: Tell<'_>) -> Option<Result<Slot, TaskError>> {
        let producer = &slot.writing.producer;
        match producer.commit_transaction(RENEWAL).and_then(|()| producer.begin_transaction()) {
            Ok(()) => Some(Ok(Slot { writing: slot.writing.anew(), ..slot })),
            Err(error) => {
                tracing::info!(%error, id = slot.id, "a producer is made anew");
                let number = slot.number;
                drop(slot);
                self.make(number, tell)
            }
        }
    }
}

/// After how long brokers are to abort a transaction (S4): as the user says, else as long as they allow.
fn timeout_of(options: &SinkOptions) -> Result<Duration, TaskError> {
    // The committer tells of it.
    let largest = Transactions::new(&options.properties).largest_timeout();
    let largest = largest.inspect_err(|trouble| tracing::debug!(%trouble, "taken for Kafka's default")).ok();
    match (options.transaction_timeout, largest) {
        (Some(wanted), Some(largest)) if wanted > largest => Err(TaskError::BadProgram(format!(
            "table '{}': the option 'properties.transaction.timeout.ms' is {}, but the Kafka brokers allow at most {} \
             (transaction.max.timeout.ms): set it to that or less, or leave it away for the largest",
            options.table,
            wanted.as_millis(),
            largest.as_millis()
        ))),
        (Some(wanted), _) => Ok(wanted),
        // More than librdkafka takes is of no use.
        (None, Some(largest)) => Ok(largest.min(Duration::from_millis(i32::MAX.unsigned_abs().into()))),
        (None, None) => Ok(DEFAULT_TIMEOUT),
    }
}

/// The task's side.
pub(super) struct Keeper {
    orders: Sender<Order>,
    questions: Sender<(u64, String)>,
    is_over: Arc<AtomicBool>,
    answers: Receiver<Answer>,
    descriptions: Receiver<(u64, Result<Ready, TaskError>)>,
    /// The number of the last question.
    asked: u64,
    ready: VecDeque<Slot>,
    /// Why the last one was not made, while none has been made since.
    failure: Option<TaskError>,
    /// Since when rows wait for one.
    waits_since: Option<Instant>,
    next: u64,
    is_making: bool,
    /// Slots that are being renewed.
    renewing: u32,
}

impl Keeper {
    /// Makes the first slot, which says whether all is as it must be, and starts the thread for the others.
    pub(super) fn open(options: Arc<SinkOptions>, context: &SinkContext) -> Result<(Self, Slot), TaskError> {
        let SinkContext { operator, identity, waker, .. } = context;
        let SubtaskIndex(subtask) = operator.subtask;
        let (job, sink, run) = (identity.job.clone(), operator.uid.clone(), identity.run);
        let name = TransactionId { job, sink, run, subtask: SubtaskIndex(subtask), slot: 0 };
        let is_over = Arc::new(AtomicBool::new(false));
        let timeout = timeout_of(&options)?.as_millis().to_string();
        let maker = Maker { options, timeout, name, waker: Arc::clone(waker), is_over: Arc::clone(&is_over) };
        let parts = maker.build(0)?;
        let lookup = Lookup {
            client: parts.1.client(),
            log: &parts.1.context().log,
            table: &maker.options.table,
            bootstrap_servers: maker.options.properties.bootstrap_servers(),
            deadline: Instant::now() + OPEN_TIMEOUT,
        };
        lookup.partitions(&maker.options.topic, || ())?;
        let first = maker.begin(0, parts)?;
        let ((orders, taken), (questions, asked)) = (channel(), channel());
        let ((given, answers), (described, descriptions)) = (channel(), channel());
        let (options, waker, over) = (Arc::clone(&maker.options), Arc::clone(waker), Arc::clone(&is_over));
        start(format!("kafka-slots-{subtask}"), move || make_slots(&maker, &taken, &given))?;
        start(format!("kafka-ask-{subtask}"), move || describe_all(&options, &waker, &over, &asked, &described))?;
        let keeper = Self::new(orders, questions, answers, descriptions, is_over);
        Ok((keeper, first))
    }

    fn new(
        orders: Sender<Order>,
        questions: Sender<(u64, String)>,
        answers: Receiver<Answer>,
        descriptions: Receiver<(u64, Result<Ready, TaskError>)>,
        is_over: Arc<AtomicBool>,
    ) -> Self {
        Self {
            orders,
            questions,
            is_over,
            answers,
            descriptions,
            asked: 0,
            ready: VecDeque::new(),
            failure: None,
            waits_since: None,
            next: 1,
            is_making: false,
            renewing: 0,
        }
    }

    /// Has another slot made, unless one is on its way, new or renewed.
    pub(super) fn prepare_one(&mut self) {
        if !self.is_making && self.renewing == 0 {
            self.is_making = true;
            self.order(Order::Prepare(self.next));
            self.next += 1;
        }
    }

    /// Its handle is settled: it is to begin anew.
    pub(super) fn renew(&mut self, slot: Slot) {
        self.renewing += 1;
        self.order(Order::Renew(Box::new(slot)));
    }

    /// Asks for the state of a transaction; what was asked before is not answered any more.
    pub(super) fn describe(&mut self, id: String) {
        self.asked += 1;
        // As below.
        let _ = self.questions.send((self.asked, id));
    }

    /// Lets go of producers; nothing else is to be done.
    pub(super) fn end(&self, slots: Vec<Slot>) {
        self.is_over.store(true, Ordering::Release);
        self.order(Order::End(slots));
    }

    fn order(&self, order: Order) {
        // A thread that has ended is told when an answer is looked for.
        let _ = self.orders.send(order);
    }

    /// A slot that has begun, if there is one.
    pub(super) fn take_ready(&mut self) -> Result<Option<Slot>, TaskError> {
        self.receive()?;
        let ready = self.ready.pop_front();
        if ready.is_some() {
            self.waits_since = None;
        }
        Ok(ready)
    }

    /// Rows wait for a slot at this time. Fails with what keeps one from being made: at once where it is not tried again, else
    /// when they have waited for [`PATIENCE`].
    pub(super) fn wait(&mut self, now: Instant) -> Result<(), TaskError> {
        let waits_since = *self.waits_since.get_or_insert(now);
        let is_late = now.saturating_duration_since(waits_since) >= PATIENCE;
        match &self.failure {
            Some(error @ TaskError::BadProgram(_)) => Err(error.clone()),
            Some(error) if is_late => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// The answer to the last [`Self::describe`], when it is there.
    pub(super) fn take_described(&mut self) -> Result<Option<Ready>, TaskError> {
        loop {
            match self.descriptions.try_recv() {
                Ok((number, described)) if number == self.asked => return described.map(Some),
                Ok(_) => {}
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return Err(ended()),
            }
        }
    }

    fn receive(&mut self) -> Result<(), TaskError> {
        loop {
            match self.answers.try_recv() {
                Ok(Answer::Made(slot)) => {
                    self.is_making = false;
                    self.failure = None;
                    self.ready.push_back(*slot);
                }
                Ok(Answer::Renewed(slot)) => {
                    self.renewing = self.renewing.saturating_sub(1);
                    self.failure = None;
                    self.ready.push_back(*slot);
                }
                Ok(Answer::Delayed(error)) => self.failure = Some(error),
                Ok(Answer::Failed { is_renewed, error }) => {
                    if is_renewed {
                        self.renewing = self.renewing.saturating_sub(1);
                    } else {
                        self.is_making = false;
                    }
                    self.failure = Some(error);
                }
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(ended()),
            }
        }
    }
}

fn start(name: String, run: impl FnOnce() + Send + 'static) -> Result<(), TaskError> {
    let started = std::thread::Builder::new().name(name).spawn(run);
    started.map(drop).map_err(|error| TaskError::External(format!("no thread for a Kafka sink: {error}")))
}

/// The thread that makes, renews and ends slots.
fn make_slots(maker: &Maker, orders: &Receiver<Order>, answers: &Sender<Answer>) {
    let give = |answer| {
        if answers.send(answer).is_ok() {
            (maker.waker)();
        }
    };
    let tell = |error| give(Answer::Delayed(error));
    while let Ok(order) = orders.recv() {
        let answer = match order {
            Order::Prepare(number) => maker.make(number, &tell).map(|made| match made {
                Ok(slot) => Answer::Made(Box::new(slot)),
                Err(error) => Answer::Failed { is_renewed: false, error },
            }),
            Order::Renew(slot) => maker.renew(*slot, &tell).map(|made| match made {
                Ok(slot) => Answer::Renewed(Box::new(slot)),
                Err(error) => Answer::Failed { is_renewed: true, error },
            }),
            Order::End(slots) => return drop(slots),
        };
        answer.into_iter().for_each(give);
    }
}

fn ended() -> TaskError {
    TaskError::Internal("a thread of a Kafka sink has ended".to_owned())
}

/// The thread that asks for the state of transactions, which a barrier waits for. Brokers that are away are waited for, and so are
/// rights, for [`PATIENCE`]: nothing is lost, and the checkpoint has its own patience.
fn describe_all(
    options: &SinkOptions,
    waker: &Waker,
    is_over: &AtomicBool,
    questions: &Receiver<(u64, String)>,
    answers: &Sender<(u64, Result<Ready, TaskError>)>,
) {
    let mut transactions = Transactions::new(&options.properties);
    while let Ok((number, id)) = questions.recv() {
        let (asked_at, mut is_told) = (Instant::now(), false);
        let found = loop {
            let asked = transactions.describe(&id).and_then(|found| Ok((found, transactions.cluster_id()?)));
            let trouble = match asked {
                Ok(found) => break Ok(found),
                Err(trouble) => trouble,
            };
            let may_pass = match &trouble {
                Trouble::Unreachable { .. } | Trouble::NotNow { .. } => true,
                Trouble::Refused { .. } => trouble.is_of_rights() && asked_at.elapsed() < PATIENCE,
            };
            if !may_pass || is_over.load(Ordering::Acquire) {
                break Err(trouble);
            }
            if !std::mem::replace(&mut is_told, true) {
                tracing::warn!(%trouble, table = options.table, "a checkpoint waits for it; tried again");
            }
            std::thread::sleep(PAUSE);
        };
        let described = found.map(|(found, cluster)| Ready { id, found, cluster });
        let failed = |trouble: Trouble| {
            let message = format!("table '{}': {trouble}", options.table);
            if trouble.is_of_rights() { TaskError::Unavailable(message) } else { TaskError::External(message) }
        };
        if answers.send((number, described.map_err(failed))).is_err() {
            return;
        }
        waker();
    }
}

#[cfg(test)]
mod tests;
