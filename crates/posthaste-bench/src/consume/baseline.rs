//! What a consumer is compared with: the broker's client alone, the database alone, and the loop that one
//! writes by hand.

use super::effects::message;
use super::plan::ModePlan;
use crate::load::{Load, Spread, number};
use crate::yard::kafka::KafkaYard;
use anyhow::Context as _;
use posthaste_postgres::connect;
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers as _};
use std::time::{Duration, Instant};
use tokio_postgres::Client;
use uuid::Uuid;

/// Longest time without a message.
const PATIENCE: Duration = Duration::from_secs(60);
/// As many as a consumer's transaction has at most.
const BATCH: u64 = 64;
/// The loop by hand writes its offsets after so many messages.
const OFFSETS_EVERY: u64 = 500;

fn yard(plan: &ModePlan) -> KafkaYard {
    KafkaYard::new(&plan.brokers, &plan.topic, plan.partitions)
}

async fn client(plan: &ModePlan) -> anyhow::Result<Client> {
    let client = connect(&plan.postgres()).await?;
    client.batch_execute("set synchronous_commit = on").await?;
    Ok(client)
}

/// The broker's client alone: every message once, and nothing done with it.
pub(super) fn read(plan: &ModePlan) -> anyhow::Result<Duration> {
    let consumer: BaseConsumer = yard(plan).reader()?;
    let mut began = None;
    for _ in 0..plan.messages {
        consumer.poll(PATIENCE).context("the topic does not answer")??;
        began.get_or_insert_with(Instant::now);
    }
    Ok(began.context("no messages")?.elapsed())
}

/// Marks and effects of the same messages, without a broker: two statements for 64 of them.
pub(super) async fn insert(plan: &ModePlan) -> anyhow::Result<Duration> {
    let (mut client, schema) = (client(plan).await?, plan.quoted_schema());
    let mark = format!(
        "insert into {schema}.inbox (consumer, message_id, topic, partition, position)
         select $1, id, $2, 0, position from unnest($3::text[], $4::bigint[]) m (id, position)"
    );
    let effect =
        format!("insert into {schema}.effects (key, number) select * from unnest($1::text[], $2::bigint[])");
    let (mark, effect) = (client.prepare(&mark).await?, client.prepare(&effect).await?);
    let load = Load::new(0, plan.keys, Spread::Zipf);
    let source = "bench".into();
    let began = Instant::now();
    for from in (0..plan.messages).step_by(BATCH as usize) {
        let events = (from..plan.messages.min(from + BATCH)).map(|n| message(&load, n, &source).stored.event);
        let (ids, keys): (Vec<String>, Vec<Option<String>>) =
            events.map(|event| (event.id.to_string(), event.key)).unzip();
        let numbers: Vec<i64> = (from..).map(|number| number as i64).take(ids.len()).collect();
        let tx = client.transaction().await?;
        tx.execute(&mark, &[&plan.consumer, &plan.topic, &ids, &numbers]).await?;
        tx.execute(&effect, &[&keys, &numbers]).await?;
        tx.commit().await?;
    }
    Ok(began.elapsed())
}

/// The loop by hand: a message, a transaction with its key and its effect, and offsets now and then.
pub(super) async fn seed(plan: &ModePlan) -> anyhow::Result<Duration> {
    let (mut client, schema) = (client(plan).await?, plan.quoted_schema());
    let key = format!("insert into {schema}.seed_keys (id) values ($1) on conflict do nothing");
    let effect = format!("insert into {schema}.effects (key, number) values ($1, $2)");
    let (key, effect) = (client.prepare(&key).await?, client.prepare(&effect).await?);
    let consumer: StreamConsumer = yard(plan).reader()?;
    let mut began = None;
    for handled in 1..=plan.messages {
        let record =
            tokio::time::timeout(PATIENCE, consumer.recv()).await.context("the topic does not answer")??;
        began.get_or_insert_with(Instant::now);
        let id = id_of(&record).context("a message without an id")?;
        let tx = client.transaction().await?;
        if tx.execute(&key, &[&id]).await? == 1 {
            let number = number(Uuid::try_parse(id)?) as i64;
            tx.execute(&effect, &[&std::str::from_utf8(record.key().unwrap_or_default())?, &number]).await?;
        }
        tx.commit().await?;
        if handled % OFFSETS_EVERY == 0 {
            consumer.commit_consumer_state(CommitMode::Async)?;
        }
    }
    Ok(began.context("no messages")?.elapsed())
}

fn id_of<'a>(record: &'a BorrowedMessage<'_>) -> Option<&'a str> {
    let headers = record.headers()?;
    let id = headers.iter().find(|header| header.key == "Message-ID")?;
    std::str::from_utf8(id.value?).ok()
}
