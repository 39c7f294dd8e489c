//! One node without secrets: what is shown, what is refused, what is left alone.

use crate::desk::Desk;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Kafka, KafkaOptions, KafkaSecurity, ServiceError};
use std::collections::BTreeMap;
use tokio::sync::OnceCell;

/// One cluster for the tests here. Each has names of its own.
async fn node() -> Result<&'static Kafka, ServiceError> {
    static NODE: OnceCell<Result<Kafka, ServiceError>> = OnceCell::const_new();
    let options = || KafkaOptions::default().listener("SASL", KafkaSecurity::Sasl).authorizer();
    NODE.get_or_init(|| async { Kafka::start(&options()).await }).await.as_ref().map_err(Clone::clone)
}

fn topic(name: &str, more: &str) -> String {
    format!("[[topic]]\nname = \"{name}\"\npartitions = 3\nreplicas = 1\nretention = \"7d\"\n{more}\n")
}

async fn settings(kafka: &Kafka, topic: &str) -> BTreeMap<String, String> {
    kafka.settings_of(topic).await.expect("settings")
}

#[tokio::test(flavor = "multi_thread")]
async fn f87_nothing_goes_that_the_command_line_does_not_name() {
    let kafka = require_service!(node().await);
    for name in ["gone", "gone.too"] {
        kafka.create_topic(name, 1, 1, &["retention.ms=1000000"]).await.expect("created");
    }
    let desk = Desk::with_file(&kafka.bootstrap(), "");
    let said = desk.topology(&["plan"]).ends(0);
    assert!(said.contains("no difference") && said.contains("Nothing was changed"), "{said}");
    assert!(desk.topology(&["apply", "--yes"]).ends(0).contains("nothing to do"));
    let said = desk.topology(&["apply", "--yes", "--allow-destroy", "topic:go*"]).ends(2);
    assert!(said.contains("takes no pattern"), "{said}");
    desk.topology(&["apply", "--yes", "--allow-destroy", "topic:gone"]).ends(0);
    let topics = kafka.topics().await.expect("topics");
    assert!(!topics.contains("gone") && topics.contains("gone.too"), "{topics:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_destroys_or_hurts_needs_its_flag_and_what_cannot_be_done_is_blocked() {
    let kafka = require_service!(node().await);
    let made = ["retention.ms=604800000", "max.message.bytes=2000000", "segment.ms=123456789"];
    kafka.create_topic("risky", 3, 1, &made).await.expect("created");
    let before = settings(kafka, "risky").await;
    let bootstrap = kafka.bootstrap();
    let file = |partitions: u32, replicas: u32, more: &str| {
        let text = format!(
            "[[topic]]\nname = \"risky\"\npartitions = {partitions}\nreplicas = {replicas}\n{more}\n"
        );
        Desk::with_file(&bootstrap, &text)
    };
    for (desk, code, words) in [
        (file(3, 1, "retention = \"1d\""), 2, "--allow-destroy topic:risky"),
        (file(3, 1, "retention = \"default\""), 2, "--allow-destroy topic:risky"),
        (file(3, 1, "cleanup = \"compact\""), 2, "--allow-destroy topic:risky"),
        (file(3, 1, "max_message_size = \"1MiB\""), 2, "--allow-hazard topic:risky"),
        (file(3, 1, "unclean_leader_election = true"), 2, "--allow-hazard topic:risky"),
        (file(6, 1, ""), 2, "--allow-hazard topic:risky"),
        (file(2, 1, ""), 1, "partitions cannot be taken away"),
        (file(3, 3, ""), 1, "kafka-reassign-partitions"),
    ] {
        let said = desk.topology(&["apply", "--yes"]).ends(code);
        assert!(said.contains(words) && said.contains("nothing was done"), "{words}:\n{said}");
        assert_eq!(desk.topology(&["check"]).code, 3);
    }
    assert_eq!(settings(kafka, "risky").await, before);
    assert_eq!(kafka.partitions("risky").await.expect("partitions").len(), 3);
    let desk = file(6, 1, "retention = \"1d\"\nmax_message_size = \"default\"");
    let flags = ["apply", "--yes", "--allow-hazard", "topic:risky"];
    desk.topology(&flags).ends(2);
    desk.topology(&[&flags[..], &["--allow-destroy", "topic:risky"]].concat()).ends(0);
    assert_eq!(kafka.partitions("risky").await.expect("partitions").len(), 6);
    let after = BTreeMap::from([
        ("retention.ms".to_owned(), "86400000".to_owned()),
        ("segment.ms".to_owned(), "123456789".to_owned()),
    ]);
    assert_eq!(settings(kafka, "risky").await, after, "what the file does not name stays (T5)");
    let lost = Desk::with_file(&bootstrap, &topic("wide", "").replace("replicas = 1", "replicas = 3"));
    let said = lost.topology(&["apply", "--yes"]).ends(1);
    assert!(said.contains("3 replicas need as many brokers, and there are 1"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_in_a_file_is_done_exactly_or_not_at_all() {
    let kafka = require_service!(node().await);
    let desk = Desk::with_file(&kafka.bootstrap(), &topic("planned", ""));
    desk.topology(&["plan", "--out", "a.plan"]).ends(0);
    let text = desk.read("a.plan");
    desk.write("edited.plan", &text.replace("604800000", "604800001"));
    assert!(desk.topology(&["apply", "edited.plan", "--yes"]).ends(1).contains("plan again"));
    desk.write("other.plan", &text.replacen("\"cluster\": \"", "\"cluster\": \"x", 1));
    assert!(desk.topology(&["apply", "other.plan", "--yes"]).ends(1).contains("another cluster"));
    desk.write("broken.plan", "{");
    assert!(desk.topology(&["apply", "broken.plan", "--yes"]).ends(2).contains("this is no plan"));
    assert!(desk.topology(&["apply", "a.plan"]).ends(2).contains("say --yes"), "nobody is there to ask");
    assert!(!kafka.topics().await.expect("topics").contains("planned"));
    desk.topology(&["apply", "a.plan", "--yes"]).ends(0);
    assert!(kafka.topics().await.expect("topics").contains("planned"));
    assert!(desk.topology(&["apply", "a.plan", "--yes"]).ends(1).contains("have moved since"), "stale");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_file_has_an_empty_plan() {
    let kafka = require_service!(node().await);
    let text = format!(
        "{}{}\
         [[principal]]\nname = \"exporter\"\nread = [\"exported.*\", \"*\"]\nwrite = [\"exported.a\"]\n\
         groups = [\"exporters\"]\ntransactional_ids = [\"tx-*\"]\n\
         [[acl]]\nprincipal = \"CN=a, OU=b\\\\,c\"\npermission = \"deny\"\noperations = [\"DELETE\", \"ALTER\"]\n\
         resource = \"topic\"\nname = \"exported.\"\npattern = \"prefixed\"\nhost = \"10.0.0.1\"\n\
         [[acl]]\nprincipal = \"exporter\"\noperations = [\"DESCRIBE\"]\nresource = \"cluster\"\n",
        topic("exported.a", "settings = { \"segment.ms\" = \"3600000\" }"),
        topic(
            "exported.b",
            "cleanup = \"compact,delete\"\ncompression = \"none\"\nretention_size = \"10GiB\""
        ),
    );
    let desk = Desk::with_file(&kafka.bootstrap(), &text);
    desk.topology(&["apply", "--yes"]).ends(0);
    let exported = desk.topology(&["export", "--match", "*exported*", "--kinds", "topic"]).ends(0);
    assert!(
        exported.contains("retention = \"7d\"") && exported.contains("retention_size = \"10GiB\""),
        "{exported}"
    );
    let whole = desk.topology(&["export", "--broker", &format!("kafka://{}", kafka.bootstrap())]).ends(0);
    assert!(
        whole.contains("name = \"exporter\"\ngroups = [\"exporters\"]\nread = [\"*\", \"exported.*\"]"),
        "{whole}"
    );
    for (name, text) in [("topics.toml", exported), ("whole.toml", whole)] {
        desk.write(name, &text);
        let said = desk.topology(&["check", "-f", name]);
        // Other tests change the cluster meanwhile; what is of this test stays.
        assert!(!said.out.contains("export"), "{name}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_leaves_a_prefix_and_the_same_command_does_the_rest() {
    let kafka = require_service!(node().await);
    for (number, (point, visit, expected)) in crate::points::POINTS.into_iter().enumerate() {
        let crash = format!("{point}@{visit}");
        let text = format!(
            "{}[[principal]]\nname = \"mortal{number}\"\nread = [\"mortal.*\"]\ngroups = [\"mortal\"]\n",
            topic(&format!("mortal.{number}"), "")
        );
        let desk = Desk::with_file(&kafka.bootstrap(), &text);
        let died = desk.dying(&crash, &["apply", "--yes"]);
        assert_ne!(died.code, 0, "{crash}: {died:?}");
        let plan = desk.topology(&["plan", "--json"]).ends(0);
        let left = plan.matches("\"act\":\"add\"").count();
        assert_eq!(left, expected, "{crash}: {plan}");
        desk.topology(&["apply", "--yes"]).ends(0);
        desk.topology(&["check"]).ends(0);
    }
}

/// Whoever comes second finds done what he wants to do.
#[tokio::test(flavor = "multi_thread")]
async fn two_who_apply_at_once_do_no_harm() {
    let kafka = require_service!(node().await);
    for round in 0..3 {
        let grown = format!("both{round}.grown");
        kafka
            .create_topic(&grown, 1, 1, &["retention.ms=604800000", "segment.ms=77777"])
            .await
            .expect("made");
        let text = format!(
            "{}{}[[principal]]\nname = \"both{round}\"\nread = [\"both.*\"]\ngroups = [\"both\"]\n",
            topic(&grown, "compression = \"lz4\""),
            topic(&format!("both{round}.new"), "")
        );
        let desk = Desk::with_file(&kafka.bootstrap(), &text);
        let hazard = format!("topic:{grown}");
        let apply = || desk.topology(&["apply", "--yes", "--allow-hazard", &hazard]);
        std::thread::scope(|scope| {
            for one in [scope.spawn(apply), scope.spawn(apply)] {
                one.join().expect("no panic").ends(0);
            }
        });
        desk.topology(&["check"]).ends(0);
        assert!(apply().ends(0).contains("nothing to do"));
        assert_eq!(kafka.partitions(&grown).await.expect("partitions").len(), 3);
        let expected = [("compression.type", "lz4"), ("retention.ms", "604800000"), ("segment.ms", "77777")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings(kafka, &grown).await, BTreeMap::from(expected));
        let rights = kafka.rights().await.expect("rights");
        let ours = rights.iter().filter(|right| right.starts_with(&format!("User:both{round} ")));
        assert_eq!(ours.count(), 2, "{rights:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_compared_by_logging_in_and_shown_nowhere() {
    let kafka = require_service!(node().await);
    let desk = Desk::new();
    desk.write("secret", "hunter2\n");
    let user = "[[user]]\nname = \"guarded\"\npassword_file = \"secret\"\niterations = 4096\n";
    let with_login = |text: &str| {
        desk.file(&kafka.bootstrap(), text);
        let url = kafka.bootstrap_at("SASL");
        desk.write("topology.toml", &format!("{}sasl_url = \"{url}\"\n", desk.read("topology.toml")));
    };
    with_login(user);
    let mut said = desk.topology(&["plan", "--out", "a.plan"]).ends(0);
    said += &desk.topology(&["apply", "--yes"]).ends(0);
    assert!(kafka.users().await.expect("users").contains("guarded SCRAM_SHA_512 4096"));
    said += &desk.topology(&["check"]).ends(0);
    kafka.set_password("guarded", "another").await.expect("changed by somebody");
    let changed = desk.topology(&["check"]).ends(3);
    assert!(changed.contains("password another one → as in the file"), "{changed}");
    said += &desk.topology(&["apply", "--yes"]).ends(2);
    said += &desk.topology(&["apply", "--yes", "--rotate", "guarded"]).ends(0);
    said += &desk.topology(&["check", "--json"]).ends(0);
    desk.write("secret", "hunter3");
    said += &desk.topology(&["apply", "--yes", "--rotate", "guarded"]).ends(0);
    said += &desk.topology(&["check"]).ends(0);
    desk.file(&kafka.bootstrap(), user);
    let blind = desk.topology(&["plan"]).ends(0).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(blind.contains("password not compared") && blind.contains("--rotate guarded"), "{blind}");
    said += &(changed + &blind + &desk.read("a.plan"));
    for secret in ["hunter", "another\""] {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_tries_a_plan_itself() {
    let kafka = require_service!(node().await);
    let desk = Desk::with_file(&kafka.bootstrap(), &topic("tried", "settings = { \"no.such.setting\" = 1 }"));
    let said = desk.topology(&["plan", "--validate"]).ends(1);
    assert!(said.contains("would refuse: topic:tried") && said.contains("no.such.setting"), "{said}");
    let said = desk.topology(&["apply", "--yes"]).ends(1);
    assert!(said.contains("topic:tried"), "{said}");
    assert!(!kafka.topics().await.expect("topics").contains("tried"));
}
