use super::*;
use posthaste::event::Event;
use posthaste::sink::chain::Chain;

const PATIENCE: Duration = Duration::from_secs(8);

fn message(seq: i64, key: Option<&str>) -> Message {
    let event = Event::new("orders.placed", seq.to_string());
    let event = if let Some(key) = key { event.with_key(key) } else { event };
    crate::testing::message("d", event)
}

fn of_key(count: i64, key: &str) -> Vec<Message> {
    (0..count).map(|seq| message(seq, Some(key))).collect()
}

fn of_no_key(count: i64) -> Vec<Message> {
    (0..count).map(|seq| message(seq, None)).collect()
}

/// A broker that answers each message after some time, or never, and a question or not.
struct Slow {
    delay: Option<Duration>,
    is_there: bool,
    /// The rest has not left when it is asked for.
    takes: usize,
    sent: Vec<(usize, Instant)>,
    answers: Vec<(usize, std::pin::Pin<Box<tokio::time::Sleep>>)>,
}

impl Slow {
    fn new(delay: Option<Duration>, is_there: bool) -> Self {
        Self { delay, is_there, takes: usize::MAX, sent: Vec::new(), answers: Vec::new() }
    }
}

fn failure() -> Failure {
    Failure::of_sink("x.timeout", "no answer")
}

impl Publisher for Slow {
    type Found = bool;

