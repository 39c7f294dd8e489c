//! Rows that the application holds, and settlements that the table does not take: the rest goes on, and
//! nothing is published as fast as a broker answers.

use crate::ground::Ground;
use posthaste::relay::DrainOutcome;
use posthaste::route::Filter;
use posthaste::sink::Ordering;
use posthaste::store::{DueEvent, DueQuery, JoinPlan, LaneId, Settlement, SinkPlan, StartAt, Store};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::faults::{Faults, RecordingSink};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const DDL: &str = "create table outbox (id bigint primary key generated always as identity, topic text not null default 't', key text, payload_json jsonb not null default '{}',
    idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
    next_attempt_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now());
  create index outbox_due on outbox (next_attempt_at) where status in ('pending', 'failed')";

const DEADLINE: Duration = Duration::from_secs(60);

/// How often each row was delivered, the most often first.
fn repeats(ground: &Ground) -> usize {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for delivery in ground.broker.deliveries() {
        *counts.entry(delivery.id.to_string()).or_default() += 1;
    }
    counts.into_values().max().unwrap_or(0)
}

/// One row that the application holds keeps no other from being settled, nor its relay from renewing; and
/// what became of it is written as soon as it is let go, without another delivery.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_the_application_holds_holds_up_no_other() {
    let Some(mut ground) = Ground::make("talkie", DDL).await else { return };
    ground.layout.lease = Duration::from_secs(5);
    (ground.settings.lease_ttl_ms, ground.settings.publish_timeout_ms) = (5_000, 3_000);
    let faults = Faults::none();
    faults.freeze();
    ground.execute("insert into outbox (topic) select 't' from generate_series(1, 20)").await;
    let sink = RecordingSink::new(&ground.broker, "one", Ordering::Overlap).with_faults(faults.clone());
    let relay = ground.relay_to("one", Arc::new(sink)).await;
    ground.until("(select count(*) = 20 from outbox where status = 'publishing')").await;
    let mut app = ground.database.connect().await.expect("a connection");
    let held = app.transaction().await.expect("a transaction");
    held.execute("select from outbox where id = 7 for update", &[]).await.expect("the row is held");
    faults.thaw();
    ground.until("(select count(*) = 19 from outbox where status = 'published')").await;
    // Others go on, and the relay stays ready.
    ground.execute("insert into outbox (topic) select 'later' from generate_series(1, 5)").await;
    ground.until("(select count(*) = 24 from outbox where status = 'published')").await;
    eventually("the relay is ready", DEADLINE, async || relay.health().ready.then_some(())).await;
    held.commit().await.expect("let go");
    ground.until("(select count(*) = 25 from outbox where status = 'published')").await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// What was claimed ahead and cannot go back yet, because the application holds it, is not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_claimed_ahead_and_is_held_goes_back_later() {
    let Some(mut ground) = Ground::make("talkie", DDL).await else { return };
    (ground.layout.batch, ground.layout.lease) = (10, Duration::from_secs(3));
    ground.execute("insert into outbox (topic) select 't' from generate_series(1, 20)").await;
    let store = ground.store().await.expect("connects");
    let sink = SinkPlan { name: "s".into(), filter: Filter::Everything, start_at: StartAt::Auto };
    let plan = JoinPlan {
        relay: "one".into(),
        sinks: vec![sink],
        routes: String::new(),
        lanes: None,
        lease_ttl: Duration::from_secs(1),
    };
    store.join(&plan).await.expect("joins");
    let lane = LaneId { sink: "s".into(), lane: 0 };
    let lease = store.take(&lane).await.expect("taken").expect("free");
    let query = || DueQuery { events: 100, bytes: 1 << 20, ..DueQuery::default() };
    let first = lease.due(query()).await.expect("claims").events;
    let delivered = |events: &[DueEvent]| Settlement {
        delivered: events.iter().map(|event| event.stored.seq).collect(),
        ..Settlement::default()
    };
    lease.settle(&delivered(&first)).await.expect("settles");
    let in_hand = "select count(*) from outbox where status = 'publishing'";
    assert_eq!(ground.ask::<i64>(in_hand).await, 10, "the next ten are ahead");
    let mut app = ground.database.connect().await.expect("a connection");
    let held = app.transaction().await.expect("a transaction");
    held.execute("select from outbox where id = 15 for update", &[]).await.expect("the row is held");
    let other = || DueQuery { closed_destinations: vec!["x".to_owned()], ..query() };
    let others = lease.due(other()).await.expect("the others go back, and are claimed again").events;
    assert_eq!(others.len(), 9);
    lease.settle(&delivered(&others)).await.expect("settles");
    assert_eq!(ground.ask::<i64>(in_hand).await, 1, "nobody can write about the one that is held");
    held.commit().await.expect("let go");
    eventually("the held one comes back", DEADLINE, async || {
        store.roll(&[(lane.clone(), lease.epoch())]).await.expect("beats");
        let events = lease.due(query()).await.expect("claims").events;
        (events.len() == 1).then_some(())
    })
    .await;
}

