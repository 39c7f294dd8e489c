//! A client that cannot go on.

use super::source_own::{Reader, alone, plain, values};
use super::*;
use posthaste::source::{Change, Standing};
use posthaste_brokers::kafka::{GroupProtocol, KafkaSourceConfig};
use posthaste_testkit::require_service;

/// F64: a fatal error ends the client, and another one takes its place. What was in hand is nobody's any more
/// and comes again, and what was settled does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f64_a_client_that_ended_is_replaced() {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        replaced(protocol).await;
    }
}

async fn replaced(protocol: GroupProtocol) {
    let kafka = require_service!(shared().await);
    let topic = topic(kafka).await;
    kafka.send(&topic, &plain(0..6), None).await.expect("sent");
    let source = KafkaSourceConfig { protocol, ..config(kafka).into() };
    let mut reader = Reader::join_as(&source, &alone(&topic));
    let taken = reader.take(6).await;
    assert_eq!(reader.ack(&taken[..2]).await, Ok(vec![Standing::Settled; 2]));
    reader.source.break_client();
    let gone = reader.hears(|change| matches!(change, Change::Revoked { .. })).await;
    let epoch = taken[0].ticket.epoch;
    assert_eq!(gone, Change::Revoked { partition: taken[0].partition().clone(), epoch });
    let again = reader.take(4).await;
    assert_eq!(values(&again), ["2", "3", "4", "5"]);
    assert!(again.iter().all(|delivery| delivery.ticket.epoch > epoch));
    assert_eq!(reader.ack(&taken[2..]).await, Ok(vec![Standing::Revoked; 4]));
    assert_eq!(reader.ack(&again).await, Ok(vec![Standing::Settled; 4]));
    kafka.send(&topic, &plain(6..8), None).await.expect("sent");
    assert_eq!(reader.consume(2).await, ["6", "7"]);
}
