//! One event from its append over the broker to its effect, to what the effect appended, and so on.

#[cfg(feature = "kafka")]
use crate::kafka::shared;
use crate::member::WAIT;
use crate::rig::{Rig, connect};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{ServiceError, TestDatabase};
use serde_json::{Value, json};

const EFFECTS: &str = "select count(*) from trial.effects";

async fn a_chain_is_followed(rig: Rig) {
    let member = rig.start();
    let appended =
        ["append", &rig.topic, "--key", "k0", "--type", "chain", "--payload", "{\"n\": 1}", "--json"];
    let said: Value = serde_json::from_str(&rig.cli(&appended).ok()).expect("JSON");
    let id = said["id"].as_str().expect("an id").to_owned();
    rig.until(EFFECTS, 3).await;
    let trace: Value = serde_json::from_str(&rig.cli(&["trace", &id, "--json"]).ok()).expect("JSON");
    let first = &trace["outboxes"][0];
    assert_eq!(first["event"]["event"]["topic"], rig.topic.as_str(), "{trace}");
    let handled = &first["consumers"][0];
    assert_eq!((&handled["consumer"], &handled["outcome"]), (&"billing".into(), &"d".into()), "{trace}");
    let place = handled["place"].as_str().expect("its broker's address");
    assert!(place.starts_with(&rig.topic) && place.contains('@') && handled["xid"].is_string(), "{trace}");

    // The second names its cause, the third names none and was alone in its transaction.
    let followed = trace["followed"].as_array().expect("what followed");
    assert_eq!(followed.len(), 2, "{trace}");
    assert_eq!(
        (&followed[0]["id"], &followed[0]["cause"]),
        (&handled["appended"][0]["id"], &id.as_str().into())
    );
    let second = &followed[0]["outboxes"][0];
    assert_eq!(second["consumers"][0]["appended"][0]["id"], followed[1]["id"], "{trace}");
    assert_eq!(followed[1]["cause"], followed[0]["id"], "{trace}");
    let third = &followed[1]["outboxes"][0];
    assert_eq!(
        (&third["consumers"][0]["outcome"], third["event"].is_object()),
        (&"d".into(), true),
        "{trace}"
    );

    let text = rig.cli(&["trace", &id]).ok();
    for part in
        ["appended", "sink      broker: delivered", "consumer  billing: done", "transaction", "by billing"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let none = rig.cli(&["trace", "nobody-knows-it"]);
    assert!(none.code == 1 && none.out.contains("no trace of nobody-knows-it"), "{}", none.out);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_events_is_followed_over_the_local_broker() {
    a_chain_is_followed(require_service!(Rig::set("").await)).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_events_is_followed_over_kafka() {
    let kafka = require_service!(shared().await);
    a_chain_is_followed(require_service!(Rig::set_on_kafka(kafka, 2, "").await)).await;
}

/// An event of one service, and its effect in the database of another: both are found by its id, and one
/// that cannot be looked into keeps nobody from the other.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_looked_up_in_every_configured_outbox() {
    let rig = require_service!(Rig::set("").await);
    let elsewhere = require_service!(TestDatabase::create().await);
    rig.reconfigure("[consumers.billing]\n", "[consumers.billing]\noutbox = \"shop\"\n");
    let other = format!("[[outbox]]\nname = \"warehouse\"\nurl = \"{}\"\n", elsewhere.url());
    rig.reconfigure("[[route]]\n", &format!("{other}[[route]]\n"));
    rig.cli(&["migrate", "up"]).ok();
    let member = rig.start();
    let appended = ["append", &rig.topic, "--outbox", "warehouse", "--key", "k0", "--type", "chain"];
    let said = rig.cli(&[&appended[..], &["--payload", "{\"n\": 1}", "--json"]].concat()).ok();
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let id = said["id"].as_str().expect("an id");
    rig.until(EFFECTS, 3).await;
    let trace: Value = serde_json::from_str(&rig.cli(&["trace", id, "--json"]).ok()).expect("JSON");
    let found = trace["outboxes"].as_array().expect("outboxes");
    let of = |name: &str| found.iter().find(|found| found["outbox"] == name).expect("both know of it");
    assert_eq!(of("warehouse")["event"]["event"]["topic"], rig.topic.as_str(), "{trace}");
    assert!(of("shop")["event"].is_null() && of("warehouse")["consumers"] == json!([]), "{trace}");
    assert_eq!(of("shop")["consumers"][0]["outcome"], "d", "{trace}");
    let followed = trace["followed"].as_array().expect("what followed");
    assert!(followed.len() == 2 && followed[0]["cause"] == id, "{trace}");

    let (away, nowhere) = (elsewhere.url(), "postgres://postgres@127.0.0.1:1/away");
    let half = rig.cli_but(&away, nowhere, &["trace", id]);
    assert!(half.err.contains("not looked at") && half.err.contains("warehouse"), "{}", half.err);
    assert!(half.ok().contains("consumer  billing: done"), "what can be said is said");
    member.stop().await;
}

/// A service of the chain: it notes what it was called with, and appends what follows to its own outbox.
const LINK: &str = r#"
create schema link;
create table link.effects (id text primary key);
create function link.on_event(m posthaste.message) returns void language plpgsql as $$
begin
  insert into link.effects values (m.id);
  if m.topic <> 'third' then
    perform posthaste.append(case m.topic when 'first' then 'second' else 'third' end, m.payload,
                             key => 'k', headers => posthaste.caused(m));
  end if;
end $$
"#;

/// Three services, each with a database of its own: what one appends is handled in the next one's.
struct Chain {
    rig: Rig,
    databases: [TestDatabase; 2],
}

impl Chain {
    async fn set() -> Result<Self, ServiceError> {
        let rig = Rig::set("").await?;
        let databases = [TestDatabase::create().await?, TestDatabase::create().await?];
        let [b, c] = [databases[0].url(), databases[1].url()];
        let broker = rig.write("chain", "").with_file_name("chain.db");
        // Three logins of one database: the outbox's, and those of two consumers.
        let join = if c.contains('?') { '&' } else { '?' };
        let login = |name: &str| format!("{c}{join}application_name={name}");
        let text = format!(
            "service = \"trial\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
             [[outbox]]\nname = \"a\"\nurl = \"{a}\"\n[[outbox]]\nname = \"b\"\nurl = \"{b}\"\n\
             [[outbox]]\nname = \"c\"\nurl = \"{c}\"\n\
             [[route]]\ntopics = [\"*\"]\nsinks = [\"broker\"]\n\
             [sinks.broker]\ntype = \"local\"\npath = {broker:?}\nstart_at = \"earliest\"\n\
             [consumers.middle]\nsource = \"broker\"\ntopics = [\"first\"]\noutbox = \"b\"\n\
             [[consumers.middle.handle]]\nsql = \"link.on_event\"\n\
             [consumers.last]\nsource = \"broker\"\ntopics = [\"second\"]\noutbox = \"c\"\nurl = \"{last}\"\n\
             [[consumers.last.handle]]\nsql = \"link.on_event\"\n\
             [consumers.shadow]\nsource = \"broker\"\ntopics = [\"third\"]\noutbox = \"c\"\nurl = \"{shadow}\"\n\
             [[consumers.shadow.handle]]\nsql = \"link.on_event\"\n",
            a = rig.url(),
            last = login("last"),
            shadow = login("shadow"),
        );
        rig.replace_configuration(&text);
        rig.cli(&["migrate", "up"]).ok();
        for database in &databases {
            let client = connect(&database.url()).await.expect("the server answers");
            client.batch_execute(LINK).await.expect("a service");
        }
        Ok(Self { rig, databases })
    }

    fn trace(&self, id: &str) -> Value {
        serde_json::from_str(&self.rig.cli(&["trace", id, "--json"]).ok()).expect("JSON")
    }
}

/// From A's outbox to B's effect, to what that appended, to C's effect, and on: one picture, in 80 columns.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_is_followed_through_three_databases() {
    let chain = require_service!(Chain::set().await);
    let rig = &chain.rig;
    let member = rig.start();
    let appended = ["append", "first", "--outbox", "a", "--key", "k", "--payload", "{}", "--json"];
    let said: Value = serde_json::from_str(&rig.cli(&appended).ok()).expect("JSON");
    let id = said["id"].as_str().expect("an id");
    let trace = eventually("the chain is at its end", WAIT, || async {
        let trace = chain.trace(id);
        (trace["followed"][1]["outboxes"][0]["consumers"] != json!([]) && trace["followed"][1].is_object())
            .then_some(trace)
    })
    .await;
    assert_eq!((&trace["complete"], &trace["not_looked_at"]), (&true.into(), &json!([])), "{trace}");
    let of = |step: &Value| -> Vec<(String, bool, Vec<String>)> {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let consumers = |found: &Value| {
            let all = found["consumers"].as_array().expect("consumers");
            all.iter()
                .map(|trace| format!("{} {}", text(&trace["consumer"]), text(&trace["outcome"])))
                .collect()
        };
        let outboxes = step["outboxes"].as_array().expect("outboxes");
        outboxes
            .iter()
            .map(|found| (text(&found["outbox"]), found["event"].is_object(), consumers(found)))
            .collect()
    };
    let found = |outbox: &str, is_in_log: bool, consumers: &[&str]| {
        (outbox.to_owned(), is_in_log, consumers.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(of(&trace), [found("a", true, &[]), found("b", false, &["middle d"])], "{trace}");
    let followed = trace["followed"].as_array().expect("what followed");
    assert_eq!(followed.len(), 2, "{trace}");
    assert_eq!(of(&followed[0]), [found("b", true, &[]), found("c", false, &["last d"])], "{trace}");
    assert_eq!(of(&followed[1]), [found("c", true, &["shadow d"])], "each consumer once: {trace}");
    let link = |step: &Value| (step["cause"].clone(), step["by"].clone(), step["depth"].clone());
    assert_eq!(link(&followed[0]), (id.into(), "middle".into(), 1.into()));
    assert_eq!(link(&followed[1]), (followed[0]["id"].clone(), "last".into(), 2.into()));

    let picture = rig.cli(&["trace", id]).ok();
    assert!(picture.lines().all(|line| line.chars().count() <= 80), "{picture}");
    let lines: Vec<&str> = picture.lines().map(str::trim_start).collect();
    let at = |start: &str| lines.iter().position(|line| line.starts_with(start)).expect(start);
    let second = followed[0]["id"].as_str().expect("an id");
    let places = [
        "appended  outbox a",
        "sink      broker: delivered",
        "consumer  middle: done",
        &format!("└─ {second}, by middle"),
        "consumer  last: done",
        "consumer  shadow: done",
    ]
    .map(at);
    assert!(places.is_sorted(), "{picture}");
    member.stop().await;

    // B is away: the chain is cut there, B is named, and what others know is said.
    let nowhere = "postgres://postgres@127.0.0.1:1/away";
    let half = rig.cli_but(&chain.databases[0].url(), nowhere, &["trace", id, "--json"]);
    assert!(half.err.contains("not looked at: outbox `b`"), "{}", half.err);
    let half: Value = serde_json::from_str(&half.ok()).expect("JSON");
    assert_eq!((&half["complete"], of(&half)), (&false.into(), vec![found("a", true, &[])]), "{half}");
    let away = half["not_looked_at"].as_array().expect("who is away");
    assert!(away.len() == 1 && away[0]["outbox"] == "b" && away[0]["why"].is_string(), "{half}");
    let rest = rig.cli_but(&chain.databases[0].url(), nowhere, &["trace", second]);
    assert!(rest.ok().contains("consumer  last: done"), "C is found without B");
}

/// Events that cause each other, many of one cause, and a chain without an end: the picture has one, says
/// that it does not show all, and what it shows is there once. The marks are those of a service that only
/// admits: Posthaste has no consumer of that name.
#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_a_flood_and_a_long_chain_end_the_picture() {
    let rig = require_service!(Rig::set("").await);
    let id = |n: i32| format!("00000000-0000-4000-8000-{n:012}");
    // Message `n` is handled, and its handler appends these.
    let handle = async |n: i32, appended: &[i32]| {
        let event = |caused: &i32| {
            let headers = json!({ "causation-id": id(n) });
            format!(
                "select posthaste.append('ring', 'x'::text, id => '{}', headers => '{headers}');",
                id(*caused)
            )
        };
        let events: String = appended.iter().map(event).collect();
        rig.run(&format!("begin; select posthaste.admit('loop', '{}'); {events} commit", id(n))).await;
    };
    let trace = |n: i32| {
        let ended = rig.cli(&["trace", &id(n), "--json"]);
        let said = ended.err.clone();
        let trace: Value = serde_json::from_str(&ended.ok()).expect("JSON");
        let ids: Vec<Value> = trace["followed"]
            .as_array()
            .expect("what followed")
            .iter()
            .map(|step| step["id"].clone())
            .collect();
        (trace["complete"] == true, ids, said)
    };

    handle(1, &[2]).await;
    handle(2, &[1, 3]).await;
    assert_eq!(trace(1), (true, vec![id(2).into(), id(3).into()], String::new()));
    assert_eq!(trace(2).1, [id(1), id(3)].map(Value::from), "from anywhere in the ring");

    for n in 10..40 {
        handle(n, &[n + 1]).await;
    }
    let (is_complete, ids, said) = trace(10);
    assert_eq!((is_complete, ids), (false, (11..27).map(|n| id(n).into()).collect()), "16 handlers deep");
    assert!(said.contains("only 100 messages"), "{said}");
    let picture = rig.cli(&["trace", &id(10)]).ok();
    assert!(picture.lines().all(|line| line.chars().count() <= 80), "{picture}");
    assert!(picture.contains("1 event not followed here"), "{picture}");

    handle(100, &(101..160).collect::<Vec<_>>()).await;
    handle(101, &(160..260).collect::<Vec<_>>()).await;
    let (is_complete, ids, _) = trace(100);
    assert_eq!((is_complete, ids.len()), (false, 99), "and the first of them");
}
