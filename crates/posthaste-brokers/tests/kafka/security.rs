//! TLS and passwords: the right broker gets the events, every wrong one is refused by name, and no words hold
//! a secret (F29).

use super::*;
use posthaste_brokers::Secret;
use posthaste_brokers::kafka::SaslMechanism;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Kafka, KafkaOptions, KafkaSecurity, Pair, ServiceError};
use std::path::Path;
use tokio::sync::OnceCell;

/// One broker with a listener of every kind, for all tests here.
pub(super) struct Fort {
    certs: Certs,
    pub(super) kafka: Kafka,
}

static FORT: OnceCell<Result<Fort, ServiceError>> = OnceCell::const_new();

pub(super) async fn fort() -> Result<&'static Fort, ServiceError> {
    FORT.get_or_init(Fort::build).await.as_ref().map_err(Clone::clone)
}

impl Fort {
    async fn build() -> Result<Self, ServiceError> {
        let certs = Certs::make()?;
        let server = certs.server().clone();
        let options = KafkaOptions::default()
            .listener("TLS", KafkaSecurity::Tls(server.clone()))
            .listener("EXPIRED", KafkaSecurity::Tls(certs.expired_server().clone()))
            .listener("ELSEWHERE", KafkaSecurity::Tls(certs.elsewhere().clone()))
            .listener("MTLS", KafkaSecurity::MutualTls(server.clone(), certs.ca().to_owned()))
            .listener("SASL", KafkaSecurity::Sasl)
            .listener("SASLTLS", KafkaSecurity::SaslTls(server))
            .scram_user("shop", SECRET)
            .scram_user("rotating", SECRET)
            .plain_user("shop", SECRET);
        let kafka = Kafka::start(&options).await?;
        kafka.create_topic("t", 1, 1, &[]).await?;
        Ok(Self { certs, kafka })
    }

    /// Without any security of its own.
    fn at(&self, listener: &str) -> KafkaConfig {
        let url = self.kafka.bootstrap_at(listener);
        KafkaConfig::new(&url).with(|options| options.delivery_timeout_ms = 3_000)
    }

    /// With the user's password, proven and over TLS.
    pub(super) fn scram(&self, password: &str) -> KafkaConfig {
        self.user("SASLTLS", SaslMechanism::ScramSha512, password)
    }

    /// With a certificate.
    pub(super) fn mutual_tls(&self) -> KafkaConfig {
        let pair = self.certs.client("shop").expect("a certificate");
        with_pair(self.trusting("MTLS", self.certs.ca()), &pair)
    }

    fn trusting(&self, listener: &str, ca: &Path) -> KafkaConfig {
        self.at(listener).with(|options| options.ca_file = Some(ca.to_owned()))
    }

    fn user(&self, listener: &str, mechanism: SaslMechanism, password: &str) -> KafkaConfig {
        let ca_file = (listener == "SASLTLS").then(|| self.certs.ca().to_owned());
        KafkaConfig {
            sasl_mechanism: mechanism,
            ..self.at(listener).with(|options| {
                options.user = Some("shop".to_owned());
                options.password = Some(Secret::new(password));
                options.ca_file = ca_file;
            })
        }
    }
}

fn with_pair(config: KafkaConfig, pair: &Pair) -> KafkaConfig {
    config.with(|options| {
        options.cert_file = Some(pair.certificate.clone());
        options.key_file = Some(pair.key.clone());
    })
}

async fn assert_gets_in(config: KafkaConfig) {
    let sink = build(config.with(|options| options.delivery_timeout_ms = 8_000)).await;
    assert_eq!(publish_one(&sink, loose("t")).await, Verdict::Delivered);
}

