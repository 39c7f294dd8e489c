//! Tables that do not fit: a clear message, before anything is claimed.

use crate::ground::Ground;
use posthaste::store::StoreError;

const DDL: &str = "create table outbox (id uuid primary key default gen_random_uuid(), topic text, key text, payload_json jsonb,
    idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text,
    last_attempt_at timestamptz, next_attempt_at timestamptz not null default now(), published_at timestamptz,
    created_at timestamptz not null default now());
  insert into outbox (topic, payload_json) values ('t', '{}')";

async fn refusal(change: &str) -> Option<String> {
    let ground = Ground::make("talkie", DDL).await?;
    ground.execute(change).await;
    let rows = "select string_agg(to_jsonb(o)::text, ', ') from outbox o";
    let before = ground.app.query_one(rows, &[]).await.ok().map(|row| row.get::<_, Option<String>>(0));
    let error = match ground.store().await {
        Err(error @ StoreError::Fatal { .. }) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("accepted after: {change}"),
    };
    let after = ground.app.query_one(rows, &[]).await.ok().map(|row| row.get::<_, Option<String>>(0));
    assert_eq!(before, after, "nothing was claimed");
    Some(error)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_told_by_name() {
    let cases = [
        ("drop table outbox", "no table outbox"),
        ("alter table outbox rename to real; create view outbox as select * from real", "is a view"),
        ("alter table outbox drop retry_count", "no column \"retry_count\" (`attempts`)"),
        (
            "alter table outbox alter retry_count drop default; alter table outbox alter retry_count type text",
            "is text, and `attempts` needs a whole number",
        ),
        (
            "alter table outbox alter next_attempt_at drop default; alter table outbox alter next_attempt_at type text",
            "`next_attempt_at` needs a timestamp",
        ),
        ("alter table outbox drop constraint outbox_pkey", "not unique by itself"),
        (
            "alter table outbox add check (status in ('pending', 'publishing', 'published', 'failed'))",
            "refuses that a row is given up",
        ),
        (
            "create function no() returns trigger language plpgsql as $$ begin raise 'hands off'; end $$; create trigger no before update on outbox for each row execute function no()",
            "hands off",
        ),
        (
            "create type s as enum ('pending', 'published'); alter table outbox alter status drop default; alter table outbox alter status type s using status::s",
            "none of outbox.status",
        ),
    ];
    for (change, expected) in cases {
        let Some(told) = refusal(change).await else { return };
        assert!(told.contains(expected), "{change}\n  told: {told}");
    }
}

/// A role for which row-level security hides rows would pass them over without a word.
#[tokio::test(flavor = "multi_thread")]
async fn row_level_security_is_refused() {
    let Some(ground) = Ground::make("talkie", DDL).await else { return };
    let role = format!("rls_{}", ground.database.name());
    ground.execute(&format!("create role {role} login; grant select, update, delete on outbox to {role}; alter table outbox enable row level security")).await;
    let config = posthaste_postgres::PostgresConfig::new(ground.database.url_as(&role));
    let refused = posthaste_postgres::claim::ClaimStore::connect(config, ground.layout.clone()).await;
    ground.execute(&format!("drop owned by {role}; drop role {role}")).await;
    let Err(error) = refused else { panic!("accepted") };
    assert!(error.to_string().contains("row-level security"), "{error}");
}
