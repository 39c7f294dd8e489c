//! Kafka as a service of the tests: that it starts, dies, comes back with its records, and lets in whom it
//! should.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use posthaste_testkit::{
    require_service,
    services::{Certs, Kafka, KafkaOptions, KafkaRecord, KafkaRight, KafkaSecurity, ServiceError},
};

const SOON: Duration = Duration::from_secs(60);

fn values(records: &[KafkaRecord]) -> Vec<String> {
    let text =
        |record: &KafkaRecord| String::from_utf8(record.value.clone().expect("no tombstone")).expect("text");
    records.iter().map(text).collect()
}

fn said(outcome: Result<(i32, i64), ServiceError>) -> String {
    outcome.expect_err("refused").to_string()
}

#[tokio::test]
async fn a_killed_kafka_comes_back_with_its_records() {
    let mut kafka = require_service!(Kafka::start(&KafkaOptions::default()).await);
    kafka.create_topic("t", 2, 1, &[]).await.expect("created");
    let (partition, offset) = kafka.produce(&[], "t", "key", "1").await.expect("sent");
    assert_eq!(offset, 0);
    let pid = kafka.node(1).pid().expect("it runs");
    kafka.kill9().await.expect("killed");
    assert_eq!(kafka.node(1).pid(), None);
    kafka.start_again().await.expect("starts");
    assert_ne!(kafka.node(1).pid(), Some(pid));
    assert_eq!(kafka.produce(&[], "t", "key", "2").await.expect("sent"), (partition, 1));
    kafka.stop().await.expect("stops");
    kafka.start_again().await.expect("starts");
    kafka.produce(&[], "t", "", "").await.expect("sent");
    let records = kafka.dump("t").await.expect("read");
    assert_eq!(records.len(), 3);
    let of_key: Vec<_> = records.iter().filter(|record| record.key.is_some()).cloned().collect();
    assert_eq!(values(&of_key), ["1", "2"]);
    assert!(of_key.iter().all(|record| record.partition == partition), "{of_key:?}");
}

#[tokio::test]
async fn topics_are_created_changed_and_deleted_and_none_appears_by_itself() {
    let kafka =
        require_service!(Kafka::start(&KafkaOptions::default().setting("message.max.bytes=5000")).await);
    let quick = [("max.block.ms", "1000")];
    let refused = said(kafka.produce(&quick, "t", "", "1").await);
    assert!(refused.contains("TimeoutException"), "{refused}");
    kafka.create_topic("t", 1, 1, &["max.message.bytes=100"]).await.expect("created");
    let refused = said(kafka.produce(&[], "t", "", &"x".repeat(200)).await);
    assert!(refused.contains("RecordTooLargeException"), "{refused}");
    kafka.configure_topic("t", &["max.message.bytes=4000"]).await.expect("changed");
    kafka.produce(&[], "t", "", &"x".repeat(200)).await.expect("fits now");
    kafka.grow_topic("t", 3).await.expect("grown");
    until(async || kafka.partitions("t").await.is_ok_and(|partitions| partitions.len() == 3)).await;
    kafka.delete_topic("t").await.expect("deleted");
    until(async || kafka.partitions("t").await.is_err()).await;
}

#[tokio::test]
async fn a_paused_kafka_is_silent_and_then_goes_on() {
    let kafka = require_service!(Kafka::start(&KafkaOptions::default()).await);
    kafka.create_topic("t", 1, 1, &[]).await.expect("created");
    kafka.produce(&[], "t", "", "1").await.expect("sent");
    kafka.pause();
    {
        let waiting = kafka.produce(&[], "t", "", "2");
        tokio::pin!(waiting);
        let silent = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
        assert!(silent.is_err(), "{silent:?}");
        kafka.resume();
        waiting.await.expect("sent");
    }
    assert_eq!(values(&kafka.dump("t").await.expect("read")), ["1", "2"]);
}

