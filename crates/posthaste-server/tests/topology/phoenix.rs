//! Seed 003's topology on a cluster as it is run. The example's own file is applied, and the seed's tables
//! say what must come of it.

use crate::fort::{Fort, WAIT};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::KafkaRight;
use std::collections::{BTreeMap, BTreeSet};

const SEED: &str = include_str!("seed.md");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/phoenix/topology.toml");
const CONFIG: &str = include_str!("../../../../examples/phoenix/posthaste.toml");

/// The seed's topics: name, partition key, days.
fn seed_topics() -> Vec<(String, String, u64)> {
    let rows = SEED.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let days = cells[5].split(' ').next().and_then(|days| days.parse().ok()).expect("days");
        (cells[1].trim_matches('`').to_owned(), cells[2 + 1].trim_matches('`').to_owned(), days)
    })
    .collect()
}

/// The number that the seed gives for one of its settings.
fn seed_number(setting: &str) -> String {
    let line = SEED.lines().find(|line| line.contains(setting)).expect("the seed has it");
    let digits = line.split("**").last().expect("a value");
    digits.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect()
}

/// Whether the seed lets a service do this with a topic. Its `events.*` and `commands.*` mean `core.…`.
fn seed_allows(service: &str, act: &str, topic: &str) -> bool {
    let line = SEED.lines().find(|line| line.contains(&format!("`{service}`:"))).expect("a service");
    let rights = line.split_once(':').expect("rights").1;
    rights.split(',').any(|right| {
        let (acts, rest) = right.trim().split_once(" en ").expect("what and where");
        let names = rest.trim_end_matches('.').trim_matches('`').trim_end_matches('*').trim_end_matches('.');
        let acts = acts.replace("Read-Only", "Read");
        acts.split('/').any(|known| known.trim().eq_ignore_ascii_case(act))
            && (names.is_empty() || topic.starts_with(&format!("core.{names}")))
    })
}

impl Fort {
    /// Properties of a Java client with somebody's certificate.
    async fn login(&self, who: &str) -> Vec<(&'static str, String)> {
        let pair = self.certs.client(who).expect("a certificate");
        let read = |path: &std::path::Path| std::fs::read_to_string(path).expect("PEM").replace('\n', "\\n");
        vec![
            ("bootstrap.servers", self.kafka.read().await.bootstrap_at("MTLS")),
            ("security.protocol", "SSL".to_owned()),
            ("ssl.truststore.type", "PEM".to_owned()),
            ("ssl.truststore.certificates", read(self.certs.ca())),
            ("ssl.keystore.type", "PEM".to_owned()),
            ("ssl.keystore.certificate.chain", read(&pair.certificate)),
            ("ssl.keystore.key", read(&pair.key)),
            ("max.block.ms", "10000".to_owned()),
        ]
    }

    async fn may(&self, who: &str, act: &str, topic: &str, group: &str) -> Result<(), String> {
        let login = self.login(who).await;
        let login: Vec<(&str, &str)> = login.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let kafka = self.kafka.read().await;
        let done = match act {
            "Read" => kafka.fetch_as(&login, group, topic).await,
            _ => kafka.produce(&login, topic, "tenant", "{}").await.map(drop),
        };
        done.map_err(|error| error.to_string())
    }
}

