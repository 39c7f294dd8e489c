//! Cases: what is delivered, to whom, in which order and how much of it.

use super::stage::{MANY, Member, SHORT, numbered, numbers, publish, sorted, spread};
use super::{Joining, Publication, SourceFixture};
use bytes::Bytes;
use posthaste::source::{Change, Limit, StartFrom};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// And acknowledged: whoever comes next gets nothing.
pub async fn each_message_is_delivered_once(fixture: &impl SourceFixture) {
    let topic = fixture.topic(4).await;
    spread(fixture, &topic, 1..=20).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    assert_eq!(sorted(member.consume(20).await), (1..=20).collect::<Vec<_>>());
    spread(fixture, &topic, 21..=25).await;
    assert_eq!(sorted(member.consume(5).await), (21..=25).collect::<Vec<_>>());
    assert!(member.rest().await.is_empty());
    let view = member.source.view().await.expect("a view");
    assert!(view.iter().all(|partition| partition.in_hand == 0), "{view:?}");
    assert!(view.iter().all(|partition| partition.end.is_none() || partition.committed == partition.end));
    member.drain().await;
    let mut next = Member::join(fixture, &topic, "b").await;
    assert!(next.rest().await.is_empty());
}

/// Bytes, headers, key and id; and a tombstone is not an empty payload.
pub async fn f86_a_message_is_delivered_as_it_was_published(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    let value = if fixture.trims_headers() { "\"q\"" } else { "\"q\" " };
    let bodies: [Option<&[u8]>; 5] =
        [Some(b""), Some(b"\0\xff\xfe"), Some(b"{\"b\": 1,  \"a\": [] }"), None, Some(&[7; 70_000])];
    let published: Vec<Publication> = (0..)
        .zip(bodies)
        .map(|(n, body)| Publication {
            id: Some(format!("0195d0c0-0000-7000-8000-00000000000{n}")),
            key: Some("grün".to_owned()),
            headers: vec![("type".to_owned(), "OrderPlaced".to_owned()), ("x".to_owned(), value.to_owned())],
            payload: body.map(Bytes::copy_from_slice),
        })
        .collect();
    fixture.publish(&topic, published.clone()).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    let taken = member.take(5).await;
    for (sent, got) in published.iter().zip(&taken) {
        let message = &got.message;
        assert_eq!((&message.id, &message.payload), (&sent.id, &sent.payload));
        assert_eq!(message.key.as_deref(), Some("grün".as_bytes()));
        assert_eq!((message.event_type(), message.header("x")), (Some("OrderPlaced"), Some(value)));
        assert!(message.event_id().is_some());
        assert_eq!(got.identity().as_deref(), sent.id.as_deref());
    }
    member.ack(&taken).await;
}

/// A foreign message: no id, no key, no headers. And an id that is no UUID is an id.
pub async fn f72_a_message_without_an_id_is_known_by_its_place(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    let bare = Publication { payload: Some(Bytes::from_static(b"same")), ..Publication::default() };
    let odd = Publication { id: Some("Order 7/α".to_owned()), ..bare.clone() };
    fixture.publish(&topic, vec![bare.clone(), bare, odd]).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    let taken = member.take(3).await;
    let identities: Vec<_> = taken.iter().map(|delivery| delivery.identity().map(String::from)).collect();
    assert_eq!(identities[2].as_deref(), Some("Order 7/α"));
    assert_eq!(taken[2].message.event_id(), None);
    if taken[0].position.is_some() {
        assert_eq!(taken[0].message.id, None);
    }
    // A queue has no positions. One that knows a message by a place of its own says so as its id.
    if taken[0].position.is_some() || taken[0].message.id.is_some() {
        assert!(identities[0].is_some() && identities[0] != identities[1], "{identities:?}");
    }
}

