//! The checks of an adopted table.

use crate::binary::Scratch;
use crate::ground::{doctor, file, only};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;

/// As its owners have it: one row waits.
const TABLE: &str = "create table outbox_events (id uuid primary key default gen_random_uuid(), \
      aggregate_type varchar(50) not null, aggregate_id uuid not null, event_type varchar(100) not null, \
      payload jsonb not null, occurred_at timestamptz default now(), status varchar(20) default 'PENDING', \
      retry_count int default 0, next_attempt_at timestamptz default now(), last_error text, processed_at timestamptz); \
    create index idx_outbox_poll on outbox_events (status, next_attempt_at); \
    create table posthaste_audit (id bigint generated always as identity primary key, at timestamptz not null default now(), \
      actor text not null, action text not null, reason text not null, detail jsonb not null); \
    insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) values ('o', gen_random_uuid(), 't', '{}')";

async fn adopted(also: &str) -> Option<(TestDatabase, Scratch)> {
    let database = require_service!(TestDatabase::create().await, None);
    let client = database.connect().await.expect("a connection");
    client.batch_execute(&format!("{TABLE}; {also}")).await.expect("DDL");
    let rest = "[outbox.adopt]\npreset = \"outbox-events\"\n[sinks.out]\ntype = \"stdout\"\n\
                [[route]]\ntopic = \"*\"\nsink = \"out\"\n";
    let config = file(&database.url(), "", rest);
    Some((database, config))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_an_adopted_table_is_named() {
    let Some((_database, sound)) = adopted("").await else { return };
    let before = doctor(&["--config", sound.path()]);
    let refuses = "create function no() returns trigger language plpgsql as $$ begin raise exception 'not now'; end $$; \
                   create trigger no before update on outbox_events for each row execute function no()";
    let cases = [
        ("adopted_table", "fail", "alter table outbox_events drop column retry_count"),
        ("adopted_rehearsal", "fail", refuses),
        ("adopted_index", "warn", "drop index idx_outbox_poll"),
        ("adopted_status", "warn", "update outbox_events set status = 'ODD'"),
        ("adopted_backlog", "warn", "update outbox_events set occurred_at = now() - interval '2 days'"),
        ("adopted_audit", "warn", "drop table posthaste_audit"),
    ];
    for (check, level, broken) in cases {
        let Some((_database, config)) = adopted(broken).await else { return };
        only(check, level, &before, &doctor(&["--config", config.path()]), &["--config", config.path()]);
    }
}
