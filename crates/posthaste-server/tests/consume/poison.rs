//! Messages that kill whoever handles them: the process, its backend, the server. And those that nobody can
//! read.

use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
#[cfg(feature = "kafka")]
use posthaste_testkit::services::ForeignRecord;
use posthaste_testkit::services::{Postgres, PostgresOptions, Version};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

const LETTERS: &str = "select count(*) from posthaste.inbox_dead_letters";

async fn letter(rig: &Rig) -> (String, String) {
    let sql = "select message_id, disposition from posthaste.inbox_dead_letters";
    let row = rig.client.query_one(sql, &[]).await.expect("one letter");
    (row.get(0), row.get(1))
}

/// F21: nothing is written when a message is taken, so only deaths tell. It dies in the end, and no other
/// does.
#[tokio::test(flavor = "multi_thread")]
async fn f21_a_message_that_kills_its_process_ends_as_a_dead_letter() {
    let rig = require_service!(Rig::set("batch_max = 8").await);
    rig.publish(24, "order").await;
    rig.publish_with(1, &[("type", "order"), ("x-posthaste-test-abort-consumer", "1")]).await;
    let poison = format!("m{}", rig.last());
    rig.publish(24, "order").await;
    let mut member = rig.start_to_die("consume.poison@1");
    assert_eq!(member.ends().await.signal(), Some(9), "it died of SIGKILL at consume.poison");
    let mut deaths = 1;
    let member = loop {
        let mut member = rig.start();
        while rig.count(LETTERS).await == 0 && member.died().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await; // pace
        }
        match member.died() {
            None => break member,
            // SIGABRT: the message itself kills the process.
            Some(signal) => assert_eq!(signal, 6, "only the message kills"),
        }
        rig.check("right after the death by a message").await;
        deaths += 1;
        assert!(deaths < 15, "the process dies for ever");
    };
    assert!(deaths >= 3, "care takes a few deaths: {deaths}");
    rig.finish(member, "after a message that kills").await;
    assert_eq!(letter(&rig).await, (poison, "crashed".to_owned()));
}

/// A lost connection is an outage, and costs nobody an attempt; but the database works, and it is always
/// the same message that loses it.
#[tokio::test(flavor = "multi_thread")]
async fn f50_a_message_that_kills_its_backend_dies_and_others_flow() {
    let rig = require_service!(Rig::set("batch_max = 8\nretry = { delays_ms = [10] }").await);
    rig.publish(24, "order").await;
    rig.publish(1, "kill").await;
    let poison = format!("m{}", rig.last());
    rig.publish(24, "order").await;
    let member = rig.start();
    rig.finish(member, "after a message that kills its backend").await;
    assert_eq!(letter(&rig).await, (poison, "exhausted".to_owned()));
}

