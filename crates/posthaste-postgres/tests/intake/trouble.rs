//! Others that stand in the way: a key in flight elsewhere, a role without rights, a standby that is away.

use crate::fixture::IntakeGround;
use posthaste::intake::{IntakeBounds, IntakeError};
use posthaste_postgres::{PostgresConfig, PostgresIntake, migrate};
use posthaste_testkit::intake::{IntakeFixture, ask, keyed, patient, request};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, TestDatabase, Version};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As a gateway that froze in the middle: its transaction is open, and has a key.
const HOLD: &str = "begin; insert into posthaste.gateway_requests (tenant, topic, key, request_hash, ids)
                    values ('acme', 't', 'stuck', '\\x00', '\\x00')";

/// It alone waits, and is told in time; the others go on, also those that come later with the same key.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_flight_elsewhere_stops_nobody_else() {
    let Some(ground) = IntakeGround::make().await else { return };
    let bounds = IntakeBounds { append_timeout: Duration::from_secs(4), ..patient() };
    let intake = ground.start(bounds);
    let frozen = ground.connect().await;
    frozen.batch_execute(HOLD).await.expect("the key is free");
    let began = Instant::now();
    let stuck: Vec<_> = (0..3).map(|_| ask(&intake, keyed("acme", "stuck", 1))).collect();
    let mut slowest = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(3) {
        let asked: Vec<_> = (0..50u32)
            .map(|n| {
                let key = format!("{n}-{:?}", began.elapsed());
                ask(&intake, if n % 2 == 0 { keyed("acme", &key, 1) } else { request("other", "t", &["x"]) })
            })
            .collect();
        let asked_at = Instant::now();
        for asked in asked {
            asked.await.expect("no client panics").expect("stored");
        }
        slowest = slowest.max(asked_at.elapsed());
    }
    // Once a group meets it, and from then on the key is known.
    assert!(slowest < Duration::from_millis(1_500), "{slowest:?}");
    for stuck in stuck {
        assert_eq!(stuck.await.expect("no client panics"), Err(IntakeError::InFlight));
    }
    assert!(began.elapsed() < Duration::from_secs(30));
    // It comes back to life, and its request is the one that counts.
    frozen.batch_execute("commit").await.expect("committed");
    assert_eq!(intake.append(keyed("acme", "stuck", 1)).await, Err(IntakeError::KeyReused));
}

/// A lock on the log, as of whoever makes an index: the events wait, and are withdrawn in time. No key is to
/// blame, and nobody is left in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_the_log_is_nobodys_key_and_leaves_no_doubt() {
    let Some(ground) = IntakeGround::make().await else { return };
    let intake = ground.start(IntakeBounds { append_timeout: Duration::from_secs(3), ..patient() });
    let other = ground.connect().await;
    other.batch_execute("begin; lock posthaste.outbox in share mode").await.expect("locked");
    let mut asked: Vec<_> = (0..20).map(|n| ask(&intake, keyed("acme", &format!("k{n}"), 1))).collect();
    asked.extend((0..20).map(|_| ask(&intake, request("other", "t", &["x"]))));
    for asked in asked {
        let outcome = asked.await.expect("no client panics");
        assert!(matches!(outcome, Err(IntakeError::Unavailable(_))), "{outcome:?}");
    }
    other.batch_execute("rollback").await.expect("rolled back");
    intake.append(keyed("acme", "k0", 1)).await.expect("stored");
    assert_eq!(ground.events().await.len(), 1, "what was withdrawn is not stored");
}

/// A failover or a restore may take a number back, and the next change brings it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_comes_again_is_another_one() {
    let Some(ground) = IntakeGround::make().await else { return };
    let tenants = ground.tenants().await;
    let set =
        |number: u32| format!("update posthaste.state set value = '{number}' where name = 'gateway_version'");
    ground.run(&set(7)).await;
    let before = tenants.version().await.expect("a look").0;
    assert_eq!(tenants.version().await.expect("a look").0, before);
    ground.run(&set(6)).await;
    ground.run(&set(7)).await;
    assert_ne!(tenants.version().await.expect("a look").0, before);
}

/// Whoever waited gets the key when the other one is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_becomes_free_in_time_is_taken() {
    let Some(ground) = IntakeGround::make().await else { return };
    let intake = ground.start(patient());
    let frozen = ground.connect().await;
    frozen.batch_execute(HOLD).await.expect("the key is free");
    let asked: Vec<_> = (0..3).map(|_| ask(&intake, keyed("acme", "stuck", 1))).collect();
    ground.until("select count(*) from pg_locks where not granted and locktype = 'transactionid'").await;
    frozen.batch_execute("rollback").await.expect("rolled back");
    let mut replayed = 0;
    for asked in asked {
        replayed += u32::from(asked.await.expect("no client panics").expect("stored").replayed);
    }
    assert_eq!((replayed, ground.events().await.len()), (2, 1));
}

