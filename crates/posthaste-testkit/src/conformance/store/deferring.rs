//! The deferred: what waits, what it holds back, and when it comes due.

use super::super::{DEADLINE, eventually};
use super::StoreFixture;
use super::stage::{
    SINK, WIDE, anything, append, append_many, at_once, death, defer_page, deliver_deferred, due, due_batch,
    event, keyed, lane, plan, read, relay, relay_with, seqs, settle, sink, through, wait,
};
use posthaste::admin::DeadAct;
use posthaste::route::Filter;
use posthaste::store::{
    Deferral, Detained, Due, DueQuery, ErrorClass, JoinPlan, Reason, Settlement, StartAt,
};
use std::time::Duration;

/// A failing event holds back its own key, and nothing else.
pub async fn g3_a_deferred_event_detains_its_key(fixture: &impl StoreFixture) {
    let mut plan = plan("a");
    plan.sinks.push(sink("other", Filter::Everything, StartAt::Earliest));
    let a = relay_with(fixture, plan).await;
    let lease = a.lease().await;
    append(fixture, keyed("k", "1")).await;
    let deferred = defer_page(&lease, |_| wait(Reason::Retry, Due::In(Duration::from_secs(60)))).await;
    append(fixture, keyed("k", "2")).await;
    append(fixture, keyed("other", "3")).await;
    append(fixture, event("without a key")).await;
    append(fixture, keyed("k", "5")).await;
    let page = read(&lease, WIDE).await;
    assert_eq!(page.detained, [(0, Detained::Behind), (3, Detained::Behind)]);
    let elsewhere = read(&a.take(&lane("other", 0)).await, WIDE).await;
    assert_eq!((elsewhere.events.len(), elsewhere.detained), (5, vec![]));
    deliver_deferred(&lease, &deferred).await;
    append(fixture, keyed("k", "6")).await;
    assert_eq!(read(&lease, WIDE).await.detained, [], "the key is free again");
}

/// The next one comes due when the one before it leaves, whatever way it leaves.
pub async fn g3_held_events_come_due_one_after_another(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut k = Vec::new();
    for n in 0..4 {
        k.push(append(fixture, keyed("k", &n.to_string())).await);
    }
    let other = append(fixture, keyed("other", "x")).await;
    defer_page(&lease, |stored| match stored.seq {
        seq if seq == k[0] || seq == other => wait(Reason::Retry, at_once()),
        _ => wait(Reason::Held, Due::Behind),
    })
    .await;
    assert_eq!(due(&lease).await, [k[0], other]);
    deliver_deferred(&lease, &[k[0], other]).await;
    assert_eq!(due(&lease).await, [k[1]]);
    let again = vec![(k[1], wait(Reason::Retry, Due::In(Duration::from_secs(60))))];
    settle(&lease, Settlement { again, ..Settlement::default() }).await;
    assert_eq!(due(&lease).await, [0; 0], "the next one stays behind an event that goes on waiting");
    settle(&lease, Settlement { died: vec![(k[1], death(false))], ..Settlement::default() }).await;
    assert_eq!(due(&lease).await, [k[2]], "a death that does not hold lets the key go on");
    settle(&lease, Settlement { died: vec![(k[2], death(true))], ..Settlement::default() }).await;
    assert_eq!(due(&lease).await, [0; 0], "one that holds does not");
}

/// The event before it may leave between the read that saw it and the settlement that defers behind it.
pub async fn g3_a_held_event_with_nothing_before_it_is_due_at_once(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    append(fixture, keyed("k", "1")).await;
    let first = defer_page(&lease, |_| wait(Reason::Retry, at_once())).await;
    let second = append(fixture, keyed("k", "2")).await;
    let mut page = read(&lease, WIDE).await;
    assert_eq!(page.detained, [(0, Detained::Behind)]);
    deliver_deferred(&lease, &first).await;
    let stored = page.events.pop().expect("one event");
    let deferred = vec![(stored, wait(Reason::Held, Due::Behind))];
    settle(&lease, Settlement { deferred, ..through(page.number) }).await;
    assert_eq!(due(&lease).await, [second]);
}

