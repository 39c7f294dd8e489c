//! Services on one broker or another.

use crate::rig::{Ground, Rig, directory};
use crate::wire::Wire;
#[cfg(feature = "kafka")]
use posthaste_testkit::services::Kafka;
#[cfg(feature = "nats")]
use posthaste_testkit::services::Nats;
#[cfg(feature = "rabbitmq")]
use posthaste_testkit::services::Rabbitmq;
use posthaste_testkit::services::{ServiceError, TestDatabase};

impl Rig {
    /// On the shared server and a queue of RabbitMQ of its own. Messages come over the outbox.
    #[cfg(feature = "rabbitmq")]
    pub(crate) async fn set_on_rabbitmq(server: &Rabbitmq, consumer: &str) -> Result<Self, ServiceError> {
        let queue = format!("orders-{}", uuid::Uuid::now_v7().simple());
        let sink = format!("type = \"rabbitmq\"\nurl = \"{}\"\nexchange = \"\"", server.url());
        let ground = Ground::Shared(TestDatabase::create().await?);
        let rig = Self::on(ground, directory(), Wire::Queue, queue.clone(), &sink, consumer).await;
        let single =
            "{<<\"x-queue-type\">>, longstr, <<\"quorum\">>}, {<<\"x-single-active-consumer\">>, bool, true}";
        crate::rabbitmq::declare(server, &queue, single).await;
        crate::rabbitmq::declare(server, &format!("{queue}.dead"), "").await;
        Ok(rig)
    }

    /// On the shared server and a stream of this NATS server.
    #[cfg(feature = "nats")]
    pub(crate) async fn set_on_nats(nats: &Nats, consumer: &str) -> Result<Self, ServiceError> {
        let (wire, topic) = Wire::on_nats(nats).await;
        let sink = format!("type = \"nats\"\nurl = \"{}\"", nats.url());
        let ground = Ground::Shared(TestDatabase::create().await?);
        Ok(Self::on(ground, directory(), wire, topic, &sink, consumer).await)
    }
}

#[cfg(feature = "kafka")]
pub(crate) fn kafka_sink(kafka: &Kafka) -> String {
    format!("type = \"kafka\"\nurl = \"{}\"", kafka.bootstrap())
}

/// A topic of its own, and the one for its dead letters.
#[cfg(feature = "kafka")]
pub(crate) async fn kafka_topic(kafka: &Kafka, partitions: u32) -> Result<String, ServiceError> {
    let topic = format!("orders-{}", uuid::Uuid::now_v7().simple());
    for (topic, partitions) in [(&topic, partitions), (&format!("{topic}.dead"), 1)] {
        kafka.create_topic(topic, partitions, 1, &[]).await?;
    }
    Ok(topic)
}
