//! Preset `talkie`: Talkie's `outbox`, claimed by the status `publishing`.

use crate::ground::{Ground, WAIT, assert_delays};
use posthaste::relay::DrainOutcome;
use posthaste::sink::{Failure, Verdict};
use posthaste::store::{DueQuery, JoinPlan, LaneId, Settlement, SinkPlan, StartAt, Store, StoreError};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::faults::Reply;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The table as the document lists it. Open there: types, and the names of indexes.
const DDL: &str = "
  create type outbox_status as enum ('pending', 'publishing', 'published', 'failed', 'dead_lettered');
  create table outbox (
    id uuid primary key default gen_random_uuid(),
    topic text not null, key text, payload_json jsonb not null, idempotency_key text not null,
    status outbox_status not null default 'pending',
    retry_count int not null default 0, last_error text,
    last_attempt_at timestamptz, next_attempt_at timestamptz not null default now(),
    published_at timestamptz, created_at timestamptz not null default now(),
    unique (topic, idempotency_key));
  create index outbox_batch on outbox (next_attempt_at) where status in ('pending', 'failed');
  create index outbox_dlq on outbox (status) where status = 'dead_lettered';";

const INSERT: &str = "insert into outbox (topic, key, payload_json, idempotency_key)
  select 'chat.sent', 'room-' || g % 7, jsonb_build_object('n', g), 'k' || g from generate_series(1, 120) g";

async fn ground() -> Option<Ground> {
    Ground::make("talkie", DDL).await
}

/// `pending → publishing → published`, to the column.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_published_and_marked_as_their_owners_expect() {
    let Some(ground) = ground().await else { return };
    ground.execute(INSERT).await;
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 120 from outbox where status = 'published')").await;
    let exact = "(select bool_and(retry_count = 0 and last_error is null and published_at >= last_attempt_at
                  and last_attempt_at >= created_at) from outbox)";
    assert!(ground.ask::<bool>(&format!("select {exact}")).await);
    let deliveries = ground.broker.deliveries();
    assert_eq!(deliveries.len(), 120, "each once");
    let first = deliveries.iter().find(|one| one.key.as_deref() == Some("room-1")).expect("one of its room");
    assert_eq!(first.destination, "chat.sent");
    let id: String =
        ground.ask(&format!("select idempotency_key from outbox where id = '{}'", first.id)).await;
    assert!(first.headers.contains(&("idempotency-key".to_owned(), id)));
    assert!(first.headers.contains(&("content-type".to_owned(), "application/json".to_owned())));
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// `publishing → failed` with `retry_count`, `last_error` and the backoff; `dead_lettered` when five are
/// exceeded. The others flow (F49), and the document's own statements see what it says they see.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_event_counts_its_own_attempts_and_ends_dead_lettered() {
    let Some(ground) = ground().await else { return };
    ground.judge_by_topic();
    ground.audit("outbox").await;
    ground.execute("insert into outbox (topic, payload_json, idempotency_key) values ('chat.failing', '{}', 'a'), ('chat.refused', '{}', 'b'), ('chat.sent', '{}', 'c')").await;
    let relay = ground.relay("one").await;
    ground.until("(select status = 'published' from outbox where idempotency_key = 'c')").await;
    eventually("both dead-lettered", WAIT, async || {
        // Nobody waits for half a minute in a test.
        ground.execute("update outbox set next_attempt_at = now() where status = 'failed'").await;
        let failed = "select count(*) from outbox where status in ('failed', 'dead_lettered', 'publishing')";
        assert_eq!(ground.ask::<i64>(failed).await, 2);
        let done = "select count(*) = 2 from outbox where status = 'dead_lettered' and retry_count = 6";
        ground.ask::<bool>(done).await.then_some(())
    })
    .await;
    for kind in ["a", "b"] {
        let id: String =
            ground.ask(&format!("select id::text from outbox where idempotency_key = '{kind}'")).await;
        let delays = ground.delays(&id, "retry_count", "next_attempt_at").await;
        assert_delays(&delays[..5], &[1.0, 2.0, 4.0, 8.0, 16.0], 0.0);
    }
    let path = "select string_agg(distinct (was ->> 'status') || ' ' || (row ->> 'status'), ', ') from audit where was ->> 'status' <> row ->> 'status'";
    let steps: String = ground.ask(path).await;
    assert_eq!(
        steps,
        "failed publishing, pending publishing, publishing dead_lettered, publishing failed, publishing published",
        "the document's state machine"
    );
    let errors: String = ground.ask("select string_agg(last_error, '|' order by idempotency_key) from outbox where status = 'dead_lettered'").await;
    assert_eq!(errors, "test.failing: not now|test.refused: never");
    drop(relay);
}