fn expected_settings(days: u64) -> BTreeMap<String, String> {
    let settings = [
        ("compression.type", "lz4".to_owned()),
        ("min.insync.replicas", seed_number("Min In-Sync")),
        ("retention.ms", (days * 86_400_000).to_string()),
        ("unclean.leader.election.enable", "false".to_owned()),
    ];
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_seeds_topology_is_made_kept_and_enforced() {
    let (fort, _turn) = require_service!(Fort::enter().await);
    let (kafka, desk) = (fort.kafka.read().await, fort.desk("admin").await);
    match kafka.create_topic("others", 2, 3, &["retention.ms=77"]).await {
        // On a busy machine the Java client asks twice.
        Err(error) if error.to_string().contains("already exists") => {}
        made => made.expect("somebody else's"),
    }
    kafka.allow(&KafkaRight::topic("other", "READ", "others")).await.expect("somebody else's");
    let before = eventually("the right of others is shown", WAIT, || async {
        let rights = kafka.rights().await.expect("rights");
        rights.contains("User:other * READ ALLOW TOPIC others LITERAL").then_some(rights)
    })
    .await;

    let plan = desk.topology(&["plan", "-f", FILE]).ends(0);
    assert!(plan.lines().all(|line| line.chars().count() <= 80), "80 columns:\n{plan}");
    assert!(
        plan.contains("+ topic core.commands.v1")
            && plan.contains("12 partitions, 3 replicas, min ISR 2, 7d"),
        "{plan}"
    );
    desk.topology(&["apply", "--yes", "-f", FILE]).ends(0);
    for (topic, _, days) in seed_topics() {
        let partitions = kafka.partitions(&topic).await.expect("partitions");
        assert_eq!(partitions.len().to_string(), seed_number("Particiones"));
        assert!(
            partitions.iter().all(|at| at.in_sync.len().to_string() == seed_number("Replication Factor"))
        );
        assert_eq!(kafka.settings_of(&topic).await.expect("settings"), expected_settings(days), "{topic}");
    }
    let rights = eventually("the witness sees 17 rights more", WAIT, || async {
        let rights = kafka.rights().await.expect("rights");
        (rights.difference(&before).count() == 17).then_some(rights)
    })
    .await;
    assert!(rights.is_superset(&before), "{rights:#?}");
    assert!(rights.contains("User:AuditService * READ DENY TOPIC __ PREFIXED"), "{rights:#?}");
    assert!(desk.topology(&["apply", "--yes", "-f", FILE]).ends(0).contains("nothing to do"));

    // One thing of each kind, by somebody else.
    kafka.configure_topic("core.events.v1", &["retention.ms=604800000"]).await.expect("changed");
    kafka
        .revoke(&KafkaRight::topic("ActuatorService", "READ", "core.commands.").prefixed())
        .await
        .expect("revoked");
    kafka.allow(&KafkaRight::topic("AuditService", "WRITE", "sys.audit.v1")).await.expect("allowed");
    let check = desk.topology(&["check", "-f", FILE]);
    let lines: BTreeSet<&str> = check.out.lines().collect();
    let expected = BTreeSet::from([
        "kafka: topic core.events.v1: retention.ms 7d → 30d",
        "kafka: acl User:ActuatorService ALLOW READ topic core.commands.*: is missing",
        "kafka: acl User:AuditService ALLOW WRITE topic sys.audit.v1: is not in the file",
    ]);
    assert_eq!((check.code, &lines), (3, &expected), "{check:?}");
    desk.topology(&["apply", "--yes", "-f", FILE]).ends(2);
    desk.topology(&["apply", "--yes", "-f", FILE, "--allow-destroy", "acl:User:AuditService"]).ends(0);
    desk.topology(&["check", "-f", FILE]).ends(0);
    eventually("all rights are as they were, and those of others", WAIT, || async {
        (kafka.rights().await.expect("rights") == rights).then_some(())
    })
    .await;
    let others = BTreeMap::from([("retention.ms".to_owned(), "77".to_owned())]);
    assert_eq!(kafka.settings_of("others").await.expect("settings"), others);

    matrix(fort).await;
    administrators(fort).await;
}

/// 003 §7.3 and §9.5: each role, each topic, read and write, with its own certificate.
async fn matrix(fort: &Fort) {
    for (service, group) in [
        ("AnalystService", "analyst-service"),
        ("ActuatorService", "actuator-service"),
        ("AuditService", "audit-service"),
    ] {
        for (topic, _, _) in seed_topics() {
            for act in ["Read", "Write"] {
                let done = fort.may(service, act, &topic, group).await;
                let is_allowed = seed_allows(service, act, &topic);
                assert_eq!(done.is_ok(), is_allowed, "{service} {act} {topic}: {done:?}");
                if let Err(why) = done {
                    assert!(why.contains("Authoriz"), "{why}");
                }
            }
        }
    }
    for (who, topic, group) in [
        ("Nobody", "core.events.v1", "analyst-service"),
        ("AnalystService", "core.events.v1", "audit-service"),
        ("AuditService", "__consumer_offsets", "audit-service"),
    ] {
        let refused = fort.may(who, "Read", topic, group).await.expect_err("refused");
        assert!(refused.contains("Authoriz"), "{who} {topic}: {refused}");
    }
}

/// An administrator who lacks a right is told which one, and what could be seen is shown.
async fn administrators(fort: &Fort) {
    let blind = fort.desk("blind").await;
    let said = blind.topology(&["check", "-f", FILE]).ends(1);
    assert!(said.contains("DESCRIBE on CLUSTER is missing for the certificate"), "{said}");
    assert!(said.contains("DESCRIBE and DESCRIBE_CONFIGS on TOPIC core.commands.v1"), "{said}");
    let kafka = fort.kafka.read().await;
    for right in ["DESCRIBE", "DESCRIBE_CONFIGS"] {
        kafka.allow(&KafkaRight::topic("seer", right, "*")).await.expect("allowed");
    }
    kafka.allow(&KafkaRight::cluster("seer", "DESCRIBE")).await.expect("allowed");
    let seer = fort.desk("seer").await;
    seer.topology(&["check", "-f", FILE]).ends(0);
    let text = std::fs::read_to_string(FILE).expect("the example");
    for (thing, other, right) in [
        (
            "\"sys.audit.v1\", retention = \"90d\"",
            "\"sys.audit.v1\", retention = \"91d\"",
            "ALTER_CONFIGS on TOPIC sys.audit.v1",
        ),
        ("\"sys.audit.v1\"", "\"sys.audit.v2\"", "CREATE on TOPIC sys.audit.v2"),
        ("groups = [\"saga-coordinator\"]", "groups = [\"sagas\"]", "ALTER on CLUSTER"),
    ] {
        assert!(text.contains(thing), "{thing}");
        seer.write("changed.toml", &text.replace(thing, other));
        let said = seer.topology(&["apply", "--yes", "-f", "changed.toml"]).ends(1);
        assert!(said.contains(&format!("{right} is missing for the certificate")), "{right}: {said}");
    }
}

/// The routes of the example have the seed's mandatory partition keys, and its consumers the seed's groups.
#[test]
fn the_examples_routes_and_consumers_are_the_seeds() {
    let config: toml::Table = CONFIG.parse().expect("TOML");
    let routes = config["route"].as_array().expect("routes");
    for (topic, key, _) in seed_topics() {
        let route = routes.iter().find(|route| {
            let topics = route["topics"].as_array().expect("topics");
            topics.iter().any(|pattern| pattern.as_str() == Some(&topic))
        });
        let route = route.unwrap_or_else(|| panic!("a route takes {topic}"));
        let partition_key = route.get("partition_key").and_then(toml::Value::as_str);
        // The event's own key is the seed's key of what Posthaste writes itself.
        let expected = (key == "tenant_id").then(|| format!("{{header:{key}}}"));
        assert_eq!(partition_key, expected.as_deref(), "{topic}");
    }
    let gateway = &config["gateway"];
    let offered = gateway["topic"].as_array().expect("topics");
    for topic in offered {
        let (name, key) = (topic["topic"].as_str(), topic["key"].as_str());
        let seed =
            seed_topics().into_iter().find(|(topic, _, _)| Some(&**topic) == name).expect("the seed's");
        assert_eq!((&*seed.1, key), ("tenant_id", Some("tenant")), "{name:?}");
    }
    assert!(!offered.is_empty() && gateway["limit"].get("redis").is_some(), "{gateway}");
    let consumers = config["consumers"].as_table().expect("consumers");
    for group in ["actuator-service", "finance-service", "audit-service"] {
        assert!(consumers.contains_key(group), "{group}");
    }
}
