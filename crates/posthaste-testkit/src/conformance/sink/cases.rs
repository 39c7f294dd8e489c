//! The cases of the sink suite.

use super::{Arrived, SinkFixture};
use bytes::Bytes;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Level, Message, Ordering, Sink, Verdict};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A message as the relay makes it.
fn message(seq: i64, destination: &str, event: Event) -> Message {
    let payload = event.payload.clone();
    let appended_at = Timestamp(1_700_000_000_000_000);
    let stored = StoredEvent { seq, slot: 0, appended_at, event, defect: None };
    Message {
        stored,
        destination: destination.to_owned(),
        payload,
        ordered: true,
        source: "shop".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

/// A message without a key.
fn plain(seq: i64, destination: &str) -> Message {
    message(seq, destination, Event::new("orders.placed", seq.to_string()))
}

fn keyed(seq: i64, destination: &str, key: &str) -> Message {
    message(seq, destination, Event::new("orders.placed", seq.to_string()).with_key(key))
}

/// A key for each message: no two wait for each other.
fn own_key(seq: i64, destination: &str) -> Message {
    keyed(seq, destination, &format!("key-{seq}"))
}

async fn deliver(sink: &Arc<dyn Sink>, messages: &[Message]) {
    let verdicts = sink.publish(messages).await;
    assert_eq!(verdicts, vec![Verdict::Delivered; messages.len()]);
}

fn payloads(arrived: &[Arrived]) -> Vec<Option<Bytes>> {
    arrived.iter().map(|message| message.payload.clone()).collect()
}

/// Payloads of a key, as the numbers that these cases write into them.
fn numbers(arrived: &[Arrived], key: &str) -> Vec<i64> {
    let of_key = arrived.iter().filter(|message| message.key.as_deref() == Some(key));
    let text = |message: &Arrived| String::from_utf8(message.payload.clone().unwrap_or_default().to_vec());
    of_key.map(|message| text(message).expect("text").parse().expect("a number")).collect()
}

/// One for each, all of them true.
pub async fn every_message_has_its_verdict(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let messages: Vec<Message> = (1..=20).map(|seq| own_key(seq, &destination)).collect();
    deliver(&sink, &messages).await;
    if let Some(arrived) = fixture.arrived(&destination, 20).await {
        let mut got: Vec<_> = arrived.iter().map(|message| message.id.clone()).collect();
        let mut sent: Vec<_> = messages.iter().map(|message| Some(message.id())).collect();
        got.sort();
        sent.sort();
        assert_eq!(got, sent);
    }
}

/// Nothing asked, nothing answered.
pub async fn an_empty_call_has_no_verdicts(fixture: &impl SinkFixture) {
    assert_eq!(fixture.sink().await.publish(&[]).await, []);
}

/// F86: empty, zero bytes, no text, no JSON, large.
pub async fn f86_payloads_arrive_byte_for_byte(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let most = sink.capabilities().payload_bytes_max.unwrap_or(usize::MAX);
    let large: Vec<u8> = (0..1_usize << 20).map(|n| (n * 31 % 251) as u8).collect();
    let bodies: [&[u8]; 7] =
        [b"", b"\0", b"a\0b\0\0", &[0xff, 0xfe, 0x80], b"{\"b\": 1,  \"a\": [] }", &large[..65_536], &large];
    let mut sent = Vec::new();
    for (seq, body) in (1..).zip(bodies.into_iter().filter(|body| body.len() <= most)) {
        let body = Bytes::copy_from_slice(body);
        deliver(&sink, &[message(seq, &destination, Event::new("orders.placed", body.clone()))]).await;
        sent.push(Some(body));
    }
    if let Some(arrived) = fixture.arrived(&destination, sent.len()).await {
        assert!(payloads(&arrived) == sent, "payloads arrived changed");
    }
}

/// Where the broker can tell them apart.
pub async fn a_tombstone_is_not_an_empty_payload(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let empty = message(1, &destination, Event::new("orders.placed", "").with_key("k"));
    let tombstone = message(2, &destination, Event::tombstone("orders.placed").with_key("k"));
    deliver(&sink, &[empty]).await;
    deliver(&sink, &[tombstone]).await;
    if let Some(arrived) = fixture.arrived(&destination, 2).await {
        let last = fixture.carries().tombstones.then_some(()).map_or(Some(Bytes::new()), |()| None);
        assert_eq!(payloads(&arrived), [Some(Bytes::new()), last]);
    }
}

/// What a consumer can rely on.
pub async fn headers_arrive_with_ours_first(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let event = Event::new("orders.placed", "{}")
        .with_key("k-1")
        .with_header("traceparent", "00-ab-cd-01")
        .with_header("type", "OrderPlaced")
        .with_content_type("application/json");
    let message = message(1, &destination, event);
    let mut expected = BTreeMap::new();
    message.each_header(|name, value| {
        expected.insert(name.to_ascii_lowercase(), value.to_owned());
    });
    let id = message.id();
    deliver(&sink, &[message]).await;
    let Some(arrived) = fixture.arrived(&destination, 1).await else { return };
    let [one] = arrived.as_slice() else { panic!("one message: {arrived:?}") };
    assert_eq!((one.id.as_deref(), one.key.as_deref()), (Some(id.as_str()), Some("k-1")));
    if fixture.carries().headers {
        let got: BTreeMap<_, _> =
            one.headers.iter().map(|(n, v)| (n.to_ascii_lowercase(), v.clone())).collect();
        for (name, value) in expected {
            assert_eq!(got.get(&name), Some(&value), "header {name}");
        }
    }
}

/// At least once: the second copy is dropped by the broker, or can be by the consumer.
pub async fn the_event_id_is_the_dedup_id(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let messages = [own_key(1, &destination)];
    deliver(&sink, &messages).await;
    deliver(&sink, &messages).await;
    let copies = if sink.capabilities().dedupes { 1 } else { 2 };
    if let Some(arrived) = fixture.arrived(&destination, copies).await {
        assert_eq!(arrived.len(), copies);
        assert!(arrived.iter().all(|message| message.id == Some(messages[0].id())));
    }
}

/// In one call too.
pub async fn destinations_are_kept_apart(fixture: &impl SinkFixture) {
    let (sink, here, there) =
        (fixture.sink().await, fixture.destination().await, fixture.destination().await);
    deliver(&sink, &[own_key(1, &here), own_key(2, &there), own_key(3, &here)]).await;
    if let Some(arrived) = fixture.arrived(&here, 2).await {
        assert_eq!(arrived.len(), 2);
        assert_eq!(fixture.arrived(&there, 1).await.map(|arrived| arrived.len()), Some(1));
    }
}

/// Unless the sink declares no order at all.
pub async fn g3_a_keys_order_holds_within_a_call(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    if sink.capabilities().ordering == Ordering::None {
        return;
    }
    let key = |seq: i64| format!("key-{}", seq % 5);
    let messages: Vec<Message> = (1..=200).map(|seq| keyed(seq, &destination, &key(seq))).collect();
    deliver(&sink, &messages).await;
    if let Some(arrived) = fixture.arrived(&destination, 200).await {
        for n in 0..5 {
            let expected: Vec<i64> = (1..=200).filter(|seq| seq % 5 == n).collect();
            assert_eq!(numbers(&arrived, &key(n)), expected);
        }
    }
}

/// For sinks that declare it: calls started one after another, none awaited before the next.
pub async fn g3_a_keys_order_holds_over_overlapping_calls(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    if sink.capabilities().ordering != Ordering::Overlap {
        return;
    }
    let key = |seq: i64| format!("key-{}", seq % 3);
    let calls: Vec<Vec<Message>> = (0..20)
        .map(|call| (1..=10).map(|n| call * 10 + n).map(|seq| keyed(seq, &destination, &key(seq))).collect())
        .collect();
    let verdicts = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call))).await;
    assert!(verdicts.into_iter().flatten().all(|verdict| verdict == Verdict::Delivered));
    if let Some(arrived) = fixture.arrived(&destination, 200).await {
        for n in 0..3 {
            let expected: Vec<i64> = (1..=200).filter(|seq| seq % 3 == n).collect();
            assert_eq!(numbers(&arrived, &key(n)), expected);
        }
    }
}

