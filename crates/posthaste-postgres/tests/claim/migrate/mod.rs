//! From an adopted table to the log: which rows go where, in which steps, and under load.

mod hostile;
mod load;
mod rows;
mod steps;

use crate::ground::{Ground, WAIT};
use posthaste::Limits;
use posthaste::admin::Actor;
use posthaste::clock::SystemClock;
use posthaste::relay::{RelayHandle, RelayPlan, SinkEntry, start};
use posthaste::route::RouteTable;
use posthaste::sink::Ordering;
use posthaste::store::StartAt;
use posthaste_postgres::PostgresStore;
use posthaste_postgres::claim::{Done, Handover, HandoverError, PATIENCE, dead_letter_table, table};
use posthaste_postgres::migrate::{self, Roles};
use posthaste_testkit::faults::RecordingSink;
use std::sync::Arc;
use tokio::sync::watch;

/// A table with a status, a time for the next attempt and a claim's mark.
pub(super) const TALKIE: &str = "
  create type outbox_status as enum ('pending', 'publishing', 'published', 'failed', 'dead_lettered');
  create table outbox (
    id uuid primary key default gen_random_uuid(), topic text, key text, payload_json jsonb, idempotency_key text,
    status outbox_status not null default 'pending', retry_count int not null default 0, last_error text,
    last_attempt_at timestamptz, next_attempt_at timestamptz not null default now(), published_at timestamptz,
    created_at timestamptz not null default now(), unique (topic, idempotency_key));
  create index outbox_batch on outbox (next_attempt_at) where status in ('pending', 'failed')";

pub(super) fn actor() -> Actor {
    Actor::new("test", "a test")
}

/// The table, its dead-letter table if it has one, and a log beside it.
pub(super) async fn ground(preset: &str, ddl: &str) -> Option<Ground> {
    let ground = Ground::make(preset, ddl).await?;
    let found = table(&ground.app, &ground.layout.table).await.expect("looks").expect("is there");
    if let Some(ddl) = dead_letter_table(&ground.layout, &found) {
        ground.execute(&ddl).await;
    }
    set_up_log(&ground).await;
    Some(ground)
}

pub(super) async fn set_up_log(ground: &Ground) {
    // Roles belong to the server, which other tests share.
    let name = |role| format!("{}_{role}", ground.database.name());
    let (app, consumer) = (name("app"), name("consumer"));
    let (relay, admin, gateway) = (name("relay"), name("admin"), name("gateway"));
    let roles = Roles { app, consumer, relay, admin, gateway, create: true };
    migrate::up(&ground.config(), &roles).await.expect("a superuser may set up the log");
}

pub(super) async fn handover(ground: &Ground) -> Handover {
    Handover::connect(&ground.config(), &ground.layout, "posthaste").await.expect("table and log fit")
}

pub(super) async fn started(ground: &Ground) -> Handover {
    let mut handover = handover(ground).await;
    assert_eq!(handover.start(&[], PATIENCE, &actor()).await.expect("it starts"), Done::Now);
    handover
}

/// What stood in the way.
pub(super) fn refusal<T: std::fmt::Debug>(result: Result<T, HandoverError>) -> String {
    match result {
        Err(HandoverError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// A relay of the log, to the same broker.
pub(super) async fn log_relay(ground: &Ground, name: &str) -> RelayHandle {
    let store = PostgresStore::connect(ground.config()).await.expect("the log connects");
    let routes = RouteTable::new(vec![ground.route.clone()]);
    let sink = RecordingSink::new(&ground.broker, name, Ordering::Overlap);
    let plan = RelayPlan {
        host: "host".into(),
        outbox: "log".into(),
        service: "test".into(),
        relay: name.into(),
        store: Arc::new(store),
        sinks: vec![SinkEntry {
            name: "s".into(),
            sink: Arc::new(sink),
            start_at: StartAt::Earliest,
            classes: Default::default(),
        }],
        routes: routes.clone(),
        limits: Limits::default(),
        lanes: None,
    };
    let settings = watch::channel(ground.settings.clone()).1;
    start(plan, settings, watch::channel(routes).1, Arc::new(SystemClock))
}

/// Waits until the table is drained, and finishes.
pub(super) async fn finished(handover: &mut Handover) -> Vec<String> {
    let end = tokio::time::Instant::now() + WAIT;
    loop {
        match handover.finish(&actor()).await {
            Ok(sinks) => return sinks,
            Err(error) => assert!(tokio::time::Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await; // pace
    }
}
