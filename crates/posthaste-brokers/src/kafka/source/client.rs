//! The consumer of librdkafka: how it is made, what it says, and what the brokers are asked over it.

use super::keys::{GroupProtocol, KafkaSourceConfig};
use crate::kafka::KafkaConfig;
use crate::kafka::cause::Causes;
use crate::kafka::client::set;
use crate::lock::locked;
use crate::{BuildError, GroupMember};
use bytes::Bytes;
use posthaste::event::Timestamp;
use posthaste::source::{Delivery, Partition, Received, Ticket};
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The consumer with its callbacks.
pub(super) type KafkaClient = BaseConsumer<GroupEars>;

/// Settings that no option changes: see the essay of the module.
const CONSTANTS: &[(&str, &str)] = &[
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "error"),
    ("enable.partition.eof", "true"),
    ("check.crcs", "true"),
    ("isolation.level", "read_committed"),
    ("allow.auto.create.topics", "false"),
    ("queued.min.messages", "2000"),
    ("queued.max.messages.kbytes", "16384"),
    // A fetch that is asked for just below that bound still comes whole. With the client's own 50 MB the
    // megabyte of each partition came on top: 12 MB with twelve of them.
    ("fetch.max.bytes", "4194304"),
    // A full prefetch is looked at again after this time. With the client's second it would bound the speed.
    ("fetch.queue.backoff.ms", "10"),
    // How long an idle fetch waits at the broker. A seek waits for its end.
    ("fetch.wait.max.ms", "200"),
    // How long a new topic, or a new partition, is not seen.
    ("topic.metadata.refresh.interval.ms", "5000"),
];

/// What a member sets beside them, by its protocol. The broker has the times of the newer one, and the client
/// refuses to be told others.
fn of_protocol(protocol: GroupProtocol) -> &'static [(&'static str, &'static str)] {
    match protocol {
        GroupProtocol::Classic => &[
            ("group.protocol", "classic"),
            ("partition.assignment.strategy", "cooperative-sticky"),
            ("session.timeout.ms", "6000"),
            ("heartbeat.interval.ms", "2000"),
        ],
        GroupProtocol::Consumer => &[("group.protocol", "consumer")],
    }
}

impl KafkaSourceConfig {
    /// A member's options, with all files read anew.
    pub(super) fn member(&self, group: &str, name: &str) -> Result<ClientConfig, BuildError> {
        let mut client = self.connection.consumer(group, name)?;
        set(&mut client, of_protocol(self.protocol));
        if let Some(instance) = &self.instance {
            client.set("group.instance.id", instance);
        }
        Ok(client)
    }
}

impl KafkaConfig {
    /// Options of a consumer that joins no group, with all files read anew. `name` is what the brokers show
    /// of this client.
    pub(super) fn consumer(&self, group: &str, name: &str) -> Result<ClientConfig, BuildError> {
        let mut client = self.connection(name)?;
        set(&mut client, CONSTANTS);
        client.set("group.id", group);
        Ok(client)
    }
}

/// What the group wants of this member.
#[derive(Debug)]
pub(super) enum Rebalance {
    Assign(Vec<Partition>),
    /// `lost`: others may have them already.
    Revoke {
        partitions: Vec<Partition>,
        lost: bool,
    },
}

/// The callbacks of the client.
pub(super) struct GroupEars {
    pub(super) causes: Arc<Causes>,
    group: Arc<str>,
    rebalances: Mutex<Vec<Rebalance>>,
    /// Set at the end: then a rebalance is answered at once, for nobody else will.
    pub(super) closing: AtomicBool,
}

impl GroupEars {
    pub(super) fn new(member: &GroupMember, causes: Arc<Causes>) -> Self {
        let group = member.group.as_str().into();
        Self { causes, group, rebalances: Mutex::default(), closing: AtomicBool::new(false) }
    }

    pub(super) fn take_rebalances(&self) -> Vec<Rebalance> {
        std::mem::take(&mut locked(&self.rebalances))
    }
}

impl ClientContext for GroupEars {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.causes.hear_log(text);
        let group = &self.group;
        match level {
            RDKafkaLogLevel::Debug | RDKafkaLogLevel::Info => tracing::trace!(%group, facility, "{text}"),
            _ => tracing::debug!(%group, facility, "{text}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.causes.hear(code, reason);
        }
    }
}

impl ConsumerContext for GroupEars {
    /// Only notes it. librdkafka waits until the assignment is changed, so the thread can take its time.
    fn rebalance(&self, client: &KafkaClient, what: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let assigns = what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.closing.load(Ordering::SeqCst) {
            let answered =
                if assigns { client.incremental_assign(list) } else { client.incremental_unassign(list) };
            return note(&self.group, answered);
        }
        let partitions = list.elements().iter().map(|e| Partition::new(e.topic(), e.partition())).collect();
        locked(&self.rebalances).push(match assigns {
            true => Rebalance::Assign(partitions),
            false => Rebalance::Revoke { partitions, lost: client.assignment_lost() },
        });
    }
}