/// By the store's clock.
pub async fn a_deferred_event_comes_due_after_its_delay(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let seqs = append_many(fixture, 2).await;
    let delay = |seq| Due::In(Duration::from_millis(if seq == seqs[0] { 1_500 } else { 90_000 }));
    let before = tokio::time::Instant::now();
    defer_page(&lease, |stored| wait(Reason::Retry, delay(stored.seq))).await;
    let batch = due_batch(&lease, anything()).await;
    if before.elapsed() < Duration::from_millis(1_400) {
        assert!(batch.events.is_empty());
        let next = batch.next_in.expect("the store knows when the next one is due");
        assert!(next <= Duration::from_millis(1_500), "{next:?}");
    }
    eventually("the first one is due", DEADLINE, || async { (due(&lease).await == [seqs[0]]).then_some(()) })
        .await;
    assert!(before.elapsed() >= Duration::from_millis(1_450), "it came early");
}

/// It was appended for another time: later events of its key do not wait for it.
pub async fn a_scheduled_event_waits_and_does_not_hold_its_key(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let past = fixture.now().await.plus_micros(-1_000_000);
    let mut later = 2_500_000;
    let (at, scheduled, mut page) = loop {
        let at = fixture.now().await.plus_micros(later);
        let scheduled = append(fixture, keyed("k", "later").deliver_at(at)).await;
        append(fixture, keyed("k", "its time has come").deliver_at(past)).await;
        let page = read(&lease, WIDE).await;
        if fixture.now().await < at {
            break (at, scheduled, page);
        }
        // Too slow to see it wait: once more, with more time.
        settle(&lease, through(page.number)).await;
        later *= 4;
    };
    assert_eq!(page.detained, [(0, Detained::Scheduled)]);
    let stored = page.events.swap_remove(0);
    let deferred = vec![(stored, wait(Reason::Scheduled, Due::AtDelivery))];
    settle(&lease, Settlement { deferred, ..through(page.number) }).await;
    append(fixture, keyed("k", "at once")).await;
    let page = read(&lease, WIDE).await;
    assert_eq!((page.events.len(), page.detained), (1, vec![]));
    if fixture.now().await < at.plus_micros(-500_000) {
        assert_eq!(due(&lease).await, [0; 0]);
    }
    eventually("the scheduled event is due", DEADLINE, || async {
        (due(&lease).await == [scheduled]).then_some(())
    })
    .await;
    assert!(fixture.now().await >= at);
}

/// `order = "none"`: nothing waits for anything.
pub async fn an_unordered_deferred_event_detains_nobody(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    append(fixture, keyed("k", "1")).await;
    let far = Due::In(Duration::from_secs(60));
    defer_page(&lease, |_| Deferral { holds: false, ..wait(Reason::Retry, far) }).await;
    append(fixture, keyed("k", "2")).await;
    assert_eq!(read(&lease, WIDE).await.detained, []);
}

/// `on_dead = "hold"`, until an operator acts.
pub async fn dead_letters_hold_their_key_when_asked(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    append(fixture, keyed("held", "1")).await;
    append(fixture, keyed("free", "2")).await;
    let page = read(&lease, WIDE).await;
    let number = page.number;
    let dead = page.events.into_iter().map(|stored| {
        let holds = stored.event.key.as_deref() == Some("held");
        (stored, death(holds))
    });
    settle(&lease, Settlement { dead: dead.collect(), ..through(number) }).await;
    let behind = append(fixture, keyed("held", "3")).await;
    append(fixture, keyed("free", "4")).await;
    let mut page = read(&lease, WIDE).await;
    assert_eq!(page.detained, [(0, Detained::Behind)]);
    let stored = page.events.swap_remove(0);
    let deferred = vec![(stored, wait(Reason::Held, Due::Behind))];
    settle(&lease, Settlement { deferred, ..through(page.number) }).await;
    assert_eq!(due(&lease).await, [0; 0]);
    fixture.act_on_dead(SINK, DeadAct::Discard).await;
    assert_eq!((due(&lease).await, fixture.dead(SINK).await), (vec![behind], vec![]));
    deliver_deferred(&lease, &[behind]).await;
    append(fixture, keyed("held", "5")).await;
    assert_eq!(read(&lease, WIDE).await.detained, []);
}

/// An event is put aside behind another of its key for more reasons than one: whatever the reason, it comes
/// due when nothing waits before it.
pub async fn g3_what_waits_behind_comes_due_whatever_the_reason(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut expected = Vec::new();
    for reason in [Reason::Held, Reason::Paused, Reason::Outage, Reason::Drained] {
        append(fixture, keyed(reason.as_str(), "x")).await;
        expected.extend(defer_page(&lease, |_| wait(reason, Due::Behind)).await);
    }
    assert_eq!((expected.len(), due(&lease).await), (4, expected));
}