/// A table that takes claims and no settlements, whatever the reason: what is published meanwhile is
/// published again, but with growing pauses.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_fails_again_and_again_is_repeated_slowly() {
    let Some(mut ground) = Ground::make("talkie", DDL).await else { return };
    ground.layout.status.as_mut().expect("it has one").claimed = None;
    ground.execute("insert into outbox (topic) values ('first')").await;
    let relay = ground.relay("one").await;
    ground.until("(select status = 'published' from outbox where topic = 'first')").await;
    ground
        .execute(
            "create function full_disk() returns trigger language plpgsql as $$ begin
               if new.status = 'published' then raise 'no room' using errcode = '53100'; end if; return new; end $$;
             create trigger full_disk before update on outbox for each row execute function full_disk();
             insert into outbox (topic) select 'more' from generate_series(1, 5)",
        )
        .await;
    eventually("it is published twice", DEADLINE, async || (repeats(&ground) >= 2).then_some(())).await;
    let (begun, before) = (tokio::time::Instant::now(), repeats(&ground));
    tokio::time::sleep(Duration::from_secs(3)).await; // pace: what is counted is what happens meanwhile
    let rate = (repeats(&ground) - before) as f64 / begun.elapsed().as_secs_f64();
    assert!(rate <= 2.0, "{rate} deliveries of a row a second");
    ground.execute("drop trigger full_disk on outbox").await;
    ground.until("(select count(*) = 6 from outbox where status = 'published')").await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// The owners drop a column that is written: nothing more is claimed, nobody is charged, and the relay says
/// so. When it is there again, everything goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_goes_away_stops_the_relay_and_costs_no_row_anything() {
    for locked in [false, true] {
        let Some(mut ground) = Ground::make("talkie", DDL).await else { return };
        ground.layout.lease = Duration::from_secs(2);
        (ground.settings.lease_ttl_ms, ground.settings.publish_timeout_ms) = (2_000, 1_000);
        if locked {
            ground.layout.status.as_mut().expect("it has one").claimed = None;
        }
        ground.execute("insert into outbox (topic) values ('first')").await;
        let relay = ground.relay("one").await;
        ground.until("(select status = 'published' from outbox where topic = 'first')").await;
        ground.execute("alter table outbox drop column published_at; insert into outbox (topic) select 'more' from generate_series(1, 60)").await;
        eventually("the relay says so", DEADLINE, async || {
            let health = relay.health();
            (!health.ready && health.why.contains("published_at")).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_secs(5)).await; // pace: several leases go by
        assert!(repeats(&ground) <= 2, "locked: {locked}, {} deliveries of one row", repeats(&ground));
        let charged = "select count(*) from outbox where retry_count > 0 or status = 'dead_lettered'";
        assert_eq!(ground.ask::<i64>(charged).await, 0);
        ground.execute("alter table outbox add column published_at timestamptz").await;
        ground.until("(select count(*) = 61 from outbox where status = 'published')").await;
    }
}