    fn poll_answers(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> Poll<()> {
        let before = self.answers.len();
        self.answers.retain_mut(|(index, delay)| {
            let is_due = delay.as_mut().poll(context).is_ready();
            if is_due {
                flight.decide(*index, Verdict::Delivered);
            }
            !is_due
        });
        if self.answers.len() < before { Poll::Ready(()) } else { Poll::Pending }
    }

    fn send(&mut self, flight: &mut Flight<'_>) {
        while let Some(index) = flight.next() {
            flight.sent(index);
            self.sent.push((index, Instant::now()));
            self.answers.extend(self.delay.map(|delay| (index, Box::pin(tokio::time::sleep(delay)))));
        }
    }

    fn question(&mut self, _: &Flight<'_>, _: Duration) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(self.is_there))
    }

    fn withdraw(&mut self) -> Vec<usize> {
        self.sent.iter().skip(self.takes).map(|(index, _)| *index).collect()
    }

    fn silence(&self, _: usize, _: &Message, is_sent: bool, is_there: &bool) -> Verdict {
        let silence = if *is_there { Silence::Present(failure()) } else { Silence::Absent(failure()) };
        silence.verdict(is_sent)
    }
}

#[tokio::test(start_paused = true)]
async fn g7_nothing_is_sent_in_the_second_half() {
    let (messages, chain, window) = (of_key(100, "k"), Chain::default(), Semaphore::new(8));
    let mut slow = Slow::new(Some(Duration::from_millis(300)), true);
    let flight = Flight::new(&messages, PATIENCE).in_turns(chain.enter(&messages)).in_window(&window);
    let started = Instant::now();
    let verdicts = flight.run(&mut slow).await;
    assert!(slow.sent.iter().all(|(_, at)| *at < started + PATIENCE / 2));
    // One at a time, 300 ms each: 14 begin within 4 s, and the last of them is answered after that.
    assert_eq!(slow.sent.len(), 14);
    assert!(verdicts[..14].iter().all(|verdict| *verdict == Verdict::Delivered));
    assert!(verdicts[14..].iter().all(|verdict| *verdict == Verdict::Held));
    let elapsed = started.elapsed();
    assert!(elapsed < Duration::from_millis(4_400), "given back when the rest was answered: {elapsed:?}");
    assert_eq!(window.available_permits(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_silence_is_blamed_on_whoever_is_silent() {
    let (messages, window) = (of_no_key(3), Semaphore::new(2));
    let chain = Chain::default();
    for (is_there, unsent) in [(true, Verdict::Held), (false, Verdict::Retry(failure()))] {
        let mut mute = Slow::new(None, is_there);
        let flight = Flight::new(&messages, PATIENCE).in_turns(chain.enter(&messages)).in_window(&window);
        let started = Instant::now();
        let verdicts = flight.run(&mut mute).await;
        assert_eq!(verdicts, [Verdict::Unknown(failure()), Verdict::Unknown(failure()), unsent]);
        assert!(started.elapsed() <= PATIENCE);
        assert_eq!(window.available_permits(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_withdrawn_was_never_sent() {
    let (messages, chain) = (of_no_key(3), Chain::default());
    let mut mute = Slow { takes: 1, ..Slow::new(None, false) };
    let flight = Flight::new(&messages, PATIENCE).in_turns(chain.enter(&messages));
    let verdicts = flight.run(&mut mute).await;
    let retry = Verdict::Retry(failure());
    assert_eq!(verdicts, [Verdict::Unknown(failure()), retry.clone(), retry]);
}

#[tokio::test(start_paused = true)]
async fn g7_what_a_client_keeps_in_a_queue_does_not_leave_in_the_second_half() {
    /// Takes everything and writes nothing.
    struct Blocked(Slow);
    impl Publisher for Blocked {
        type Found = bool;
        fn poll_answers(&mut self, _: &mut Context<'_>, _: &mut Flight<'_>) -> Poll<()> {
            Poll::Pending
        }
        fn send(&mut self, flight: &mut Flight<'_>) {
            self.0.send(flight);
        }
        fn stop(&mut self, flight: &mut Flight<'_>) {
            assert!(!flight.may_send());
            for (index, _) in std::mem::take(&mut self.0.sent) {
                flight.unsent(index);
            }
        }
        fn question(&mut self, flight: &Flight<'_>, within: Duration) -> BoxFuture<'static, bool> {
            self.0.question(flight, within)
        }
        fn silence(&self, index: usize, message: &Message, is_sent: bool, is_there: &bool) -> Verdict {
            self.0.silence(index, message, is_sent, is_there)
        }
    }
    let (messages, chain, window) = (of_no_key(3), Chain::default(), Semaphore::new(2));
    let flight = Flight::new(&messages, PATIENCE).in_turns(chain.enter(&messages)).in_window(&window);
    let started = Instant::now();
    let verdicts = flight.run(&mut Blocked(Slow::new(None, true))).await;
    assert_eq!(verdicts, vec![Verdict::Held; 3], "nothing has left, and the server is there");
    assert!(started.elapsed() < PATIENCE, "there is nothing to wait for");
    assert_eq!(window.available_permits(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_stays() {
    let messages = of_no_key(1);
    let mut flight = Flight::new(&messages, PATIENCE);
    flight.sent(0);
    flight.decide(0, Verdict::Delivered);
    flight.unsent(0);
    flight.silent(0);
    flight.decide(0, Verdict::Held);
    assert_eq!(flight.verdicts(), [Verdict::Delivered]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_gives_its_room_and_its_keys_back() {
    let (messages, chain, window) = (of_key(5, "k"), Chain::default(), Semaphore::new(4));
    let mut mute = Slow::new(None, true);
    let flight = Flight::new(&messages, PATIENCE).in_turns(chain.enter(&messages)).in_window(&window);
    assert!(tokio::time::timeout(Duration::from_millis(1), flight.run(&mut mute)).await.is_err());
    assert_eq!((mute.sent.len(), window.available_permits()), (1, 4));
    let mut quick = Slow::new(Some(Duration::from_millis(1)), true);
    let flight = Flight::new(&messages, PATIENCE).in_turns(chain.enter(&messages)).in_window(&window);
    assert_eq!(flight.run(&mut quick).await, vec![Verdict::Delivered; 5]);
    assert_eq!(window.available_permits(), 4);
}

#[tokio::test(start_paused = true)]
async fn calls_share_the_window() {
    let (chain, window) = (Chain::default(), Semaphore::new(3));
    let calls: Vec<_> = (0..4).map(|_| of_no_key(10)).collect();
    let mut brokers: Vec<_> = (0..4).map(|_| Slow::new(Some(Duration::from_millis(50)), true)).collect();
    let flights = calls.iter().zip(&mut brokers).map(|(messages, broker)| {
        Flight::new(messages, PATIENCE).in_turns(chain.enter(messages)).in_window(&window).run(broker)
    });
    let verdicts = futures_util::future::join_all(flights).await;
    assert!(verdicts.iter().flatten().all(|verdict| *verdict == Verdict::Delivered));
    // 40 messages, three at a time.
    let mut sent: Vec<_> = brokers.iter().flat_map(|broker| &broker.sent).map(|(_, at)| *at).collect();
    sent.sort();
    assert!(sent.windows(4).all(|four| four[3] - four[0] >= Duration::from_millis(50)));
    assert_eq!(window.available_permits(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_left_takes_nothing_more() {
    /// Is told to stop by the first answer.
    struct Leaving(Slow);
    impl Publisher for Leaving {
        type Found = bool;
        fn poll_answers(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> Poll<()> {
            let polled = self.0.poll_answers(context, flight);
            if polled.is_ready() {
                flight.stop_sending();
            }
            polled
        }
        fn send(&mut self, flight: &mut Flight<'_>) {
            self.0.send(flight);
        }
        fn question(&mut self, flight: &Flight<'_>, within: Duration) -> BoxFuture<'static, bool> {
            self.0.question(flight, within)
        }
        fn silence(&self, index: usize, message: &Message, is_sent: bool, is_there: &bool) -> Verdict {
            self.0.silence(index, message, is_sent, is_there)
        }
    }
    let (messages, chain) = (of_key(2, "k"), Chain::default());
    let mut leaving = Leaving(Slow::new(Some(Duration::from_millis(10)), true));
    let flight = Flight::new(&messages, PATIENCE).in_turns(chain.enter(&messages));
    let started = Instant::now();
    assert_eq!(flight.run(&mut leaving).await, [Verdict::Delivered, Verdict::Held]);
    assert!(started.elapsed() < Duration::from_secs(1));
}
