//! What is Kafka's own about a source: groups, transactions, compaction, retention, foreign records, logins.

use super::*;
use bytes::Bytes;
use posthaste::sink::Level;
use posthaste::source::{
    Batch, Change, Delivery, Drained, Limit, Partition, PartitionView, SeekTo, Source, SourceError, Standing,
    StartFrom,
};
use posthaste_brokers::kafka::{GroupProtocol, KafkaSource, KafkaSourceConfig};
use posthaste_brokers::{GroupMember, SourceConfig};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, ForeignRecord, KafkaRight, TransactionEnd};
use std::collections::BTreeSet;

const MANY: Limit = Limit { events: 1_000, bytes: 1 << 24 };
const SHORT: Duration = Duration::from_millis(100);

/// A member with what it heard.
pub(super) struct Reader {
    pub(super) source: KafkaSource,
    pub(super) changes: Vec<Change>,
}

impl Reader {
    pub(super) fn join(config: &KafkaConfig, plan: &GroupMember) -> Self {
        Self::join_as(&config.clone().into(), plan)
    }

    pub(super) fn join_as(config: &KafkaSourceConfig, plan: &GroupMember) -> Self {
        Self { source: KafkaSource::start(config, plan).expect("valid"), changes: Vec::new() }
    }

    /// One call. An outage is no end.
    pub(super) async fn next(&mut self) -> Vec<Delivery> {
        match self.source.next(MANY, SHORT).await {
            Ok(Batch { changes, deliveries }) => {
                self.changes.extend(changes);
                deliveries
            }
            Err(SourceError::Transient(_)) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) async fn take(&mut self, count: usize) -> Vec<Delivery> {
        let (mut taken, end) = (Vec::new(), Instant::now() + DEADLINE);
        while taken.len() < count {
            assert!(Instant::now() < end, "{} of {count}: {:?}", taken.len(), self.changes);
            taken.extend(self.next().await);
        }
        taken
    }

    pub(super) async fn ack(&self, deliveries: &[Delivery]) -> Result<Vec<Standing>, SourceError> {
        let tickets: Vec<_> = deliveries.iter().map(|delivery| delivery.ticket.clone()).collect();
        self.source.ack(&tickets).await
    }

    pub(super) async fn consume(&mut self, count: usize) -> Vec<String> {
        let taken = self.take(count).await;
        assert_eq!(self.ack(&taken).await, Ok(vec![Standing::Settled; taken.len()]));
        values(&taken)
    }

    /// Until a change is heard; what is delivered on the way must be nothing.
    pub(super) async fn hears(&mut self, wanted: impl Fn(&Change) -> bool) -> Change {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(change) = self.changes.iter().find(|change| wanted(change)) {
                return change.clone();
            }
            assert!(Instant::now() < end, "{:?}", self.changes);
            assert_eq!(self.next().await, []);
        }
    }

    pub(super) async fn view(&self) -> Vec<PartitionView> {
        self.source.view().await.expect("a view")
    }
}

pub(super) fn values(deliveries: &[Delivery]) -> Vec<String> {
    let text = |delivery: &Delivery| delivery.message.payload.clone().unwrap_or_default().to_vec();
    deliveries.iter().map(|delivery| String::from_utf8(text(delivery)).expect("text")).collect()
}

pub(super) fn plain(values: impl IntoIterator<Item = usize>) -> Vec<ForeignRecord> {
    let record = |n: usize| ForeignRecord {
        key: Some(format!("key-{n}").into_bytes()),
        value: Some(n.to_string().into_bytes()),
        headers: Vec::new(),
    };
    values.into_iter().map(record).collect()
}

pub(super) fn texts(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|n| n.to_string()).collect()
}

/// A group of this topic alone.
pub(super) fn alone(topic: &str) -> GroupMember {
    GroupMember {
        handover_wait: Duration::from_secs(2),
        ..GroupMember::new(format!("group-{topic}"), [topic])
    }
}

/// The console and ours say the same about a group's position.
async fn until_committed(kafka: &Kafka, reader: &mut Reader, topic: &str, position: i64) {
    let place = (topic.to_owned(), 0);
    until(async || {
        assert_eq!(reader.next().await, []);
        let group = format!("group-{topic}");
        kafka.committed(&group).await.expect("an answer").get(&place) == Some(&position)
    })
    .await;
    let view = &reader.view().await[0];
    assert_eq!((view.committed, view.end), (Some(position), Some(position)), "{view:?}");
}

