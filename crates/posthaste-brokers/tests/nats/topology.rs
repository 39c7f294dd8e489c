//! Streams from a file. What is there is read, and changed by hand, by another client.

use super::*;
use crate::ground::topology::{Operator, rows};
use async_nats::jetstream::stream::{DiscardPolicy, StorageType};
use posthaste_brokers::topology::{AdminFailure, Kind, Resource};
use posthaste_testkit::require_service;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const FILE: &str = r#"
[[stream]]
name = "ORDERS"
subjects = ["orders.>", "refunds.*"]
storage = "file"
replicas = 1
retention = "limits"
max_age = "72h"
max_bytes = "1GiB"
max_message_bytes = "1MiB"
discard = "new"
duplicate_window = "10m"
settings = { description = "42", allow_direct = true, allow_atomic = false, metadata = { team = "shop" } }

[[stream]]
name = "PLAIN"
subjects = ["plain"]
max_age = "forever"
max_bytes = "forever"
"#;

fn operator(config: NatsConfig) -> Operator {
    Operator::new("nats", SinkConfig::Nats(Box::new(config)), None)
}

impl Bed {
    /// The configuration of a stream as the server tells it.
    async fn raw(&self, name: &str) -> Value {
        let answer: Value =
            self.jetstream.request(format!("STREAM.INFO.{name}"), &()).await.expect("an answer");
        answer["config"].clone()
    }

    /// Changes one thing by hand.
    async fn change(&self, name: &str, change: impl FnOnce(&mut stream::Config)) {
        let mut stream = self.jetstream.get_stream(name).await.expect("the stream is there");
        let mut config = stream.info().await.expect("stream info").config.clone();
        change(&mut config);
        self.jetstream.update_stream(config).await.expect("changed");
    }
}

/// The keys that differ.
fn differences(one: &Value, other: &Value) -> Vec<String> {
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    let mut all: Vec<String> =
        keys(one).into_iter().chain(keys(other)).filter(|key| one[key] != other[key]).collect();
    all.sort();
    all.dedup();
    all
}

#[tokio::test]
async fn from_empty_to_the_file_and_then_nothing() {
    let bed = require_service!(Bed::open().await);
    bed.stream_with(stream::Config { max_messages: 7, ..plain("OTHER", &["other"]) }).await;
    let others = bed.raw("OTHER").await;
    let operator = operator(bed.config());
    let first = operator.plan(FILE).await;
    assert_eq!(rows(&first), ["add stream:ORDERS plain", "add stream:PLAIN plain"]);
    assert!(bed.jetstream.get_stream("ORDERS").await.is_err(), "a plan changes nothing");
    operator.apply(&first).await;

    let orders = bed.raw("ORDERS").await;
    for (key, value) in [
        ("subjects", json!(["orders.>", "refunds.*"])),
        ("storage", json!("file")),
        ("max_age", json!(259_200_000_000_000_u64)),
        ("max_bytes", json!(1 << 30)),
        ("max_msg_size", json!(1 << 20)),
        ("discard", json!("new")),
        ("duplicate_window", json!(600_000_000_000_u64)),
        ("description", json!("42")),
        ("allow_direct", json!(true)),
    ] {
        assert_eq!(orders[key], value, "{key}");
    }
    assert_eq!(orders["metadata"]["team"], "shop");
    let second = operator.plan(FILE).await;
    assert_eq!((rows(&second).len(), second.same.get(&Kind::Stream)), (0, Some(&2)), "{second:?}");
    let names: Vec<String> = second.others.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["stream:OTHER"]);
    assert_eq!(bed.raw("OTHER").await, others);
    // To make the same again harms nobody.
    operator.apply(&first).await;
    assert_eq!(bed.raw("ORDERS").await, orders);
}

#[tokio::test]
async fn one_thing_changed_by_hand_is_the_whole_difference_and_unnamed_keys_survive() {
    let bed = require_service!(Bed::open().await);
    let operator = operator(bed.config());
    operator.apply(&operator.plan(FILE).await).await;
    // What the file does not name: of a stream that it names, and a whole stream.
    bed.change("PLAIN", |config| {
        config.description = Some("by hand".to_owned());
        config.max_messages = 1_000_000;
        config.allow_rollup = true;
        config.metadata.insert("owner".to_owned(), "somebody".to_owned());
    })
    .await;
    bed.stream("OTHER", &["other"]).await;
    let others = bed.raw("OTHER").await;
    assert_eq!(rows(&operator.plan(FILE).await), [""; 0], "the file does not name it");

    bed.change("PLAIN", |config| config.max_age = Duration::from_secs(3_600)).await;
    let changed = bed.raw("PLAIN").await;
    let plan = operator.plan(FILE).await;
    assert_eq!(rows(&plan), ["change stream:PLAIN max_age 3600000000000 -> 0 plain"]);
    operator.apply(&plan).await;
    let mended = bed.raw("PLAIN").await;
    assert_eq!(differences(&changed, &mended), ["max_age"]);
    assert_eq!(
        (&mended["description"], &mended["metadata"]["owner"]),
        (&json!("by hand"), &json!("somebody"))
    );
    assert_eq!(rows(&operator.plan(FILE).await), [""; 0]);
    assert_eq!(bed.raw("OTHER").await, others);

    bed.change("ORDERS", |config| config.subjects = vec!["refunds.*".to_owned(), "orders.>".to_owned()])
        .await;
    assert_eq!(rows(&operator.plan(FILE).await), [""; 0], "subjects are a set");
    bed.change("ORDERS", |config| config.discard = DiscardPolicy::Old).await;
    assert_eq!(rows(&operator.plan(FILE).await), ["change stream:ORDERS discard old -> new hazard"]);
}