/// G3: by key, over all partitions.
pub async fn g3_a_keys_messages_come_in_order(fixture: &impl SourceFixture) {
    let topic = fixture.topic(4).await;
    let key = |n: i64| format!("key-{}", n % 5);
    fixture.publish(&topic, (1..=200).map(|n| numbered(n, Some(&key(n)))).collect()).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    if !member.source.capabilities().orders_keys {
        return;
    }
    let mut by_key: BTreeMap<Bytes, Vec<i64>> = BTreeMap::new();
    let mut partition_of: BTreeMap<Bytes, i32> = BTreeMap::new();
    let mut count = 0;
    while count < 200 {
        let taken = member.next(Limit { events: 7, ..MANY }, SHORT).await;
        for delivery in &taken {
            let key = delivery.message.key.clone().unwrap_or_default();
            by_key.entry(key.clone()).or_default().push(super::stage::number(delivery));
            assert_eq!(
                *partition_of.entry(key).or_insert(delivery.partition().number),
                delivery.partition().number
            );
        }
        member.ack(&taken).await;
        count += taken.len();
    }
    for n in 0..5 {
        let expected: Vec<i64> = (1..=200).filter(|i| i % 5 == n).collect();
        assert_eq!(by_key[key(n).as_bytes()], expected);
    }
}

/// G7: in events, in bytes; one message may be larger than the bound, alone.
pub async fn g7_a_call_keeps_its_bounds(fixture: &impl SourceFixture) {
    let topic = fixture.topic(2).await;
    let body = Bytes::from(vec![b'x'; 10_000]);
    let message =
        |n: i64| Publication { payload: Some(body.clone()), ..numbered(n, Some(&format!("key-{n}"))) };
    fixture.publish(&topic, (1..=12).map(message).collect()).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    let (mut calls, mut count) = (Vec::new(), 0);
    while count < 12 {
        let limit =
            if count < 6 { Limit { events: 3, ..MANY } } else { Limit { events: 100, bytes: 25_000 } };
        let taken = member.next(limit, SHORT).await.len();
        assert!(taken <= if count < 6 { 3 } else { 2 }, "{taken} in one call");
        count += taken;
        calls.push(taken);
    }
    assert_eq!(count, 12, "{calls:?}");
    fixture.publish(&topic, vec![message(13)]).await;
    let alone = member.take_one(Limit { events: 10, bytes: 100 }).await;
    assert_eq!(alone, 1);
}

impl Member {
    async fn take_one(&mut self, limit: Limit) -> usize {
        let end = Instant::now() + crate::conformance::DEADLINE;
        loop {
            let taken = self.next(limit, SHORT).await.len();
            assert!(Instant::now() < end, "a large message never comes");
            if taken > 0 {
                return taken;
            }
        }
    }
}

/// G7: then only a settlement makes room.
pub async fn g7_what_is_in_hand_is_bounded(fixture: &impl SourceFixture) {
    let (topic, most) = (fixture.topic(2).await, fixture.in_hand_max());
    spread(fixture, &topic, 1..=(most as i64 + 10)).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    let mut taken = member.take(most).await;
    assert!(member.rest().await.is_empty(), "no more than {most} in hand");
    let first = taken.remove(0);
    member.ack(std::slice::from_ref(&first)).await;
    assert_eq!(member.take(1).await.len(), 1);
    member.ack(&taken).await;
    assert_eq!(member.take(9).await.len(), 9);
}

/// Neither for ever nor not at all.
pub async fn an_empty_source_waits_as_long_as_told(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    member.assigned(1).await;
    let began = Instant::now();
    assert!(member.next(MANY, Duration::from_millis(400)).await.is_empty());
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(390), "{waited:?}");
    assert!(waited < Duration::from_secs(30), "{waited:?}");
}

/// One message on an idle system waits for no timer.
pub async fn a_waiting_call_is_woken_by_a_message(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    member.assigned(1).await;
    let waiting = async { member.next(MANY, Duration::from_secs(60)).await };
    let publishing = async {
        // The call should be waiting by now; if it is not, the case says less, and is not wrong.
        tokio::time::sleep(Duration::from_millis(50)).await; // pace
        publish(fixture, &topic, [1]).await;
        Instant::now()
    };
    let (taken, published) = tokio::join!(waiting, publishing);
    assert_eq!(numbers(&taken), [1]);
    assert!(published.elapsed() < Duration::from_secs(20), "{:?}", published.elapsed());
}

