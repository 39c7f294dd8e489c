//! Preset `outbox-events`: `outbox_events` of an implementation plan. No column to claim with: rows stay
//! locked while they are published.

use crate::ground::{Ground, WAIT, assert_delays};
use posthaste::relay::DrainOutcome;
use posthaste::sink::{Failure, Verdict};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::faults::Reply;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// §2.1 and §2.2 to the letter.
const DDL: &str = "
  create table outbox_events (
    id uuid primary key, aggregate_type varchar(50) not null, aggregate_id uuid not null, event_type varchar(100) not null,
    payload jsonb not null, occurred_at timestamptz default now(), status varchar(20) default 'PENDING',
    retry_count int default 0, next_attempt_at timestamptz default now(), last_error text null, processed_at timestamptz null);
  create index idx_outbox_poll on outbox_events (status, next_attempt_at asc);
  create index idx_outbox_aggregate on outbox_events (aggregate_type, aggregate_id)";

fn insert(rows: usize, kind: &str) -> String {
    format!(
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         select gen_random_uuid(), 'Order', gen_random_uuid(), '{kind}', jsonb_build_object('n', g) from generate_series(1, {rows}) g"
    )
}

async fn ground() -> Option<Ground> {
    Ground::make("outbox-events", DDL).await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_published_with_their_message_id_and_marked() {
    let Some(ground) = ground().await else { return };
    ground.execute(&insert(120, "OrderPlaced")).await;
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 120 from outbox_events where status = 'PUBLISHED')").await;
    let exact = "select bool_and(retry_count = 0 and last_error is null and processed_at >= occurred_at) from outbox_events";
    assert!(ground.ask::<bool>(exact).await);
    let deliveries = ground.broker.deliveries();
    assert_eq!(deliveries.len(), 120);
    for one in &deliveries {
        assert_eq!(one.destination, "Order.OrderPlaced");
        let body: serde_json::Value =
            serde_json::from_slice(one.payload.as_deref().expect("a payload")).expect("JSON");
        assert_eq!(body["messageId"], one.id.to_string(), "§3.1: the body includes id as messageId");
        assert!(body["n"].is_number());
    }
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// §3.1 and §3.3: PENDING with a growing count and `now() + 1 s · 2^retry_count` with the old count, FAILED
/// when it exceeds five; a permanent error counts like any other. The rest flows.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_event_backs_off_by_powers_of_two_and_ends_failed() {
    let Some(ground) = ground().await else { return };
    ground.judge_by_topic();
    ground.audit("outbox_events").await;
    ground.execute(&insert(1, "failing")).await;
    ground.execute(&insert(1, "refused")).await;
    ground.execute(&insert(3, "OrderPlaced")).await;
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 3 from outbox_events where status = 'PUBLISHED')").await;
    eventually("both FAILED", WAIT, async || {
        // Nobody waits for half a minute in a test.
        ground.execute("update outbox_events set next_attempt_at = now() where status = 'PENDING' and retry_count > 0").await;
        ground.ask::<bool>("select count(*) = 2 from outbox_events where status = 'FAILED' and retry_count = 6").await.then_some(())
    })
    .await;
    for kind in ["failing", "refused"] {
        let id: String =
            ground.ask(&format!("select id::text from outbox_events where event_type = '{kind}'")).await;
        let delays = ground.delays(&id, "retry_count", "next_attempt_at").await;
        assert_delays(&delays[..5], &[1.0, 2.0, 4.0, 8.0, 16.0], 0.0);
    }
    let error: String = ground.ask("select last_error from outbox_events where event_type = 'failing'").await;
    assert_eq!(error, "test.failing: not now");
    assert_eq!(
        ground.ask::<i64>("select count(*) from outbox_events where processed_at is not null").await,
        3
    );
    drop(relay);
}

/// §3.2: a worker that dies between SELECT and UPDATE leaves its rows PENDING, and the next one picks them up
/// at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_dies_or_is_cut_off_leaves_its_rows_pending() {
    let Some(ground) = ground().await else { return };
    ground.execute(&insert(30, "OrderPlaced")).await;
    let held = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&held);
    ground.broker.judge(move |offer| match offer.by.as_ref() {
        "first" => {
            count.fetch_add(1, Ordering::Relaxed);
            Reply::Hang
        }
        _ => Reply::Deliver,
    });
    let first = ground.relay("first").await;
    eventually("rows in hand", WAIT, async || (held.load(Ordering::Relaxed) >= 30).then_some(())).await;
    let second = ground.relay("second").await;
    // Locked, so nobody else gets them; and untouched for everybody who looks.
    let skipped = "select count(*) from (select from outbox_events where status = 'PENDING' for update skip locked) free";
    assert_eq!(ground.ask::<i64>(skipped).await, 0);
    assert_eq!(ground.ask::<i64>("select count(*) from outbox_events where status = 'PENDING'").await, 30);
    drop(first);
    ground
        .until("(select count(*) = 30 from outbox_events where status = 'PUBLISHED' and retry_count = 0)")
        .await;
    ground.execute(&insert(30, "OrderPlaced")).await;
    ground.cut().await;
    ground
        .until("(select count(*) = 60 from outbox_events where status = 'PUBLISHED' and retry_count = 0)")
        .await;
    assert_eq!(second.drain().await, DrainOutcome::Clean);
}

