//! What goes wrong while a relay runs: one destination, one row, one renewal, one plan.

use crate::ground::Ground;
use posthaste::relay::DrainOutcome;
use posthaste::sink::{Failure, Verdict};
use posthaste_testkit::faults::Reply;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const DDL: &str = "create table outbox (id bigint primary key generated always as identity, topic text not null, key text, payload_json jsonb not null default '{}',
    idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
    next_attempt_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now());
  create index outbox_due on outbox (next_attempt_at) where status in ('pending', 'failed')";

/// F30: a destination that is away keeps its own rows waiting, spends none of their attempts, and holds up no
/// other.
#[tokio::test(flavor = "multi_thread")]
async fn f30_a_destination_that_is_away_holds_up_no_other() {
    let Some(ground) = Ground::make("talkie", DDL).await else { return };
    let away = Arc::new(AtomicBool::new(true));
    let gate = Arc::clone(&away);
    ground.broker.judge(move |offer| {
        match offer.message.destination == "away" && gate.load(Ordering::Relaxed) {
            true => Reply::Refuse(Verdict::Retry(Failure::of_destination("test.away", "away"))),
            false => Reply::Deliver,
        }
    });
    // The dead destination's rows come first: a whole batch and more.
    ground.execute("insert into outbox (topic) select 'away' from generate_series(1, 120); insert into outbox (topic) select 'here' from generate_series(1, 30)").await;
    let relay = ground.relay("one").await;
    ground.until("(select count(*) = 30 from outbox where topic = 'here' and status = 'published')").await;
    ground.until("(select count(*) = 120 from outbox where topic = 'away' and status = 'pending' and retry_count = 0)").await;
    away.store(false, Ordering::Relaxed);
    ground.until("(select count(*) = 150 from outbox where status = 'published' and retry_count = 0)").await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// A row about which the table takes nothing is named in the log and holds up no other, in both styles.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_the_table_does_not_let_us_settle_holds_up_no_other() {
    let trigger = "create function guard() returns trigger language plpgsql as $$ begin
          if new.status in ('published', 'failed') and new.topic = 'guarded' then raise 'hands off'; end if; return new; end $$;
        create trigger guard before update on outbox for each row execute function guard()";
    for locked in [false, true] {
        let Some(mut ground) = Ground::make("talkie", DDL).await else { return };
        if locked {
            ground.layout.status.as_mut().expect("it has one").claimed = None;
        }
        ground.execute("insert into outbox (topic) values ('first')").await;
        let relay = ground.relay("one").await;
        ground.until("(select status = 'published' from outbox where topic = 'first')").await;
        // The trigger comes after the rehearsal.
        ground.execute(trigger).await;
        ground.execute("insert into outbox (topic) select case g when 7 then 'guarded' else 'free' end from generate_series(1, 40) g").await;
        ground
            .until("(select count(*) = 39 from outbox where topic = 'free' and status = 'published')")
            .await;
        let left: String = ground.ask("select status from outbox where topic = 'guarded'").await;
        assert_eq!(left, if locked { "pending" } else { "publishing" });
        drop(relay);
    }
}

/// F84: the claim walks the index in its order, on an empty table as on a large one.
#[tokio::test(flavor = "multi_thread")]
async fn f84_the_plan_is_the_same_from_empty_to_large() {
    let Some(ground) = Ground::make("talkie", DDL).await else { return };
    let missing = async || {
        posthaste_postgres::claim::missing_index(&ground.config(), &ground.layout).await.expect("explains")
    };
    ground.execute("analyze outbox").await;
    assert_eq!(missing().await, None, "empty, and analyzed so");
    ground.execute("insert into outbox (topic, status) select 't', case when g % 100 = 0 then 'pending' else 'published' end from generate_series(1, 100000) g").await;
    assert_eq!(missing().await, None, "large, and analyzed when it was empty");
    ground.execute("analyze outbox").await;
    assert_eq!(missing().await, None, "large, and analyzed");
    ground.execute("drop index outbox_due").await;
    let told = missing().await.expect("it is missing");
    assert!(told.contains("CREATE INDEX CONCURRENTLY ON \"outbox\" (\"next_attempt_at\") WHERE \"status\" IN ('pending', 'failed')"), "{told}");
}