#[tokio::test]
async fn one_of_three_nodes_dies_and_the_others_go_on() {
    let mut kafka = require_service!(Kafka::start(&KafkaOptions::default().nodes(3)).await);
    kafka.create_topic("t", 1, 3, &[]).await.expect("created");
    kafka.produce(&[], "t", "", "1").await.expect("sent");
    let leader = kafka.partitions("t").await.expect("described")[0].leader.expect("a leader");
    kafka.node_mut(leader).kill9().await.expect("killed");
    kafka.produce(&[], "t", "", "2").await.expect("sent to another leader");
    until(async || kafka.partitions("t").await.is_ok_and(|partitions| partitions[0].in_sync.len() == 2))
        .await;
    assert_eq!(values(&kafka.dump("t").await.expect("read")), ["1", "2"]);
    kafka.node_mut(leader).start_again().await.expect("starts");
    until(async || kafka.partitions("t").await.is_ok_and(|partitions| partitions[0].in_sync.len() == 3))
        .await;
}

#[tokio::test]
async fn certificates_passwords_and_rights_are_asked_for() {
    let certs = Certs::make().expect("certificates");
    let (server, ca) = (certs.server().clone(), certs.ca().to_owned());
    let options = KafkaOptions::default()
        .listener("TLS", KafkaSecurity::Tls(server.clone()))
        .listener("EXPIRED", KafkaSecurity::Tls(certs.expired_server().clone()))
        .listener("MTLS", KafkaSecurity::MutualTls(server.clone(), ca))
        .listener("SASL", KafkaSecurity::Sasl)
        .listener("SASLTLS", KafkaSecurity::SaslTls(server))
        .scram_user("app", "secret")
        .plain_user("app", "plain-secret")
        .authorizer();
    let kafka = require_service!(Kafka::start(&options).await);
    kafka.create_topic("t", 1, 1, &[]).await.expect("created");

    // Anonymous by TLS is the same as anonymous without; what counts is that the handshake succeeds or fails.
    let tls = |listener: &str| client(&kafka, listener, Some(certs.ca()));
    kafka.produce(&borrowed(&tls("TLS")), "t", "", "by TLS").await.expect("sent");
    let refused = said(kafka.produce(&borrowed(&tls("EXPIRED")), "t", "", "").await);
    assert!(refused.contains("CertificateExpiredException"), "{refused}");
    let refused =
        said(kafka.produce(&borrowed(&client(&kafka, "TLS", Some(certs.other_ca()))), "t", "", "").await);
    assert!(refused.contains("SslAuthenticationException"), "{refused}");
    let refused = said(kafka.produce(&borrowed(&tls("MTLS")), "t", "", "").await);
    assert!(refused.contains("SslAuthenticationException"), "{refused}");

    for (listener, mechanism, password) in [
        ("SASL", "SCRAM-SHA-256", "secret"),
        ("SASLTLS", "SCRAM-SHA-512", "secret"),
        ("SASL", "PLAIN", "plain-secret"),
    ] {
        let wrong = said(
            kafka.produce(&borrowed(&login(&kafka, &certs, listener, mechanism, "wrong")), "t", "", "").await,
        );
        assert!(wrong.contains("SaslAuthenticationException"), "{mechanism}: {wrong}");
        let right = login(&kafka, &certs, listener, mechanism, password);
        let refused = said(kafka.produce(&borrowed(&right), "t", "", "").await);
        assert!(refused.contains("TopicAuthorizationException"), "{mechanism}: {refused}");
    }

    let write = KafkaRight::topic("app", "WRITE", "t");
    kafka.allow(&write).await.expect("allowed");
    let app = login(&kafka, &certs, "SASLTLS", "SCRAM-SHA-512", "secret");
    until(async || kafka.produce(&borrowed(&app), "t", "", "by app").await.is_ok()).await;
    kafka.revoke(&write).await.expect("revoked");
    until(async || kafka.produce(&borrowed(&app), "t", "", "by app").await.is_err()).await;
    kafka.allow(&KafkaRight::topic("app", "WRITE", "t").prefixed()).await.expect("allowed");
    until(async || kafka.produce(&borrowed(&app), "t", "", "by app").await.is_ok()).await;
    kafka.set_password("app", "changed").await.expect("changed");
    let changed = login(&kafka, &certs, "SASL", "SCRAM-SHA-256", "changed");
    until(async || kafka.produce(&borrowed(&changed), "t", "", "by app").await.is_ok()).await;
}