/// One that crashes its backend takes the whole server down for a moment, and everybody's handlers with it.
/// It dies, those that were beside it do not, and the server is not killed for ever.
#[tokio::test(flavor = "multi_thread")]
async fn f50_a_message_that_crashes_the_server_dies_and_its_neighbours_do_not() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let settings = "batch_max = 1\nretry = { delays_ms = [] }";
    let mut rig = Rig::set_on(server, settings).await;
    rig.publish(3, "wait").await;
    rig.publish(1, "crash").await;
    let poison = format!("m{}", rig.last());
    rig.publish(6, "wait").await;
    let member = rig.start();
    eventually("the poison is a dead letter", WAIT, || async {
        let client = rig.try_connect().await?;
        let letters = client.query_one(LETTERS, &[]).await.ok()?;
        (letters.get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    rig.reconnect().await;
    rig.finish(member, "after crashes of the server").await;
    assert_eq!(letter(&rig).await, (poison, "exhausted".to_owned()));
}

/// A deployment that fails with every message is not the messages' fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_deployment_buries_next_to_nothing_before_somebody_can_mend_it() {
    let settings = "all_failing = \"pause\"\nretry = { delays_ms = [100] }";
    let rig = require_service!(Rig::set(settings).await);
    rig.publish(24, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    rig.run("alter table trial.effects rename to not_migrated_yet").await;
    rig.publish(240, "order").await;
    let says_so = |status: u16, body: &str| status == 503 && body.contains("every message fails");
    let page = member.page("/readyz", "that every message fails", says_so).await;
    assert!(page.contains(" is tried (") && !page.contains("trial.effects"), "by a code alone: {page}");
    let shown = rig.cli(&["consumers", "status", "billing", "--json"]).ok();
    assert!(shown.contains("trial.effects"), "and why, for those with a login: {shown}");
    let dead = rig.count(LETTERS).await;
    assert!(dead < 20, "those whose tries were over waited for the verdict, and {dead} died");
    let open = |_, body: &str| {
        body.lines().any(|line| line.contains("dependency=\"handler\"") && line.ends_with(" 1"))
    };
    member.page("/metrics", "the breaker", open).await;
    rig.run("alter table trial.not_migrated_yet rename to effects").await;
    rig.until_settled().await;
    assert!(rig.count(LETTERS).await <= dead + 3, "one for a probe, at most");
    rig.finish(member, "after a broken deployment").await;
}

/// F71, F86: whatever a stranger's producer sends is one dead letter with its bytes as they came, and the
/// rest flows.
#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn f71_strange_records_are_dead_letters_byte_for_byte_and_the_rest_flows() {
    let kafka = require_service!(crate::kafka::shared().await);
    let settings = "tables = \"phoenix\"\nretry = { delays_ms = [] }";
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, settings).await);
    kafka.configure_topic(&rig.topic, &["max.message.bytes=8388608"]).await.expect("configured");
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    let of_type = || vec![("type".to_owned(), bytes("order"))];
    let with = |more: Vec<(String, Option<Vec<u8>>)>| [of_type(), more].concat();
    let id = |id: &str| with(vec![("Message-ID".to_owned(), bytes(id))]);
    let many = (0..10_000).map(|n| (format!("h{n}"), bytes("v"))).collect();
    let odd = vec![("blob".to_owned(), Some(b"\xff\x00\x01".to_vec())), ("none".to_owned(), None)];
    let (fine, broken) = (bytes("{\"n\": 1}"), bytes("{"));
    let strange = [
        (bytes("k"), Some(b"{\"n\": \xff\xfe}".to_vec()), of_type()),
        (bytes("k"), bytes("{\"n\": 1, \"a\": \"\\u0000\"}"), of_type()),
        (bytes("k"), bytes(""), of_type()),
        (bytes("k"), None, of_type()),
        (bytes("k"), Some(vec![b'x'; 5 << 20]), of_type()),
        (bytes("k"), broken.clone(), with(many)),
        (bytes("k"), broken.clone(), with(odd)),
        (bytes(&"k".repeat(10_000)), broken, of_type()),
        (Some(b"\xff\xfe".to_vec()), fine.clone(), of_type()),
        (bytes("k"), fine.clone(), id(&"i".repeat(2_048))),
        (bytes("k"), fine.clone(), id("a\0b")),
    ];
    let record = |(key, value, headers): &(_, _, _)| ForeignRecord {
        key: Option::clone(key),
        value: Option::clone(value),
        headers: Vec::clone(headers),
    };
    rig.publish(8, "order").await;
    for each in &strange {
        kafka.send(&rig.topic, &[record(each)], None).await.expect("sent");
    }
    // The same id twice in a row, in one batch.
    let twin = record(&(bytes("k"), fine, id("twin")));
    kafka.send(&rig.topic, &[twin.clone(), twin], None).await.expect("sent");
    rig.publish(8, "order").await;
    let member = rig.start();
    rig.until("select count(*) from trial.effects", 17).await;
    rig.until_settled().await;
    member.stop().await;
    assert_eq!(rig.count("select count(*) from trial.effects where id = 'twin'").await, 1);
    assert_eq!(rig.count(LETTERS).await, strange.len() as i64);
    assert_eq!(rig.count("select count(*) from sys.dead_letters").await, strange.len() as i64);
    for (offset, (key, value, headers)) in (8_i64..).zip(&strange) {
        let sql = "select key, payload, jsonb_array_length(headers), headers::text from posthaste.inbox_dead_letters where position = $1";
        let row = rig.client.query_one(sql, &[&offset]).await.expect("one letter");
        assert!(row.get::<_, Option<Vec<u8>>>(0) == *key, "the key of {offset}");
        assert!(row.get::<_, Option<Vec<u8>>>(1) == *value, "the payload of {offset}");
        assert_eq!(row.get::<_, i32>(2) as usize, headers.len(), "the headers of {offset}");
        if headers.iter().any(|(name, _)| name == "blob") {
            assert!(row.get::<_, &str>(3).contains("\"/wAB\""), "{}", row.get::<_, &str>(3));
        }
    }
}
