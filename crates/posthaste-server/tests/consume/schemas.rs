//! Consumers with schemas: poison is dead at once, a registry that is away is waited for.

use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Answer, Receiver, ReceiverOptions};

const EFFECTS: &str = "select count(*) from trial.effects";
const LETTERS: &str = "select count(*) from posthaste.inbox_dead_letters";
const REPLAY: [&str; 8] = ["dead", "replay", "--consumer", "billing", "--all", "--reason", "mended", "--yes"];

/// The payloads of the rig are `{"n": 1}`, `{"n": 2}`, …
fn up_to(n: i32) -> String {
    format!(r#"{{"type": "object", "properties": {{"n": {{"type": "integer", "maximum": {n}}}}}}}"#)
}

/// F49, F71: what breaks its schema is dead at its first attempt, with its bytes, and no handler saw it. All
/// others flow, of its key and of its batch. Under another schema the letter is checked again, and then
/// handled.
#[tokio::test(flavor = "multi_thread")]
async fn f71_what_breaks_its_schema_is_dead_at_once_and_checked_again_at_its_replay() {
    let settings = "schema = [{ types = [\"strict\"], json_schema = \"order.json\" }]";
    let rig = require_service!(Rig::set("").await);
    rig.write("order.json", &up_to(50));
    rig.reconfigure("dead_letters =", &format!("{settings}\ndead_letters ="));
    // 1–40 keep the schema, 59–61 break it. The rest is of another type, and nobody looks.
    rig.publish(40, "strict").await;
    rig.publish(18, "order").await;
    rig.publish(3, "strict").await;
    rig.publish(20, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    assert_eq!((rig.count(EFFECTS).await, rig.count(LETTERS).await), (78, 3));
    let sql = "select message_id, disposition, error_class, error_code, attempts, error, payload from posthaste.inbox_dead_letters order by position, partition";
    for row in rig.client.query(sql, &[]).await.expect("letters") {
        let id: String = row.get("message_id");
        let named = [row.get::<_, &str>("disposition"), row.get("error_class"), row.get("error_code")];
        assert_eq!(named, ["schema", "schema", "schema.invalid"], "{id}");
        assert_eq!(row.get::<_, i32>("attempts"), 1, "{id}");
        let error: String = row.get("error");
        assert!(error.starts_with("/n: ") && error.contains("maximum of 50"), "{error}");
        let bytes = format!("{{\"n\": {}}}", &id[1..]).into_bytes();
        assert_eq!(row.get::<_, Vec<u8>>("payload"), bytes, "{id}");
    }
    // The schema is the same: they die again.
    rig.cli(&REPLAY).ok();
    let again = "select count(*) from posthaste.inbox_dead_letters where error_code = 'schema.invalid' and replays > 0";
    rig.until(again, 3).await;
    member.stop().await;
    rig.check("with the old schema").await;
    rig.write("order.json", &up_to(60));
    let member = rig.start();
    rig.cli(&REPLAY).ok();
    rig.until(EFFECTS, 80).await;
    rig.until(LETTERS, 1).await;
    let left = "select count(*) from posthaste.inbox_dead_letters where message_id = 'm61' and error_code = 'schema.invalid'";
    rig.until(left, 1).await;
    member.stop().await;
    rig.check_but_order("with the new schema").await;
}

/// A payload behind the id of its schema.
fn framed(schema: u8, body: &str) -> String {
    format!("\0\0\0\0{}{body}", char::from(schema))
}

/// F71, F50: a registry that is away costs no attempt and makes no letter; its breaker opens, and everything
/// flows when it is back. What names no schema is poison meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn f71_a_registry_that_is_away_is_waited_for() {
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    let path = "/schemas/ids/7";
    receiver.always(path, Answer::status(503));
    let settings = format!(
        "schema = [{{ types = [\"framed\"], registry = {{ url = \"{}\" }} }}]\ndependencies = {{ registry = {{ initial_ms = 50, max_ms = 200 }} }}",
        receiver.url()
    );
    let rig = require_service!(Rig::set(&settings).await);
    rig.run(
        "create function trial.framed(m posthaste.message) returns void language sql as
         $$ insert into trial.effects (id, type, key, n) values (m.id, m.type, convert_from(m.key, 'UTF8'), substr(m.id, 2)::int) $$",
    )
    .await;
    let handle = "[[consumers.billing.handle]]\n";
    rig.reconfigure(handle, &format!("{handle}types = [\"framed\"]\nsql = \"trial.framed\"\n{handle}"));
    rig.send("framed", 1..25, |n| framed(7, &format!("{{\"price\": {n}}}"))).await;
    let member = rig.start();
    receiver.until(3).await;
    let open = "posthaste_consumer_breaker_state{";
    member
        .page("/metrics", "the breaker of the registry is open", |_, body| {
            body.lines().any(|line| {
                line.starts_with(open) && line.contains("dependency=\"registry\"") && !line.ends_with(" 0")
            })
        })
        .await;
    assert_eq!(
        (rig.count(EFFECTS).await, rig.count(LETTERS).await),
        (0, 0),
        "nothing happened, nothing died"
    );
    let schema = r#"{"schemaType":"JSON","schema":"{\"properties\":{\"price\":{\"type\":\"integer\"}}}"}"#;
    receiver.always(path, Answer::status(200).body(schema));
    rig.until(EFFECTS, 24).await;
    let asked = receiver.requests_for(path).len();
    rig.send("framed", 25..26, |_| framed(7, "{\"price\": \"many\"}")).await;
    receiver.always("/schemas/ids/8", Answer::status(404).body(r#"{"error_code":40403,"message":"no"}"#));
    rig.send("framed", 26..27, |_| framed(8, "{}")).await;
    rig.publish(1, "framed").await;
    rig.send("framed", 28..36, |n| framed(7, &format!("{{\"price\": {n}}}"))).await;
    rig.finish(member, "with a registry that came back").await;
    assert_eq!((rig.count(EFFECTS).await, rig.count(LETTERS).await), (32, 3));
    let codes = "select string_agg(error_code, ' ' order by error_code) from posthaste.inbox_dead_letters where disposition = 'schema' and attempts = 1";
    let codes: String = rig.client.query_one(codes, &[]).await.expect("letters").get(0);
    assert_eq!(codes, "schema.invalid schema.unknown_id schema.wire");
    assert_eq!(receiver.requests_for(path).len(), asked, "a schema is fetched once");
}

/// A handler in another process is not even asked about what breaks its schema.
#[cfg(feature = "http")]
#[tokio::test(flavor = "multi_thread")]
async fn f71_a_handler_behind_http_stands_behind_the_schemas_too() {
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    let rig = require_service!(Rig::set("").await);
    rig.write("order.json", &up_to(8));
    let settings = "schema = [{ types = [\"strict\"], json_schema = \"order.json\" }]";
    rig.reconfigure("dead_letters =", &format!("{settings}\ndead_letters ="));
    rig.reconfigure("sql = \"trial.handle\"", &format!("http = \"{}/events\"", receiver.url()));
    rig.publish(11, "strict").await;
    rig.publish(5, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    member.stop().await;
    assert_eq!(rig.count(LETTERS).await, 3);
    let asked = receiver.requests_for("/events");
    assert_eq!(asked.len(), 13, "eight strict ones and five others");
    for dead in [&b"{\"n\": 9}"[..], b"{\"n\": 10}", b"{\"n\": 11}"] {
        assert!(asked.iter().all(|request| request.body != dead), "{dead:?} was sent");
    }
}
