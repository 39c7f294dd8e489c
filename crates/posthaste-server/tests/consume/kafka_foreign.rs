//! Others on the same Kafka: producers that know nothing of us, and consumers in our group.

use crate::kafka::{EFFECTS, shared};
use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{ForeignRecord, TransactionEnd};

/// A handler that takes anything.
const ANYTHING: &str = "
create or replace function trial.handle(m posthaste.message) returns void language sql as $$
  insert into trial.effects (id, type, key, n)
  values (m.id, coalesce(m.headers::text, ''), coalesce(encode(m.key, 'hex'), 'none'), coalesce(length(m.payload), -1))
$$;";

fn bytes(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[(&str, Option<&[u8]>)]) -> ForeignRecord {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.map(<[u8]>::to_vec)));
    ForeignRecord {
        key: key.map(<[u8]>::to_vec),
        value: value.map(<[u8]>::to_vec),
        headers: headers.collect(),
    }
}

/// F86: no ids, bytes where text might be, nothing at all, transactions that end in both ways. Each is
/// handled once, and known by its place.
#[tokio::test(flavor = "multi_thread")]
async fn f86_records_of_a_foreign_producer_are_handled_once_as_they_are() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "").await);
    rig.client.batch_execute(ANYTHING).await.expect("a handler");
    let binary =
        bytes(Some(&[0, 0xff]), Some(&[0xfe, 0, 1]), &[("x", Some(&[0xff])), ("x", None), ("", Some(b"y"))]);
    let tombstone = bytes(Some(b"k"), None, &[]);
    let nothing = bytes(None, None, &[]);
    kafka.send(&rig.topic, &[binary, tombstone, nothing.clone()], None).await.expect("sent");
    kafka
        .send(&rig.topic, &[nothing.clone(), nothing.clone()], Some(TransactionEnd::Abort))
        .await
        .expect("sent");
    kafka.send(&rig.topic, &[bytes(None, Some(b""), &[])], Some(TransactionEnd::Commit)).await.expect("sent");
    for _ in 0..2 {
        let member = rig.start();
        rig.until(EFFECTS, 4).await;
        // Behind the last marker.
        rig.until("select position from posthaste.inbox_partitions", 8).await;
        assert_eq!(member.metric("posthaste_consumer_foreign_positions_total").await, 0.0);
        member.stop().await;
        rig.check_but_order("with records of a foreign producer").await;
    }
    let sql = "select id, key, n, type from trial.effects order by seq";
    let rows = rig.client.query(sql, &[]).await.expect("effects");
    let effects: Vec<(String, i32)> = rows.iter().map(|row| (row.get(1), row.get(2))).collect();
    let known = [("00ff", 3), ("6b", -1), ("none", -1), ("none", 0)].map(|(key, n)| (key.to_owned(), n));
    assert_eq!(effects, known);
    for (row, position) in rows.iter().zip([0, 1, 2, 6]) {
        let (id, place) = (row.get::<_, String>(0), format!("{}/0@{position}#", rig.topic));
        assert!(id.starts_with(&place), "{id}: known by its place and time");
    }
    let headers: String = rows[0].get(3);
    assert_eq!(headers.matches("\"x\"").count(), 2, "{headers}");
    assert!(headers.contains("base64") && headers.contains("/w=="), "{headers}");
}

/// A topic whose messages have no identity at all is no topic for this configuration: nothing is buried.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_twenty_messages_without_an_identity_stop_the_consumer() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "identity = [\"id\"]").await);
    kafka.send(&rig.topic, &vec![bytes(None, Some(b"{}"), &[]); 25], None).await.expect("sent");
    let member = rig.start();
    let said = member.says("the first 20 messages have no identity").await;
    assert!(said.contains("nothing was handled or buried"), "{said}");
    let is_told = |status, body: &str| status == 503 && body.contains("have no identity");
    member.page("/readyz", "why it stopped", is_told).await;
    let rows =
        "select (select count(*) from posthaste.inbox) + (select count(*) from posthaste.inbox_dead_letters)";
    assert_eq!((rig.count(EFFECTS).await, rig.count(rows).await), (0, 0));
    assert_eq!(rig.positions().await.into_values().sum::<i64>(), 0, "and nothing is skipped");
    drop(member);
}

/// Another client has the group, and shares in another way: a member of ours is not let in, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_in_use_by_another_client_is_told() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "").await);
    rig.publish(8, "order").await;
    kafka.join_group(&rig.topic, &rig.topic).await.expect("a Java client is there first");
    let member = rig.start();
    let said = member.says("another client").await;
    assert!(said.contains(&rig.topic) && said.contains("`group`"), "{said}");
    assert_eq!(rig.count(EFFECTS).await, 0);
    rig.reconfigure(&format!("group = \"{}\"", rig.topic), &format!("group = \"{}.ours\"", rig.topic));
    member.stop().await;
    let member = rig.start();
    rig.finish(member, "in a group of its own").await;
}
