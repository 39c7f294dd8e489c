//! Moving a consumer's partition to another place.

use super::{ask_source, setting};
use crate::cli::place::seek_to;
use crate::cli::{Context, consumer_admin, explain_act};
use crate::config::Config;
use crate::output::{Usage, remark};
use clap::Args;
use posthaste::source::{Partition, SeekTo, SourceError};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct SeekArgs {
    /// The consumer
    #[arg(value_name = "NAME")]
    consumer: String,
    /// The topic
    #[arg(long)]
    topic: String,
    /// The partition
    #[arg(long, value_name = "NUMBER")]
    partition: i32,
    /// earliest, latest, position:NUMBER, or a time (also 2h)
    #[arg(long, value_name = "PLACE", value_parser = seek_to)]
    to: SeekTo,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub(super) async fn run(context: &Context, args: SeekArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox_of(&config, &args.consumer)?;
    let partition = Partition::new(args.topic.as_str(), args.partition);
    let (to, log_id) = place(&config, &args, &partition).await?;
    let admin = consumer_admin(&config, outbox, Some(&args.consumer)).await?;
    let known = admin.consumers(Some(&args.consumer)).await.map_err(|error| explain_act(outbox, error))?;
    let is_known = |row: &posthaste::consumer::admin::ConsumerPartition| {
        row.topic == *partition.topic && row.partition == partition.number
    };
    if !known.iter().any(|status| status.partitions.iter().any(is_known)) {
        let why = "it never had it. `posthaste consumers` shows the partitions that it has";
        return Err(Usage(format!("consumer `{}` has no partition {partition}: {why}", args.consumer)).into());
    }
    let actor = context.actor(&args.reason);
    let moved = admin.seek(&args.consumer, &partition, to, log_id.as_deref(), &actor).await;
    moved.map_err(|error| explain_act(outbox, error))?;
    let answer = json!({ "consumer": args.consumer, "topic": args.topic, "partition": args.partition, "position": to });
    let text = format!("{} goes on at position {to} of {partition}", args.consumer);
    context.out().acted(answer, Some(&actor), || text).map(|()| ExitCode::SUCCESS)
}

/// The position, and which log it belongs to. A position that is given needs no broker: whoever reads there
/// next knows the log.
async fn place(
    config: &Config,
    args: &SeekArgs,
    partition: &Partition,
) -> anyhow::Result<(i64, Option<String>)> {
    let given = if let SeekTo::Position(position) = args.to { Some(position) } else { None };
    let setting = match (setting(config, &args.consumer), given) {
        (Ok(setting), _) => setting,
        (Err(_), Some(position)) => return Ok((position, None)),
        (Err(error), None) => return Err(error),
    };
    let found = async {
        let reader = crate::source::reader(setting)?;
        let logs = reader.survey(std::slice::from_ref(&args.topic)).await?;
        let none = || SourceError::Fatal(format!("there is no partition {partition}"));
        let log = logs.into_iter().find(|log| log.partition == *partition).ok_or_else(none)?;
        Ok((log.position(&*reader, args.to).await?, log))
    };
    match (found.await, given) {
        (Ok((position, log)), _) => {
            if !(log.first..=log.end).contains(&position) {
                let (first, end) = (log.first, log.end);
                remark(&format!(
                    "{partition} has positions {first} to {end} now: {position} is none of them"
                ));
            }
            Ok((position, log.log_id.map(|id| id.to_string())))
        }
        // A broker that is away may be asked later. One without positions will never have this one.
        (Err(error @ SourceError::Unsupported(_)), _) => Err(ask_source(setting, &error)),
        (Err(_), Some(position)) => Ok((position, None)),
        (Err(error), None) => Err(ask_source(setting, &error)),
    }
}
