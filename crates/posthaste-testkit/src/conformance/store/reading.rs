//! Reading: every committed event once, late ones included, within bounds.

use super::StoreFixture;
use super::stage::{
    SINK, WIDE, append, append_many, append_to, event, keyed, lane, plan, read, read_all, read_one,
    read_pages, relay, relay_with, seqs, settle, sink, through,
};
use posthaste::event::Event;
use posthaste::route::{Filter, Pattern};
use posthaste::store::{PageLimit, StartAt};
use std::collections::{BTreeMap, BTreeSet};

/// An event whose transaction rolled back never was.
pub async fn g1_a_rolled_back_event_is_never_read(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut tx = fixture.begin().await;
    append_to(&mut tx, 3).await;
    if !fixture.writers_overlap() {
        assert_eq!(read_all(&lease).await, [0; 0]);
        tx.rollback().await;
        let kept = append(fixture, event("kept")).await;
        return assert_eq!(read_all(&lease).await, [kept]);
    }
    let kept = append(fixture, event("kept")).await;
    assert_eq!(read_all(&lease).await, [kept]);
    tx.rollback().await;
    assert_eq!(read_all(&lease).await, [0; 0]);
}

/// Nor is one whose transaction is still open.
pub async fn g1_an_open_transaction_is_not_read(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut tx = fixture.begin().await;
    let seqs = append_to(&mut tx, 2).await;
    assert_eq!(read_all(&lease).await, [0; 0]);
    tx.commit().await;
    assert_eq!(read_all(&lease).await, seqs);
}

/// The plain way.
pub async fn g2_each_committed_event_is_read_once(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let first = append_many(fixture, 5).await;
    assert_eq!(read_all(&lease).await, first);
    let second = append_many(fixture, 5).await;
    assert_eq!(read_all(&lease).await, second);
    assert_eq!(read_all(&lease).await, [0; 0]);
}

/// A store may fetch the next page before it is asked for. Whatever is asked for then, smaller or larger,
/// holds: nothing is skipped, repeated or out of bounds, and what was committed in between comes too.
pub async fn g2_pages_of_any_size_follow_each_other(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut appended = append_many(fixture, 60).await;
    let (mut read_so_far, mut late) = (Vec::new(), None);
    for (turn, events) in [10, 10, 3, 10, 1, 25, 7, 10, 10, 10, 30].into_iter().enumerate() {
        if turn == 2 && fixture.writers_overlap() {
            let mut open = fixture.begin().await;
            let seq = open.append(event("late")).await;
            late = Some((open, seq));
        }
        if turn == 3 {
            appended.extend(append_many(fixture, 30).await);
        }
        let page = read(&lease, PageLimit { events, bytes: 1 << 20 }).await;
        assert!(page.events.len() <= events, "{} events in a page of {events}", page.events.len());
        read_so_far.extend(seqs(&page));
        if turn == 4
            && let Some((open, seq)) = late.take()
        {
            open.commit().await;
            appended.push(seq);
        }
    }
    read_so_far.extend(read_all(&lease).await);
    let distinct: BTreeSet<i64> = read_so_far.iter().copied().collect();
    assert_eq!(distinct.len(), read_so_far.len(), "an event was read twice");
    assert_eq!(distinct, appended.into_iter().collect());
}

/// F1: the number is drawn early and the commit comes late.
pub async fn g2_a_late_commit_is_read_after_its_successors(fixture: &impl StoreFixture) {
    if !fixture.writers_overlap() {
        return;
    }
    let lease = relay(fixture, "a").await.lease().await;
    let mut late = fixture.begin().await;
    let late_seq = late.append(event("late")).await;
    let others = append_many(fixture, 20).await;
    assert!(late_seq < others[0]);
    assert_eq!(read_all(&lease).await, others, "nobody waits for the open transaction");
    late.commit().await;
    assert_eq!(read_all(&lease).await, [late_seq]);
    assert_eq!(read_all(&lease).await, [0; 0]);
}

/// The memory of who was running is in the settled cursor, not only in the reader.
pub async fn g2_a_late_commit_is_found_by_the_next_owner(fixture: &impl StoreFixture) {
    if !fixture.writers_overlap() {
        return;
    }
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    let mut late = fixture.begin().await;
    let late_seq = late.append(event("late")).await;
    let others = append_many(fixture, 3).await;
    let page = read(&lease, WIDE).await;
    assert_eq!(seqs(&page), others);
    settle(&lease, through(page.number)).await;
    lease.release().await.expect("released");
    late.commit().await;
    assert_eq!(read_all(&b.lease().await).await, [late_seq]);
}

