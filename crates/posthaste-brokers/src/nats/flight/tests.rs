//! When a call stops sending, without a server.

use super::super::dial::Info;
use super::super::frame;
use super::super::session::Round;
use super::*;
use futures_util::FutureExt;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::chain::Chain;
use std::time::Duration;

const HALF: Duration = Duration::from_secs(4);

/// One key's messages: one is under way at a time.
fn hot(count: i64) -> Vec<Message> {
    let message = |seq| {
        let (event, appended_at) = (Event::new("orders.placed", "{}").with_key("hot"), Timestamp(1));
        Message {
            payload: event.payload.clone(),
            stored: StoredEvent { seq, slot: 0, appended_at, event, defect: None },
            destination: "s".to_owned(),
            ordered: true,
            source: "shop".into(),
            envelope: Default::default(),
            partition_key: None,
        }
    };
    (0..count).map(message).collect()
}

fn acknowledge(session: &Session, index: usize) {
    let subject = format!("I.1-{index}");
    let payload = br#"{"stream":"S", "seq":7}"#.as_slice();
    let mut round = Round::default();
    session.deliver(&frame::Message { subject: subject.as_bytes(), head: b"", payload }, &mut round);
    round.ring();
}

/// How many messages have left since the last look.
fn left(session: &Session) -> usize {
    let (mut context, mut bytes) = (Context::from_waker(std::task::Waker::noop()), Vec::new());
    let _ = session.outbox.poll_take(&mut context, &mut bytes);
    String::from_utf8_lossy(&bytes).matches("HPUB").count()
}

/// The second of three messages is under way when this happens: it is answered, and the third never leaves.
async fn stops_when(happens: impl AsyncFnOnce(&Session)) {
    let session = Session::new("I.".to_owned(), "a user".to_owned(), Info::default());
    let (messages, chain, window) = (hot(3), Chain::default(), Semaphore::new(10));
    let call = chain.enter(&messages);
    let last_call = Instant::now() + HALF;
    let mut flight = Flight::new(&messages, call, session.register(), &window, last_call);
    for index in 0..2 {
        assert_eq!((flight.fly().now_or_never(), left(&session)), (None, 1), "{index}");
        if index == 0 {
            acknowledge(&session, index);
        }
    }
    happens(&session).await;
    assert_eq!(flight.fly().now_or_never(), None, "an answer is to come");
    acknowledge(&session, 1);
    assert_eq!((flight.fly().now_or_never(), left(&session)), (Some(()), 0), "it waits for nothing");
    assert_eq!(window.available_permits(), 10);
    assert!(flight.is_open());
    flight.give_up(&Silence::Timeout { after_ms: 1, alive: true });
    assert_eq!(flight.verdicts(), [Verdict::Delivered, Verdict::Delivered, Verdict::Held]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_in_the_second_half_of_the_time() {
    stops_when(async |_| tokio::time::advance(HALF).await).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_when_the_server_is_about_to_stop() {
    stops_when(async |session| session.leave()).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_not_send_ends() {
    let session = Session::new("I.".to_owned(), "a user".to_owned(), Info::default());
    let (messages, chain, window) = (hot(3), Chain::default(), Semaphore::new(0));
    let call = chain.enter(&messages);
    let mut flight = Flight::new(&messages, call, session.register(), &window, Instant::now() + HALF);
    assert_eq!(flight.fly().now_or_never(), None, "there is no room");
    tokio::time::advance(HALF).await;
    assert_eq!((flight.fly().now_or_never(), left(&session)), (Some(()), 0));
}

/// Somebody between us and the server may have said it: the event is given up only when it stays so.
#[tokio::test]
async fn a_limit_that_came_before_tls_rejects_nothing() {
    let greeting = Info::read(br#"{"max_payload":20}"#).expect("JSON");
    for is_hearsay in [true, false] {
        let mut info = greeting.clone();
        info.is_hearsay = is_hearsay;
        let session = Session::new("I.".to_owned(), "a user".to_owned(), info);
        let (messages, chain, window) = (hot(1), Chain::default(), Semaphore::new(1));
        let call = chain.enter(&messages);
        let mut flight = Flight::new(&messages, call, session.register(), &window, Instant::now() + HALF);
        flight.fly().await;
        match (&flight.verdicts()[0], is_hearsay) {
            (Verdict::Retry(failure), true) | (Verdict::Rejected(failure), false) => {
                assert_eq!(failure.code, "nats.too_large");
            }
            other => panic!("{other:?}"),
        }
    }
}