/// A later message of a key is not accepted while an earlier one failed.
pub async fn g3_behind_a_failure_its_key_is_held(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let Some(hopeless) = fixture.hopeless_destination().await else { return };
    if sink.capabilities().ordering == Ordering::None {
        return;
    }
    let messages = [
        keyed(1, &destination, "k"),
        keyed(2, &hopeless, "k"),
        keyed(3, &destination, "k"),
        own_key(4, &destination),
    ];
    let verdicts = sink.publish(&messages).await;
    assert!(matches!(verdicts[1], Verdict::Rejected(_)), "{verdicts:?}");
    assert_eq!(
        [&verdicts[0], &verdicts[2], &verdicts[3]],
        [&Verdict::Delivered, &Verdict::Held, &Verdict::Delivered]
    );
    if let Some(arrived) = fixture.arrived(&destination, 2).await {
        assert_eq!(numbers(&arrived, "k"), [1]);
    }
}

/// What the relay decides about a failed key is not the sink's affair.
pub async fn g3_a_failed_key_is_open_again_in_the_next_call(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let Some(hopeless) = fixture.hopeless_destination().await else { return };
    let verdicts = sink.publish(&[keyed(1, &hopeless, "k")]).await;
    assert!(matches!(verdicts.as_slice(), [Verdict::Rejected(_)]), "{verdicts:?}");
    deliver(&sink, &[keyed(2, &destination, "k")]).await;
}

