//! How a group is joined: by either protocol, and by static members.

use super::source_own::{Reader, alone, plain, texts, values};
use super::*;
use posthaste::source::{Change, Limit, Source, SourceError, Standing};
use posthaste_brokers::GroupMember;
use posthaste_brokers::kafka::{GroupProtocol, KafkaSourceConfig};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, KafkaRight};
use std::collections::BTreeSet;

const BOTH: [GroupProtocol; 2] = [GroupProtocol::Classic, GroupProtocol::Consumer];
const MANY: Limit = Limit { events: 1_000, bytes: 1 << 24 };
const SHORT: Duration = Duration::from_millis(100);
/// How long twins are watched. Without their pause each would take the other's place several times.
const WATCHED: Duration = Duration::from_secs(10);

fn joining(kafka: &Kafka, protocol: GroupProtocol, instance: Option<&str>) -> KafkaSourceConfig {
    let instance = instance.map(str::to_owned);
    KafkaSourceConfig { protocol, instance, ..config(kafka).into() }
}

/// Lets members read until they have so many partitions each. What comes is settled.
async fn until_shared(members: &mut [Reader], share: usize) -> Vec<String> {
    let mut seen = Vec::new();
    until(async || {
        let mut shares = Vec::new();
        for member in &mut *members {
            let taken = member.next().await;
            assert_eq!(member.ack(&taken).await, Ok(vec![Standing::Settled; taken.len()]));
            seen.extend(values(&taken));
            shares.push(member.view().await.len());
        }
        shares.iter().all(|found| *found == share)
    })
    .await;
    seen
}

/// A group changes its protocol one member after the other, there and back: nothing is lost or comes twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_both_protocols_share_a_group() {
    let kafka = require_service!(shared().await);
    let topic = topic_with(kafka, 4, &[]).await;
    let member = |protocol| Reader::join_as(&joining(kafka, protocol, None), &alone(&topic));
    let mut members = vec![member(GroupProtocol::Classic)];
    let mut seen = until_shared(&mut members, 4).await;
    let (mut sent, changes) = (0, [GroupProtocol::Consumer, GroupProtocol::Consumer, GroupProtocol::Classic]);
    for protocol in changes {
        kafka.send(&topic, &plain(sent..sent + 20), None).await.expect("sent");
        sent += 20;
        members.push(member(protocol));
        seen.extend(until_shared(&mut members, 2).await);
        members[0].source.drain(DEADLINE).await.expect("drained");
        members.remove(0);
        seen.extend(until_shared(&mut members, 4).await);
    }
    while seen.len() < sent {
        seen.extend(members[0].consume(1).await);
    }
    let all: BTreeSet<_> = texts(0..sent).into_iter().collect();
    assert_eq!((seen.len(), seen.into_iter().collect::<BTreeSet<_>>()), (sent, all));
}

/// F64: a client that polls too late says so, leaves the group, and its partitions are lost. By the newer
/// protocol that is not fatal: it joins again. Where its requests crossed it has ended for good, and the
/// member has another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f64_a_member_that_stalled_goes_on() {
    let kafka = require_service!(shared().await);
    let topic = topic(kafka).await;
    kafka.send(&topic, &plain(0..6), None).await.expect("sent");
    let source = joining(kafka, GroupProtocol::Consumer, None);
    let mut reader = Reader::join_as(&source, &alone(&topic));
    assert_eq!(reader.consume(6).await, texts(0..6));
    reader.source.stall_client();
    until(async || {
        assert_eq!(reader.next().await, []);
        reader.source.clients() >= 2 && reader.view().await.len() == 1
    })
    .await;
    until(async || {
        assert_eq!(reader.next().await, []);
        let is_over = reader.source.late_polls() == 1 || reader.source.clients() == 3;
        is_over && reader.view().await.len() == 1
    })
    .await;
    kafka.send(&topic, &plain(6..9), None).await.expect("sent");
    let mut seen = Vec::new();
    until(async || {
        let taken = reader.next().await;
        if reader.ack(&taken).await == Ok(vec![Standing::Settled; taken.len()]) {
            seen.extend(values(&taken));
        }
        seen.len() >= 3
    })
    .await;
    assert_eq!(seen, texts(6..9));
    let revoked = reader.changes.iter().filter(|change| matches!(change, Change::Revoked { .. })).count();
    assert!(revoked >= 2, "by the new client, and by the stall: {:?}", reader.changes);
}

