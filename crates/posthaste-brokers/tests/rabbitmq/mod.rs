//! RabbitMQ.
//!
//! One broker serves all tests but those that kill or block it. Each test makes queues and exchanges of its
//! own name. They are made and read by another client (lapin), which shares no code with the sink.

mod calls;
mod canary;
mod conformance;
mod examine;
mod fake;
mod login;
mod odd;
mod outage;
mod source;
mod source_order;
mod source_outage;
mod source_refused;
mod tls;
mod topology;
mod verdicts;

use crate::ground::load::{Copy, Load};
use crate::ground::login::*;
use crate::ground::*;
use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use posthaste::event::Event;
use posthaste::sink::{Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_brokers::rabbitmq::RabbitmqConfig;
use posthaste_testkit::services::{Rabbitmq, ServiceError, shared_rabbitmq as shared};
use std::sync::Arc;
use std::time::Duration;

/// The shared broker's `max_message_size`.
const BYTES_MAX: usize = 6_000_000;

/// A client that looks at a broker from outside.
struct Bed {
    url: String,
    // Its channel lives as long as it does.
    _connection: Connection,
    channel: Channel,
}

impl Bed {
    /// On the broker of all tests.
    async fn open() -> Result<Self, ServiceError> {
        Ok(Self::on(shared().await?).await)
    }

    async fn on(server: &Rabbitmq) -> Self {
        let (connection, channel) = connect(&server.url()).await;
        Self { url: server.url(), _connection: connection, channel }
    }

    fn config(&self) -> RabbitmqConfig {
        RabbitmqConfig::new(&self.url)
    }

    async fn sink(&self) -> Arc<dyn Sink> {
        build(self.config()).await
    }

    /// A durable queue with a name of its own: the destination of that name.
    async fn queue(&self) -> String {
        let name = unique("q");
        self.queue_with(&name, FieldTable::default()).await;
        name
    }

    async fn queue_with(&self, name: &str, arguments: FieldTable) {
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(name.into(), durable, arguments).await.expect("a queue");
    }

    async fn delete_queue(&self, name: &str) {
        self.channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.expect("deleted");
    }

    /// A durable topic exchange.
    async fn exchange(&self, name: &str) {
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let declared =
            self.channel.exchange_declare(name.into(), ExchangeKind::Topic, durable, FieldTable::default());
        declared.await.expect("an exchange");
    }

    async fn delete_exchange(&self, name: &str) {
        self.channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await.expect("deleted");
    }

    async fn bind(&self, queue: &str, exchange: &str, key: &str) {
        let bound = self.channel.queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.expect("bound");
    }

    /// What is in a queue, in order. It is taken out.
    async fn take(&self, queue: &str) -> Vec<BasicGetMessage> {
        take(&self.channel, queue).await
    }

    /// Waits until this many messages are in a queue.
    async fn until_holds(&self, queue: &str, count: u32) {
        let started = std::time::Instant::now();
        while self.count(queue).await < count {
            assert!(started.elapsed() < DEADLINE, "not within {DEADLINE:?}");
            tokio::task::yield_now().await;
        }
    }

    async fn count(&self, queue: &str) -> u32 {
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let found = self.channel.queue_declare(queue.into(), passive, FieldTable::default()).await;
        found.expect("the queue is there").message_count()
    }

    async fn take_copies(&self, queue: &str) -> Vec<Copy> {
        let copy = |message: BasicGetMessage| Copy {
            id: id(&message),
            key: header(&message, "key"),
            payload: message.delivery.data.clone(),
        };
        self.take(queue).await.into_iter().map(copy).collect()
    }

    async fn take_ids(&self, queue: &str) -> Vec<String> {
        self.take(queue).await.iter().map(id).collect()
    }
}

/// A queue that takes this many messages and refuses more.
fn reject_above(count: i32) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(count));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    arguments
}

/// Stops the process of a queue: it takes messages in and does not answer.
async fn suspend(server: &Rabbitmq, queue: &str) {
    server.eval(&format!("ok = sys:suspend({})", queue_pid(queue))).await.expect("suspended");
}

async fn resume(server: &Rabbitmq, queue: &str) {
    server.eval(&format!("ok = sys:resume({})", queue_pid(queue))).await.expect("resumed");
}

/// Waits until a message lies before the suspended process of a queue.
async fn until_unanswered(server: &Rabbitmq, queue: &str) {
    let length = format!(
        "{{message_queue_len, N}} = erlang:process_info({}, message_queue_len), N > 0",
        queue_pid(queue)
    );
    let started = std::time::Instant::now();
    while server.eval(&length).await.expect("an answer") != "{ok, true}" {
        assert!(started.elapsed() < DEADLINE, "nothing came");
    }
}

fn queue_pid(queue: &str) -> String {
    format!(
        "amqqueue:get_pid(element(2, rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<{queue:?}>>))))"
    )
}

async fn connect(url: &str) -> (Connection, Channel) {
    let connected = Connection::connect(&format!("{url}/%2f"), ConnectionProperties::default()).await;
    let connection = connected.expect("the test's own client connects");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

async fn take(channel: &Channel, queue: &str) -> Vec<BasicGetMessage> {
    let mut taken = Vec::new();
    while let Some(message) =
        channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.expect("an answer")
    {
        taken.push(message);
    }
    taken
}

fn unique(what: &str) -> String {
    format!("{what}-{}", uuid::Uuid::now_v7().simple())
}

fn id(message: &BasicGetMessage) -> String {
    message.delivery.properties.message_id().as_ref().expect("an id").to_string()
}

fn header(message: &BasicGetMessage, name: &str) -> Option<String> {
    match message.delivery.properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        other => panic!("{name} is {other:?}"),
    }
}

async fn build(config: RabbitmqConfig) -> Arc<dyn Sink> {
    SinkConfig::Rabbitmq(Box::new(config)).build("test").await.expect("a valid configuration")
}

fn sized(destination: &str, bytes: usize) -> Message {
    message(destination, Event::new("orders.placed", vec![b'x'; bytes]))
}

/// Connected means that the server answers: there is no such queue, and that is what it says.
async fn assert_gets_in(config: RabbitmqConfig) {
    let verdict = publish_one(&build(config).await, loose("nowhere")).await;
    assert_seen(&verdict, "retry", "rabbitmq.unroutable", Scope::Destination);
}
