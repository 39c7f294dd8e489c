//! Under load: writers that commit, roll back and take their time, a relay on each side, and a start in the
//! middle.

use super::{TALKIE, actor, finished, ground, handover, log_relay};
use crate::ground::{Ground, WAIT};
use posthaste::relay::DrainOutcome;
use posthaste_postgres::claim::{Done, PATIENCE};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::faults::Delivery;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;
use uuid::Uuid;

const WRITERS: u32 = 4;

/// Rows of one writer that are committed.
type Committed = HashSet<Uuid>;

/// A writer: transactions of one to five rows; every fourth is rolled back, every fifth rolls some back.
async fn writer(ground: &Ground, number: u32, stop: Arc<AtomicBool>) -> JoinHandle<Committed> {
    let client = ground.database.connect().await.expect("a connection");
    tokio::spawn(async move {
        let mut committed = Committed::new();
        for n in 0_u32.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let ids: Vec<Uuid> = (0..=n % 5).map(|_| Uuid::new_v4()).collect();
            let insert = |ids: &[Uuid]| {
                let rows: Vec<String> =
                    ids.iter().map(|id| format!("('{id}', 't', 'k{number}', '{{}}')")).collect();
                format!("insert into outbox (id, topic, key, payload_json) values {}", rows.join(", "))
            };
            let lost = [Uuid::new_v4()];
            let sql = match n {
                n if n % 4 == 3 => format!("begin; {}; rollback", insert(&ids)),
                n if n % 5 == 2 => {
                    format!(
                        "begin; savepoint s; {}; rollback to s; {}; select pg_sleep(0.01); commit",
                        insert(&lost),
                        insert(&ids)
                    )
                }
                // As libraries that map objects write.
                n if n % 7 == 1 => format!(
                    "begin; {}; update outbox set status = 'pending', key = 'k{number}' where id = '{}'; commit",
                    insert(&ids),
                    ids[0]
                ),
                _ => insert(&ids),
            };
            client.batch_execute(&sql).await.expect("the application never fails");
            if n % 4 != 3 {
                committed.extend(&ids);
            }
        }
        committed
    })
}

/// What each relay delivered, by event.
fn by_relay(deliveries: &[Delivery]) -> HashMap<Uuid, Vec<String>> {
    let mut seen: HashMap<Uuid, Vec<String>> = HashMap::new();
    for one in deliveries {
        seen.entry(one.id).or_default().push(one.by.to_string());
    }
    seen
}

/// Started, stopped and started again in the middle of it: every committed row is delivered once, none by
/// both, none that was rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn no_row_is_lost_and_none_is_published_twice() {
    let Some(ground) = ground("talkie", TALKIE).await else { return };
    let (claim, log) = (ground.relay("claim").await, log_relay(&ground, "log").await);
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        writers.push(writer(&ground, number, Arc::clone(&stop)).await);
    }
    let mut handover = handover(&ground).await;
    let delivered = |by: &'static str, more: usize| {
        let count =
            move |ground: &Ground| ground.broker.deliveries().iter().filter(|one| &*one.by == by).count();
        let (before, ground) = (count(&ground), &ground);
        async move { eventually(by, WAIT, async || (count(ground) >= before + more).then_some(())).await }
    };
    delivered("claim", 200).await;
    assert_eq!(handover.start(&[], PATIENCE, &actor()).await.expect("it starts"), Done::Now);
    delivered("log", 200).await;
    assert_eq!(handover.stop(PATIENCE, &actor()).await.expect("it stops"), Done::Now);
    delivered("claim", 100).await;
    assert_eq!(handover.start(&[], PATIENCE, &actor()).await.expect("it starts again"), Done::Now);
    delivered("log", 200).await;
    // The table drains while everything goes on.
    finished(&mut handover).await;
    stop.store(true, Ordering::Relaxed);
    let mut committed = Committed::new();
    for writer in writers {
        committed.extend(writer.await.expect("a writer ends"));
    }
    eventually("everything is delivered", WAIT, async || {
        let seen: HashSet<Uuid> = ground.broker.deliveries().iter().map(|one| one.id).collect();
        committed.is_subset(&seen).then_some(())
    })
    .await;
    assert_eq!((claim.drain().await, log.drain().await), (DrainOutcome::Clean, DrainOutcome::Clean));
    let deliveries = ground.broker.deliveries();
    let seen = by_relay(&deliveries);
    let twice: Vec<_> = seen.iter().filter(|(_, by)| by.len() > 1).take(3).collect();
    assert!(twice.is_empty(), "published twice: {twice:?}");
    let phantoms = seen.keys().filter(|id| !committed.contains(*id)).count();
    assert_eq!((phantoms, seen.len()), (0, committed.len()), "what was rolled back never");
    let (in_log, rows): (i64, i64) = (
        ground.ask("select count(*) from posthaste.outbox").await,
        ground.ask("select count(*) from outbox").await,
    );
    let by_log = deliveries.iter().filter(|one| &*one.by == "log").count() as i64;
    assert_eq!((in_log, rows), (by_log, committed.len() as i64));
    assert_eq!(ground.ask::<i64>("select count(*) from outbox where status <> 'published'").await, 0);
}
