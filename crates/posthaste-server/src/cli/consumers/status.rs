//! `consumers status`: all databases are asked at once, and one that is away hides no other.

use crate::cli::{Context, consumer_admin, explain_act, looks};
use crate::config::{Config, Outbox};
use crate::consumers::{BrokerView, ShownConsumer, draw};
use crate::output::Usage;
use crate::picture::draw_unreachable;
use posthaste::consumer::admin::ConsumerStatus;
use serde_json::json;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

pub(super) async fn run(context: &Context, only: Option<&str>) -> anyhow::Result<ExitCode> {
    let config = Arc::new(context.config()?);
    let outboxes = match only {
        Some(name) => vec![context.outbox_of(&config, name)?],
        None => context.outboxes(&config)?,
    };
    if let (Some(_), [outbox]) = (only, &outboxes[..])
        && !outbox.database.has_consumers()
    {
        // It says why there can be none.
        consumer_admin(&config, outbox, only).await?;
    }
    let outboxes: Vec<Outbox> =
        outboxes.into_iter().filter(|outbox| outbox.database.has_consumers()).cloned().collect();
    let look = |outbox: &Outbox| {
        let (config, outbox, only) = (Arc::clone(&config), outbox.clone(), only.map(str::to_owned));
        async move { of_outbox(&config, &outbox, only.as_deref()).await }
    };
    let found = looks::at_once(outboxes.iter().map(look)).await;
    let (mut consumers, mut unreachable) = (Vec::new(), BTreeMap::new());
    for (outbox, found) in outboxes.iter().zip(found) {
        match found {
            Ok(found) => consumers.extend(found),
            Err(why) => _ = unreachable.insert(outbox.name.to_string(), why),
        }
    }
    show(context, &consumers, &unreachable, outboxes.len(), only)
}

fn show(
    context: &Context,
    consumers: &[ShownConsumer],
    unreachable: &BTreeMap<String, String>,
    asked: usize,
    only: Option<&str>,
) -> anyhow::Result<ExitCode> {
    // Where there is nothing to show, the reasons are an error like any other.
    if asked > 0 && unreachable.len() == asked && !context.out().json {
        anyhow::bail!("{}", unreachable.values().map(String::as_str).collect::<Vec<_>>().join("\n"));
    }
    if let (Some(name), [], true) = (only, consumers, unreachable.is_empty()) {
        return Err(
            Usage(format!("there is no consumer `{name}`: none has left a trace in the inbox")).into()
        );
    }
    context.out().data(&json!({ "consumers": consumers, "unreachable": unreachable }), || {
        let mut parts: Vec<String> = consumers.iter().map(draw::draw).collect();
        parts.extend(unreachable.iter().map(|(outbox, why)| draw_unreachable(outbox, why)));
        if parts.is_empty() { "no consumer has run here yet".to_owned() } else { parts.join("\n\n") }
    })?;
    Ok(if unreachable.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The consumers of one database, each looked at with the login that it has itself. The brokers are asked
/// first: a group's position is never above one that was saved before it was asked for. They have bounds of
/// their own.
async fn of_outbox(
    config: &Config,
    outbox: &Outbox,
    only: Option<&str>,
) -> Result<Vec<ShownConsumer>, String> {
    // One that is away need not be compared with brokers.
    let admin = looks::within(outbox, consumer_admin(config, outbox, only)).await?;
    let mut brokers = BTreeMap::new();
    for setting in config.consumers.iter().filter(|setting| setting.outbox == outbox.name) {
        if only.is_none_or(|name| *setting.name == *name) {
            brokers.insert(setting.name.to_string(), BrokerView::take(setting).await);
        }
    }
    let look = async { admin.consumers(only).await.map_err(|error| explain_act(outbox, error)) };
    let statuses = looks::within(outbox, look).await?;
    let shown = |status: ConsumerStatus| {
        let broker = brokers.remove(&status.consumer).unwrap_or_default();
        ShownConsumer::new(outbox, status, broker)
    };
    Ok(statuses.into_iter().map(shown).collect())
}