/// Says in the log what should not happen.
pub(super) fn note(group: &str, done: KafkaResult<()>) {
    if let Err(error) = done {
        tracing::warn!(group, %error, "the Kafka client refuses a change of its assignment");
    }
}

/// Partitions as the client wants them, each with an offset.
pub(super) fn listed<'a>(of: impl IntoIterator<Item = (&'a Partition, Offset)>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in of {
        // Only an offset that no number can express is refused, and there is none.
        let _ = list.add_partition_offset(&partition.topic, partition.number, offset);
    }
    list
}

/// The same offset for all.
pub(super) fn all_at(partitions: &[Partition], offset: Offset) -> TopicPartitionList {
    listed(partitions.iter().map(|partition| (partition, offset)))
}

/// Positions by partition. `None`: there is none.
pub(super) type Positions = BTreeMap<Partition, Option<i64>>;

/// The answers of a list, or its first error.
fn answers(list: &TopicPartitionList) -> KafkaResult<Positions> {
    let answer = |e: &rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
        e.error()?;
        let position = if let Offset::Offset(position) = e.offset() { Some(position) } else { None };
        Ok((Partition::new(e.topic(), e.partition()), position))
    };
    list.elements().iter().map(answer).collect()
}

/// The first position of each partition, and the one that the next message gets.
pub(super) type LogBounds = BTreeMap<Partition, (i64, i64)>;

/// Asks the leaders for the bounds of their partitions. What Kafka calls the last stable offset is the end.
pub(super) fn bounds<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    partitions: &[Partition],
    within: Duration,
) -> KafkaResult<LogBounds> {
    if partitions.is_empty() {
        return Ok(LogBounds::new());
    }
    let ask = |offset| answers(&client.offsets_for_times(all_at(partitions, offset), within)?);
    let (first, end) = (ask(Offset::Beginning)?, ask(Offset::End)?);
    let missing = || KafkaError::MetadataFetch(Code::UnknownPartition);
    let pair = |(partition, first): (Partition, Option<i64>)| {
        let end = end.get(&partition).copied().flatten().ok_or_else(missing)?;
        Ok((partition, (first.ok_or_else(missing)?, end)))
    };
    first.into_iter().map(pair).collect()
}

/// The bounds of those partitions whose leaders answer. One without a leader, or with a silent one, is left
/// out, and costs the others nothing but time.
pub(super) fn bounds_known<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    partitions: &[Partition],
    within: Duration,
) -> LogBounds {
    let led = led(client, partitions, within);
    let all: Vec<Partition> = led.values().flatten().cloned().collect();
    match bounds(client, &all, within) {
        Ok(bounds) => bounds,
        Err(_) if led.len() == 1 => LogBounds::new(),
        // The client takes one silent leader for all of them, so each is asked alone.
        Err(_) => led.values().filter_map(|of| bounds(client, of, within).ok()).flatten().collect(),
    }
}

/// Partitions by the node that leads them.
fn led<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    partitions: &[Partition],
    within: Duration,
) -> BTreeMap<i32, Vec<Partition>> {
    let topics: BTreeSet<&Arc<str>> = partitions.iter().map(|partition| &partition.topic).collect();
    let mut led = BTreeMap::<i32, Vec<Partition>>::new();
    for topic in topics {
        // No broker answers: the next question would wait as long.
        let Ok(metadata) = client.fetch_metadata(Some(topic), within) else { break };
        for found in metadata.topics().first().map_or(&[][..], |topic| topic.partitions()) {
            let partition = Partition::new(Arc::clone(topic), found.id());
            if found.leader() >= 0 && partitions.contains(&partition) {
                led.entry(found.leader()).or_default().push(partition);
            }
        }
    }
    led
}

/// The first position of a partition with a message at or after this time. `None`: there is none yet.
pub(super) fn position_at(
    client: &KafkaClient,
    partition: &Partition,
    time: Timestamp,
    within: Duration,
) -> KafkaResult<Option<i64>> {
    let millis = time.0.div_euclid(1_000).max(0);
    let list =
        client.offsets_for_times(all_at(std::slice::from_ref(partition), Offset::Offset(millis)), within)?;
    Ok(answers(&list)?.into_values().next().flatten())
}

/// The group's committed positions. `None`: it has none there.
pub(super) fn committed<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    partitions: &[Partition],
    within: Duration,
) -> KafkaResult<Positions> {
    answers(&client.committed_offsets(all_at(partitions, Offset::Invalid), within)?)
}

/// What is written beside a position that the source declared itself.
const DECLARED: &str = "posthaste: declared";

/// The group's committed positions, and of which partitions they are only declared.
pub(super) fn committed_or_declared<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    partitions: &[Partition],
    within: Duration,
) -> KafkaResult<(Positions, BTreeSet<Partition>)> {
    let list = client.committed_offsets(all_at(partitions, Offset::Invalid), within)?;
    let elements = list.elements();
    // For Kafka the words are text. It hands out no other bytes, whoever wrote them.
    let declared = elements.iter().filter(|e| e.metadata() == DECLARED);
    let declared = declared.map(|e| Partition::new(e.topic(), e.partition())).collect();
    Ok((answers(&list)?, declared))
}

