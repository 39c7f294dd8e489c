//! What librdkafka does by itself, shown with the broker that it brings along for its own tests.
//!
//! Only that one can be told which request to refuse. What it stores is read by another client.

use super::*;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers;
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use std::collections::BTreeSet;

/// Long enough for a second request to leave before the first one is answered.
const ROUND_TRIP: Duration = Duration::from_millis(300);

/// G2: a broker that does not know the producer in a partition may refuse its first request for a moment and take the
/// second. The client then takes the first one for acknowledged too, though nobody has it. So there is one request under
/// way at a time. (With five of them this is red each time; `cluster` has the same on real brokers, where it is a race.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_refused_first_request_is_not_acknowledged_by_the_second() {
    let cluster = MockCluster::new(1).expect("a broker");
    cluster.create_topic("t", 1, 1).expect("a topic");
    let url = cluster.bootstrap_servers();
    let sink = build(KafkaConfig { linger_ms: 0, ..KafkaConfig::new(&url) }).await;
    // On the trial line; the main line has sent nothing yet.
    until_delivered(&sink, "t", DEADLINE).await;
    cluster.broker_round_trip_time(1, ROUND_TRIP).expect("a slow broker");
    cluster.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS]);
    let calls: Vec<Vec<Message>> =
        (0..4).map(|call| (0..10).map(|n| keyed("t", &format!("{call}-{n}"))).collect()).collect();
    let publish = async |index: u32, call: &[Message]| {
        tokio::time::sleep(index * ROUND_TRIP / 10).await; // pace: each call is to be a request of its own
        sink.publish(call).await
    };
    let (a, b, c, d) = tokio::join!(
        publish(0, &calls[0]),
        publish(1, &calls[1]),
        publish(2, &calls[2]),
        publish(3, &calls[3])
    );
    cluster.broker_round_trip_time(1, Duration::ZERO).expect("a quick broker");
    let verdicts = [a, b, c, d].concat();
    let delivered = calls.iter().flatten().zip(&verdicts).filter(|(_, v)| **v == Verdict::Delivered);
    let delivered: Vec<String> = delivered.map(|(message, _)| message.id()).collect();
    assert!(!delivered.is_empty(), "{verdicts:?}");
    let there = ids(&url, 1 + delivered.len());
    let lost = delivered.iter().filter(|id| !there.contains(*id)).count();
    assert_eq!(lost, 0, "{lost} of {} delivered events are not at the broker", delivered.len());
}

/// The ids in the topic, as soon as there are so many records; those that are there, if more do not come.
fn ids(url: &str, records: usize) -> BTreeSet<String> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", url).set("group.id", "g");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut places = TopicPartitionList::new();
    places.add_partition_offset("t", 0, Offset::Beginning).expect("a place");
    consumer.assign(&places).expect("assigned");
    let mut ids = BTreeSet::new();
    for _ in 0..records {
        let Some(record) = consumer.poll(Duration::from_secs(10)) else { break };
        let record = record.expect("a record");
        let headers = record.headers().expect("headers");
        let id = headers.iter().find(|header| header.key == "Message-ID").and_then(|header| header.value);
        ids.insert(String::from_utf8_lossy(id.expect("an id")).into_owned());
    }
    ids
}
