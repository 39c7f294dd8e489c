//! Plans outlive the tables that they were made for, and most would be made while nothing is deferred. So
//! what touches deferred events is planned each time (F84).

use crate::refused::Scene;
use posthaste::store::{DueQuery, Settlement};
use std::time::Duration;

/// An outage puts many events aside at once, in a table that nobody has analysed yet. With the plan of the
/// empty table one look took minutes.
#[tokio::test(flavor = "multi_thread")]
async fn f84_what_comes_due_is_found_in_a_table_that_was_empty_before() {
    let Some(scene) = Scene::set("UTF8").await else { return };
    let query = || DueQuery { events: 500, bytes: 1 << 20, ..DueQuery::default() };
    let never = "alter table posthaste.deferred set (autovacuum_enabled = off)";
    scene.client.batch_execute(never).await.expect("altered");
    assert!(scene.lease.due(query()).await.expect("a look").events.is_empty());
    let settlement = Settlement { delivered: vec![1], ..Settlement::default() };
    scene.lease.settle(&settlement).await.expect("a settlement");
    let sink = &scene.lease.id().sink;
    let fill = format!(
        "insert into posthaste.deferred (sink, seq, slot, id, topic, key, payload, appended_at, route, destination, reason,
                                         holds, due_at)
         select '{sink}', g, 0, gen_random_uuid(), 't', 'key-' || g % 3000, 'x', now(), 'r', 'd', 'held', true,
                case when g <= 3000 then now() else 'infinity' end
           from generate_series(1, 60000) g"
    );
    scene.client.batch_execute(&fill).await.expect("filled");
    let looks = async {
        for _ in 0..3 {
            let due = scene.lease.due(query()).await.expect("a look");
            assert_eq!(due.events.len(), 500);
            let delivered = due.events.iter().map(|event| event.stored.seq).collect();
            let settlement = Settlement { delivered, ..Settlement::default() };
            scene.lease.settle(&settlement).await.expect("a settlement");
        }
    };
    tokio::time::timeout(Duration::from_secs(30), looks).await.expect("three looks within moments");
}