/// F28: the third of five.
pub async fn f28_a_rejected_message_does_not_harm_its_neighbours(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let Some(hopeless) = fixture.hopeless_destination().await else { return };
    let place = |seq| if seq == 3 { hopeless.as_str() } else { destination.as_str() };
    let messages: Vec<Message> = (1..=5).map(|seq| own_key(seq, place(seq))).collect();
    only_third_rejected(&sink.publish(&messages).await);
    if let Some(arrived) = fixture.arrived(&destination, 4).await {
        assert_eq!(arrived.len(), 4);
    }
}

fn only_third_rejected(verdicts: &[Verdict]) {
    for (index, verdict) in verdicts.iter().enumerate() {
        let expected =
            if index == 2 { matches!(verdict, Verdict::Rejected(_)) } else { *verdict == Verdict::Delivered };
        assert!(expected, "verdict {index}: {verdict:?}");
    }
    assert_eq!(verdicts.len(), 5);
}

/// Where the broker's limit is known.
pub async fn f28_a_message_too_large_is_rejected_alone(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let Some(most) = sink.capabilities().payload_bytes_max.filter(|most| *most < 64 << 20) else { return };
    let body = |seq: i64| if seq == 3 { vec![b'x'; most + 1] } else { b"x".to_vec() };
    let event = |seq: i64| Event::new("orders.placed", body(seq)).with_key(seq.to_string());
    let messages: Vec<Message> = (1..=5).map(|seq| message(seq, &destination, event(seq))).collect();
    only_third_rejected(&sink.publish(&messages).await);
}

/// `order = "none"`.
pub async fn messages_without_order_wait_for_nothing(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let Some(hopeless) = fixture.hopeless_destination().await else { return };
    let place = |seq| if seq == 3 { hopeless.as_str() } else { destination.as_str() };
    let unordered = |seq| Message { ordered: false, ..keyed(seq, place(seq), "k") };
    let messages: Vec<Message> = (1..=5).map(unordered).collect();
    only_third_rejected(&sink.publish(&messages).await);
}

