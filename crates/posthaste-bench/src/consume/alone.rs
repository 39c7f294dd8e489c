//! The clients of the plain logs, read to the end and nothing done with a message: what a consumer of theirs
//! is compared with.

use super::plan::ModePlan;
use anyhow::{Context as _, bail};
use async_nats::jetstream;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures_util::StreamExt as _;
use redis::Value;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Longest time without a message.
const PATIENCE: Duration = Duration::from_secs(60);
/// Entries of one answer, as the source asks for them.
const COUNT: usize = 256;

/// An ordered consumer with its defaults.
pub(super) async fn nats(plan: &ModePlan) -> anyhow::Result<Duration> {
    let context = jetstream::new(async_nats::connect(&plan.brokers).await?);
    let consumer = context.create_consumer_on_stream(OrderedConfig::default(), &plan.topic).await?;
    let mut messages = consumer.messages().await?;
    let mut began = None;
    for _ in 0..plan.messages {
        let message = timeout(PATIENCE, messages.next()).await.context("the stream does not answer")?;
        message.context("the stream ended")??;
        began.get_or_insert_with(Instant::now);
    }
    Ok(began.context("no messages")?.elapsed())
}

/// `XREAD`, each from the last entry of the one before.
pub(super) async fn redis(plan: &ModePlan) -> anyhow::Result<Duration> {
    let client = redis::Client::open(plan.brokers.as_str())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let (mut last, mut read) = ("0-0".to_owned(), 0);
    let began = Instant::now();
    while read < plan.messages {
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(COUNT).arg("STREAMS").arg(&plan.topic).arg(&last);
        let answer: Value = timeout(PATIENCE, command.query_async(&mut connection)).await??;
        let entries = entries(&answer);
        last = entries.last().and_then(id).context("the stream has too few entries")?;
        read += entries.len() as u64;
    }
    if read > plan.messages {
        bail!("the stream has more than {} entries", plan.messages);
    }
    Ok(began.elapsed())
}

/// Those of the only stream in an answer, which is a list of streams, each its name and its entries.
fn entries(answer: &Value) -> &[Value] {
    let Value::Array(streams) = answer else { return &[] };
    let Some(Value::Array(stream)) = streams.first() else { return &[] };
    let Some(Value::Array(entries)) = stream.get(1) else { return &[] };
    entries
}

fn id(entry: &Value) -> Option<String> {
    let Value::Array(parts) = entry else { return None };
    let Some(Value::BulkString(id)) = parts.first() else { return None };
    Some(String::from_utf8_lossy(id).into_owned())
}