/// F57: a replayed event goes before those that waited for it.
pub async fn a_replayed_letter_returns_to_its_place(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let first = append(fixture, keyed("k", "1")).await;
    let mut page = read(&lease, WIDE).await;
    let dead = vec![(page.events.pop().expect("one event"), death(true))];
    settle(&lease, Settlement { dead, ..through(page.number) }).await;
    let second = append(fixture, keyed("k", "2")).await;
    defer_page(&lease, |_| wait(Reason::Held, Due::Behind)).await;
    fixture.act_on_dead(SINK, DeadAct::Replay).await;
    assert_eq!(fixture.dead(SINK).await, [0; 0]);
    let batch = due_batch(&lease, anything()).await;
    let got: Vec<_> = batch.events.iter().map(|due| (due.stored.seq, due.reason)).collect();
    assert_eq!(got.first(), Some(&(first, Reason::Replayed)));
    deliver_deferred(&lease, &[first]).await;
    assert_eq!(due(&lease).await, [second]);
}

/// Attempts are counted over all its tries, and the event itself is a copy.
pub async fn what_happened_to_a_deferred_event_travels_with_it(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let seq = append(fixture, keyed("k", "payload").with_header("a", "b")).await;
    let tried = |attempts, reason| Deferral {
        attempts,
        class: Some(ErrorClass::Unknown),
        error: Some("test.no: no".to_owned()),
        ..wait(reason, at_once())
    };
    defer_page(&lease, |_| tried(1, Reason::Retry)).await;
    for attempts in 2..4 {
        let batch = due_batch(&lease, anything()).await;
        let [event] = batch.events.as_slice() else { panic!("one event is due: {batch:?}") };
        assert_eq!(event.attempts, attempts - 1);
        assert_eq!(event.stored.event.payload.as_deref(), Some(b"payload".as_slice()));
        assert_eq!(event.stored.event.headers.get("a"), Some("b"));
        let again = vec![(seq, tried(attempts, Reason::Unknown))];
        settle(&lease, Settlement { again, ..Settlement::default() }).await;
    }
    let batch = due_batch(&lease, anything()).await;
    assert_eq!((batch.events[0].attempts, batch.events[0].reason), (3, Reason::Unknown));
}

/// Breakers and pauses are asked for by name.
pub async fn due_leaves_out_closed_destinations_and_paused_routes(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let seqs = append_many(fixture, 4).await;
    let place = |seq: i64| if seq <= seqs[1] { "here" } else { "there" };
    let route = |seq: i64| if seq == seqs[0] || seq == seqs[2] { "even" } else { "odd" };
    defer_page(&lease, |stored| Deferral {
        destination: place(stored.seq).to_owned(),
        route: route(stored.seq).into(),
        ..wait(Reason::Outage, at_once())
    })
    .await;
    let ask = |query: DueQuery| async {
        let batch = due_batch(&lease, query).await;
        batch.events.iter().map(|due| due.stored.seq).collect::<Vec<_>>()
    };
    assert_eq!(ask(anything()).await, seqs);
    let closed_destinations = vec!["there".to_owned(), "nowhere".to_owned()];
    assert_eq!(ask(DueQuery { closed_destinations, ..anything() }).await, seqs[..2]);
    let paused_routes = vec!["odd".to_owned()];
    assert_eq!(ask(DueQuery { paused_routes, ..anything() }).await, [seqs[0], seqs[2]]);
    let only_destination = Some("there".to_owned());
    let probe = DueQuery { only_destination, events: 1, ..anything() };
    assert_eq!(ask(probe).await, [seqs[2]]);
}