/// A transaction that stays open while the cursor settles again and again, far past its numbers.
pub async fn g2_an_elder_is_found_long_after_it_was_passed(fixture: &impl StoreFixture) {
    if !fixture.writers_overlap() {
        return;
    }
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let mut lease = a.lease().await;
    append_many(fixture, 2).await;
    let mut elder = fixture.begin().await;
    let mut elder_seqs = append_to(&mut elder, 2).await;
    for round in 0..80 {
        let seqs_now = append_many(fixture, 2).await;
        let page = read(&lease, WIDE).await;
        assert!(page.events.iter().any(|stored| stored.seq == seqs_now[1]), "round {round}");
        settle(&lease, through(page.number)).await;
        if round == 40 {
            elder_seqs.push(elder.append(event("in the middle")).await);
            lease.release().await.expect("released");
            lease = b.lease().await;
        }
    }
    assert_eq!(read_all(&lease).await, [0; 0]);
    elder.commit().await;
    assert_eq!(read_all(&lease).await, elder_seqs);
}

/// F3: a snapshot's xmax is "last completed + 1"; what runs above it is not listed.
pub async fn g2_a_running_transaction_that_no_snapshot_listed_is_found(fixture: &impl StoreFixture) {
    if !fixture.writers_overlap() {
        return;
    }
    let lease = relay(fixture, "a").await.lease().await;
    let mut older = fixture.begin().await;
    let first = older.append(event("1")).await;
    let mut younger = fixture.begin().await;
    let second = younger.append(event("2")).await;
    let third = older.append(event("3")).await;
    older.commit().await;
    let page = read(&lease, WIDE).await;
    assert_eq!(seqs(&page), [first, third]);
    settle(&lease, through(page.number)).await;
    younger.commit().await;
    assert_eq!(read_all(&lease).await, [second]);
}

/// The other way round would break the order of a key.
pub async fn g2_late_events_come_before_newer_ones(fixture: &impl StoreFixture) {
    if !fixture.writers_overlap() {
        return;
    }
    let lease = relay(fixture, "a").await.lease().await;
    let mut late = fixture.begin().await;
    let late_seqs = append_to(&mut late, 2).await;
    append(fixture, event("passes")).await;
    read_all(&lease).await;
    late.commit().await;
    let newer = append(fixture, event("newer")).await;
    assert_eq!(read_all(&lease).await, [late_seqs[0], late_seqs[1], newer]);
}

/// Neither loaded whole nor cut.
pub async fn g2_a_transaction_larger_than_a_page_is_read_whole(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut tx = fixture.begin().await;
    let seqs = append_to(&mut tx, 57).await;
    tx.commit().await;
    let pages = read_pages(&lease, PageLimit { events: 10, bytes: WIDE.bytes }).await;
    assert!(pages.iter().all(|page| page.events.len() <= 10));
    assert_eq!(pages.iter().flat_map(super::stage::seqs).collect::<Vec<_>>(), seqs);
}

/// F4: whoever waits for a gap waits for ever.
pub async fn g2_rollbacks_leave_gaps_and_nothing_waits_for_them(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut kept = Vec::new();
    for n in 0..10 {
        let mut tx = fixture.begin().await;
        tx.append(event("gone")).await;
        tx.rollback().await;
        kept.push(append(fixture, event(&n.to_string())).await);
    }
    let pages = read_pages(&lease, PageLimit { events: 3, bytes: WIDE.bytes }).await;
    assert_eq!(pages.iter().flat_map(seqs).collect::<Vec<_>>(), kept);
}

/// A page full of late events: the rest of them first, whatever else is appended meanwhile.
pub async fn full_late_pages_catch_up(fixture: &impl StoreFixture) {
    if !fixture.writers_overlap() {
        return;
    }
    let lease = relay(fixture, "a").await.lease().await;
    let mut big = fixture.begin().await;
    let big_seqs = append_to(&mut big, 45).await;
    append_many(fixture, 3).await;
    read_all(&lease).await;
    big.commit().await;
    let small = PageLimit { events: 10, bytes: WIDE.bytes };
    let mut got = seqs(&read(&lease, small).await);
    let newer = append(fixture, event("newer")).await;
    let pages = read_pages(&lease, small).await;
    assert!(pages.iter().all(|page| page.events.len() <= 10));
    got.extend(pages.iter().flat_map(seqs));
    assert_eq!(got[..45], big_seqs[..], "late events first, in order, each once");
    assert_eq!(got[45..], [newer]);
}