#[tokio::test]
async fn a_proxied_listener_can_be_cut() {
    let options = KafkaOptions::default().listener("PROXIED", KafkaSecurity::Proxied);
    let kafka = require_service!(Kafka::start(&options).await);
    kafka.create_topic("t", 1, 1, &[]).await.expect("created");
    let way = [("bootstrap.servers", kafka.bootstrap_at("PROXIED"))];
    let way = [
        (way[0].0, way[0].1.as_str()),
        ("delivery.timeout.ms", "3000"),
        ("request.timeout.ms", "1000"),
        ("linger.ms", "0"),
    ];
    kafka.produce(&way, "t", "", "1").await.expect("sent");
    let proxy = kafka.node(1).proxy("PROXIED");
    assert!(proxy.accepted() > 0, "the proxy is the only way");
    proxy.half_open().await;
    let refused = said(kafka.produce(&way, "t", "", "2").await);
    assert!(refused.contains("TimeoutException"), "{refused}");
    proxy.pass().await;
    until(async || kafka.produce(&way, "t", "", "3").await.is_ok()).await;
}

/// In a process of its own, started by the test below.
#[tokio::test]
async fn child_with_kafka() {
    if std::env::var_os("POSTHASTE_TEST_CHILD").is_none() {
        return;
    }
    let kafka = require_service!(Kafka::start(&KafkaOptions::default()).await, println!("KAFKA missing"));
    println!("KAFKA {}", kafka.node(1).pid().expect("it runs"));
    std::future::pending().await
}

#[tokio::test]
async fn kafka_and_its_console_end_with_a_killed_test_process() {
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["child_with_kafka", "--exact", "--nocapture", "--test-threads=1"])
        .env("POSTHASTE_TEST_CHILD", "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this binary starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let pid = lines.find_map(|line| line.split_once("KAFKA ").map(|(_, pid)| pid.to_owned()));
    let pid = pid.expect("the child names its server");
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    child.kill().expect("killed");
    child.wait().expect("it ends");
    if pid == "missing" {
        let (service, why) = ("kafka".to_owned(), "its child said so".to_owned());
        require_service!(Err::<(), _>(ServiceError::Missing { service, why }));
    }
    let configuration = command.split('\0').find_map(|word| word.strip_prefix("-Dlog4j2.configurationFile="));
    let dir = Path::new(configuration.expect("a logger")).parent().expect("a directory");
    until(async || !dir.exists() && running_in(dir) == 0).await;
}

/// Processes whose command names the directory: the node's and the console's.
fn running_in(dir: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let commands =
        processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    commands.filter(|command| command.contains(&dir.display().to_string())).count()
}

type Properties = Vec<(&'static str, String)>;

fn client(kafka: &Kafka, listener: &str, ca: Option<&Path>) -> Properties {
    let mut properties =
        vec![("bootstrap.servers", kafka.bootstrap_at(listener)), ("max.block.ms", "10000".to_owned())];
    if let Some(ca) = ca {
        properties.push(("security.protocol", "SSL".to_owned()));
        properties.push(("ssl.truststore.type", "PEM".to_owned()));
        properties.push(("ssl.truststore.location", ca.display().to_string()));
    }
    properties
}

fn login(kafka: &Kafka, certs: &Certs, listener: &str, mechanism: &str, password: &str) -> Properties {
    let ca = (listener == "SASLTLS").then(|| certs.ca());
    let mut properties = client(kafka, listener, ca);
    properties.retain(|(name, _)| *name != "security.protocol");
    let protocol = if ca.is_some() { "SASL_SSL" } else { "SASL_PLAINTEXT" };
    properties.push(("security.protocol", protocol.to_owned()));
    properties.push(("sasl.mechanism", mechanism.to_owned()));
    let module = if mechanism == "PLAIN" { "plain.PlainLoginModule" } else { "scram.ScramLoginModule" };
    let config = format!(
        "org.apache.kafka.common.security.{module} required username=\"app\" password=\"{password}\";"
    );
    properties.push(("sasl.jaas.config", config));
    properties
}

fn borrowed(properties: &Properties) -> Vec<(&str, &str)> {
    properties.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

async fn until(mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !done().await {
        assert!(Instant::now() < deadline, "not in time");
        tokio::time::sleep(Duration::from_millis(20)).await; // pace
    }
}