/// Says beside a position that it is only declared.
pub(super) fn mark_declared(list: &TopicPartitionList, partition: &Partition) {
    if let Some(mut element) = list.find_partition(&partition.topic, partition.number) {
        element.set_metadata(DECLARED);
    }
}

/// A record as a delivery. Its epoch is not known here. `topics` are the names that partitions share.
pub(super) fn read(record: &BorrowedMessage<'_>, topics: &[Arc<str>]) -> Delivery {
    let bytes = |given: Option<&[u8]>| given.map(Bytes::copy_from_slice);
    let header = |header: Header<'_, &[u8]>| (header.key.to_owned(), bytes(header.value).unwrap_or_default());
    let headers = record.headers().map(|headers| headers.iter().map(header).collect()).unwrap_or_default();
    let mut message =
        Received { id: None, key: bytes(record.key()), headers, payload: bytes(record.payload()) };
    message.id = message.header("Message-ID").map(str::to_owned);
    let topic = topics.iter().find(|topic| ***topic == *record.topic()).cloned();
    let partition = Partition::new(topic.unwrap_or_else(|| record.topic().into()), record.partition());
    Delivery {
        ticket: Ticket { partition, epoch: 0, number: record.offset() },
        position: Some(record.offset()),
        redelivery: None,
        published_at: record.timestamp().to_millis().map(Timestamp::of_millis),
        address: None,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a member of billing sets, and what it leaves to the client, by the client's own list.
    fn member(protocol: GroupProtocol, instance: Option<&str>) -> ClientConfig {
        let connection = KafkaConfig::new("h:1");
        let instance = instance.map(str::to_owned);
        let source = KafkaSourceConfig { connection, protocol, instance };
        source.member("billing", "billing-0").expect("valid")
    }

    #[test]
    fn f62_nothing_that_carries_a_promise_is_left_to_the_client() {
        let common = [
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", "error"),
            ("enable.partition.eof", "true"),
            ("check.crcs", "true"),
            ("isolation.level", "read_committed"),
            ("allow.auto.create.topics", "false"),
            ("queued.min.messages", "2000"),
            ("queued.max.messages.kbytes", "16384"),
            ("fetch.max.bytes", "4194304"),
            ("fetch.queue.backoff.ms", "10"),
            ("fetch.wait.max.ms", "200"),
            ("topic.metadata.refresh.interval.ms", "5000"),
            ("group.id", "billing"),
        ];
        let classic = [
            ("group.protocol", "classic"),
            ("partition.assignment.strategy", "cooperative-sticky"),
            ("session.timeout.ms", "6000"),
            ("heartbeat.interval.ms", "2000"),
        ];
        let lists = [
            (GroupProtocol::Classic, &classic[..]),
            (GroupProtocol::Consumer, &[("group.protocol", "consumer")][..]),
        ];
        let connection = KafkaConfig::new("h:1").connection("billing-0").expect("valid");
        for (protocol, own) in lists {
            let client = member(protocol, None);
            let expected: BTreeMap<&str, &str> = common.iter().chain(own).copied().collect();
            let beside = |name: &&str| connection.get(name).is_none();
            let found: BTreeMap<&str, &str> =
                client.config_map().into_iter().filter(|(name, _)| beside(name)).collect();
            assert_eq!(found, expected, "{protocol:?}");
            // The client takes all of them together: a word that it does not know, or refuses, is an error.
            client.create::<BaseConsumer>().expect("a consumer");
        }
        let refused = ("session.timeout.ms", "6000");
        let made = member(GroupProtocol::Consumer, None).set(refused.0, refused.1).create::<BaseConsumer>();
        assert!(made.is_err_and(|error| error.to_string().contains("session.timeout.ms")));
    }

    #[test]
    fn an_instance_makes_a_static_member_and_readers_are_none() {
        for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
            let client = member(protocol, Some("billing-0"));
            assert_eq!(client.get("group.instance.id"), Some("billing-0"));
            client.create::<BaseConsumer>().expect("a consumer");
            assert_eq!(member(protocol, None).get("group.instance.id"), None);
        }
        let reader = KafkaConfig::new("h:1").consumer("billing", "doctor").expect("valid");
        assert_eq!(["group.instance.id", "group.protocol"].map(|name| reader.get(name)), [None; 2]);
        for (instance, why) in [("", "must not be empty"), ("a b", "letters"), (".", "is no name")] {
            let instance = Some(instance.to_owned());
            let source = KafkaSourceConfig { instance, ..KafkaConfig::new("h:1").into() };
            let error = source.check_words().expect_err("refused").to_string();
            assert!(error.contains("instance") && error.contains(why), "{error}");
        }
    }
}