/// Nobody knows our headers: no id, bytes for text, headers twice, without a value, tombstones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f86_a_foreign_record_is_delivered_as_it_is() {
    let kafka = require_service!(shared().await);
    let topic = topic(kafka).await;
    let records = [
        ForeignRecord { key: Some(vec![0, 0xff]), value: Some(vec![0xfe]), headers: Vec::new() },
        ForeignRecord { key: None, value: None, headers: Vec::new() },
        ForeignRecord {
            key: Some(b"k".to_vec()),
            value: Some(Vec::new()),
            headers: vec![
                ("X".to_owned(), Some(vec![0xff])),
                ("message-id".to_owned(), Some(b"theirs".to_vec())),
                ("X".to_owned(), None),
            ],
        },
    ];
    kafka.send(&topic, &records, None).await.expect("sent");
    let mut reader = Reader::join(&config(kafka), &alone(&topic));
    let taken = reader.take(3).await;
    let [binary, tombstone, odd] = [0, 1, 2].map(|at| &taken[at].message);
    assert_eq!((binary.key.as_deref(), binary.payload.as_deref()), (Some(&[0, 0xff][..]), Some(&[0xfe][..])));
    assert_eq!((&tombstone.id, &tombstone.key, &tombstone.payload), (&None, &None, &None));
    assert_eq!((odd.id.as_deref(), odd.payload.as_deref()), (Some("theirs"), Some(&b""[..])));
    let headers: Vec<_> = odd.headers.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let [first, id] = [Bytes::from_static(&[0xff]), Bytes::from_static(b"theirs")];
    assert_eq!(headers, [("X", first), ("message-id", id), ("X", Bytes::new())]);
    let time = taken[0].published_at.expect("a record has a time").0;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    assert!((now.as_micros() as i64 - time).abs() < 600_000_000, "{time}");
    assert!(taken[0].identity().expect("a place").starts_with(&format!("{topic}/0@0#")));
}

/// Aborted records are skipped, and neither they nor the markers leave a lag, at the end of the log either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_transaction_at_the_end_leaves_no_lag() {
    let kafka = require_service!(shared().await);
    let topic = topic(kafka).await;
    kafka.send(&topic, &plain(0..2), Some(TransactionEnd::Commit)).await.expect("sent");
    kafka.send(&topic, &plain(2..5), Some(TransactionEnd::Abort)).await.expect("sent");
    kafka.send(&topic, &plain(5..6), None).await.expect("sent");
    let mut reader = Reader::join(&config(kafka), &alone(&topic));
    let taken = reader.take(3).await;
    assert_eq!(values(&taken), ["0", "1", "5"]);
    kafka.send(&topic, &plain(6..9), Some(TransactionEnd::Abort)).await.expect("sent");
    // What is in hand keeps the position back, whatever the client has stepped over.
    assert_eq!(reader.ack(&taken[..1]).await, Ok(vec![Standing::Settled]));
    assert_eq!(reader.next().await, []);
    assert_eq!(reader.view().await[0].committed, Some(1));
    assert_eq!(reader.ack(&taken[1..]).await, Ok(vec![Standing::Settled; 2]));
    // Two records and a marker, three and a marker, one, three and a marker.
    until_committed(kafka, &mut reader, &topic, 12).await;
    let (partition, epoch) = (Partition::new(topic.as_str(), 0), taken[0].ticket.epoch);
    assert!(reader.changes.contains(&Change::Empty { partition, epoch, until: 12 }), "{:?}", reader.changes);
}