/// F50: while the broker is away no attempt is spent, and nothing stays claimed.
#[tokio::test(flavor = "multi_thread")]
async fn f50_an_outage_gives_rows_back_as_they_were() {
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
    ground.execute(INSERT).await;
    let relay = ground.relay("one").await;
    // A whole batch, and then one row for each probe.
    eventually("a probe", WAIT, async || (offers.load(Ordering::Relaxed) > 51).then_some(())).await;
    ground.until("(select count(*) = 120 from outbox where status = 'pending' and retry_count = 0 and last_attempt_at is null)").await;
    away.store(false, Ordering::Relaxed);
    ground.until("(select count(*) = 120 from outbox where status = 'published' and retry_count = 0)").await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// F27: what a dead relay left in `publishing` comes back after the lease, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn f27_rows_left_in_publishing_come_back() {
    let Some(ground) = ground().await else { return };
    ground
        .execute(
            "insert into outbox (topic, payload_json, idempotency_key, status, last_attempt_at) values
               ('chat.sent', '{}', 'old', 'publishing', now() - interval '61 s'),
               ('chat.sent', '{}', 'fresh', 'publishing', now() - interval '20 s'),
               ('chat.sent', '{}', 'never', 'publishing', null)",
        )
        .await;
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 2 from outbox where status = 'published' and idempotency_key in ('old', 'never'))").await;
    assert_eq!(
        ground.ask::<String>("select status::text from outbox where idempotency_key = 'fresh'").await,
        "publishing"
    );
    assert_eq!(ground.ask::<i32>("select max(retry_count) from outbox").await, 0);
    drop(relay);
}

fn plan(relay: &str) -> JoinPlan {
    JoinPlan {
        relay: relay.into(),
        sinks: vec![SinkPlan {
            name: "s".into(),
            filter: posthaste::route::Filter::Everything,
            start_at: StartAt::Auto,
        }],
        routes: String::new(),
        lanes: None,
        lease_ttl: Duration::from_secs(1),
    }
}

fn query() -> DueQuery {
    DueQuery { events: 10, bytes: 1 << 20, ..DueQuery::default() }
}

/// G4, F20: a relay that was stopped past its lease settles nothing that somebody else has claimed.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_relay_past_its_lease_settles_nothing() {
    let Some(mut ground) = ground().await else { return };
    ground.layout.lease = Duration::from_secs(1);
    ground.execute("insert into outbox (topic, payload_json, idempotency_key) values ('t', '{}', 'a')").await;
    let lane = LaneId { sink: "s".into(), lane: 0 };
    let (first, second) = (ground.store().await.expect("one"), ground.store().await.expect("two"));
    first.join(&plan("first")).await.expect("joins");
    second.join(&plan("second")).await.expect("joins");
    let slow = first.take(&lane).await.expect("taken").expect("free");
    let held = slow.due(query()).await.expect("claims").events;
    assert_eq!(held.len(), 1);
    ground.execute("update outbox set last_attempt_at = last_attempt_at - interval '2 s'").await;
    let quick = second.take(&lane).await.expect("taken").expect("free");
    let taken = quick.due(query()).await.expect("claims").events;
    assert_eq!(taken[0].stored.event.id, held[0].stored.event.id, "the row was taken back");
    let late = Settlement { delivered: vec![held[0].stored.seq], ..Settlement::default() };
    slow.settle(&late).await.expect("dropped");
    assert_eq!(first.missed(), 1, "and counted");
    assert_eq!(ground.ask::<String>("select status::text from outbox").await, "publishing");
    let own = Settlement { delivered: vec![taken[0].stored.seq], ..Settlement::default() };
    quick.settle(&own).await.expect("settles");
    quick.settle(&own).await.expect("harmless when repeated");
    assert_eq!(ground.ask::<String>("select status::text from outbox").await, "published");
    assert_eq!(second.missed(), 0);
}

