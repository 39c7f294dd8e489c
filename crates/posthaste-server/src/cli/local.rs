//! `posthaste local`: look into a local broker, and send a group its history again.

use super::Context;
use super::place::seek_to;
use crate::config::SinkConfig;
use crate::output::{Usage, table};
use clap::{Args, Subcommand};
use posthaste::source::SeekTo;
use posthaste_sqlite::broker::{Broker, BrokerConfig, StoredMessage};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  posthaste local topics                       what there is
  posthaste local groups                       who has read how far
  posthaste local read orders.placed --limit 5
  posthaste local seek billing orders.placed --to earliest
  posthaste local topics --path broker.db      a file without a configuration

The local broker is a sink of type \"local\": topics, groups and positions in one
SQLite file.";

const READ_EXAMPLES: &str = "\
Examples:
  posthaste local read orders.placed
  posthaste local read orders.placed --partition 2 --from 100 --limit 5
  posthaste local read orders.placed --json | jq .payload

Reading moves nobody's position.";

const SEEK_EXAMPLES: &str = "\
Examples:
  posthaste local seek billing orders.placed --to earliest
  posthaste local seek billing orders.placed --partition 2 --to position:100
  posthaste local seek billing orders.placed --to time:2026-11-15T08:00:00Z

The group goes on there, whether or not consumers run: what they have in hand is
given to them again. With `latest` it skips what it has not read. Its inbox knows
what it has done already, for as long as it keeps its marks.";

/// Look into a local broker
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LocalArgs {
    #[command(subcommand)]
    act: LocalAct,
    /// The broker's file, instead of the one in the configuration
    #[arg(long, global = true, value_name = "FILE")]
    path: Option<PathBuf>,
    /// Which sink, where several are local
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "path")]
    sink: Option<String>,
}

#[derive(Debug, Subcommand)]
enum LocalAct {
    /// List topics
    Topics,
    /// List groups, their positions and their lag
    Groups,
    /// Print messages of a topic
    #[command(after_help = READ_EXAMPLES)]
    Read {
        /// The topic
        topic: String,
        /// Only this partition
        #[arg(long, value_name = "NUMBER")]
        partition: Option<i32>,
        /// From this position on
        #[arg(long, value_name = "POSITION", default_value_t = 0)]
        from: i64,
        /// At most so many of each partition
        #[arg(long, value_name = "COUNT", default_value_t = 20)]
        limit: usize,
    },
    /// Move a group to another place
    #[command(after_help = SEEK_EXAMPLES)]
    Seek {
        /// The group
        group: String,
        /// The topic
        topic: String,
        /// Only this partition
        #[arg(long, value_name = "NUMBER")]
        partition: Option<i32>,
        /// earliest, latest, position:NUMBER or time:RFC3339
        #[arg(long, value_parser = seek_to)]
        to: SeekTo,
    },
}