/// A crash half-way through a big late transaction does not send it again from its start.
pub async fn catching_up_goes_on_where_it_was_settled(fixture: &impl StoreFixture) {
    if !fixture.writers_overlap() {
        return;
    }
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    let mut big = fixture.begin().await;
    let big_seqs = append_to(&mut big, 45).await;
    append_many(fixture, 3).await;
    read_all(&lease).await;
    big.commit().await;
    let small = PageLimit { events: 10, bytes: WIDE.bytes };
    let first = read(&lease, small).await;
    let second = read(&lease, small).await;
    let _third = read(&lease, small).await;
    assert_eq!([seqs(&first), seqs(&second)].concat(), big_seqs[..20]);
    settle(&lease, through(second.number)).await;
    lease.release().await.expect("released");
    let lease = b.lease().await;
    let newer = append(fixture, event("newer")).await;
    let got: Vec<i64> = read_pages(&lease, small).await.iter().flat_map(seqs).collect();
    assert_eq!(got, [&big_seqs[20..], &[newer]].concat());
}

/// What a dead lease had read and not settled is not lost.
pub async fn g2_unsettled_pages_are_read_again_by_the_next_owner(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    let seqs = append_many(fixture, 4).await;
    assert_eq!(read_all(&lease).await, seqs);
    lease.release().await.expect("released");
    assert_eq!(read_all(&b.lease().await).await, seqs);
}

/// F26: reading runs ahead, settlement does not.
pub async fn g2_prefix_only_is_settled(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    let seqs = append_many(fixture, 5).await;
    let (first, _) = read_one(&lease).await;
    for _ in 1..5 {
        read_one(&lease).await;
    }
    settle(&lease, through(first)).await;
    lease.release().await.expect("released");
    assert_eq!(read_all(&b.lease().await).await, seqs[1..]);
}

/// G7. One event may exceed the bytes alone, or it would never be read.
pub async fn page_limits_hold_in_events_and_bytes(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    for size in [100_000, 100_000, 100_000, 900_000, 100_000, 100_000] {
        append(fixture, Event::new("t", vec![b'x'; size])).await;
    }
    let pages = read_pages(&lease, PageLimit { events: 1_000, bytes: 250_000 }).await;
    let sizes = |page: &posthaste::store::Page| -> Vec<usize> {
        page.events.iter().map(|stored| stored.event.payload.as_ref().map_or(0, bytes::Bytes::len)).collect()
    };
    for page in &pages {
        let sizes = sizes(page);
        assert!(sizes.len() == 1 || sizes.iter().sum::<usize>() <= 250_000, "{sizes:?}");
    }
    let all: Vec<usize> = pages.iter().flat_map(sizes).collect();
    assert_eq!(all, [100_000, 100_000, 100_000, 900_000, 100_000, 100_000]);
    append_many(fixture, 25).await;
    let pages = read_pages(&lease, PageLimit { events: 7, bytes: WIDE.bytes }).await;
    assert!(pages.iter().all(|page| page.events.len() <= 7));
    assert_eq!(pages.iter().map(|page| page.events.len()).sum::<usize>(), 25);
}

/// Settlement goes by number.
pub async fn pages_are_numbered_without_gaps(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    append_many(fixture, 3).await;
    for number in 1..=5 {
        assert_eq!(read(&lease, PageLimit { events: 1, bytes: WIDE.bytes }).await.number, number);
    }
}

/// Routes are applied before anything is loaded.
pub async fn a_sink_reads_only_what_its_filter_admits(fixture: &impl StoreFixture) {
    let mut plan = plan("a");
    let orders = vec![Pattern::new("orders.*")];
    plan.sinks = vec![
        sink("orders", Filter::Any(orders.clone()), StartAt::Earliest),
        sink("rest", Filter::NoneOf(orders), StartAt::Earliest),
    ];
    let relay = relay_with(fixture, plan).await;
    let mut expected = BTreeMap::from([("orders", vec![]), ("rest", vec![])]);
    for topic in ["orders.placed", "orders_placed", "orders.", "order.placed", "x", "orders.100%"] {
        let seq = append(fixture, Event::new(topic, "x")).await;
        let sink = if topic.starts_with("orders.") { "orders" } else { "rest" };
        expected.entry(sink).or_default().push(seq);
    }
    for (sink, seqs) in expected {
        let lease = relay.take(&lane(sink, 0)).await;
        assert_eq!(read_all(&lease).await, seqs, "{sink}");
    }
}

/// Otherwise each read of a sink that gets little would scan further back.
pub async fn a_sparse_sink_moves_on(fixture: &impl StoreFixture) {
    let mut plan = plan("a");
    plan.sinks = vec![sink(SINK, Filter::Any(vec![Pattern::new("rare")]), StartAt::Earliest)];
    let relay = relay_with(fixture, plan).await;
    let lease = relay.lease().await;
    append_many(fixture, 30).await;
    let page = read(&lease, WIDE).await;
    assert!(page.events.is_empty() && page.moved, "the cursor moved over what is not for it");
    settle(&lease, through(page.number)).await;
    let rare = append(fixture, Event::new("rare", "x")).await;
    assert_eq!(read_all(&lease).await, [rare]);
}