/// At once, and in words that an operator can use.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_and_a_database_without_an_outbox_are_told() {
    let Some(ground) = IntakeGround::make().await else { return };
    let role = format!("stranger_{}", uuid::Uuid::new_v4().simple());
    ground.run(&format!("create role {role} login; grant usage on schema posthaste to {role}")).await;
    let began = Instant::now();
    let config = PostgresConfig::new(ground.url_as(&role));
    let intake: Arc<dyn posthaste::intake::Intake> = Arc::new(PostgresIntake::start(config, patient()));
    let why = intake.append(request("acme", "t", &["x"])).await.expect_err("refused");
    assert!(matches!(&why, IntakeError::Unavailable(why) if why.contains("posthaste migrate sql")), "{why}");
    let database = TestDatabase::create().await.expect("a database");
    let empty = PostgresIntake::start(PostgresConfig::new(database.url()), patient());
    assert!(empty.check().await.is_err());
    let empty: Arc<dyn posthaste::intake::Intake> = Arc::new(empty);
    let why = empty.append(request("acme", "t", &["x"])).await.expect_err("refused");
    assert!(matches!(&why, IntakeError::Unavailable(why) if why.contains("posthaste migrate up")), "{why}");
    assert!(began.elapsed() < Duration::from_secs(60), "without waiting for a timeout");
    ground.run(&format!("drop owned by {role}; drop role {role}")).await;
}

/// The gateway's role is enough for everything, purging included, and reads no event.
#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_the_gateway_is_enough() {
    let Some(ground) = IntakeGround::make().await else { return };
    let name = |role: &str| format!("{role}_{}", uuid::Uuid::new_v4().simple());
    let roles = migrate::Roles {
        app: name("app"),
        consumer: name("consumer"),
        relay: name("relay"),
        admin: name("admin"),
        gateway: name("gateway"),
        create: true,
    };
    migrate::up(&ground.config(), &roles).await.expect("the roles are made");
    let login = name("login");
    ground.run(&format!("create role {login} login in role {}", roles.gateway)).await;
    let config = PostgresConfig::new(ground.url_as(&login));
    let intake = PostgresIntake::start(config.clone(), patient());
    intake.check().await.expect("it may look at the version");
    let intake: Arc<dyn posthaste::intake::Intake> = Arc::new(intake);
    for hash in [1, 1] {
        intake.append(keyed("acme", "k", hash)).await.expect("stored");
    }
    ground
        .run(&format!(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = '{login}'"
        ))
        .await;
    intake.append(keyed("acme", "k2", 1)).await.expect("stored");
    // Two requests, and a row for each of their commits.
    assert!(intake.purge(Duration::ZERO).await.expect("purged") >= 4);
    assert_eq!(ground.number("select count(*) from posthaste.gateway_commits").await, 0);
    let client = posthaste_postgres::connect(&config).await.expect("a connection");
    assert!(client.batch_execute("select * from posthaste.outbox").await.is_err());
    drop((intake, client));
    ground
        .run(&format!(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = '{login}'"
        ))
        .await;
}

/// A person cancels the wait: it is committed here, and not there. Nobody is told that it is durable.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_standby_that_was_not_waited_for_is_no_202() {
    let server = Postgres::start(Version::tested(), &PostgresOptions::default()).await;
    let server = require_service!(server);
    let ground = IntakeGround::private(&server).await;
    let intake = ground.start(patient());
    intake.append(request("acme", "t", &["x"])).await.expect("stored");
    server.set("synchronous_standby_names", "nobody").await.expect("set");
    ground.until("select count(*) from pg_settings where name = 'synchronous_standby_names' and setting = 'nobody'").await;
    let asked = ask(&intake, keyed("acme", "k", 1));
    ground.until("select count(*) from pg_stat_activity where wait_event = 'SyncRep'").await;
    ground.run("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'").await;
    let end = asked.await.expect("no client panics");
    assert!(matches!(&end, Err(IntakeError::OutcomeUnknown(why)) if why.contains("standby")), "{end:?}");
    server.set("synchronous_standby_names", "").await.expect("set");
    // Only a repetition with its key finds out.
    let again = intake.append(keyed("acme", "k", 1)).await.expect("known");
    assert!(again.replayed);
}