/// A consumer selects over many things; a call that loses must not swallow what it had taken.
pub async fn a_dropped_call_loses_nothing(fixture: &impl SourceFixture) {
    let topic = fixture.topic(2).await;
    let mut member = Member::join(fixture, &topic, "a").await;
    let mut taken = Vec::new();
    for n in 1..=40 {
        spread(fixture, &topic, [n]).await;
        let patience = Duration::from_micros(u64::try_from(n).unwrap_or(1) * 50);
        if let Ok(deliveries) = tokio::time::timeout(patience, member.next(MANY, SHORT)).await {
            taken.extend(deliveries);
        }
    }
    let missing = 40 - taken.len();
    taken.extend(member.take(missing).await);
    assert_eq!(sorted(numbers(&taken)), (1..=40).collect::<Vec<_>>());
    member.ack(&taken).await;
}

/// F62: never by the source's own choice.
pub async fn a_group_begins_where_it_declared(fixture: &impl SourceFixture) {
    let topic = fixture.topic(2).await;
    spread(fixture, &topic, 1..=10).await;
    let latest = Joining { start_from: StartFrom::Latest, ..Joining::default() };
    let mut late = Member::join_as(fixture, "late", &topic, "a", latest).await;
    late.assigned(2).await;
    let mut early = Member::join_as(fixture, "early", &topic, "a", Joining::default()).await;
    assert_eq!(sorted(early.consume(10).await), (1..=10).collect::<Vec<_>>());
    spread(fixture, &topic, 11..=12).await;
    assert_eq!(sorted(late.consume(2).await), [11, 12]);
    assert_eq!(sorted(early.consume(2).await), [11, 12]);
    // A group that has a position goes on there, whatever is declared.
    late.drain().await;
    spread(fixture, &topic, 13..=13).await;
    let mut again = Member::join_as(fixture, "late", &topic, "b", latest).await;
    assert_eq!(again.consume(1).await, [13]);
}

/// "From now on" was when the group began to wait.
pub async fn f62_a_topic_that_comes_later_is_read_from_its_beginning(fixture: &impl SourceFixture) {
    let topic = format!("{}-later", fixture.topic(1).await);
    let latest = Joining { start_from: StartFrom::Latest, ..Joining::default() };
    let mut member = Member::join_as(fixture, "late", &topic, "a", latest).await;
    assert!(member.next(MANY, SHORT).await.is_empty());
    publish(fixture, &topic, 1..=3).await;
    assert_eq!(member.consume(3).await, [1, 2, 3]);
}

/// Each group gets everything.
pub async fn groups_do_not_share_positions(fixture: &impl SourceFixture) {
    let topic = fixture.topic(2).await;
    spread(fixture, &topic, 1..=6).await;
    for group in ["one", "two"] {
        let mut member = Member::join_as(fixture, group, &topic, "a", Joining::default()).await;
        assert_eq!(sorted(member.consume(6).await), (1..=6).collect::<Vec<_>>(), "{group}");
    }
}

/// The one loss that a source can have is never silent. Numbers need not be dense, nor begin with 0.
pub async fn a_loss_by_retention_is_reported(fixture: &impl SourceFixture) {
    let topic = fixture.topic(1).await;
    publish(fixture, &topic, 0..10).await;
    let mut scout = Member::join_as(fixture, "scout", &topic, "a", Joining::default()).await;
    // A queue has no positions: what was published there is counted.
    let taken = scout.take(10).await;
    let places: Vec<i64> = (0..).zip(&taken).map(|(n, seen)| seen.position.unwrap_or(n)).collect();
    scout.source.drain(Duration::ZERO).await.expect("drained");
    let mut member = Member::join(fixture, &topic, "a").await;
    assert_eq!(member.consume(3).await, [0, 1, 2]);
    member.drain().await;
    if !fixture.remove_below(&topic, 0, places[7]).await {
        return;
    }
    let mut next = Member::join(fixture, &topic, "b").await;
    assert_eq!(next.consume(3).await, [7, 8, 9]);
    let lost: Vec<_> = next
        .changes
        .iter()
        .filter_map(|change| match change {
            Change::Lost { from, until, .. } => Some((*from, *until)),
            _ => None,
        })
        .collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    let (from, until) = lost[0];
    assert!(from > places[2] && (places[6] + 1..=places[7]).contains(&until), "{lost:?}");
    assert!(!fixture.is_dense() || lost == [(places[2] + 1, places[7])], "{lost:?}");
}
