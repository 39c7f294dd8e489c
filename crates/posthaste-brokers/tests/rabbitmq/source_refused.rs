//! What a source refuses to read and why, what it waits for, and what `doctor` says of it.

use super::source::{publish_all, quorum, single};
use super::*;
use crate::ground::consuming::{numbered, plan, until};
use posthaste::consumer::Order;
use posthaste::sink::Level;
use posthaste::source::{Limit, Source, SourceError};
use posthaste_brokers::rabbitmq::{RabbitmqSource, SOURCE_CHECKS};
use posthaste_brokers::{GroupMember, Secret, SourceConfig};
use posthaste_testkit::require_service;
use posthaste_testkit::services::Certs;

const ALL: Limit = Limit { events: 1_000, bytes: 1 << 24 };

/// The first error of a source.
async fn refusal(config: &RabbitmqConfig, plan: &GroupMember) -> SourceError {
    let source = RabbitmqSource::start(config, plan).expect("valid");
    let mut found = None;
    until(async || {
        found = source.next(ALL, Duration::from_millis(50)).await.err();
        found.is_some()
    })
    .await;
    found.expect("an error")
}

fn is_fatal(error: &SourceError, words: &str) -> bool {
    matches!(error, SourceError::Fatal(text) if text.contains(words))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f45_what_cannot_keep_its_promise_is_refused_at_start() {
    let bed = require_service!(Bed::open().await);
    let limit = |count: i32| ("x-delivery-limit", AMQPValue::LongInt(count));
    let alone = || ("x-single-active-consumer", AMQPValue::Boolean(true));
    let exchange = || ("x-dead-letter-exchange", AMQPValue::LongString("dead's".into()));
    let length = || ("x-max-length", AMQPValue::LongLongInt(1_000));
    for (arguments, order, words) in [
        (FieldTable::default(), Order::Key, Some("x-queue-type = quorum")),
        (FieldTable::default(), Order::None, Some("x-queue-type = quorum")),
        (quorum(&[]), Order::Key, Some("x-single-active-consumer = true")),
        (quorum(&[length()]), Order::Partition, Some("x-single-active-consumer = true")),
        (quorum(&[alone(), limit(5)]), Order::Key, Some("came back 5 times")),
        (quorum(&[limit(5), length()]), Order::None, Some("x-dead-letter-exchange")),
        (quorum(&[alone(), limit(5), exchange(), length()]), Order::Key, None),
        (quorum(&[]), Order::None, None),
        (single(), Order::Key, None),
    ] {
        let queue = unique("refused");
        bed.queue_with(&queue, arguments).await;
        let plan = GroupMember { order, ..plan(&queue, 1) };
        match words {
            Some(words) => {
                let error = refusal(&bed.config(), &plan).await;
                assert!(is_fatal(&error, words), "{error}");
            }
            None => {
                let source = RabbitmqSource::start(&bed.config(), &plan).expect("valid");
                until(async || {
                    source.next(ALL, Duration::from_millis(20)).await.expect("it is read");
                    source.view().await.expect("a view").len() == 1
                })
                .await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_missing_is_named_and_waited_for() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let (queue, user) = (unique("rights"), unique("reader"));
    bed.queue_with(&queue, single()).await;
    publish_all(&bed, &queue, &[numbered(1, 1)]).await;
    server.add_user(&user, "pw", ["", "", ""]).await.expect("a user");
    let config = bed.config().with(|options| {
        options.user = Some(user.clone());
        options.password = Some(Secret::new("pw"));
    });
    let unseen = refusal(&config, &plan(&queue, 1)).await;
    assert!(is_fatal(&unseen, "quorum_queues = true"), "{unseen}");
    let vouched = RabbitmqConfig { quorum_queues: true, ..config.clone() };
    let denied = refusal(&vouched, &plan(&queue, 1)).await;
    assert!(matches!(&denied, SourceError::Transient(text) if text.contains("may not be read")), "{denied}");
    let doctor = SourceConfig::Rabbitmq(Box::new(vouched.clone()));
    let findings = doctor.examine(&plan(&queue, 1), None).await;
    assert_found(&findings, "queue", Level::Fail, "may not be read");
    assert_found(&findings, "order", Level::Warn, "quorum_queues vouches for it");
    server.allow(&user, ["", "", ".*"]).await.expect("allowed");
    let source = RabbitmqSource::start(&vouched, &plan(&queue, 1)).expect("valid");
    until(async || !source.next(ALL, Duration::from_millis(50)).await.expect("read").deliveries.is_empty())
        .await;
    let wrong = vouched.with(|options| options.password = Some(Secret::new("other")));
    let wrong = refusal(&wrong, &plan(&queue, 1)).await;
    assert!(matches!(&wrong, SourceError::Transient(text) if text.contains(&user)), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_a_wrong_authority_and_a_wrong_name_are_refused() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let (queue, listener) = (unique("tls"), server.tls_listener(certs.server(), None).await.expect("a port"));
    bed.queue_with(&queue, single()).await;
    publish_all(&bed, &queue, &[numbered(1, 1)]).await;
    let trusting = |url: &str, ca: &std::path::Path| {
        RabbitmqConfig::new(url).with(|options| options.ca_file = Some(ca.to_owned()))
    };
    let elsewhere = server.tls_listener(certs.elsewhere(), None).await.expect("a port");
    for (url, ca, words) in [
        (listener.url(), certs.other_ca(), "UnknownIssuer"),
        (elsewhere.url(), certs.ca(), "not valid for name"),
    ] {
        let error = refusal(&trusting(&url, ca), &plan(&queue, 1)).await;
        assert!(matches!(&error, SourceError::Transient(text) if text.contains(words)), "{error}");
    }
    let source =
        RabbitmqSource::start(&trusting(&listener.url(), certs.ca()), &plan(&queue, 1)).expect("valid");
    until(async || !source.next(ALL, Duration::from_millis(50)).await.expect("read").deliveries.is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_is_told_what_a_queue_is() {
    let bed = require_service!(Bed::open().await);
    let (good, classic, limited) = (unique("good"), bed.queue().await, unique("limited"));
    bed.queue_with(&good, single()).await;
    bed.queue_with(&limited, quorum(&[("x-delivery-limit", AMQPValue::LongInt(7))])).await;
    publish_all(&bed, &good, &[numbered(1, 1), numbered(2, 1)]).await;
    let source = SourceConfig::Rabbitmq(Box::new(bed.config()));
    let plan = GroupMember::new("billing", [&good, &classic, &limited, "nowhere"].map(String::from));
    let findings = source.examine(&plan, None).await;
    assert_found(&findings, "reachable", Level::Ok, "RabbitMQ 3.");
    assert_found(&findings, "authenticated", Level::Ok, "guest");
    assert_found(&findings, "queue", Level::Ok, "may be read");
    assert_found(&findings, "queue", Level::Fail, "nowhere");
    assert_found(&findings, "order", Level::Ok, &good);
    assert_found(&findings, "order", Level::Fail, &limited);
    assert_found(&findings, "durability", Level::Ok, &good);
    assert_found(&findings, "durability", Level::Fail, &classic);
    assert_found(&findings, "delivery-limit", Level::Ok, &good);
    assert_found(&findings, "delivery-limit", Level::Fail, "came back 7 times");
    assert_found(&findings, "lag", Level::Ok, "2 messages wait");
    assert!(findings.iter().all(|finding| SOURCE_CHECKS.contains(&finding.check.as_str())));
    assert_eq!(bed.count(&good).await, 2, "nobody subscribed");
    let nobody = SourceConfig::Rabbitmq(Box::new(RabbitmqConfig::new("amqp://127.0.0.1:1")));
    assert_only_unreachable(&nobody.examine(&plan, None).await, "127.0.0.1:1");
}

#[tokio::test]
async fn a_queue_is_no_log() {
    let source = SourceConfig::Rabbitmq(Box::new(RabbitmqConfig::new("amqp://127.0.0.1:1")));
    let reader = source.reader("billing", Order::Key).expect("a reader");
    let told = reader.survey(&["q".to_owned()]).await.expect_err("no log").to_string();
    assert!(told.contains("has no positions"), "{told}");
}