/// Compaction leaves gaps, before the position and behind it: no loss, and no place that is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps_of_compaction_are_no_loss() {
    let kafka = require_service!(shared().await);
    let settings = [
        "cleanup.policy=compact",
        "segment.ms=100",
        "min.cleanable.dirty.ratio=0.0",
        "segment.bytes=1048576",
    ];
    let topic = topic_with(kafka, 1, &settings).await;
    let same = |n: usize| ForeignRecord { key: Some(b"k".to_vec()), ..plain([n]).remove(0) };
    for n in 0..4 {
        kafka.send(&topic, &[same(n)], None).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(120)).await; // pace: the next one begins a new segment
    }
    kafka.send(&topic, &plain([9]), None).await.expect("sent");
    until(async || kafka.dump(&topic).await.expect("read").len() < 4).await;
    let mut reader = Reader::join(&config(kafka), &alone(&topic));
    let left = kafka.dump(&topic).await.expect("read").len();
    let taken = reader.take(left.min(2)).await;
    assert!(taken[0].position > Some(0), "{taken:?}");
    assert_eq!(reader.ack(&taken).await, Ok(vec![Standing::Settled; taken.len()]));
    until(async || {
        let more = reader.next().await;
        reader.ack(&more).await.expect("acknowledged");
        reader.view().await[0].committed == Some(5)
    })
    .await;
    assert!(
        !reader.changes.iter().any(|change| matches!(change, Change::Lost { .. })),
        "{:?}",
        reader.changes
    );
}

/// A seek below the log loses what is gone, by name; one beyond it stops, until somebody says where to go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_that_is_not_there_is_lost_or_beyond() {
    let kafka = require_service!(shared().await);
    let topic = topic_with(kafka, 2, &[]).await;
    let keyed = |n: usize| ForeignRecord { key: Some(b"k".to_vec()), ..plain([n]).remove(0) };
    kafka.send(&topic, &(0..8).map(keyed).collect::<Vec<_>>(), None).await.expect("sent");
    let mut reader = Reader::join(&config(kafka), &alone(&topic));
    let taken = reader.take(8).await;
    let partition = taken[0].partition().clone();
    reader.ack(&taken).await.expect("acknowledged");
    kafka.remove_below(&topic, partition.number, 5).await.expect("removed");

    let epoch = reader.source.seek(&partition, SeekTo::Position(2)).await.expect("assigned");
    assert!(epoch > taken[0].ticket.epoch);
    let lost = reader.hears(|change| matches!(change, Change::Lost { .. })).await;
    assert_eq!(lost, Change::Lost { partition: partition.clone(), from: 2, until: 5 });
    let again = reader.take(3).await;
    assert_eq!(values(&again), ["5", "6", "7"]);
    assert!(again.iter().all(|delivery| delivery.ticket.epoch == epoch));

    let epoch = reader.source.seek(&partition, SeekTo::Position(20)).await.expect("assigned");
    let beyond = reader.hears(|change| matches!(change, Change::Beyond { .. })).await;
    assert_eq!(beyond, Change::Beyond { partition: partition.clone(), position: 20, end: Some(8) });
    assert!(reader.changes.contains(&Change::Assigned { partition: partition.clone(), epoch }));
    // The log may grow as it likes: it is not the one that was meant.
    kafka.send(&topic, &(8..30).map(keyed).collect::<Vec<_>>(), None).await.expect("sent");
    for _ in 0..3 {
        assert_eq!(reader.next().await, []);
    }
    let view = reader.view().await;
    let view = view.iter().find(|view| view.partition == partition).expect("it is still ours");
    assert_eq!((view.committed, view.first, view.end), (Some(5), Some(5), Some(30)));
    assert!(view.log_id.is_some());
    reader.source.seek(&partition, SeekTo::Position(28)).await.expect("assigned");
    assert_eq!(reader.consume(2).await, ["28", "29"]);
    let stranger = Partition::new(topic.as_str(), 7);
    let refused = reader.source.seek(&stranger, SeekTo::Earliest).await;
    assert_eq!(refused, Err(SourceError::NotAssigned(stranger)));
}

