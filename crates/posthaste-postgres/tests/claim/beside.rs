//! The application beside a relay: its own transactions never wait for longer than one batch takes.

use crate::ground::{Ground, WAIT};
use posthaste::relay::DrainOutcome;
use posthaste::sink::Ordering;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::faults::{Fault, Faults, FaultySink, Op, RecordingSink, Reply};
use std::sync::Arc;
use std::time::Duration;

const LOCKED: &str = "create table outbox_events (id uuid primary key default gen_random_uuid(), aggregate_type varchar(50) not null,
    aggregate_id uuid not null, event_type varchar(100) not null, payload jsonb not null, occurred_at timestamptz default now(),
    status varchar(20) default 'PENDING', retry_count int default 0, next_attempt_at timestamptz default now(), last_error text, processed_at timestamptz);
  create index idx_outbox_poll on outbox_events (status, next_attempt_at);
  insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) select 'o', gen_random_uuid(), 't', '{}' from generate_series(1, 100)";
const MARKED: &str = "create table outbox (id bigint primary key generated always as identity, topic text not null, key text, payload_json jsonb not null default '{}',
    idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
    next_attempt_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now());
  insert into outbox (topic) select 't' from generate_series(1, 20)";

/// Rows are locked while they are published: an UPDATE of one of them waits until its batch is settled, and
/// no longer.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_of_a_locked_row_waits_for_one_batch_at_most() {
    let Some(mut ground) = Ground::make("outbox-events", LOCKED).await else { return };
    ground.layout.batch = 5;
    let faults = Faults::none();
    faults.always(Op::Publish, Fault::Slow(Duration::from_millis(100)));
    let sink = RecordingSink::new(&ground.broker, "one", Ordering::Overlap);
    let relay = ground.relay_to("one", Arc::new(FaultySink::new(Arc::new(sink), faults))).await;
    let mut waited = Vec::new();
    loop {
        // The next one in the order of the claim: as a rule it is in hand.
        let next =
            "select id from outbox_events where status = 'PENDING' order by next_attempt_at, id limit 1";
        let Some(row) = ground.app.query_opt(next, &[]).await.expect("a look") else { break };
        let (id, before): (uuid::Uuid, usize) = (row.get(0), ground.broker.deliveries().len());
        let touch = "update outbox_events set payload = payload || '{\"seen\": true}' where id = $1";
        ground.app.execute(touch, &[&id]).await.expect("the application's own update");
        // What was published meanwhile: the batch that held it, and what the next one has done since it was
        // let go.
        let meanwhile = ground.broker.deliveries().len() - before;
        if meanwhile > 0 {
            waited.push(meanwhile);
        }
    }
    // As a rule: a machine that stands still for a moment does so between the update and the count, too.
    waited.sort_unstable();
    let rule = waited.get(waited.len() / 2).copied().expect("the relay and the application met");
    assert!(rule <= 2 * 5, "it waited for {rule} rows, a batch is 5: {waited:?}");
    assert!(waited.iter().all(|rows| *rows < 50), "it waited for half of the table: {waited:?}");
    ground.until("(select count(*) = 100 from outbox_events where status = 'PUBLISHED')").await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// Rows are marked while they are published: nobody waits at all, however long the broker takes.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_of_a_marked_row_waits_for_nobody() {
    let Some(ground) = Ground::make("talkie", MARKED).await else { return };
    ground.broker.judge(|_| Reply::Hang);
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 20 from outbox where status = 'publishing')").await;
    eventually("the claim is committed", WAIT, async || {
        let free = "select count(*) = 20 from (select from outbox for update skip locked) free";
        ground.ask::<bool>(free).await.then_some(())
    })
    .await;
    ground.execute("set lock_timeout = '5s'; update outbox set payload_json = '{\"seen\": true}'").await;
    drop(relay);
}