/// F50: an outage spends nothing, and keeps no row locked: the application does not wait for a broker.
#[tokio::test(flavor = "multi_thread")]
async fn f50_an_outage_keeps_no_lock_and_spends_no_attempt() {
    let Some(ground) = ground().await else { return };
    let (away, offers) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (gate, count) = (Arc::clone(&away), Arc::clone(&offers));
    ground.broker.judge(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        match gate.load(Ordering::Relaxed) {
            true => Reply::Refuse(Verdict::Retry(Failure::of_sink("test.away", "away"))),
            false => Reply::Deliver,
        }
    });
    ground.execute(&insert(80, "OrderPlaced")).await;
    let relay = ground.relay("one").await;
    eventually("a probe", WAIT, async || (offers.load(Ordering::Relaxed) > 51).then_some(())).await;
    let free = "(select count(*) = 80 from (select from outbox_events where status = 'PENDING' and retry_count = 0 for update skip locked) free)";
    // Well before the server would end a transaction that stands still.
    let soon = std::time::Duration::from_secs(25);
    eventually("no row is locked", soon, async || {
        ground.ask::<bool>(&format!("select {free}")).await.then_some(())
    })
    .await;
    away.store(false, Ordering::Relaxed);
    ground
        .until("(select count(*) = 80 from outbox_events where status = 'PUBLISHED' and retry_count = 0)")
        .await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// The worker of §3.1, written down as it stands there.
async fn poller(ground: &Ground, stop: Arc<AtomicBool>) -> Vec<uuid::Uuid> {
    let mut client = ground.database.connect().await.expect("a connection");
    let mut published = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let tx = client.transaction().await.expect("begin");
        let select =
            "SELECT id, payload FROM outbox_events WHERE status = 'PENDING' AND next_attempt_at <= NOW()
                      ORDER BY next_attempt_at ASC LIMIT 50 FOR UPDATE SKIP LOCKED";
        for row in tx.query(select, &[]).await.expect("poll") {
            let id: uuid::Uuid = row.get(0);
            published.push(id);
            tx.execute(
                "UPDATE outbox_events SET status = 'PUBLISHED', processed_at = NOW() WHERE id = $1",
                &[&id],
            )
            .await
            .expect("update");
        }
        tx.commit().await.expect("commit");
        tokio::task::yield_now().await;
    }
    published
}

/// A poller written from the document runs beside ours, and no row is published by both.
#[tokio::test(flavor = "multi_thread")]
async fn the_owners_own_poller_runs_beside_ours() {
    let Some(ground) = ground().await else { return };
    let ground = Arc::new(ground);
    let (stop, theirs) = (Arc::new(AtomicBool::new(false)), Arc::clone(&ground));
    let flag = Arc::clone(&stop);
    let poller = tokio::spawn(async move { poller(&theirs, flag).await });
    let relays = [ground.relay("one").await, ground.relay("two").await];
    for _ in 0..20 {
        ground.execute(&insert(200, "OrderPlaced")).await;
    }
    let mut rows = 4_000;
    while ground.broker.deliveries().is_empty() {
        // The poller was quicker: there is more until ours have met it.
        ground.execute(&insert(200, "OrderPlaced")).await;
        rows += 200;
    }
    ground.until(&format!("(select count(*) = {rows} from outbox_events where status = 'PUBLISHED')")).await;
    stop.store(true, Ordering::Relaxed);
    let theirs: HashSet<uuid::Uuid> = poller.await.expect("the poller").into_iter().collect();
    let ours: Vec<uuid::Uuid> = ground.broker.deliveries().iter().map(|one| one.id).collect();
    let distinct: HashSet<uuid::Uuid> = ours.iter().copied().collect();
    assert_eq!(ours.len(), distinct.len(), "none twice by ours");
    assert_eq!(distinct.intersection(&theirs).count(), 0, "none by both");
    assert_eq!(ours.len() + theirs.len(), rows);
    assert!(!ours.is_empty() && !theirs.is_empty(), "both worked");
    for relay in relays {
        assert_eq!(relay.drain().await, DrainOutcome::Clean);
    }
}