/// Members come: partitions move, each with its position, and nothing comes twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_and_a_third_member_get_their_part() {
    let kafka = require_service!(shared().await);
    let topic = topic_with(kafka, 6, &[]).await;
    let (mut members, mut seen) = (Vec::new(), Vec::new());
    for count in 1..=3 {
        members.push(Reader::join(&config(kafka), &alone(&topic)));
        let sent = 30 * (count - 1)..30 * count;
        kafka.send(&topic, &plain(sent), None).await.expect("sent");
        until(async || {
            let mut shares = Vec::new();
            for member in &mut members {
                let taken = member.next().await;
                // Acknowledged late: a partition that goes waits for it.
                assert_eq!(member.ack(&taken).await, Ok(vec![Standing::Settled; taken.len()]));
                seen.extend(values(&taken));
                shares.push(member.view().await.len());
            }
            shares.iter().all(|share| *share == 6 / count) && seen.len() >= 30 * count
        })
        .await;
    }
    let all: BTreeSet<_> = texts(0..90).into_iter().collect();
    assert_eq!((seen.len(), seen.into_iter().collect::<BTreeSet<_>>()), (90, all));
}

/// A partition that goes waits for what is in hand of it, and not for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_a_partition_that_goes_is_emptied_first() {
    let kafka = require_service!(shared().await);
    for (wait, settles) in [(DEADLINE, true), (Duration::from_millis(300), false)] {
        let topic = topic_with(kafka, 2, &[]).await;
        kafka.send(&topic, &plain(0..20), None).await.expect("sent");
        let named = |name: &str| GroupMember {
            member: Some(name.to_owned()),
            handover_wait: wait,
            ..GroupMember::new(format!("group-{topic}"), [&topic])
        };
        let mut one = Reader::join(&config(kafka), &named("one"));
        let taken = one.take(20).await;
        let mut two = Reader::join(&config(kafka), &named("two"));
        // The group has taken one of its partitions away, and asks for it.
        until(async || {
            let members = kafka.members(&format!("group-{topic}")).await.expect("an answer");
            assert_eq!([one.next().await, two.next().await], [[], []].map(Vec::from));
            members.len() == 2 && members.get("posthaste one") == Some(&1)
        })
        .await;
        if settles {
            assert_eq!(one.next().await, []);
            assert!(!one.changes.iter().any(|change| matches!(change, Change::Revoked { .. })));
            assert_eq!(one.ack(&taken).await, Ok(vec![Standing::Settled; 20]));
            two.hears(|change| matches!(change, Change::Assigned { .. })).await;
            assert_eq!(two.next().await, []);
        } else {
            let gone = one.hears(|change| matches!(change, Change::Revoked { .. })).await;
            let Change::Revoked { partition, .. } = gone else { unreachable!("it was asked for") };
            let (lost, kept): (Vec<_>, Vec<_>) = taken.into_iter().partition(|d| *d.partition() == partition);
            assert_eq!(one.ack(&lost).await, Ok(vec![Standing::Revoked; lost.len()]));
            assert_eq!(one.ack(&kept).await, Ok(vec![Standing::Settled; kept.len()]));
            assert_eq!(two.consume(lost.len()).await, values(&lost));
        }
    }
}

/// A member without a network: its session ends, others get its partitions, and it settles nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_member_that_is_cut_off_settles_nothing() {
    let (kafka, proxied) = require_service!(proxied().await);
    let topic = topic(&kafka).await;
    kafka.send(&topic, &plain(0..6), None).await.expect("sent");
    let mut cut = Reader::join(&proxied, &alone(&topic));
    let taken = cut.take(6).await;
    assert_eq!(cut.ack(&taken[..2]).await, Ok(vec![Standing::Settled; 2]));
    kafka.node(1).proxy("PROXIED").black_hole().await;
    let mut heir = Reader::join(&config(&kafka), &alone(&topic));
    assert_eq!(heir.consume(4).await, texts(2..6));
    assert_eq!(cut.ack(&taken[2..]).await, Ok(vec![Standing::Revoked; 4]));
    assert_eq!(cut.source.nack(&taken[3].ticket, Duration::ZERO).await, Ok(Standing::Revoked));
    // Back on the network it is a member again, and the position is the heir's.
    kafka.node(1).proxy("PROXIED").pass().await;
    heir.source.drain(DEADLINE).await.expect("drained");
    kafka.send(&topic, &plain(6..7), None).await.expect("sent");
    let taken = cut.take(1).await;
    assert_eq!(values(&taken), ["6"]);
    // Cut off once more, with an acknowledgement under way, it still ends.
    kafka.node(1).proxy("PROXIED").black_hole().await;
    let (standings, drained) = tokio::join!(cut.ack(&taken), cut.source.drain(SHORT));
    assert_eq!((standings, drained), (Ok(vec![Standing::Revoked]), Ok(Drained::default())));
}