#[tokio::test]
async fn what_hurts_is_named_and_a_plan_changes_nothing() {
    let bed = require_service!(Bed::open().await);
    let operator = operator(bed.config());
    let file = |rest: &str| format!("[[stream]]\nname = \"S\"\n{rest}\n");
    let before = r#"subjects = ["a.>", "b"]
        storage = "file"
        retention = "limits"
        discard = "old"
        duplicate_window = "10m"
        settings = { max_msgs = 100 }"#;
    operator.apply(&operator.plan(&file(before)).await).await;
    let raw = bed.raw("S").await;
    let both = "subjects = [\"a.>\", \"b\"]\n";
    for (rest, expected) in [
        (r#"subjects = ["a.>"]"#.to_owned(), r#"subjects ["a.>","b"] -> ["a.>"] hazard"#),
        (format!("{both} storage = \"memory\""), "storage file -> memory blocked"),
        (format!("{both} retention = \"workqueue\""), "retention limits -> workqueue blocked"),
        (format!("{both} max_age = \"1h\""), "max_age 0 -> 3600000000000 destroys"),
        (format!("{both} max_bytes = \"1GiB\""), "max_bytes -1 -> 1073741824 destroys"),
        (format!("{both} settings = {{ max_msgs = 2 }}"), "max_msgs 100 -> 2 destroys"),
        (format!("{both} settings = {{ max_msgs = 200 }}"), "max_msgs 100 -> 200 plain"),
        (format!("{both} max_message_bytes = \"1KiB\""), "max_msg_size -1 -> 1024 hazard"),
        (format!("{both} discard = \"new\""), "discard old -> new hazard"),
        (format!("{both} duplicate_window = \"1m\""), "duplicate_window 600000000000 -> 60000000000 hazard"),
    ] {
        let plan = operator.plan(&file(&rest)).await;
        assert_eq!(rows(&plan), [format!("change stream:S {expected}")]);
        assert_eq!(bed.raw("S").await, raw, "a plan changes nothing");
    }
    let three = "[[stream]]\nname = \"T\"\nsubjects = [\"t\"]\nreplicas = 3\n";
    assert_eq!(rows(&operator.plan(three).await), ["add stream:T blocked"]);
    // The table tells the truth.
    for _ in 0..5 {
        bed.jetstream.publish("b", "x".into()).await.expect("sent").await.expect("stored");
    }
    let fewer = operator.plan(&file(&format!("{both} settings = {{ max_msgs = 2 }}"))).await;
    operator.apply(&fewer).await;
    assert_eq!(bed.stored("S").await.len(), 2);
    assert_eq!(differences(&raw, &bed.raw("S").await), ["max_msgs"]);
}

#[tokio::test]
async fn f87_a_stream_goes_by_its_name_alone() {
    let bed = require_service!(Bed::open().await);
    let operator = operator(bed.config());
    for name in ["A", "AB", "KEPT"] {
        bed.stream(name, &[name]).await;
    }
    let kept = "[[stream]]\nname = \"KEPT\"\nsubjects = [\"KEPT\"]\n";
    for nothing in [vec![], vec!["stream:*"], vec!["stream:>"], vec!["stream:KEPT"], vec!["stream:a"]] {
        let plan = operator.plan_with(kept, &nothing).await;
        assert_eq!((rows(&plan).len(), plan.others.len()), (0, 2), "{nothing:?}: {plan:?}");
    }
    let plan = operator.plan_with(kept, &["stream:A"]).await;
    assert_eq!(rows(&plan), ["remove stream:A destroys"]);
    operator.apply(&plan).await;
    // To remove it twice is to remove it once.
    operator.apply(&plan).await;
    let left: Vec<String> =
        operator.everything(&[Kind::Stream]).await.resources.into_iter().map(|found| found.name).collect();
    assert_eq!(left, ["AB", "KEPT"]);
}

#[tokio::test]
async fn a_refusal_has_the_servers_words_and_spoils_nothing_else() {
    let bed = require_service!(Bed::open().await);
    bed.stream("TAKEN", &["taken"]).await;
    let operator = operator(bed.config());
    let file = r#"
        stream = [ { name = "FREE", subjects = ["free"] }, { name = "SAME", subjects = ["taken"] } ]
    "#;
    let plan = operator.plan(file).await;
    let answers = operator.try_apply(&plan).await;
    assert!(answers[0].is_ok(), "{answers:?}");
    let Err(AdminFailure::Refused(why)) = &answers[1] else { panic!("{answers:?}") };
    assert!(why.contains("subjects overlap"), "{why}");
    assert_eq!(rows(&operator.plan(file).await), ["add stream:SAME plain"], "the next plan shows the rest");
}

/// Servers give lists in parts.
#[tokio::test]
async fn more_streams_than_fit_into_one_answer() {
    let bed = require_service!(Bed::open().await);
    for number in 0..300 {
        let name = format!("S{number:03}");
        let config = stream::Config { storage: StorageType::Memory, ..plain(&name, &[&name]) };
        bed.stream_with(config).await;
    }
    let operator = operator(bed.config());
    let look = operator.everything(&[Kind::Stream]).await;
    let found: BTreeMap<&str, &Resource> =
        look.resources.iter().map(|found| (found.name.as_str(), found)).collect();
    assert_eq!((found.len(), look.resources.len()), (300, 300));
    assert!(found.values().all(|found| found.settings.get("storage").is_some_and(|it| it == "memory")));
    let plan = operator.plan("[[stream]]\nname = \"S299\"\nsubjects = [\"S299\"]\n").await;
    assert_eq!((rows(&plan).len(), plan.others.len()), (0, 299));
}

/// Each right that is missing hides what it is about, and its words name it.
#[tokio::test]
async fn missing_rights_hide_what_they_are_about() {
    let users = r#"
        accounts {
            SHOP {
                jetstream: enabled
                users: [
                    { user: admin, password: pw }
                    { user: blind, password: pw, permissions: { publish: ["x"], subscribe: ["_INBOX.>"] } }
                    { user: narrow, password: pw,
                      permissions: { publish: ["$JS.API.STREAM.INFO.ORDERS"], subscribe: ["_INBOX.>"] } }
                    { user: reader, password: pw, permissions: {
                      publish: ["$JS.API.STREAM.INFO.*", "$JS.API.STREAM.NAMES"], subscribe: ["_INBOX.>"] } }
                ]
            }
            BARE { users: [ { user: bare, password: pw } ] }
        }"#;
    let server = require_service!(Nats::start(&NatsOptions::default().setting(users)).await);
    let of_user = |user: &str| {
        operator(NatsConfig::new(&server.url()).with(|options| {
            options.user = Some(user.to_owned());
            options.password = Some(posthaste_brokers::Secret::new("pw"));
        }))
    };
    let admin = of_user("admin");
    admin.apply(&admin.plan(FILE).await).await;

    let blind = of_user("blind").plan(FILE).await;
    assert!(blind.changes.is_empty() && blind.same.is_empty(), "{blind:?}");
    assert_eq!(blind.unseen.len(), 2, "{blind:?}");
    let why = &blind.unseen.iter().find(|it| it.name.as_deref() == Some("ORDERS")).expect("hidden").why;
    assert_eq!(why, "the right to publish to $JS.API.STREAM.INFO.ORDERS is missing for user \"blind\"");
    let narrow = of_user("narrow").plan(FILE).await;
    assert_eq!(narrow.same.get(&Kind::Stream), Some(&1), "{narrow:?}");
    assert_eq!(narrow.unseen.len(), 1, "{narrow:?}");
    assert_eq!(narrow.unseen[0].name.as_deref(), Some("PLAIN"));
    assert!(narrow.notes.iter().any(|note| note.contains("$JS.API.STREAM.NAMES")), "{narrow:?}");

    let reader = of_user("reader");
    let longer = FILE.replace("72h", "96h");
    let plan = reader.plan(&longer).await;
    assert_eq!(rows(&plan).len(), 1, "{plan:?}");
    let answers = reader.try_apply(&plan).await;
    let Err(AdminFailure::Refused(why)) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(why, "the right to publish to $JS.API.STREAM.UPDATE.ORDERS is missing for user \"reader\"");
    assert_eq!(rows(&admin.plan(FILE).await), [""; 0], "nothing was changed");

    let bare = of_user("bare").plan(FILE).await;
    assert!(bare.changes.is_empty() && bare.same.is_empty(), "{bare:?}");
    assert_eq!((bare.unseen.len(), bare.unseen[0].name.as_deref()), (1, None), "{bare:?}");
    assert!(bare.unseen[0].why.contains("JetStream"), "{bare:?}");
}

#[tokio::test]
async fn a_server_that_is_down_is_said_so() {
    let mut bed = require_service!(Bed::open().await);
    bed.server.stop().await.expect("stopped");
    let operator = operator(bed.config());
    let failure = operator.admin.look(&Default::default()).await.expect_err("nobody is there");
    assert!(
        matches!(&failure, AdminFailure::Unreachable(why) if why.contains(&bed.server.addr().to_string())),
        "{failure}"
    );
    bed.server.start_again().await.expect("started again");
    let operator = super::topology::operator(bed.config());
    let look = operator.admin.look(&Default::default()).await.expect("an answer");
    assert!(
        look.words.starts_with("server test-")
            && look.cluster.starts_with("test-")
            && look.words.contains("version 2."),
        "{look:?}"
    );
}
