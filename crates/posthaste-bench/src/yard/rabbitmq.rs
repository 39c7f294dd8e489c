//! RabbitMQ in a measurement: makes the queue, counts what is in it, reads every id.
//!
//! Everything here is lapin, the usual client, and nothing of the sink's: another reader of the same
//! protocol. The client alone is lapin too: persistent, mandatory, confirmed, a window of confirmations, each
//! awaited.
//!
//! A queue bears no description. So the measurement declares an exchange of the queue's name as a mark, and a
//! queue without that mark is somebody's, and refused.

use super::{Arrived, Yard, YardError, YardResult};
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, ExchangeKind,
};
use posthaste::envelope::AMQP_BINDING;
use posthaste::sink::Message;
use posthaste::task::{Task, spawn};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};
use tokio::time::timeout;
use uuid::Uuid;

/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Confirmations that the client alone awaits at once: more do not make it faster.
const WINDOW: usize = 1_000;
const MARK: &str = "posthaste-bench-mark";

/// A broker, seen from outside.
pub(crate) async fn open(url: &str, destination: &str) -> YardResult<Box<dyn Yard>> {
    open_with(url, destination, FieldTable::default()).await
}

/// The same with a queue that a consumer can keep an order in.
pub(crate) async fn open_ordered(url: &str, destination: &str) -> YardResult<Box<dyn Yard>> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    open_with(url, destination, arguments).await
}

async fn open_with(url: &str, destination: &str, arguments: FieldTable) -> YardResult<Box<dyn Yard>> {
    let connected = Connection::connect(url, ConnectionProperties::default());
    let connection = timeout(PATIENCE, connected).await.map_err(YardError::new)?.map_err(YardError::new)?;
    Ok(Box::new(RabbitYard { url: url.to_owned(), queue: destination.to_owned(), arguments, connection }))
}

struct RabbitYard {
    url: String,
    queue: String,
    /// What the queue is declared with.
    arguments: FieldTable,
    connection: Connection,
}

#[async_trait]
impl Yard for RabbitYard {
    fn sink(&self) -> Map<String, Value> {
        // The default exchange: the destination is the queue's name, whatever is in it.
        let options = [("type", "rabbitmq"), ("url", &self.url), ("exchange", "")];
        options.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
    }

    async fn clear(&mut self, _window: Option<Duration>) -> YardResult<()> {
        if self.length().await.is_ok() {
            self.remove().await?;
        }
        let channel = self.channel().await?;
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let mark = channel.exchange_declare(
            self.mark().into(),
            ExchangeKind::Fanout,
            durable,
            FieldTable::default(),
        );
        mark.await.map_err(YardError::new)?;
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        let declared = channel.queue_declare(self.queue.as_str().into(), durable, self.arguments.clone());
        declared.await.map(drop).map_err(YardError::new)
    }

    async fn count(&mut self) -> YardResult<u64> {
        self.length().await
    }

    /// Reads without acknowledging: what was read goes back to its place when the channel is closed.
    async fn read_all(&mut self, seen: &mut (dyn FnMut(Uuid) + Send)) -> YardResult<()> {
        let count = self.length().await?;
        let channel = self.channel().await?;
        let mut consumer = self.consume(&channel, false).await?;
        for _ in 0..count {
            let next = timeout(PATIENCE, consumer.next()).await.map_err(YardError::new)?;
            let delivery = next.ok_or_else(|| YardError::new("the queue ended"))?.map_err(YardError::new)?;
            seen(id(&delivery.properties).ok_or_else(|| YardError::new("a message without an id"))?);
        }
        channel.close(200, "read".into()).await.map_err(YardError::new)?;
        self.until_back(count).await
    }

    async fn follow(self: Box<Self>, mut arrived: Arrived) -> YardResult<Task<()>> {
        let channel = self.channel().await?;
        let mut consumer = self.consume(&channel, true).await?;
        Ok(spawn("bench witness", async move {
            // The consumer lives as long as its connection.
            let _connection = self.connection;
            while let Some(Ok(delivery)) = consumer.next().await {
                if let Some(id) = id(&delivery.properties) {
                    arrived(id, Instant::now());
                }
            }
        }))
    }