/// F31: a broker's restart is an ordinary day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_restart_of_the_broker_loses_nothing() {
    let mut kafka = require_service!(Kafka::start(&KafkaOptions::default()).await);
    let topic = topic(&kafka).await;
    kafka.send(&topic, &plain(0..3), None).await.expect("sent");
    let mut reader = Reader::join(&config(&kafka), &alone(&topic));
    assert_eq!(reader.consume(3).await, texts(0..3));
    kafka.stop().await.expect("stopped");
    let waiting = reader.source.next(MANY, SHORT).await;
    assert!(waiting.is_ok() || waiting.is_err_and(|error| error.is_transient()));
    kafka.start_again().await.expect("started");
    kafka.send(&topic, &plain(3..6), None).await.expect("sent");
    let mut seen = BTreeSet::new();
    until(async || {
        let taken = reader.next().await;
        let _ = reader.ack(&taken).await;
        seen.extend(values(&taken));
        seen.len() == 3
    })
    .await;
    assert_eq!(seen, texts(3..6).into_iter().collect());
}

/// More than may be in hand, for longer than a moment: the client is paused, and goes on where it was (F63).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f63_a_full_member_pauses_and_goes_on_where_it_was() {
    let kafka = require_service!(shared().await);
    let topic = topic_with(kafka, 2, &[]).await;
    kafka.send(&topic, &plain(0..60), None).await.expect("sent");
    let mut reader = Reader::join(&config(kafka), &GroupMember { in_hand_max: 10, ..alone(&topic) });
    let mut seen = Vec::new();
    for _ in 0..2 {
        let taken = reader.take(10).await;
        let full = Instant::now();
        while full.elapsed() < Duration::from_millis(1_300) {
            assert_eq!(reader.next().await, [], "ten are in hand");
        }
        seen.extend(values(&taken));
        reader.ack(&taken).await.expect("acknowledged");
    }
    while seen.len() < 60 {
        seen.extend(reader.consume(1).await);
    }
    seen.sort_by_key(|text| text.parse::<usize>().expect("a number"));
    assert_eq!(seen, texts(0..60));
}

/// By name and password, and by certificate. A wrong one is told why, and is used when it has been changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_a_source_logs_in_as_a_sink_does() {
    let fort = require_service!(security::fort().await);
    let topic = "read-securely";
    fort.kafka.create_topic(topic, 1, 1, &[]).await.expect("created");
    fort.kafka.send(topic, &plain(0..1), None).await.expect("sent");
    for (name, config) in [("scram", fort.scram(SECRET)), ("mtls", fort.mutual_tls())] {
        let plan = GroupMember::new(format!("group-{name}"), [topic]);
        assert_eq!(Reader::join(&config, &plan).consume(1).await, ["0"], "{name}");
    }
    let file = TestFile::write("yesterday's");
    let config = fort.scram(SECRET).with(|options| {
        options.password = None;
        options.password_file = file.path();
    });
    let mut wrong = Reader::join(&config, &alone(topic));
    let end = Instant::now() + DEADLINE;
    let words = loop {
        assert!(Instant::now() < end, "nobody says why nothing comes");
        if let Err(SourceError::Transient(words)) = wrong.source.next(MANY, SHORT).await {
            break words;
        }
    };
    assert!(words.contains("user \"shop\"") && words.contains(&file.named()), "{words}");
    file.replace(SECRET);
    assert_eq!(wrong.consume(1).await, ["0"], "the new password is used");
}