pub(crate) async fn run(context: &Context, args: LocalArgs) -> anyhow::Result<ExitCode> {
    let broker = open(context, &args)?;
    match args.act {
        LocalAct::Topics => topics(context, &broker).await?,
        LocalAct::Groups => groups(context, &broker).await?,
        LocalAct::Read { topic, partition, from, limit } => {
            for number in numbers(&broker, &topic, partition).await? {
                for stored in broker.read(&topic, number, from, limit).await? {
                    let line = line(&topic, number, &stored);
                    context.out().data(&line, || line.to_string())?;
                }
            }
        }
        LocalAct::Seek { group, topic, partition, to } => {
            for number in numbers(&broker, &topic, partition).await? {
                if let Some(position) = broker.seek(&group, &topic, number, to).await? {
                    let sought =
                        json!({ "group": group, "topic": topic, "partition": number, "position": position });
                    context.out().data(&sought, || {
                        format!("{group} goes on at position {position} of {topic}/{number}")
                    })?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The broker's file: the one that was named, or that of the only local sink.
fn open(context: &Context, args: &LocalArgs) -> anyhow::Result<Arc<Broker>> {
    let config = match &args.path {
        Some(path) => BrokerConfig::new(path),
        None => configured(context, args.sink.as_deref())?,
    };
    // Looking makes nothing.
    Ok(Broker::open(BrokerConfig { create: false, ..config })?)
}

fn configured(context: &Context, sink: Option<&str>) -> anyhow::Result<BrokerConfig> {
    let config = context.config()?;
    let mut local = config.sinks.iter().filter_map(|setting| match &setting.config {
        SinkConfig::Local(local) if sink.is_none_or(|name| *name == *setting.name) => Some(local),
        _ => None,
    });
    match (local.next(), local.next()) {
        (Some(only), None) => only.broker().map_err(|(option, why)| Usage(format!("{option}: {why}")).into()),
        (None, _) => Err(Usage(
            "there is no such sink of type \"local\" in the configuration; name the file with --path"
                .to_owned(),
        )
        .into()),
        (Some(_), Some(_)) => {
            Err(Usage("several sinks are local; choose one with --sink NAME".to_owned()).into())
        }
    }
}

async fn topics(context: &Context, broker: &Broker) -> anyhow::Result<()> {
    let topics = broker.topics().await?;
    let row = |topic: &posthaste_sqlite::broker::TopicView| {
        let messages: i64 = topic.partitions.iter().map(|(first, next)| next - first).sum();
        let count = topic.partitions.len().to_string();
        vec![
            topic.name.clone(),
            count,
            messages.to_string(),
            topic.bytes.to_string(),
            topic.created_at.rfc3339(),
        ]
    };
    context.out().data(&topics, || match topics.is_empty() {
        true => "no topic is there yet: a topic is made when a message is published to it".to_owned(),
        false => {
            table(&["topic", "partitions", "messages", "bytes", "made at"], topics.iter().map(row).collect())
        }
    })?;
    Ok(())
}

async fn groups(context: &Context, broker: &Broker) -> anyhow::Result<()> {
    let groups = broker.groups().await?;
    let row = |group: &posthaste_sqlite::broker::GroupView| {
        vec![
            group.group.clone(),
            format!("{}/{}", group.topic, group.partition),
            group.committed.to_string(),
            (group.next - group.committed).to_string(),
            group.owner.clone().unwrap_or_else(|| "-".to_owned()),
            group.epoch.to_string(),
        ]
    };
    let headers = ["group", "partition", "position", "lag", "owner", "epoch"];
    context.out().data(&groups, || match groups.is_empty() {
        true => "no group has read here yet".to_owned(),
        false => table(&headers, groups.iter().map(row).collect()),
    })?;
    Ok(())
}

/// The partitions that are meant.
async fn numbers(broker: &Broker, topic: &str, partition: Option<i32>) -> anyhow::Result<Vec<i32>> {
    let topics = broker.topics().await?;
    let Some(known) = topics.iter().find(|known| known.name == topic) else {
        return Err(Usage(format!("there is no topic {topic:?}; `posthaste local topics` lists them")).into());
    };
    let count = i32::try_from(known.partitions.len()).unwrap_or(i32::MAX);
    match partition {
        Some(number) if !(0..count).contains(&number) => {
            Err(Usage(format!("{topic} has the partitions 0 to {}", count - 1)).into())
        }
        Some(number) => Ok(vec![number]),
        None => Ok((0..count).collect()),
    }
}

/// A message as one line of JSON: text where it is text, base16 where it is not.
fn line(topic: &str, partition: i32, stored: &StoredMessage) -> Value {
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
    };
    let message = &stored.message;
    let headers: serde_json::Map<String, Value> =
        message.headers.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    json!({
        "topic": topic,
        "partition": partition,
        "position": stored.position,
        "published_at": stored.published_at.rfc3339(),
        "id": message.id,
        "key": message.key.as_deref().map(text),
        "headers": headers,
        "payload": message.payload.as_deref().map(text),
    })
}
