//! `examples/phoenix`, as it stands there, but for addresses and names that are this test's.

use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{ForeignRecord, TransactionEnd};

const FILE: &str = include_str!("../../../../examples/phoenix/posthaste.toml");
const HANDLER: &str = include_str!("../../../../examples/phoenix/finance.sql");

fn record(id: &str, kind: &str, payload: &str) -> ForeignRecord {
    let header = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
    ForeignRecord {
        key: Some(b"tenant-1".to_vec()),
        value: Some(payload.as_bytes().to_vec()),
        headers: vec![header("Message-ID", id), header("type", kind)],
    }
}

/// Campaigns are booked once each, others are skipped, poison is in `sys.dead_letters`, and what the handler
/// appended is on its topic. The service's login has the rights that the example grants, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_books_each_campaign_once() {
    let kafka = require_service!(crate::kafka::shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "").await);
    for topic in ["core.commands.v1", "core.events.v1", "sys.deadletter.v1", "sys.audit.v1"] {
        kafka.create_topic(topic, 3, 1, &[]).await.expect("created");
    }
    let login = format!("finance_{}", uuid::Uuid::new_v4().simple());
    rig.run(&format!("create role {login} login in role posthaste_consumer")).await;
    let text = FILE
        .replace("postgres://posthaste_relay@127.0.0.1/finance", &rig.url())
        .replace("postgres://finance@127.0.0.1/finance", &rig.url_as(&login))
        .replace("postgres://gateway@127.0.0.1/finance", &rig.url())
        .replace("127.0.0.1:7680", "127.0.0.1:0")
        .replace("127.0.0.1:9092", &kafka.bootstrap())
        .replace("service = \"finance\"", "service = \"finance\"\n[http]\nlisten = \"127.0.0.1:0\"");
    rig.replace_configuration(&text);
    rig.cli(&["migrate", "up"]).ok();
    rig.run(&rig.cli(&["consumers", "sql"]).ok()).await;
    rig.run(HANDLER).await;
    let campaign = |n: u32| {
        let payload = format!(
            "{{\"campaign_id\": \"{}\", \"tenant_id\": \"tenant-1\", \"budget\": {n}}}",
            uuid::Uuid::from_u128(n.into())
        );
        record(&format!("c{n}"), "campaign_created", &payload)
    };
    let sent = [
        campaign(1),
        campaign(2),
        campaign(1),
        record("odd", "campaign_created", "{\"campaign_id\": "),
        record("other", "payment_made", "{}"),
        campaign(3),
    ];
    kafka.send("core.events.v1", &sent, None::<TransactionEnd>).await.expect("sent");
    let member = rig.start();
    rig.until("select count(*) from finance.reservations", 3).await;
    let shown = "select count(*) from sys.message_traceability where (kafka_message_id, status) in
                 (('c1', 'PROCESSED'), ('c2', 'PROCESSED'), ('c3', 'PROCESSED'), ('odd', 'DLQ'), ('other', 'SKIPPED'))";
    rig.until(shown, 5).await;
    // The handler's own events come back by the same topic, and are skipped.
    let told = "select count(*) from sys.message_traceability where status = 'SKIPPED'";
    rig.until(told, 4).await;
    // The audit's group has each of them once, too: five ids of others, and three events of the handler.
    rig.until("select count(*) from finance.noted where service = 'audit'", 8).await;
    member.stop().await;
    let keys = "select count(*) from sys.request_keys where request_key in
                ('finance-service:c1', 'finance-service:c2', 'finance-service:c3', 'finance-service:odd')";
    assert_eq!((rig.count(keys).await, rig.count("select count(*) from finance.reservations").await), (4, 3));
    let copies = "select count(*) from sys.message_traceability where status = 'DUPLICATE'";
    assert_eq!((rig.count(copies).await, rig.count("select count(*) from sys.dead_letters").await), (1, 1));
    rig.run(&format!("drop owned by {login}; drop role {login}")).await;
}
