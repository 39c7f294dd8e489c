//! Settling: all or nothing, harmless when repeated, and only under a live lease.

use super::StoreFixture;
use super::stage::{
    SINK, WIDE, anything, append, append_many, at_once, death, defer_page, due, due_batch, event, keyed,
    lane, plan, read, read_all, read_one, relay, relay_with, seqs, settle, sink, take_when_free, through,
    wait,
};
use posthaste::route::Filter;
use posthaste::store::{Death, Deferral, Lease, Reason, Settlement, StartAt, StoreError};
use std::sync::Arc;

async fn refuses(lease: &Arc<dyn Lease>, settlement: &Settlement) {
    match lease.settle(settlement).await {
        Err(StoreError::LeaseLost(id)) => assert_eq!(&id, lease.id()),
        other => panic!("a lost lease settled: {other:?}"),
    }
}

/// A settlement whose outcome was unknown is sent again.
pub async fn settle_is_harmless_when_repeated(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    let seqs = append_many(fixture, 4).await;
    let (_, first) = read_one(&lease).await;
    let (_, second) = read_one(&lease).await;
    let (third_page, _) = read_one(&lease).await;
    let settlement = Settlement {
        deferred: vec![(first, wait(Reason::Retry, at_once()))],
        dead: vec![(second, death(false))],
        ..through(third_page)
    };
    for _ in 0..3 {
        lease.settle(&settlement).await.expect("repeated without harm");
        assert_eq!(fixture.deferred(SINK).await, [seqs[0]]);
        assert_eq!(fixture.dead(SINK).await, [seqs[1]]);
    }
    let delivered = Settlement { delivered: vec![seqs[0]], ..Settlement::default() };
    for _ in 0..3 {
        lease.settle(&delivered).await.expect("repeated without harm");
        assert_eq!(fixture.deferred(SINK).await, [0; 0]);
    }
    lease.settle(&settlement).await.expect("an old one brings nothing back");
    assert_eq!(fixture.deferred(SINK).await, [0; 0]);
    lease.release().await.expect("released");
    assert_eq!(read_all(&b.lease().await).await, [seqs[3]]);
}

/// A settlement that is refused leaves no trace of any of its parts.
pub async fn settle_is_all_or_nothing(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let zombie = a.lease().await;
    let waiting: Vec<i64> = append_many(fixture, 3).await;
    defer_page(&zombie, |_| wait(Reason::Retry, at_once())).await;
    append_many(fixture, 3).await;
    let mut page = read(&zombie, WIDE).await;
    let (third, second) = (page.events.pop().expect("three"), page.events.pop().expect("three"));
    fixture.kill("a").await;
    let _owner = take_when_free(&b).await;
    let settlement = Settlement {
        through: Some(page.number),
        deferred: vec![(second, wait(Reason::Retry, at_once()))],
        dead: vec![(third, death(true))],
        delivered: vec![waiting[0]],
        again: vec![(waiting[1], wait(Reason::Unknown, at_once()))],
        died: vec![(waiting[2], death(true))],
    };
    refuses(&zombie, &settlement).await;
    assert_eq!(fixture.deferred(SINK).await, waiting);
    assert_eq!(fixture.dead(SINK).await, [0; 0]);
}

/// What a broker says about an event is nobody's to choose: it must not be why a settlement cannot be
/// written.
pub async fn settle_takes_whatever_a_broker_says(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let said = format!("\0 zero, \u{1f4a5} \u{2192}, \r\n, {}", "much too long ".repeat(10_000));
    let waits = || Deferral { error: Some(said.clone()), ..wait(Reason::Retry, at_once()) };
    let dies = || Death { error: said.clone(), code: "\0code".to_owned(), ..death(false) };
    let seqs = append_many(fixture, 4).await;
    defer_page(&lease, |_| waits()).await;
    assert_eq!(fixture.deferred(SINK).await, seqs);
    let fresh = append_many(fixture, 1).await;
    let (number, stored) = read_one(&lease).await;
    let settlement = Settlement {
        dead: vec![(stored, dies())],
        delivered: vec![seqs[0]],
        again: vec![(seqs[1], waits())],
        died: vec![(seqs[2], dies())],
        ..through(number)
    };
    settle(&lease, settlement).await;
    assert_eq!(fixture.deferred(SINK).await, [seqs[1], seqs[3]]);
    assert_eq!(fixture.dead(SINK).await, [seqs[2], fresh[0]]);
    assert_eq!(lease.given_up(), 0, "a text that can be stored is stored");
}