/// A dead sink holds up nobody.
pub async fn two_sinks_have_their_own_cursors(fixture: &impl StoreFixture) {
    let mut plan = plan("a");
    plan.sinks.push(sink("other", Filter::Everything, StartAt::Earliest));
    let a = relay_with(fixture, plan).await;
    let seqs = append_many(fixture, 4).await;
    let (one, two) = (a.lease().await, a.take(&lane("other", 0)).await);
    let page = read(&one, WIDE).await;
    settle(&one, through(page.number)).await;
    assert_eq!(read_all(&one).await, [0; 0]);
    assert_eq!(read_all(&two).await, seqs);
    two.release().await.expect("released");
    assert_eq!(read_all(&a.take(&lane("other", 0)).await).await, seqs);
}

/// History to a new destination is one line of configuration.
pub async fn a_new_sink_starts_at_now_earliest_or_seq(fixture: &impl StoreFixture) {
    let before = append_many(fixture, 6).await;
    // A sink cannot be born while somebody else writes, where one writes at a time.
    let mut open = if fixture.writers_overlap() { Some(fixture.begin().await) } else { None };
    let mut open_seq = None;
    if let Some(open) = &mut open {
        open_seq = Some(open.append(event("open while the sink is born")).await);
    }
    let mut plan = plan("a");
    plan.sinks = vec![
        sink("now", Filter::Everything, StartAt::Now),
        sink("earliest", Filter::Everything, StartAt::Earliest),
        sink("seq", Filter::Everything, StartAt::Seq(before[3])),
    ];
    let relay = relay_with(fixture, plan).await;
    if let Some(open) = open {
        open.commit().await;
    }
    let after = append(fixture, event("after")).await;
    for (sink, history) in [("now", &before[6..]), ("earliest", &before[..]), ("seq", &before[4..])] {
        let lease = relay.take(&lane(sink, 0)).await;
        // What was open when the sink was born is committed after that, so it belongs to every sink.
        let got: BTreeSet<i64> = read_all(&lease).await.into_iter().collect();
        let expected = history.iter().copied().chain(open_seq).chain([after]).collect();
        assert_eq!(got, expected, "{sink}");
    }
}

/// Each event in one lane, each key in one lane, whatever their number.
pub async fn lanes_divide_the_events_and_keep_keys_together(fixture: &impl StoreFixture) {
    let relay = relay_with(fixture, posthaste::store::JoinPlan { lanes: Some(4), ..plan("a") }).await;
    let mut seqs = Vec::new();
    for n in 0..120 {
        seqs.push(append(fixture, keyed(&format!("key-{}", n % 40), "x")).await);
    }
    seqs.extend(append_many(fixture, 40).await);
    let (mut got, mut lane_of_key) = (Vec::new(), BTreeMap::new());
    let roll = relay.store.roll(&[]).await.expect("the store answers");
    assert_eq!(roll.lanes.len(), 4);
    for view in roll.lanes {
        let lease = relay.take(&view.id).await;
        let pages = read_pages(&lease, WIDE).await;
        assert!(!pages.is_empty(), "160 events leave no lane empty");
        for stored in pages.iter().flat_map(|page| &page.events) {
            got.push(stored.seq);
            if let Some(key) = &stored.event.key {
                let lane = *lane_of_key.entry(key.clone()).or_insert(view.id.lane);
                assert_eq!(lane, view.id.lane, "{key} is in two lanes");
            }
        }
    }
    got.sort_unstable();
    assert_eq!(got, seqs);
}

/// F86: bytes, headers and the difference between no payload and an empty one.
pub async fn f86_an_event_is_read_as_it_was_written(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let events = [
        Event::new("orders.placed", vec![0, 159, 146, 150, 0])
            .with_key("ключ")
            .with_header("traceparent", "00-ab-cd-01")
            .with_header("type", "OrderPlaced")
            .with_content_type("application/octet-stream"),
        Event::new("t", ""),
        Event::tombstone("t").with_key("k"),
        Event::new("t", "{\"b\": 1,  \"a\": [] }"),
    ];
    let mut seqs = Vec::new();
    for event in &events {
        seqs.push(append(fixture, event.clone()).await);
    }
    let mut got = read_pages(&lease, WIDE).await.into_iter().flat_map(|page| page.events);
    for (event, seq) in events.into_iter().zip(seqs) {
        let stored = got.next().expect("as many as written");
        assert_eq!((stored.seq, &stored.defect), (seq, &None));
        let headers = |event: &Event| -> BTreeMap<String, String> {
            event.headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
        };
        // The order of headers is nobody's promise.
        assert_eq!(headers(&stored.event), headers(&event));
        assert_eq!(Event { headers: event.headers.clone(), ..stored.event }, event);
    }
}
