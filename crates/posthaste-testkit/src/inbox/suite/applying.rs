//! T1: marks, handlers and effects in one transaction.

use super::ConsumerFixture;
use super::stage::{CONSUMER, PATIENCE, Script, Told, bury, defer, heads, member, work, work_of};
use crate::spans;
use bytes::Bytes;
use posthaste::consumer::message::TRACEPARENT_HEADER;
use posthaste::consumer::store::MessageOutcome::{Done, Duplicate, Held};
use posthaste::consumer::store::{DeferOrBury, SetAside, Work};
use posthaste::consumer::{Disposition, FailureKind, Filter};
use posthaste::source::Delivery;
use posthaste::telemetry::HANDLER_SPAN;
use std::sync::Arc;

/// A redelivery, a zombie, a producer's retry: whatever comes again meets the mark.
pub async fn g5_the_first_runs_and_every_copy_is_a_duplicate(fixture: &impl ConsumerFixture) {
    let (one, other) = (member(fixture).await, member(fixture).await);
    assert_eq!(one.apply(&[work("a", 1)]).await, [Done]);
    for member in [&one, &other] {
        assert_eq!(member.apply(&[work("a", 1), work("a", 2)]).await[0], Duplicate);
    }
    let elsewhere = work_of("orders", 99, Some("a"), "a1");
    assert_eq!(one.apply(&[elsewhere]).await, [Duplicate]);
    assert_eq!(one.effects().await, ["a1", "a2"]);
    assert_eq!(one.marks().await, "a1=d a2=d");
}

/// It commits as a whole or not at all; a failure names the message.
pub async fn g5_a_batch_is_one_transaction(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.script.tell("b2", &[Told::Fail]);
    let batch = [work("a", 1), work("b", 2), work("c", 3)];
    let error = member.inbox.apply(None, &batch, PATIENCE).await.expect_err("the second fails");
    assert_eq!((error.at, error.failure.kind), (Some(1), FailureKind::Error));
    assert_eq!((member.effects().await.len(), member.marks().await), (0, String::new()));
    assert_eq!(member.apply(&batch).await, [Done, Done, Done]);
    assert_eq!(member.effects().await.len(), 3);
}

/// A producer's retry lands in the same batch.
pub async fn g5_a_message_twice_in_a_batch_runs_once(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let copy = work_of("orders", 2, Some("a"), "a1");
    assert_eq!(member.apply(&[work("a", 1), copy, work("a", 3)]).await, [Done, Duplicate, Done]);
    assert_eq!(member.effects().await, ["a1", "a3"]);
}

/// F70: nobody owns a partition so surely that two members could not have the same messages.
pub async fn g5_members_that_race_do_each_message_once(fixture: &impl ConsumerFixture) {
    let (one, other) = (member(fixture).await, member(fixture).await);
    for round in 0..5 {
        let keys = ["a", "b", "c", "d"];
        let batch: Vec<Work> = keys.iter().map(|key| work(key, round)).collect();
        let backwards: Vec<Work> = batch.iter().rev().cloned().collect();
        let (first, second) = tokio::join!(one.apply(&batch), other.apply(&backwards));
        let done = first.iter().chain(&second).filter(|outcome| **outcome == Done).count();
        assert_eq!(done, keys.len(), "{first:?} {second:?}");
    }
    let mut effects = one.effects().await;
    effects.sort();
    effects.dedup();
    assert_eq!(effects.len(), 20);
    assert_eq!(one.effects().await.len(), 20);
}

/// Each consumer does its own work, and waits for its own.
pub async fn g5_consumers_share_nothing(fixture: &impl ConsumerFixture) {
    let billing = member(fixture).await;
    let shipping = fixture.inbox("shipping", Filter::default(), &Arc::new(Script::default())).await;
    assert_eq!(billing.apply(&[work("a", 1)]).await, [Done]);
    billing.defer(&[work("b", 2)], &defer()).await;
    billing.defer(&[work("c", 3)], &bury(true)).await;
    let batch = [work("a", 1), work("b", 2), work("c", 3), work("c", 4)];
    let applied = shipping.apply(None, &batch, PATIENCE).await.expect("it commits");
    assert_eq!(applied.outcomes, [Done; 4]);
    assert_eq!(fixture.effects(CONSUMER).await, ["a1"]);
    assert_eq!(fixture.effects("shipping").await, ["a1", "b2", "c3", "c4"]);
}

/// What the engine does next depends on the kind, and on whose failure it was.
pub async fn f68_a_failure_names_its_message_and_its_kind(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let kinds = [
        (Told::Fail, FailureKind::Error),
        (Told::Panic, FailureKind::Panic),
        (Told::Reject, FailureKind::Poison(Disposition::Rejected)),
        (Told::Miss, FailureKind::Unavailable("api".into())),
    ];
    for (told, kind) in kinds {
        member.script.tell("b2", &[told]);
        let error =
            member.inbox.apply(None, &[work("a", 1), work("b", 2)], PATIENCE).await.expect_err("it fails");
        assert_eq!((error.at, error.failure.kind), (Some(1), kind));
    }
    assert_eq!(member.marks().await, "");
    assert_eq!(member.apply(&[work("a", 1), work("b", 2)]).await, [Done, Done]);
}