/// What is left out holds back what is behind it: a run must not step over it.
pub async fn g3_nothing_passes_what_due_leaves_out(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut k = Vec::new();
    for n in 0..4 {
        k.push(append(fixture, keyed("k", &n.to_string())).await);
    }
    defer_page(&lease, |stored| {
        let place = if stored.seq == k[1] { "there" } else { "here" };
        let (reason, due) =
            if stored.seq == k[0] { (Reason::Retry, at_once()) } else { (Reason::Held, Due::Behind) };
        Deferral { destination: place.to_owned(), route: place.into(), ..wait(reason, due) }
    })
    .await;
    let there = || vec!["there".to_owned()];
    let queries = [
        DueQuery { closed_destinations: there(), ..anything() },
        DueQuery { paused_routes: there(), ..anything() },
        DueQuery { only_destination: Some("here".to_owned()), ..anything() },
    ];
    for query in queries {
        let batch = due_batch(&lease, query).await;
        let got: Vec<i64> = batch.events.iter().map(|due| due.stored.seq).collect();
        assert_eq!(got, [k[0]]);
    }
    deliver_deferred(&lease, &k[..1]).await;
    let closed_destinations = there();
    assert!(due_batch(&lease, DueQuery { closed_destinations, ..anything() }).await.events.is_empty());
}

/// An event with a time of its own may come due while earlier ones of its key wait: it may go, what is
/// behind it may not.
pub async fn g3_a_run_begins_at_the_head_of_its_key(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut k = Vec::new();
    for n in 0..3 {
        k.push(append(fixture, keyed("k", &n.to_string())).await);
    }
    defer_page(&lease, |stored| match stored.seq {
        seq if seq == k[0] => wait(Reason::Retry, Due::In(Duration::from_secs(60))),
        seq if seq == k[1] => wait(Reason::Retry, at_once()),
        _ => wait(Reason::Held, Due::Behind),
    })
    .await;
    let batch = due_batch(&lease, anything()).await;
    assert!(batch.events.iter().all(|due| due.stored.seq == k[1]), "{batch:?}");
}

/// Nor does a run step over a dead letter that holds the key.
pub async fn g3_a_run_ends_at_a_dead_letter_that_holds(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    for n in 0..3 {
        append(fixture, keyed("k", &n.to_string())).await;
    }
    let page = read(&lease, WIDE).await;
    let (number, k) = (page.number, seqs(&page));
    let mut events = page.events.into_iter();
    let mut next = || events.next().expect("three events");
    let (head, dead, behind) = (next(), next(), next());
    let settlement = Settlement {
        deferred: vec![(head, wait(Reason::Retry, at_once())), (behind, wait(Reason::Held, Due::Behind))],
        dead: vec![(dead, death(true))],
        ..through(number)
    };
    settle(&lease, settlement).await;
    let batch = due_batch(&lease, anything()).await;
    assert!(batch.events.iter().all(|due| due.stored.seq == k[0]), "{batch:?}");
}

/// F55, G7.
pub async fn due_is_bounded(fixture: &impl StoreFixture) {
    let lease = relay(fixture, "a").await.lease().await;
    let mut seqs = append_many(fixture, 25).await;
    defer_page(&lease, |_| wait(Reason::Retry, at_once())).await;
    let mut got = Vec::new();
    while got.len() < 25 {
        let batch = due_batch(&lease, DueQuery { events: 10, ..anything() }).await;
        assert!((1..=10).contains(&batch.events.len()));
        let some: Vec<i64> = batch.events.iter().map(|due| due.stored.seq).collect();
        deliver_deferred(&lease, &some).await;
        got.extend(some);
    }
    got.sort_unstable();
    seqs.sort_unstable();
    assert_eq!(got, seqs);
}

/// Each lane finds its own, also when it has another owner.
pub async fn deferred_events_belong_to_their_lane_and_outlive_its_owner(fixture: &impl StoreFixture) {
    let with_lanes = |name| JoinPlan { lanes: Some(4), ..plan(name) };
    let (a, b) = (relay_with(fixture, with_lanes("a")).await, relay_with(fixture, with_lanes("b")).await);
    for n in 0..80 {
        append(fixture, keyed(&format!("key-{n}"), "x")).await;
    }
    let mut by_lane = Vec::new();
    for number in 0..4 {
        let lease = a.take(&lane(SINK, number)).await;
        let page = read(&lease, WIDE).await;
        let (number, seqs) = (page.number, seqs(&page));
        let deferred = page.events.into_iter().map(|stored| (stored, wait(Reason::Retry, at_once())));
        settle(&lease, Settlement { deferred: deferred.collect(), ..through(number) }).await;
        lease.release().await.expect("released");
        by_lane.push(seqs);
    }
    for (number, seqs) in (0..).zip(by_lane) {
        assert_eq!(due(&b.take(&lane(SINK, number)).await).await, seqs);
    }
}
