//! Services on one broker or another.

use crate::rig::{Ground, Rig, directory};
use crate::wire::Wire;
#[cfg(feature = "kafka")]
use posthaste_testkit::services::Kafka;
#[cfg(feature = "nats")]
use posthaste_testkit::services::Nats;
#[cfg(feature = "rabbitmq")]
use posthaste_testkit::services::Rabbitmq;
#[cfg(feature = "redis")]
use posthaste_testkit::services::Redis;
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

    /// On the shared server and a stream of this Redis. Messages come over the outbox. The source is another
    /// one than the sink, with these lines.
    #[cfg(feature = "redis")]
    pub(crate) async fn set_on_redis(
        server: &Redis,
        source: &str,
        consumer: &str,
    ) -> Result<Self, ServiceError> {
        let stream = format!("orders-{}", uuid::Uuid::now_v7().simple());
        let sink = format!("type = \"redis\"\nurl = \"{}\"", server.url());
        let ground = Ground::Shared(TestDatabase::create().await?);
        let rig = Self::on(ground, directory(), Wire::Queue, stream, &sink, consumer).await;
        let source = format!("[sources.queue]\n{sink}\n{source}\n[consumers.billing]");
        rig.reconfigure("[consumers.billing]", &source);
        rig.reconfigure("source = \"broker\"", "source = \"queue\"");
        Ok(rig)
    }

    /// On the shared server and a stream of this Redis, which is read as a log.
    #[cfg(feature = "redis")]
    pub(crate) async fn set_on_redis_log(
        server: &std::sync::Arc<Redis>,
        consumer: &str,
    ) -> Result<Self, ServiceError> {
        let stream = format!("orders-{}", uuid::Uuid::now_v7().simple());
        let sink = format!("type = \"redis\"\nurl = \"{}\"", server.url());
        let ground = Ground::Shared(TestDatabase::create().await?);
        let wire = Wire::Redis(std::sync::Arc::clone(server));
        Ok(Self::on(ground, directory(), wire, stream, &sink, consumer).await)
    }

    /// Appends messages of this type to the outbox, on all keys in turn.
    #[cfg(any(feature = "rabbitmq", feature = "redis"))]
    pub(crate) async fn append(&self, numbers: std::ops::RangeInclusive<i32>, kind: &str) {
        let (topic, first, last) = (&self.topic, numbers.start(), numbers.end());
        self.run(&format!(
            "select count(posthaste.append('{topic}', convert_to(format('{{\"n\": %s}}', n), 'UTF8'), key => 'k' || n % 8,
                                           headers => jsonb_build_object('type', '{kind}')))
               from (select n from generate_series({first}, {last}) n order by n) numbers"
        ))
        .await;
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