/// F22: a heartbeat renews what is in hand before the lease is over; one that finds a row gone loses the
/// lane, and nothing of it is settled any more.
#[tokio::test(flavor = "multi_thread")]
async fn f22_a_heartbeat_renews_claims_and_notices_those_that_are_gone() {
    let Some(mut ground) = ground().await else { return };
    ground.layout.lease = Duration::from_secs(1);
    ground.execute("insert into outbox (topic, payload_json, idempotency_key) values ('t', '{}', 'a')").await;
    let lane = LaneId { sink: "s".into(), lane: 0 };
    let store = ground.store().await.expect("connects");
    store.join(&plan("one")).await.expect("joins");
    let lease = store.take(&lane).await.expect("taken").expect("free");
    let held = [(lane.clone(), lease.epoch())];
    let claimed = lease.due(query()).await.expect("claims").events;
    let first: String = ground.ask("select last_attempt_at::text from outbox").await;
    eventually("the mark is renewed", WAIT, async || {
        let roll = store.roll(&held).await.expect("beats");
        assert_eq!(roll.lanes[0].owner.as_deref(), Some("one"));
        let later =
            format!("select last_attempt_at > '{first}'::timestamptz and status = 'publishing' from outbox");
        ground.ask::<bool>(&later).await.then_some(())
    })
    .await;
    ground.execute("update outbox set last_attempt_at = now() + interval '1 s'").await;
    eventually("the lane is lost", WAIT, async || {
        let roll = store.roll(&held).await.expect("beats");
        roll.lanes[0].is_free.then_some(())
    })
    .await;
    let late = Settlement { delivered: vec![claimed[0].stored.seq], ..Settlement::default() };
    assert!(matches!(lease.settle(&late).await, Err(StoreError::LeaseLost(_))));
    assert_eq!(ground.ask::<String>("select status::text from outbox").await, "publishing");
}

/// Two relays share the work and never hold the same row; one that goes away gives back what it had.
#[tokio::test(flavor = "multi_thread")]
async fn two_relays_never_publish_the_same_row() {
    let Some(mut ground) = ground().await else { return };
    ground.layout.batch = 5;
    ground.execute(INSERT).await;
    let (one, two) = (ground.relay("one").await, ground.relay("two").await);
    let mut rows = 120;
    let both = || {
        let by = ground.broker.deliveries().into_iter().map(|one| one.by.to_string());
        by.collect::<HashSet<_>>().len() == 2
    };
    let end = tokio::time::Instant::now() + WAIT;
    while !both() {
        assert!(tokio::time::Instant::now() < end, "one of them does nothing");
        // The first may be done before the second is there: there is more.
        let more = format!("'more' || g from generate_series({rows}, {rows} + 119) g");
        let insert =
            "insert into outbox (topic, key, payload_json, idempotency_key) select 'chat.sent', 'room', '{}'";
        ground.execute(&format!("{insert}, {more}")).await;
        rows += 120;
        tokio::time::sleep(Duration::from_millis(20)).await; // pace
    }
    ground.until(&format!("(select count(*) = {rows} from outbox where status = 'published')")).await;
    let deliveries = ground.broker.deliveries();
    let distinct: HashSet<_> = deliveries.iter().map(|one| one.id).collect();
    assert_eq!((deliveries.len(), distinct.len()), (rows, rows));
    assert_eq!((one.drain().await, two.drain().await), (DrainOutcome::Clean, DrainOutcome::Clean));
}

/// A row that the application has locked is passed over, not waited for; a word nobody mapped is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn locked_rows_are_passed_over_and_unknown_words_left_alone() {
    let Some(ground) = ground().await else { return };
    ground.execute("alter table outbox alter status drop default").await;
    ground.execute("drop index outbox_batch; drop index outbox_dlq; alter table outbox alter status type text; alter table outbox alter status set default 'pending'").await;
    ground.execute("insert into outbox (topic, payload_json, idempotency_key, status) values ('t', '{}', 'a', 'pending'), ('t', '{}', 'b', 'pending'), ('t', '{}', 'c', 'on_hold')").await;
    let app = ground.database.connect().await.expect("a connection");
    app.batch_execute("begin; select * from outbox where idempotency_key = 'a' for update")
        .await
        .expect("locked");
    let relay = ground.relay("one").await;
    ground.until("(select status = 'published' from outbox where idempotency_key = 'b')").await;
    assert_eq!(
        ground.ask::<String>("select status from outbox where idempotency_key = 'a'").await,
        "pending"
    );
    app.batch_execute("commit").await.expect("commit");
    ground.until("(select status = 'published' from outbox where idempotency_key = 'a')").await;
    assert_eq!(
        ground.ask::<String>("select status from outbox where idempotency_key = 'c'").await,
        "on_hold"
    );
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}