/// A relay gives a lane up in the middle of a call.
pub async fn a_dropped_call_leaves_its_keys_usable(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    for seq in 1..=5 {
        let messages = [keyed(seq, &destination, "k")];
        // Long enough to be under way now and then, too short to be answered always.
        let _ = tokio::time::timeout(Duration::from_micros(300), sink.publish(&messages)).await;
    }
    deliver(&sink, &[keyed(6, &destination, "k")]).await;
    if let Some(arrived) = fixture.arrived(&destination, 1).await {
        assert_eq!(numbers(&arrived, "k").last(), Some(&6));
    }
}

/// And every one of them is answered.
pub async fn many_calls_may_overlap(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let calls: Vec<Vec<Message>> =
        (0..16).map(|call| (1..=25).map(|n| own_key(call * 25 + n, &destination)).collect()).collect();
    let verdicts = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call))).await;
    assert!(verdicts.iter().all(|verdicts| verdicts.len() == 25));
    assert!(verdicts.into_iter().flatten().all(|verdict| verdict == Verdict::Delivered));
    if let Some(arrived) = fixture.arrived(&destination, 400).await {
        assert_eq!(arrived.len(), 400);
    }
}

/// `doctor` finds nothing broken where nothing is.
pub async fn a_good_destination_passes_the_examination(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    let findings = sink.examine(std::slice::from_ref(&destination)).await;
    assert!(findings.iter().all(|finding| finding.level != Level::Fail), "{findings:?}");
    deliver(&sink, &[plain(1, &destination)]).await;
    if let Some(arrived) = fixture.arrived(&destination, 1).await {
        assert_eq!(arrived.len(), 1, "an examination publishes nothing");
    }
}

/// A key with more messages than there is time for. What was sent in the first half of the call is answered
/// in the second one; the rest is given back, unsent.
pub async fn g7_nothing_is_sent_in_the_second_half(fixture: &impl SinkFixture) {
    const TIMEOUT: Duration = Duration::from_secs(6);
    const DELAY: Duration = Duration::from_millis(100);
    let Some(line) = fixture.behind_a_line(TIMEOUT).await else { return };
    let (sink, destination) = (line.sink(), line.destination());
    let started = std::time::Instant::now();
    let mut warm = 0;
    while sink.publish(&[keyed(0, &destination, "warm")]).await != [Verdict::Delivered] {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing is delivered");
        warm += 1;
    }
    let before = line.count().await;
    assert!((1..=warm + 1).contains(&before), "{before} of {}", warm + 1);
    line.delay(DELAY).await;
    let messages: Vec<Message> = (1..=200).map(|seq| keyed(seq, &destination, "hot")).collect();
    let verdicts = sink.publish(&messages).await;
    let sent = verdicts.iter().take_while(|verdict| **verdict != Verdict::Held).count();
    assert!(verdicts[sent..].iter().all(|verdict| *verdict == Verdict::Held), "{verdicts:?}");
    // One at a time, and each takes the way there and back: a machine that is busy sends fewer.
    let most = (TIMEOUT / 2).div_duration_f64(2 * DELAY).ceil() as usize;
    assert!((1..=most).contains(&sent), "{sent} were sent, {most} fit into the first half");
    line.delay(Duration::ZERO).await;
    assert!(line.count().await - before <= sent, "what was given back had been sent");
}

/// Everything acknowledged stays acknowledged.
pub async fn closing_is_harmless(fixture: &impl SinkFixture) {
    let (sink, destination) = (fixture.sink().await, fixture.destination().await);
    deliver(&sink, &[plain(1, &destination)]).await;
    sink.close().await;
    sink.close().await;
    if let Some(arrived) = fixture.arrived(&destination, 1).await {
        assert_eq!(arrived.len(), 1);
    }
}