/// What `doctor` says: with all rights, without one after the other, and without a topic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_examines_a_source_without_joining_its_group() {
    let certs = require_service!(Certs::make());
    let mtls = KafkaSecurity::MutualTls(certs.server().clone(), certs.ca().to_owned());
    let options = KafkaOptions::default().listener("MTLS", mtls).authorizer();
    let kafka = require_service!(Kafka::start(&options).await);
    let settings = ["retention.ms=600000"];
    kafka.create_topic("orders", 2, 1, &settings).await.expect("created");
    kafka.send("orders", &plain(0..10), None).await.expect("sent");
    let pair = certs.client("shop").expect("a certificate");
    let config = KafkaConfig::new(&kafka.bootstrap_at("MTLS")).with(|options| {
        options.ca_file = Some(certs.ca().to_owned());
        options.cert_file = Some(pair.certificate);
        options.key_file = Some(pair.key);
    });
    let source = SourceConfig::Kafka(Box::new(config.clone().into()));
    let plan = GroupMember::new("billing", ["orders"]);
    let right = |operation| KafkaRight::topic("shop", operation, "orders");
    const DAYS: Duration = Duration::from_secs(14 * 86_400);

    kafka.allow(&right("DESCRIBE")).await.expect("allowed");
    let findings = source.examine(&plan, Some(DAYS)).await;
    assert_found(&findings, "reachable", Level::Ok, "1 brokers answer");
    assert_found(&findings, "authenticated", Level::Ok, "client-shop.pem");
    assert_found(&findings, "topic", Level::Fail, "allow READ");
    assert_found(&findings, "group", Level::Fail, "allow READ");

    for right in [right("READ"), right("DESCRIBE_CONFIGS"), KafkaRight::group("shop", "READ", "billing")] {
        kafka.allow(&right).await.expect("allowed");
    }
    let mut reader = Reader::join(&config, &plan);
    assert_eq!(reader.consume(10).await.len(), 10);
    kafka.send("orders", &plain(10..13), None).await.expect("sent");
    let held = reader.take(3).await;
    let findings = source.examine(&plan, Some(DAYS)).await;
    assert_found(&findings, "topic", Level::Ok, "2 partitions");
    assert_found(&findings, "group", Level::Ok, "(protocol classic) has a position in 2 of 2 partitions");
    let newer = KafkaSourceConfig { protocol: GroupProtocol::Consumer, ..config.clone().into() };
    let newer = SourceConfig::Kafka(Box::new(newer)).examine(&plan, None).await;
    assert_found(&newer, "group", Level::Ok, "(protocol consumer) has a position in 2 of 2");
    assert_found(&findings, "lag", Level::Ok, "3 messages behind");
    assert_found(&findings, "retention", Level::Warn, "10 minutes");
    assert_found(&findings, "marks", Level::Ok, "kept for 14 days");
    let forgetful = source.examine(&plan, Some(Duration::from_secs(60))).await;
    assert_found(&forgetful, "marks", Level::Warn, "Keep marks for 1 days");
    assert_found(&source.examine(&plan, None).await, "marks", Level::Ok, "never removed");
    // The member has noticed nothing.
    assert_eq!(reader.ack(&held).await, Ok(vec![Standing::Settled; 3]));

    let missing = source.examine(&GroupMember::new("billing", ["orders.eu"]), None).await;
    assert_found(&missing, "topic", Level::Fail, "orders.eu");
    let nobody = SourceConfig::Kafka(Box::new(KafkaConfig::new("127.0.0.1:1").into()));
    assert_only_unreachable(&nobody.examine(&plan, None).await, "127.0.0.1:1");
    let checks = posthaste_brokers::source_checks();
    let known = checks.iter().find(|(kind, _)| *kind == "kafka").expect("listed").1;
    assert!(findings.iter().all(|finding| known.contains(&finding.check.as_str())));
}

/// A group that begins at the end keeps that place, also if its first member dies before anything came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_where_a_group_began_is_committed_at_once() {
    let kafka = require_service!(shared().await);
    let topic = topic(kafka).await;
    kafka.send(&topic, &plain(0..3), None).await.expect("sent");
    let latest = GroupMember { start_from: StartFrom::Latest, ..alone(&topic) };
    let mut first = Reader::join(&config(kafka), &latest);
    first.hears(|change| matches!(change, Change::Assigned { .. })).await;
    assert_eq!(first.view().await[0].committed, Some(3), "whoever looks now sees it");
    until_committed(kafka, &mut first, &topic, 3).await;
    first.source.freeze();
    kafka.send(&topic, &plain(3..5), None).await.expect("sent");
    let mut second = Reader::join(&config(kafka), &latest);
    assert_eq!(second.consume(2).await, ["3", "4"]);
}
