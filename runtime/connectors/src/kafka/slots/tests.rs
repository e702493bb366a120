//! How long rows wait for a producer, by the answers of the thread that makes them.

use super::*;

/// The ends of questions and descriptions, which only have to live.
type OtherEnds = (Receiver<(u64, String)>, Sender<(u64, Result<Ready, TaskError>)>);

struct Bench {
    keeper: Keeper,
    answers: Sender<Answer>,
    orders: Receiver<Order>,
    start: Instant,
    _others: OtherEnds,
}

impl Bench {
    fn new() -> Self {
        let ((orders, taken), (questions, asked)) = (channel(), channel());
        let ((given, answers), (described, descriptions)) = (channel(), channel());
        let keeper = Keeper::new(orders, questions, answers, descriptions, Arc::default());
        Self { keeper, answers: given, orders: taken, start: Instant::now(), _others: (asked, described) }
    }

    /// What a row that waits is told so many seconds after the start.
    fn waits(&mut self, seconds: u64) -> Result<(), String> {
        assert!(self.keeper.take_ready().expect("its threads live").is_none());
        self.keeper.prepare_one();
        self.keeper.wait(self.start + Duration::from_secs(seconds)).map_err(|error| error.to_string())
    }

    fn answer(&self, answer: Answer) {
        self.answers.send(answer).expect("the keeper lives");
    }

    fn delay(&self, why: &str) {
        self.answer(Answer::Delayed(TaskError::Unavailable(why.to_owned())));
    }
}

#[test]
fn a_failure_from_before_a_row_waited_is_no_reason() {
    let mut bench = Bench::new();
    bench.delay("the brokers were away");
    assert_eq!(bench.waits(600), Ok(()), "the first row that waits");
    assert_eq!(bench.waits(659), Ok(()));
    assert_eq!(bench.orders.try_iter().count(), 1, "one is on its way all the time");
    bench.delay("the brokers are away again");
    assert_eq!(bench.waits(660), Err("the brokers are away again".to_owned()), "it has waited for a minute");
}

#[test]
fn who_got_a_producer_waits_for_the_next_one_anew() {
    let mut bench = Bench::new();
    bench.delay("the brokers are away");
    assert_eq!(bench.waits(0), Ok(()));
    let deliveries = Arc::new(Deliveries::new(Arc::new(|| ())));
    let producer = rdkafka::config::ClientConfig::new()
        .create_with_context(super::super::sink::WriterContext::new(Arc::clone(&deliveries)))
        .expect("a client that reaches nobody");
    let slot = Slot { number: 1, id: "id".to_owned(), writing: Writing::new(producer, deliveries) };
    bench.answer(Answer::Made(Box::new(slot)));
    assert!(bench.keeper.take_ready().expect("its threads live").is_some());
    assert_eq!(bench.waits(120), Ok(()), "nothing is in the way any more");
    bench.delay("the brokers are away");
    assert_eq!(bench.waits(179), Ok(()));
    assert!(bench.waits(180).is_err());
}

#[test]
fn what_is_not_tried_again_is_told_as_soon_as_a_row_waits() {
    let mut bench = Bench::new();
    let error = TaskError::BadProgram("the timeout is not allowed".to_owned());
    bench.answer(Answer::Failed { is_renewed: false, error });
    assert_eq!(bench.waits(1), Err("the timeout is not allowed".to_owned()));
}