/// Refused under this code, in words that name all of `because` and no secret. Nothing is counted as the
/// event's fault.
async fn assert_refused(config: KafkaConfig, code: &str, because: &[&str]) {
    let sink = build(config).await;
    let verdict = publish_one(&sink, loose("t")).await;
    let (kind, found, scope, words) = seen(&verdict);
    assert_eq!((found, scope), (code, Scope::Sink), "{verdict:?}");
    assert_ne!(kind, "rejected");
    for part in because {
        assert!(words.contains(part), "{part:?} is not in: {words}");
    }
    let findings = sink.examine(&["t".to_owned()]).await;
    assert!(!format!("{verdict:?} {findings:?}").contains(SECRET), "{verdict:?} {findings:?}");
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_authority_name_and_expiry_of_the_broker() {
    let fort = require_service!(fort().await);
    let ca = fort.certs.ca();
    assert_gets_in(fort.trusting("TLS", ca)).await;
    let other = fort.certs.other_ca();
    assert_refused(fort.trusting("TLS", other), "kafka.tls", &["certificate verify failed", &shown(other)])
        .await;
    let system = fort.at("TLS").with(|options| options.require_tls = true);
    assert_refused(system, "kafka.tls", &["certificate verify failed", "the system's authorities"]).await;
    assert_refused(fort.trusting("EXPIRED", ca), "kafka.tls", &["certificate", &shown(ca)]).await;
    assert_refused(fort.trusting("ELSEWHERE", ca), "kafka.tls", &["certificate", &shown(ca)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_the_broker_may_ask_who_we_are() {
    let fort = require_service!(fort().await);
    let base = || fort.trusting("MTLS", fort.certs.ca());
    assert_gets_in(with_pair(base(), &fort.certs.client("shop").expect("a certificate"))).await;
    assert_refused(base(), "kafka.tls", &["no cert_file"]).await;
    let stranger = fort.certs.stranger("shop").expect("a certificate");
    assert_refused(with_pair(base(), &stranger), "kafka.tls", &[&shown(&stranger.certificate)]).await;
    let expired = fort.certs.expired_client("shop").expect("a certificate");
    assert_refused(with_pair(base(), &expired), "kafka.tls", &[&shown(&expired.certificate)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_with_and_without_tls_do_not_meet() {
    let fort = require_service!(fort().await);
    // The broker closes the connection without a word: a balancer with nobody behind it would do the same.
    assert_refused(fort.at("TLS"), "kafka.unreachable", &["TLS is not asked for"]).await;
    let plain = KafkaConfig::new(&fort.kafka.bootstrap())
        .with(|options| options.delivery_timeout_ms = 3_000)
        .with(|options| options.ca_file = Some(fort.certs.ca().to_owned()));
    assert_refused(plain, "kafka.tls", &[&shown(fort.certs.ca())]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_passwords() {
    let fort = require_service!(fort().await);
    let mechanisms = [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512];
    for (listener, mechanism) in ["SASL", "SASLTLS"].into_iter().flat_map(|l| mechanisms.map(|m| (l, m))) {
        assert_gets_in(fort.user(listener, mechanism, SECRET)).await;
    }
    let wrong = format!("{SECRET}-not");
    for mechanism in mechanisms {
        assert_refused(fort.user("SASLTLS", mechanism, &wrong), "kafka.auth", &["user \"shop\""]).await;
    }
    let nobody = fort
        .user("SASL", SaslMechanism::ScramSha512, SECRET)
        .with(|options| options.user = Some("nobody".to_owned()));
    assert_refused(nobody, "kafka.auth", &["user \"nobody\""]).await;
}

/// The client for questions has the same credentials as the one for events: what it sees of a topic is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_sees_the_settings_of_topics_whatever_the_login() {
    let fort = require_service!(fort().await);
    let pair = fort.certs.client("shop").expect("a certificate");
    for config in [
        fort.user("SASL", SaslMechanism::ScramSha512, SECRET),
        fort.user("SASLTLS", SaslMechanism::ScramSha256, SECRET),
        fort.user("SASLTLS", SaslMechanism::Plain, SECRET),
        with_pair(fort.trusting("MTLS", fort.certs.ca()), &pair),
    ] {
        let sink = build(config).await;
        until_delivered(&sink, "t", DEADLINE).await;
        let findings = sink.examine(&["t".to_owned()]).await;
        // Only who has seen the settings can say what the topic takes.
        for check in ["authenticated", "destination", "durability", "payload"] {
            assert!(findings.iter().any(|finding| finding.check == check), "no {check}: {findings:?}");
        }
    }
}

/// A password that is changed in its file is used, and until then the file is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_file_is_read_again_when_it_changes() {
    let fort = require_service!(fort().await);
    let file = TestFile::write("yesterday's");
    let config = fort.user("SASLTLS", SaslMechanism::ScramSha512, SECRET).with(|options| {
        options.password = None;
        options.password_file = file.path();
    });
    let sink = build(config).await;
    let verdict = publish_one(&sink, loose("t")).await;
    assert_eq!((seen(&verdict).1, seen(&verdict).2), ("kafka.auth", Scope::Sink), "{verdict:?}");
    assert!(seen(&verdict).3.contains(&file.named()), "{verdict:?}");
    file.replace(SECRET);
    until_delivered(&sink, "t", Duration::from_secs(10)).await;
}

/// The certificate is replaced under load; from then on the broker only takes the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_rotated_under_load_and_nothing_is_lost() {
    let fort = require_service!(fort().await);
    fort.kafka.create_topic("rotated", 2, 1, &[]).await.expect("created");
    let pair = fort.certs.client("before").expect("a certificate");
    let live = TestPair::copy(&pair);
    let sink = build(with_pair(fort.trusting("MTLS", fort.certs.ca()), &live.pair)).await;
    let load = Load::start(&sink, "rotated");
    load.more(1_000).await;
    let next = fort.certs.client("after").expect("a certificate");
    live.replace(&next);
    load.more(5_000).await;
    let account = finish(load, &fort.kafka).await;
    assert!(account.failures.is_empty(), "{:?}", account.failures);
}

/// The password is changed at the broker and in its file under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_rotated_under_load_and_nothing_is_lost() {
    let fort = require_service!(fort().await);
    fort.kafka.create_topic("rotated-too", 2, 1, &[]).await.expect("created");
    let file = TestFile::write(SECRET);
    let config = fort.user("SASLTLS", SaslMechanism::ScramSha256, SECRET).with(|options| {
        options.user = Some("rotating".to_owned());
        options.password = None;
        options.password_file = file.path();
    });
    let sink = build(config).await;
    let load = Load::start(&sink, "rotated-too");
    load.more(1_000).await;
    fort.kafka.set_password("rotating", "a-new-one").await.expect("changed");
    file.replace("a-new-one\n");
    load.more(5_000).await;
    let account = finish(load, &fort.kafka).await;
    assert!(account.failures.is_empty(), "{:?}", account.failures);
}