/// Settlements travel in order, but an old one may arrive again after a new one.
pub async fn settling_an_older_page_changes_nothing(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    append_many(fixture, 3).await;
    let (first, _) = read_one(&lease).await;
    read_one(&lease).await;
    let (third, _) = read_one(&lease).await;
    settle(&lease, through(third)).await;
    settle(&lease, through(first)).await;
    lease.release().await.expect("released");
    assert_eq!(read_all(&b.lease().await).await, [0; 0]);
}

/// Settlements are coalesced.
pub async fn one_settlement_may_cover_several_pages(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    let seqs = append_many(fixture, 6).await;
    let mut deferred = Vec::new();
    let mut last = 0;
    for n in 0..5 {
        let (number, stored) = read_one(&lease).await;
        last = number;
        if n % 2 == 0 {
            deferred.push((stored, wait(Reason::Retry, at_once())));
        }
    }
    settle(&lease, Settlement { deferred, ..through(last) }).await;
    assert_eq!(fixture.deferred(SINK).await, [seqs[0], seqs[2], seqs[4]]);
    lease.release().await.expect("released");
    assert_eq!(read_all(&b.lease().await).await, [seqs[5]]);
}

/// F20: a batch outlives its lease, and its owner hears of it.
pub async fn g4_a_stale_epoch_cannot_settle(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let zombie = a.lease().await;
    let all = append_many(fixture, 3).await;
    let page = read(&zombie, WIDE).await;
    fixture.kill("a").await;
    let owner = take_when_free(&b).await;
    refuses(&zombie, &through(page.number)).await;
    let page = read(&owner, WIDE).await;
    assert_eq!(seqs(&page), all, "the successor's cursor is untouched");
    settle(&owner, through(page.number)).await;
    refuses(&zombie, &through(1)).await;
    owner.release().await.expect("released");
    assert_eq!(read_all(&b.lease().await).await, [0; 0]);
}

/// Nor what it found among the deferred.
pub async fn g4_a_stale_epoch_cannot_settle_deferred_events(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let zombie = a.lease().await;
    let seqs = append_many(fixture, 2).await;
    defer_page(&zombie, |_| wait(Reason::Retry, at_once())).await;
    assert_eq!(due(&zombie).await, seqs);
    fixture.kill("a").await;
    let owner = take_when_free(&b).await;
    refuses(&zombie, &Settlement { delivered: seqs.clone(), ..Settlement::default() }).await;
    refuses(&zombie, &Settlement { died: vec![(seqs[0], death(false))], ..Settlement::default() }).await;
    assert_eq!(due(&owner).await, seqs);
    assert_eq!(fixture.dead(SINK).await, [0; 0]);
}

/// A lane that was given back is not one's own, even if nobody has taken it yet.
pub async fn g4_a_released_lease_cannot_settle(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    let seqs = append_many(fixture, 2).await;
    let page = read(&lease, WIDE).await;
    lease.release().await.expect("released");
    refuses(&lease, &through(page.number)).await;
    assert_eq!(read_all(&b.lease().await).await, seqs);
}

/// Whoever comes later has the higher one.
pub async fn g4_epochs_grow(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let mut last = i64::MIN;
    for round in 0..6 {
        let lease = if round % 2 == 0 { a.lease().await } else { b.lease().await };
        assert!(lease.epoch() > last);
        last = lease.epoch();
        let roll = a.store.roll(&[]).await.expect("the store answers");
        assert!(roll.lanes.iter().any(|view| view.id == *lease.id() && view.epoch == last));
        lease.release().await.expect("released");
    }
}

/// What one sink gives up is no affair of another's.
pub async fn dead_letters_are_kept_for_each_sink(fixture: &impl StoreFixture) {
    let mut plan = plan("a");
    plan.sinks.push(sink("other", Filter::Everything, StartAt::Earliest));
    let a = relay_with(fixture, plan).await;
    let seq = append(fixture, keyed("k", "x")).await;
    let (one, two) = (a.lease().await, a.take(&lane("other", 0)).await);
    let (number, stored) = read_one(&one).await;
    settle(&one, Settlement { dead: vec![(stored, death(true))], ..through(number) }).await;
    let (number, stored) = read_one(&two).await;
    settle(&two, Settlement { deferred: vec![(stored, wait(Reason::Retry, at_once()))], ..through(number) })
        .await;
    assert_eq!((fixture.dead(SINK).await, fixture.dead("other").await), (vec![seq], vec![]));
    assert_eq!((fixture.deferred(SINK).await, fixture.deferred("other").await), (vec![], vec![seq]));
    let died = Settlement { died: vec![(seq, death(false))], ..Settlement::default() };
    settle(&two, died).await;
    assert_eq!((fixture.dead("other").await, fixture.deferred("other").await), (vec![seq], vec![]));
    append(fixture, event("the lanes go on")).await;
    assert_eq!(read_all(&one).await.len(), 1);
    assert!(due_batch(&two, anything()).await.events.is_empty());
}
