//! The checks of a consumer: its login, and its broker where that is a local one.

use crate::binary::Scratch;
use crate::broker::outbox;
use crate::ground::{Said, connect, doctor, execute, file, only};
use posthaste::source::SeekTo;
use posthaste_sqlite::broker::{Broker, BrokerConfig, Outgoing};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use std::path::Path;
use std::time::Duration;

/// A message on a topic that keeps its messages for this long, and a group that has not read it.
async fn publish(file: &Path, topic: &str, keep: Duration) {
    let broker = Broker::open(BrokerConfig { retention: Some(keep), ..BrokerConfig::new(file) });
    let broker = broker.expect("the broker's file opens");
    let message = Outgoing { topic: topic.to_owned(), id: None, key: None, headers: vec![], payload: None };
    broker.publish(vec![message]).await.expect("published");
    let partitions = broker.topics().await.expect("topics").remove(0).partitions.len();
    for number in 0..i32::try_from(partitions).expect("a few") {
        broker.seek("billing", topic, number, SeekTo::Earliest).await.expect("sought").expect("it is there");
    }
    if keep < Duration::from_secs(1) {
        eventually("it is gone", Duration::from_secs(10), || async {
            (broker.purge().await.expect("purged") > 0).then_some(())
        })
        .await;
    }
}

fn config(outbox: &str, login: &str, broker: &Path, topic: &str) -> Scratch {
    let consumer = format!(
        "[sources.broker]\ntype = \"local\"\npath = {broker:?}\n[consumers.billing]\nsource = \"broker\"\n\
         topics = [\"{topic}\"]\nurl = \"{login}\"\n[[consumers.billing.handle]]\nsql = \"billing.on_order\"\n"
    );
    file(outbox, "relay = false", &consumer)
}

/// The function that the file names.
const HANDLER: &str = "create schema billing; grant usage on schema billing to public; \
    create function billing.on_order(m posthaste.message) returns void language sql as ''";

fn ask(file: &Scratch) -> Said {
    doctor(&["--config", file.path()])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_lacks_is_named() {
    let server = require_service!(outbox().await);
    let client = connect(&server.url()).await;
    execute(&client, &format!("create role billing login in role posthaste_consumer; {HANDLER}")).await;
    let dir = std::env::temp_dir().join(format!("posthaste-doctor-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let broker = dir.join("broker.db");
    publish(&broker, "orders", Duration::from_secs(3600)).await;
    publish(&broker, "short", Duration::from_millis(1)).await;
    let (own, login) = (server.url(), server.url_for("postgres", "billing"));

    let good = config(&own, &login, &broker, "orders");
    let before = ask(&good);
    let gone = dir.join("gone.db");
    for (check, level, file) in [
        ("topic", "warn", config(&own, &login, &broker, "ordres")),
        ("lag", "warn", config(&own, &login, &broker, "short")),
        ("reachable", "fail", config(&own, &login, &gone, "orders")),
        ("connect", "fail", config(&own, &server.url_for("postgres", "nobody"), &broker, "orders")),
    ] {
        only(check, level, &before, &ask(&file), &["--config", file.path()]);
    }
    let lacking = [
        "revoke execute on function billing.on_order from public",
        "revoke usage on schema billing from public",
        "drop function billing.on_order",
    ];
    for change in lacking {
        execute(&client, change).await;
        only("handlers", "fail", &before, &ask(&good), &["--config", good.path()]);
    }
    execute(&client, &format!("drop schema billing; {HANDLER}")).await;
    execute(&client, "revoke delete on posthaste.inbox_dead_letters from posthaste_consumer").await;
    only("consumer_rights", "fail", &before, &ask(&good), &["--config", good.path()]);
    let _ = std::fs::remove_dir_all(&dir);
}

/// A letter of the consumer that died this long ago.
fn letter(ago: &str) -> String {
    format!(
        "insert into posthaste.inbox_dead_letters (letter, consumer, message_id, topic, partition, headers, holds_key,
           attempts, disposition, error_class, error_code, error, fingerprint, dead_at)
         values (gen_random_uuid(), 'billing', 'm', 'orders', 0, '[]', false, 1, 'rejected', 'rejected', 'c', 'e', 0,
           now() - interval '{ago}')
         on conflict (consumer, message_id, repeat) do update set dead_at = excluded.dead_at"
    )
}

/// Whoever waits on the dead-letter topic is not told: letters are old, and their sink has settled nothing
/// since.
#[tokio::test(flavor = "multi_thread")]
async fn letters_that_nobody_relays_are_named() {
    let server = require_service!(outbox().await);
    let client = connect(&server.url()).await;
    let dir = std::env::temp_dir().join(format!("posthaste-doctor-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let broker = dir.join("broker.db");
    publish(&broker, "orders", Duration::from_secs(3600)).await;
    let consumer = format!(
        "[sinks.s]\ntype = \"local\"\npath = {broker:?}\n[[route]]\ntopics = [\"*\"]\nsinks = [\"s\"]\n\
         [consumers.billing]\nsource = \"s\"\ntopics = [\"orders\"]\ndead_letters = {{ topic = \"dead\" }}\n\
         [[consumers.billing.handle]]\nsql = \"billing.on_order\"\n"
    );
    let file = file(&server.url(), "", &consumer);
    execute(&client, HANDLER).await;
    let before = ask(&file);
    let settled = |ago: &str| format!("update posthaste.receipts set settled_at = now() - interval '{ago}'");
    for (died, receipt, is_told) in [
        ("1 hour", "30 minutes", true),
        ("5 minutes", "2 hours", true),
        ("1 hour", "1 minute", true),
        ("1 hour", "2 hours", false),
    ] {
        execute(&client, &format!("{}; {}", letter(died), settled(receipt))).await;
        let after = ask(&file);
        match is_told {
            true => assert_eq!(after.ended.code, 0, "{died}, {receipt}: {:?}", after.found["letters_told"]),
            false => only("letters_told", "warn", &before, &after, &["--config", file.path()]),
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
}
