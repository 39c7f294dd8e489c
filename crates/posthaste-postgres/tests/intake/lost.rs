//! Connections that are lost: nothing confirmed is lost, and nothing is stored twice.

use crate::fixture::IntakeGround;
use posthaste::intake::{Intake, IntakeBounds, IntakeError};
use posthaste_testkit::conformance::{DEADLINE, eventually};
use posthaste_testkit::intake::{IntakeFixture, ask, keyed, patient, request};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, Version};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uuid::Uuid;

/// What clients were told: ids that are stored, and ids of which nobody knows.
#[derive(Default)]
struct Ledger {
    stored: Vec<Uuid>,
    unknown: Vec<Uuid>,
}

/// Clients that ask one after the other, until they are told to stop. None repeats by itself.
fn clients(
    intake: &Arc<dyn Intake>,
    stop: &Arc<AtomicBool>,
    served: &Arc<AtomicU64>,
) -> Vec<tokio::task::JoinHandle<Ledger>> {
    (0..24)
        .map(|client| {
            let (intake, stop, served) = (Arc::clone(intake), Arc::clone(stop), Arc::clone(served));
            tokio::spawn(async move {
                let mut ledger = Ledger::default();
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let request = match client % 2 {
                        0 => keyed("acme", &format!("{client}-{n}"), 1),
                        _ => request("other", "t", &["a", "b"]),
                    };
                    let ids: Vec<Uuid> = request.events.iter().map(|event| event.id).collect();
                    match intake.append(request).await {
                        Ok(admitted) => {
                            assert_eq!((admitted.ids, admitted.replayed), (ids.clone(), false));
                            ledger.stored.extend(ids);
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(IntakeError::OutcomeUnknown(_)) => ledger.unknown.extend(ids),
                        Err(IntakeError::Unavailable(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                ledger
            })
        })
        .collect()
}

async fn until_served(served: &AtomicU64, more: u64) {
    let until = served.load(Ordering::Relaxed) + more;
    let enough = || async { (served.load(Ordering::Relaxed) >= until).then_some(()) };
    eventually("requests are served", DEADLINE, enough).await;
}

/// What was confirmed is there once; what is there was confirmed, or nobody knew. Answers how many nobody
/// knew.
async fn balance(ground: &IntakeGround, ledgers: Vec<Ledger>) -> usize {
    let mut stored: BTreeMap<Uuid, u32> = BTreeMap::new();
    for event in ground.events().await {
        *stored.entry(event.id).or_default() += 1;
    }
    assert!(stored.values().all(|times| *times == 1), "stored twice");
    let mut unknown = 0;
    for ledger in ledgers {
        for id in ledger.stored {
            assert!(stored.remove(&id).is_some(), "{id} was confirmed and is not there");
        }
        unknown += ledger.unknown.len();
        stored.retain(|id, _| !ledger.unknown.contains(id));
    }
    assert!(stored.is_empty(), "{} were stored and not confirmed", stored.len());
    unknown
}

/// Backends are ended at any moment, thirty times: the clients notice nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn w1_w4_backends_that_end_cost_nobody_anything() {
    let Some(ground) = IntakeGround::make().await else { return };
    let intake = ground.start(patient());
    let (stop, served) = (Arc::default(), Arc::default());
    let clients = clients(&intake, &stop, &served);
    let mut ended = 0;
    for _ in 0..30 {
        until_served(&served, 100).await;
        ended += ground
            .number(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity
                  where datname = current_database() and pid <> pg_backend_pid() and query like '%gateway_append%'",
            )
            .await;
    }
    until_served(&served, 100).await;
    stop.store(true, Ordering::Relaxed);
    let mut ledgers = Vec::new();
    for client in clients {
        ledgers.push(client.await.expect("no client panics"));
    }
    assert!(ended >= 30, "{ended}");
    assert_eq!(balance(&ground, ledgers).await, 0, "while the database is there, everybody is told");
    let figures = intake.figures();
    let events = ground.number("select count(*) from posthaste.outbox").await;
    assert_eq!((figures.committed_events as i64, figures.queued_events), (events, 0));
}

/// Requests wait while it is away, and are served when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn w1_w4_a_database_that_restarts_loses_nothing_and_doubles_nothing() {
    let server = Postgres::start(Version::tested(), &PostgresOptions::default()).await;
    let mut server = require_service!(server);
    let ground = IntakeGround::private(&server).await;
    let intake = ground.start(patient());
    let (stop, served) = (Arc::default(), Arc::default());
    let clients = clients(&intake, &stop, &served);
    for round in 0..3 {
        until_served(&served, 200).await;
        match round {
            1 => server.stop_fast().await.expect("it stops"),
            _ => server.kill9().await.expect("it dies"),
        }
        server.start_again().await.expect("it starts again");
    }
    until_served(&served, 200).await;
    stop.store(true, Ordering::Relaxed);
    let mut ledgers = Vec::new();
    for client in clients {
        ledgers.push(client.await.expect("no client panics"));
    }
    let ground = ground.again().await;
    assert_eq!(balance(&ground, ledgers).await, 0, "it came back in time");
}

/// While it stays away: what was not taken is withdrawn, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn w2_while_the_database_is_away_requests_are_withdrawn_in_words() {
    let server = Postgres::start(Version::tested(), &PostgresOptions::default()).await;
    let mut server = require_service!(server);
    let ground = IntakeGround::private(&server).await;
    let bounds = IntakeBounds { append_timeout: std::time::Duration::from_millis(700), ..patient() };
    let intake = ground.start(bounds);
    intake.append(request("acme", "t", &["before"])).await.expect("stored");
    server.stop_fast().await.expect("it stops");
    let asked: Vec<_> = (0..20).map(|n| ask(&intake, keyed("acme", &format!("k{n}"), 1))).collect();
    for asked in asked {
        match asked.await.expect("no client panics") {
            Err(IntakeError::Unavailable(why)) => assert!(!why.is_empty()),
            // The first ones may have met the closing connection.
            Err(IntakeError::OutcomeUnknown(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(intake.figures().queued_events, 0);
    server.start_again().await.expect("it starts again");
    let served = || async { intake.append(request("acme", "t", &["after"])).await.ok() };
    eventually("it serves again", DEADLINE, served).await;
}
