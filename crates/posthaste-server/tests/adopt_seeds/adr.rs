//! "ADR 0003: Outbox Event Propagation Pattern": `outbox_events` without a status and `outbox_events_dlq`, to
//! NATS JetStream.

use crate::binary::run;
use crate::daemon::Daemon;
use crate::ground::{Service, assert_delays};
use crate::subscriber::Subscriber;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions};

/// "Tabla actual (resumen esperado)", "Indices necesarios" and the columns of "Migraciones Futuras".
const DDL: &str = "
  create table outbox_events (
    id uuid primary key default gen_random_uuid(), aggregate_type text not null, aggregate_id text not null, event_type text,
    payload jsonb not null, retry_count int not null default 0, next_retry_at timestamptz not null default now(),
    published_at timestamptz, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
    last_error text, last_error_at timestamptz, error_class text);
  create index idx_outbox_ready on outbox_events (next_retry_at) where published_at is null;
  create index idx_outbox_published_at on outbox_events (published_at)";

/// "Worker pseudocódigo", with `$BATCH` as 50.
const READY: &str = "
SELECT * FROM outbox_events
 WHERE published_at IS NULL
   AND next_retry_at <= now()
 ORDER BY next_retry_at, created_at
 LIMIT 50 FOR UPDATE SKIP LOCKED;";

/// "Métricas (Definición)".
const METRICS: [&str; 6] = [
    "outbox_publish_attempts_total",
    "outbox_published_total",
    "outbox_retry_total",
    "outbox_failed_permanent_total",
    "outbox_backlog_gauge",
    "outbox_publish_latency_seconds",
];

/// Published, retried with a growing backoff, moved to the dead-letter table, replayed by command, cleaned up
/// after N days: the phases of the ADR in one run.
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn the_worker_to_jetstream() {
    let Some(service) = Service::new(DDL).await else { return };
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    let mut governance = Subscriber::connect(nats.addr());
    governance.stream("GOVERNANCE", "governance.>");
    // Six attempts instead of fifteen: nobody waits for thirteen minutes in a test.
    let file = service.config(
        "preset = \"outbox-events-adr\"\nkeep_published_days = 7\nkeep_dead_days = 30",
        &format!("type = \"nats\"\nurl = \"{}\"", nats.url()),
        "retry = { max_attempts = 6 }\n",
    );
    let cli = |args: &[&str]| run(&[args, &["--config", file.path()]].concat()).ok();
    // The tables that are missing: the document plans `outbox_events_dlq`, and acts on it are audited.
    for ddl in cli(&["adopt", "sql", "--json"]).json()["missing"].as_array().expect("a list") {
        service.execute(ddl.as_str().expect("DDL")).await;
    }
    service.watch("outbox_events").await;
    service
        .execute(
            "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) values
               ('tenant', 't-1', 'governance.changed', '{\"n\": 1}'), ('tenant', 't-1', 'nobody.listens', '{}'), ('tenant', 't-1', 'bad.*.subject', '{}'), ('tenant', 't-1', null, '{}');
             insert into outbox_events (aggregate_type, aggregate_id, event_type, payload, next_retry_at) values ('tenant', 't-1', 'governance.later', '{}', now() + interval '1 h');
             insert into outbox_events (aggregate_type, aggregate_id, event_type, payload, published_at) values ('tenant', 't-1', 'governance.old', '{}', now() - interval '8 days')",
        )
        .await;
    assert_eq!(service.psql(READY).len(), 4, "what is due, and not what is published or has its time");
    let relay = Daemon::start(&["--config", file.path()]);

    let arrived = governance.next();
    let id: String =
        service.ask("select id::text from outbox_events where event_type = 'governance.changed'").await;
    assert_eq!(
        (arrived.subject.as_str(), arrived.body.as_slice()),
        ("governance.changed", &b"{\"n\": 1}"[..])
    );
    assert_eq!(arrived.headers["Message-ID"], id, "consumers deduplicate by event_id");
    service.until("(select published_at >= created_at and updated_at >= published_at and retry_count = 0 and last_error is null from outbox_events where event_type = 'governance.changed')").await;
    // Permanent: moved at once. Transient: after the maximum, with every attempt counted.
    let dead = |kind: &str, attempts: u32, class: &str, error: &str| {
        format!(
            "(select count(*) = 1 from outbox_events_dlq where {kind} and retry_count = {attempts} and error_class = '{class}'
               and starts_with(last_error, '{error}') and last_error_at is not null and dead_at is not null and published_at is null)"
        )
    };
    service.until(&dead("event_type = 'bad.*.subject'", 1, "permanent", "nats.bad_subject: ")).await;
    service.until(&dead("event_type is null", 0, "permanent", "event.limits: ")).await;
    service.until(&dead("event_type = 'nobody.listens'", 6, "transient", "nats.no_stream: ")).await;
    let unheard: String =
        service.ask("select id::text from outbox_events_dlq where event_type = 'nobody.listens'").await;
    let delays = service.delays(&unheard, "retry_count", "next_retry_at").await;
    assert_delays(&delays, &[0.05, 0.1, 0.2, 0.4, 0.8], 0.2);
    service.until("(select count(*) = 2 from outbox_events)").await;
    assert_eq!(service.psql(READY), [""; 0], "the dead are moved, and the old are cleaned up");
    relay.page("/metrics", |_, body| METRICS.iter().all(|name| body.contains(name)));

    // "DLQ y comando de reprocess manual".
    let mut nobody = Subscriber::connect(nats.addr());
    nobody.stream("NOBODY", "nobody.>");
    cli(&["dead", "replay", "--topic", "nobody.*", "--reason", "the stream is there"]);
    assert_eq!(nobody.next().headers["Message-ID"], unheard);
    service.until("(select published_at is not null and retry_count = 0 from outbox_events where event_type = 'nobody.listens')").await;
    assert_eq!(service.psql("SELECT action, reason FROM posthaste_audit"), ["replay|the stream is there"]);
    // "Política retención + métrica y alerta".
    service
        .execute("update outbox_events_dlq set dead_at = now() - interval '31 days' where event_type is null")
        .await;
    relay.page("/metrics", |_, body| {
        body.lines()
            .any(|line| line.starts_with("posthaste_dead_letters_purged_total{") && line.ends_with(" 1"))
    });
    assert_eq!(service.psql("SELECT event_type FROM outbox_events_dlq"), ["bad.*.subject"]);
    relay.stop();
}