    async fn client_alone(&mut self, messages: &[Message]) -> YardResult<Duration> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default());
        let connection = connection.await.map_err(YardError::new)?;
        let channel = connection.create_channel().await.map_err(YardError::new)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(YardError::new)?;
        let started = Instant::now();
        let mut confirmations = FuturesOrdered::new();
        for message in messages {
            if confirmations.len() >= WINDOW {
                stored(confirmations.next().await)?;
            }
            let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
            let payload = message.payload.clone().unwrap_or_default();
            let sent = channel.basic_publish(
                "".into(),
                message.destination.as_str().into(),
                mandatory,
                &payload,
                properties(message),
            );
            confirmations.push_back(sent.await.map_err(YardError::new)?);
        }
        while let Some(confirmation) = confirmations.next().await {
            stored(Some(confirmation))?;
        }
        Ok(started.elapsed())
    }

    async fn remove(&mut self) -> YardResult<()> {
        let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
        let channel = self.channel().await?;
        let mark = channel.exchange_declare(
            self.mark().into(),
            ExchangeKind::Fanout,
            passive,
            FieldTable::default(),
        );
        if mark.await.is_err() {
            let text = format!(
                "there is a queue {:?} that was not made by `posthaste-bench`: rename it first",
                self.queue
            );
            return Err(YardError(text));
        }
        let deleted = channel.queue_delete(self.queue.as_str().into(), QueueDeleteOptions::default());
        deleted.await.map_err(YardError::new)?;
        let deleted = channel.exchange_delete(self.mark().into(), ExchangeDeleteOptions::default());
        deleted.await.map_err(YardError::new)
    }

    fn evidence(&self) -> &'static str {
        "every message's message_id read from the queue"
    }
}

impl RabbitYard {
    fn mark(&self) -> String {
        format!("{MARK}.{}", self.queue)
    }

    async fn channel(&self) -> YardResult<Channel> {
        self.connection.create_channel().await.map_err(YardError::new)
    }

    /// How many messages are ready. An error means that there is no such queue: the question costs a channel.
    async fn length(&self) -> YardResult<u64> {
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let channel = self.channel().await?;
        let found = channel.queue_declare(self.queue.as_str().into(), passive, FieldTable::default());
        found.await.map(|queue| queue.message_count().into()).map_err(YardError::new)
    }

    /// Waits until what was read is back.
    async fn until_back(&self, count: u64) -> YardResult<()> {
        let started = Instant::now();
        while self.length().await? < count {
            if started.elapsed() > PATIENCE {
                return Err(YardError::new("what was read from the queue did not come back"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await; // pace
        }
        Ok(())
    }

    async fn consume(&self, channel: &Channel, no_ack: bool) -> YardResult<Consumer> {
        let options = BasicConsumeOptions { no_ack, ..Default::default() };
        let consumer =
            channel.basic_consume(self.queue.as_str().into(), "".into(), options, FieldTable::default());
        consumer.await.map_err(YardError::new)
    }
}

fn id(properties: &BasicProperties) -> Option<Uuid> {
    Uuid::try_parse(properties.message_id().as_ref()?.as_str()).ok()
}

/// What the sink sends, made by the client's own means.
fn properties(message: &Message) -> BasicProperties {
    let mut headers = FieldTable::default();
    message.each_header_for(AMQP_BINDING, |name, value| {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    });
    BasicProperties::default()
        .with_message_id(message.id().into())
        .with_delivery_mode(2)
        .with_headers(headers)
        .with_type(message.stored.event.event_type().into())
        .with_app_id((&*message.source).into())
        .with_timestamp(message.stored.appended_at.0.unsigned_abs() / 1_000_000)
}

fn stored(confirmation: Option<lapin::Result<Confirmation>>) -> YardResult<()> {
    match confirmation {
        None | Some(Ok(Confirmation::Ack(None))) => Ok(()),
        Some(Ok(other)) => Err(YardError(format!(
            "a message was not taken: {}",
            if other.is_nack() { "nack" } else { "returned" }
        ))),
        Some(Err(error)) => Err(YardError::new(error)),
    }
}
