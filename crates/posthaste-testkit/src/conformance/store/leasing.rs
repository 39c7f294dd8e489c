//! Leasing: who may own a lane, and how everybody learns of it.

use super::super::{DEADLINE, eventually};
use super::StoreFixture;
use super::stage::{
    LONG, SINK, WIDE, append, append_many, event, lane, plan, read, read_all, relay, relay_with, seqs,
    settle, take_when_free, through,
};
use posthaste::admin::{Control, ControlTarget};
use posthaste::store::{JoinPlan, StoreCode, StoreError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// A lease short enough to wait for.
const SHORT: Duration = Duration::from_millis(800);

/// One owner at a time.
pub async fn a_live_lane_cannot_be_taken(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    let roll = b.store.roll(&[]).await.expect("the store answers");
    let [view] = roll.lanes.as_slice() else { panic!("one lane: {:?}", roll.lanes) };
    assert_eq!((view.owner.as_deref(), view.is_free, view.epoch), (Some("a"), false, lease.epoch()));
    assert!(b.store.take(&lane(SINK, 0)).await.expect("the store answers").is_none());
}

/// The next owner waits for nothing.
pub async fn a_released_lane_is_free_at_once(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    lease.release().await.expect("released");
    let roll = b.store.roll(&[]).await.expect("the store answers");
    assert!(roll.lanes[0].is_free && roll.lanes[0].owner.is_none());
    assert!(b.store.take(&lane(SINK, 0)).await.expect("the store answers").is_some());
}

/// A host that vanished: nobody renews, and nobody says goodbye.
pub async fn an_expired_lane_is_free(fixture: &impl StoreFixture) {
    let a = relay_with(fixture, JoinPlan { lease_ttl: SHORT, ..plan("a") }).await;
    let b = relay(fixture, "b").await;
    let before = Instant::now();
    let lease = a.lease().await;
    let taken = take_when_free(&b).await;
    assert!(before.elapsed() >= SHORT - Duration::from_millis(50), "it was free before it expired");
    assert!(taken.epoch() > lease.epoch());
}

/// The heartbeat keeps it.
pub async fn a_renewed_lane_stays(fixture: &impl StoreFixture) {
    // Longer than a machine stands still between two beats.
    let a = relay_with(fixture, JoinPlan { lease_ttl: SHORT * 6, ..plan("a") }).await;
    let b = relay(fixture, "b").await;
    let lease = a.lease().await;
    let held = [(lease.id().clone(), lease.epoch())];
    let end = Instant::now() + SHORT * 8;
    while Instant::now() < end {
        let roll = a.store.roll(&held).await.expect("the store answers");
        assert!(roll.lanes[0].owner.as_deref() == Some("a") && !roll.lanes[0].is_free);
        assert!(b.store.take(&lane(SINK, 0)).await.expect("the store answers").is_none());
        tokio::time::sleep(SHORT / 4).await; // pace: less than the lease
    }
    let seqs = append_many(fixture, 1).await;
    let page = read(&lease, WIDE).await;
    assert_eq!(page.events.len(), seqs.len());
    settle(&lease, through(page.number)).await;
}

/// A heart that stops is noticed long before the lease expires.
pub async fn a_dead_process_frees_its_lanes(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    append(fixture, event("x")).await;
    let before = Instant::now();
    fixture.kill("a").await;
    let taken = take_when_free(&b).await;
    assert!(before.elapsed() < LONG / 2);
    assert!(taken.epoch() > lease.epoch());
    assert_eq!(read_all(&taken).await.len(), 1);
}

/// However many ask.
pub async fn two_relays_race_for_a_lane_and_one_wins(fixture: &impl StoreFixture) {
    let mut relays = Vec::new();
    for n in 0..5 {
        relays.push(relay(fixture, &format!("relay-{n}")).await);
    }
    let id = lane(SINK, 0);
    for _ in 0..5 {
        let takes = relays.iter().map(|relay| relay.store.take(&id));
        let taken = futures_util::future::join_all(takes).await;
        let mut winners = taken.into_iter().filter_map(|take| take.expect("the store answers"));
        let winner = winners.next().expect("somebody wins");
        assert!(winners.next().is_none(), "and nobody else");
        winner.release().await.expect("released");
    }
}

/// Two relays with other routes would tear a sink's events apart.
pub async fn other_routes_are_refused_while_a_relay_lives(fixture: &impl StoreFixture) {
    let a = relay(fixture, "a").await;
    let other = JoinPlan { routes: "{\"s\":[\"orders.*\"]}".to_owned(), ..plan("b") };
    let b = fixture.store().await;
    let refused = b.join(&other).await.expect_err("other routes beside a living relay");
    assert!(matches!(refused, StoreError::Fatal { code: StoreCode::OtherRoutes, .. }), "{refused:?}");
    relay(fixture, "c").await.store.leave().await.expect("left");
    a.store.leave().await.expect("left");
    b.join(&other).await.expect("nobody is left to disagree");
    let roll = b.roll(&[]).await.expect("the store answers");
    assert_eq!((roll.relays, roll.refused), (1, None));
}

/// F25: relays that are told different numbers of lanes must not disagree about them. The number that was
/// created counts; it is changed by an act of its own, not by who starts first or last.
pub async fn the_stored_number_of_lanes_wins(fixture: &impl StoreFixture) {
    let a = relay_with(fixture, JoinPlan { lanes: Some(3), ..plan("a") }).await;
    for (name, lanes) in [("b", Some(1)), ("c", Some(2)), ("d", Some(4)), ("e", None)] {
        let other = relay_with(fixture, JoinPlan { lanes, ..plan(name) }).await;
        for relay in [&a, &other] {
            let roll = relay.store.roll(&[]).await.expect("the store answers");
            assert_eq!((roll.lanes.len(), roll.refused), (3, None), "{lanes:?}");
        }
        other.store.leave().await.expect("left");
    }
    a.store.leave().await.expect("left");
    let last = relay_with(fixture, JoinPlan { lanes: Some(2), ..plan("f") }).await;
    assert_eq!(last.store.roll(&[]).await.expect("the store answers").lanes.len(), 3);
}

/// What fair shares are worked out from.
pub async fn the_roll_shows_relays_lanes_and_clock(fixture: &impl StoreFixture) {
    let a = relay_with(fixture, JoinPlan { lanes: Some(2), ..plan("a") }).await;
    let b = relay_with(fixture, JoinPlan { lanes: Some(2), ..plan("b") }).await;
    let (before, roll) = (fixture.now().await, a.store.roll(&[]).await.expect("the store answers"));
    assert_eq!(roll.relays, 2);
    assert!(roll.now >= before && roll.now <= fixture.now().await);
    let lanes: Vec<_> = roll.lanes.iter().map(|view| view.id.lane).collect();
    assert_eq!(lanes, [0, 1]);
    let shares = [a.take(&lane(SINK, 0)).await.share(), b.take(&lane(SINK, 1)).await.share()];
    assert!((shares[0] + shares[1] - 1.0).abs() < 1e-9, "{shares:?}");
    b.store.leave().await.expect("left");
    let roll = a.store.roll(&[]).await.expect("the store answers");
    assert_eq!(roll.relays, 1, "who left no longer counts");
}

/// Pause, resume and rate limits work without a restart.
pub async fn controls_reach_every_roll(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let sink = ControlTarget::Sink(SINK.to_owned());
    fixture.control(&sink, &Control::Pause).await;
    fixture.control(&sink, &Control::RateLimit(Some(12.5))).await;
    fixture.control(&ControlTarget::Route("r".to_owned()), &Control::Pause).await;
    for relay in [&a, &b] {
        let controls = relay.store.roll(&[]).await.expect("the store answers").controls;
        assert_eq!(controls.paused_sinks, [SINK]);
        assert_eq!(controls.paused_routes, ["r"]);
        assert_eq!(controls.rate_limits, [(SINK.to_owned(), 12.5)]);
    }
    fixture.control(&sink, &Control::Resume).await;
    fixture.control(&sink, &Control::RateLimit(None)).await;
    fixture.control(&ControlTarget::Route("r".to_owned()), &Control::Resume).await;
    let controls = a.store.roll(&[]).await.expect("the store answers").controls;
    assert!(controls.paused_sinks.is_empty() && controls.paused_routes.is_empty());
    assert!(controls.rate_limits.is_empty(), "{:?}", controls.rate_limits);
}

/// A relay joins again after a lost connection; its cursors and leases are as they were.
pub async fn joining_again_changes_nothing(fixture: &impl StoreFixture) {
    let a = relay(fixture, "a").await;
    let lease = a.lease().await;
    append_many(fixture, 3).await;
    let page = read(&lease, WIDE).await;
    settle(&lease, through(page.number)).await;
    a.store.join(&a.plan).await.expect("the relay joins again");
    let more = append_many(fixture, 2).await;
    let page = read(&lease, WIDE).await;
    assert_eq!(seqs(&page), more);
    settle(&lease, through(page.number)).await;
    let roll = a.store.roll(&[(lease.id().clone(), lease.epoch())]).await.expect("the store answers");
    assert_eq!((roll.relays, roll.lanes[0].owner.as_deref()), (1, Some("a")));
}

/// A relay may be told to stop before it has begun.
pub async fn g8_a_relay_that_has_not_joined_leaves_in_peace(fixture: &impl StoreFixture) {
    let a = relay(fixture, "a").await;
    fixture.store().await.leave().await.expect("there is nothing to leave");
    let roll = a.store.roll(&[]).await.expect("the store answers");
    assert_eq!(roll.relays, 1, "and nobody else has left");
}

/// A hint, but one that a sleeping relay may count on while the store says that it gives them.
pub async fn an_append_wakes_a_dozing_relay(fixture: &impl StoreFixture) {
    let a = relay(fixture, "a").await;
    if !a.store.doze(DEADLINE).await.expect("the store answers") {
        return;
    }
    // Wakeups of the past may still be under way: they are let in first.
    while timeout(Duration::from_millis(200), a.store.wakeup()).await.is_ok() {}
    append(fixture, event("wake up")).await;
    timeout(DEADLINE, a.store.wakeup()).await.expect("the append wakes the relay");
}

/// Housekeeping may run at any time.
pub async fn a_sweep_loses_nothing(fixture: &impl StoreFixture) {
    let (a, b) = (relay(fixture, "a").await, relay(fixture, "b").await);
    let lease = a.lease().await;
    let mut late = if fixture.writers_overlap() { Some(fixture.begin().await) } else { None };
    let mut expected = Vec::new();
    if let Some(late) = &mut late {
        expected.push(late.append(event("late")).await);
    }
    for round in 0..5 {
        expected.extend(append_many(fixture, 3).await);
        let (one, two) = tokio::join!(a.store.sweep(), b.store.sweep());
        assert!(one.is_ok() && two.is_ok(), "round {round}: {one:?} {two:?}");
        assert_eq!(one.expect("checked").audit_failures, 0);
    }
    if let Some(late) = late {
        late.commit().await;
    }
    let mut got = read_all(&lease).await;
    got.sort_unstable();
    assert_eq!(got, expected);
}

/// A position in memory must not survive a crash of the server, also behind a pooler that hides it.
pub async fn f7_a_crash_of_the_server_ends_every_lease(fixture: &impl StoreFixture) {
    let a = relay(fixture, "a").await;
    let lease = a.lease().await;
    let before = append_many(fixture, 3).await;
    let page = read(&lease, WIDE).await;
    if !fixture.crash_server().await {
        return;
    }
    let settled = eventually("the settlement is answered", DEADLINE, || async {
        match lease.settle(&through(page.number)).await {
            Err(error) if error.is_transient() => None,
            other => Some(other),
        }
    })
    .await;
    assert!(matches!(settled, Err(StoreError::LeaseLost(_))), "{settled:?}");
    eventually("the relay joins again", DEADLINE, || async { a.store.join(&a.plan).await.ok() }).await;
    let lease = a.lease().await;
    let after = append_many(fixture, 1).await;
    assert_eq!(read_all(&lease).await, [before, after].concat());
}