/// A message that nobody would call well made.
pub(super) fn strange() -> Work {
    let mut work = work("a", 1);
    let mut delivery: Delivery = (*work.delivery).clone();
    delivery.address = Some("eu.orders".to_owned());
    delivery.message.payload = Some(Bytes::from_static(b"\xff\x00\\u0000{"));
    let header = |name: &str, value: &'static [u8]| (name.to_owned(), Bytes::from_static(value));
    delivery.message.headers =
        vec![header("X", b"one"), header("x", b"\xfe\x00"), header("Content-Type", b"text/plain")];
    work.delivery = Arc::new(delivery);
    work
}

/// What a handler sees of a message; its ticket is not its own any more once it was deferred.
pub(super) fn same(left: &Delivery, right: &Delivery) -> bool {
    let rest = |d: &Delivery| (d.partition().clone(), d.position, d.published_at, d.address.clone());
    left.message == right.message && rest(left) == rest(right)
}

/// Bytes and headers as they came; a tombstone has no payload.
pub async fn f86_a_handler_sees_what_was_delivered(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let mut tombstone = work("b", 2);
    let mut delivery = (*tombstone.delivery).clone();
    delivery.message.payload = None;
    tombstone.delivery = Arc::new(delivery);
    tombstone.attempts = 3;
    let batch = [strange(), tombstone];
    assert_eq!(member.apply(&batch).await, [Done, Done]);
    let seen = member.script.seen();
    assert!(same(&seen[0].0, &batch[0].delivery) && same(&seen[1].0, &batch[1].delivery), "{seen:?}");
    assert_eq!((seen[0].1, seen[1].1), (1, 4), "attempts that were spent before count");
}

/// Of all keys, as the engine has put them.
pub async fn g3_a_batch_runs_in_its_order(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let batch = [work("b", 9), work("a", 1), work("b", 10), work("a", 2)];
    assert_eq!(member.apply(&batch).await, [Done; 4]);
    assert_eq!(member.effects().await, ["b9", "a1", "b10", "a2"]);
}

/// A deferred message, and a dead one that holds, keep back what came later. What has its mark is settled.
pub async fn g3_nothing_of_a_held_key_runs_and_others_do(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    assert_eq!(member.defer(&[work("a", 1)], &defer()).await, [SetAside::Kept]);
    assert_eq!(member.defer(&[work("b", 2)], &bury(true)).await, [SetAside::Kept]);
    assert_eq!(member.defer(&[work("c", 3)], &bury(false)).await, [SetAside::Kept]);
    let batch = [work("a", 1), work("a", 4), work("b", 2), work("b", 5), work("c", 6), work("a", 7)];
    assert_eq!(member.apply(&batch).await, [Duplicate, Held, Duplicate, Held, Done, Held]);
    assert_eq!(member.effects().await, ["c6"]);
    assert_eq!(member.marks().await, "a1=w b2=x c3=x c6=d", "what is held has no mark");
}

/// It waits for nobody, and nobody for it.
pub async fn g3_a_message_without_a_key_is_never_held(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    let keyless = |position: i64| work_of("orders", position, None, &format!("m{position}"));
    assert_eq!(member.defer(&[keyless(1)], &defer()).await, [SetAside::Kept]);
    assert_eq!(member.defer(&[keyless(2)], &bury(true)).await, [SetAside::Kept]);
    assert_eq!(member.apply(&[keyless(3)]).await, [Done]);
    assert_eq!(member.defer(&[keyless(4)], &DeferOrBury::Behind).await, [SetAside::Free]);
}

/// The same key of another topic is another key.
pub async fn g3_the_order_is_that_of_one_topic(fixture: &impl ConsumerFixture) {
    let member = member(fixture).await;
    member.defer(&[work("a", 1)], &defer()).await;
    let other = work_of("returns", 2, Some("a"), "r2");
    assert_eq!(member.apply(&[work("a", 2), other]).await, [Held, Done]);
}

/// Whoever listens finds the message and its trace around everything that its handler does: among others,
/// alone, and when it was deferred.
pub async fn a_handler_runs_in_the_span_of_its_message(fixture: &impl ConsumerFixture) {
    spans::listen();
    let member = member(fixture).await;
    let trace = |n: i64| format!("{n:032x}");
    let traced = |key: &str, position: i64| {
        let mut work = work(key, position);
        let traceparent = format!("00-{}-00f067aa0ba902b7-01", trace(position));
        let header = (TRACEPARENT_HEADER.to_owned(), Bytes::from(traceparent));
        Arc::make_mut(&mut work.delivery).message.headers.push(header);
        work
    };
    member.apply(&[traced("a", 1), traced("b", 2)]).await;
    member.apply(&[traced("c", 3)]).await;
    member.defer(&[traced("d", 4)], &defer()).await;
    member.work_off(&heads()).await;
    let spans = member.script.spans();
    let of = |name: &str| spans.iter().map(|span| span[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("message_id"), ["a1", "b2", "c3", "d4"]);
    assert_eq!(of("trace_id"), [1, 2, 3, 4].map(trace));
    assert!(of("traceparent").iter().all(|header| header.ends_with("-00f067aa0ba902b7-01")));
    assert_eq!(
        (of("span"), of("consumer")),
        (vec![HANDLER_SPAN.to_owned(); 4], vec![CONSUMER.to_owned(); 4])
    );
    assert_eq!((of("topic")[0].as_str(), of("attempt")[3].as_str()), ("orders", "1"));
    assert!(spans::current().is_empty(), "and nothing else does");
}