/// A group that may not be read ends a client of the newer protocol for good (F64). The member says why, and
/// goes on when it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f64_a_member_without_a_right_goes_on_when_it_has_it() {
    let certs = require_service!(Certs::make());
    let mtls = KafkaSecurity::MutualTls(certs.server().clone(), certs.ca().to_owned());
    let options = KafkaOptions::default().listener("MTLS", mtls).authorizer();
    let kafka = require_service!(Kafka::start(&options).await);
    kafka.create_topic("orders", 1, 1, &[]).await.expect("created");
    kafka.send("orders", &plain(0..2), None).await.expect("sent");
    let pair = certs.client("shop").expect("a certificate");
    let connection = KafkaConfig::new(&kafka.bootstrap_at("MTLS")).with(|options| {
        options.ca_file = Some(certs.ca().to_owned());
        options.cert_file = Some(pair.certificate);
        options.key_file = Some(pair.key);
    });
    for operation in ["READ", "DESCRIBE"] {
        kafka.allow(&KafkaRight::topic("shop", operation, "orders")).await.expect("allowed");
    }
    // It may look for the group's coordinator, which refuses it.
    let right = |operation| KafkaRight::group("shop", operation, "group-orders");
    kafka.allow(&right("DESCRIBE")).await.expect("allowed");
    let source = KafkaSourceConfig { protocol: GroupProtocol::Consumer, ..connection.into() };
    let mut reader = Reader::join_as(&source, &alone("orders"));
    let mut words = BTreeSet::new();
    until(async || {
        let answer = reader.source.next(MANY, SHORT).await;
        words.extend(answer.err().map(|error| error.to_string()));
        reader.source.clients() >= 2
    })
    .await;
    assert!(words.iter().any(|words| words.contains("allow READ")), "{words:?}");
    kafka.allow(&right("READ")).await.expect("allowed");
    assert_eq!(reader.consume(2).await, texts(0..2));
}

/// A broker that does not know the newer protocol: the member says what to do, and does not try in a loop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_without_the_newer_protocol_is_told_of() {
    let options = KafkaOptions::default().setting("group.coordinator.rebalance.protocols=classic");
    let kafka = require_service!(Kafka::start(&options).await);
    let topic = topic(&kafka).await;
    let reader = Reader::join_as(&joining(&kafka, GroupProtocol::Consumer, None), &alone(&topic));
    let (mut words, mut told) = (String::new(), 0);
    until(async || {
        if let Err(error) = reader.source.next(MANY, SHORT).await {
            words = error.to_string();
            told += 1;
        }
        told == 3
    })
    .await;
    assert!(words.contains("since 4.0: use \"classic\""), "{words}");
    assert_eq!(reader.source.clients(), 1);
}

/// Two members of one name: one works, and the other says why it does not. They do not take turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_twins_of_one_instance_do_not_fight() {
    let kafka = require_service!(shared().await);
    for protocol in BOTH {
        let topic = topic(kafka).await;
        let source = joining(kafka, protocol, Some("twin"));
        let mut twins = vec![Reader::join_as(&source, &alone(&topic))];
        kafka.send(&topic, &plain(0..1), None).await.expect("sent");
        assert_eq!(twins[0].consume(1).await, ["0"]);
        twins.push(Reader::join_as(&source, &alone(&topic)));
        let (mut seen, mut why, mut sent) = (BTreeSet::new(), None, 1);
        let began = Instant::now();
        until(async || {
            if seen.len() + 1 == sent && sent < 100 {
                kafka.send(&topic, &plain(sent..sent + 1), None).await.expect("sent");
                sent += 1;
            }
            for twin in &twins {
                match twin.source.next(MANY, SHORT).await {
                    Ok(batch) => {
                        if twin.ack(&batch.deliveries).await.is_ok() {
                            seen.extend(values(&batch.deliveries));
                        }
                    }
                    Err(SourceError::Transient(text)) if text.contains("instance \"twin\"") => {
                        why = Some(text)
                    }
                    Err(_) => {}
                }
            }
            began.elapsed() > WATCHED && why.is_some() && seen.len() + 1 == sent
        })
        .await;
        let clients: Vec<u64> = twins.iter().map(|twin| twin.source.clients()).collect();
        assert!(clients.iter().sum::<u64>() <= 5, "{protocol:?}: {clients:?}");
        assert!(why.is_some_and(|why| why.contains("an `instance` of its own")), "{protocol:?}");
    }
}

/// A static member that is back within its session has its partitions again, and nobody else notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_static_member_that_restarts_keeps_its_partitions() {
    let kafka = require_service!(shared().await);
    for protocol in BOTH {
        let topic = topic_with(kafka, 4, &[]).await;
        let member = |name: &str| {
            let plan = GroupMember { member: Some(name.to_owned()), ..alone(&topic) };
            Reader::join_as(&joining(kafka, protocol, Some(name)), &plan)
        };
        let mut members = vec![member("zero"), member("one")];
        until_shared(&mut members, 2).await;
        let partitions = async |reader: &Reader| -> BTreeSet<_> {
            reader.view().await.into_iter().map(|view| view.partition).collect()
        };
        let (before, heard) = (partitions(&members[0]).await, members[1].changes.len());
        members[0].source.drain(DEADLINE).await.expect("drained");
        let there = kafka.members(&format!("group-{topic}")).await.expect("an answer");
        assert_eq!(there.get("posthaste zero"), Some(&2), "{protocol:?}: it is still a member: {there:?}");
        members[0] = member("zero");
        until_shared(&mut members, 2).await;
        assert_eq!(partitions(&members[0]).await, before, "{protocol:?}");
        let moved = |change: &&Change| matches!(change, Change::Assigned { .. } | Change::Revoked { .. });
        let moves: Vec<_> = members[1].changes[heard..].iter().filter(moved).collect();
        assert!(moves.is_empty(), "{protocol:?}: {moves:?}");
        kafka.send(&topic, &plain(0..20), None).await.expect("sent");
        let mut seen = BTreeSet::new();
        while seen.len() < 20 {
            seen.extend(until_shared(&mut members, 2).await);
        }
        assert_eq!(seen, texts(0..20).into_iter().collect());
    }
}
