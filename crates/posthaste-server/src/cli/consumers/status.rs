//! What is shown of consumers: on a screen of 80 columns, or as JSON.

use crate::cli::{Context, consumer_admin, explain_act};
use crate::config::{Config, Outbox};
use crate::consumers::{BrokerView, ShownConsumer, ShownPartition};
use crate::output::{Usage, count, escape, plural, table, time};
use posthaste::consumer::admin::{ConsumerPartition, ConsumerProcess, ConsumerStatus};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::ExitCode;

pub(super) async fn run(context: &Context, only: Option<&str>) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let consumers = take(context, &config, only).await?;
    let values = consumers.iter().map(ShownConsumer::json).collect::<Result<Vec<_>, _>>()?;
    context.out().data(&json!({ "consumers": values }), || draw(&consumers))?;
    Ok(ExitCode::SUCCESS)
}

async fn take(context: &Context, config: &Config, only: Option<&str>) -> anyhow::Result<Vec<ShownConsumer>> {
    let outboxes = match only {
        Some(name) => vec![context.outbox_of(config, name)?],
        None => context.outboxes(config)?,
    };
    let mut consumers = Vec::new();
    for outbox in outboxes {
        if only.is_some() || outbox.database.has_consumers() {
            consumers.extend(of_outbox(config, outbox, only).await?);
        }
    }
    match only {
        Some(name) if consumers.is_empty() => {
            Err(Usage(format!("there is no consumer `{name}`: none has left a trace in the inbox")).into())
        }
        _ => Ok(consumers),
    }
}

/// The consumers of one database, each looked at with the login that it has itself. The brokers are asked
/// first: a group's position is never above one that was saved before it was asked for.
async fn of_outbox(
    config: &Config,
    outbox: &Outbox,
    only: Option<&str>,
) -> anyhow::Result<Vec<ShownConsumer>> {
    let admin = consumer_admin(config, outbox, only).await?;
    let mut brokers = BTreeMap::new();
    for setting in config.consumers.iter().filter(|setting| setting.outbox == outbox.name) {
        if only.is_none_or(|name| *setting.name == *name) {
            brokers.insert(setting.name.to_string(), BrokerView::take(setting).await);
        }
    }
    let statuses = admin.consumers(only).await.map_err(|error| explain_act(outbox, error))?;
    let shown = |status: ConsumerStatus| {
        let broker = brokers.remove(&status.consumer).unwrap_or_default();
        ShownConsumer::new(outbox, status, broker)
    };
    Ok(statuses.into_iter().map(shown).collect())
}

fn draw(consumers: &[ShownConsumer]) -> String {
    match consumers {
        [] => "no consumer has run here yet".to_owned(),
        all => all.iter().map(draw_consumer).collect::<Vec<_>>().join("\n\n"),
    }
}

fn draw_consumer(consumer: &ShownConsumer) -> String {
    let ShownConsumer { outbox, status, partitions, broker_error } = consumer;
    let mut head = format!(
        "consumer {}  outbox {outbox}  deferred {}  dead {}",
        escape::line(&status.consumer),
        count(status.deferred),
        count(status.dead)
    );
    if status.paused {
        head.push_str("  paused");
    }
    if let Some(limit) = status.rate_limit {
        head.push_str(&format!("  ≤{limit}/s"));
    }
    let processes: Vec<String> = status.processes.iter().enumerate().map(draw_process).collect();
    let processes = match processes.is_empty() {
        true => "no process has reported".to_owned(),
        false => processes.join("\n"),
    };
    let headers = ["partition", ">position", ">lag", "saved", "state"];
    let rows = partitions.iter().map(|shown| row(status, shown));
    let stopped = partitions.iter().filter_map(|ShownPartition { partition, stopped, .. }| {
        let why = escape::line(stopped.as_deref()?);
        Some(format!("{}/{} is stopped: {why}", escape::line(&partition.topic), partition.partition))
    });
    let foreign = partitions.iter().filter_map(|shown| {
        let ConsumerPartition { topic, partition, .. } = &shown.partition;
        let (topic, theirs) = (escape::line(topic), shown.foreign_position?);
        Some(format!(
            "{topic}/{partition}: the broker's position is {theirs}, not ours.\n  It has no effect. To go elsewhere use `posthaste consumers seek`"
        ))
    });
    let silent = broker_error.iter().map(|why| {
        format!("its broker could not be asked, lag is what its processes said:\n  {}", escape::line(why))
    });
    let notes = stopped.chain(foreign).chain(silent).collect::<Vec<_>>().join("\n");
    let mut parts = vec![head, processes, table(&headers, rows.collect()), notes];
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn draw_process((n, process): (usize, &ConsumerProcess)) -> String {
    let why = process.report["why"].as_str().unwrap_or("no report");
    let (name, seen) = (escape::line(&process.process), time(process.seen_at));
    format!("process #{}  {name}\n  {seen}  {}", n + 1, escape::line(why))
}

fn row(status: &ConsumerStatus, shown: &ShownPartition) -> Vec<String> {
    let ShownPartition { partition, lag, stopped, foreign_position } = shown;
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let owner = partition.owner.as_ref().map(|owner| {
        let place = status.processes.iter().position(|process| process.process == *owner);
        place.map_or_else(|| owner.clone(), |n| format!("#{}", n + 1))
    });
    let state = [
        stopped.is_some().then(|| "stopped".to_owned()),
        foreign_position.is_some().then(|| "foreign".to_owned()),
        Some(owner.unwrap_or_else(|| "free".to_owned())),
        (partition.unclean > 0).then(|| plural(partition.unclean.unsigned_abs().into(), "death")),
        (partition.seeks > 0).then(|| plural(partition.seeks.unsigned_abs(), "seek")),
    ];
    vec![
        format!("{}/{}", partition.topic, partition.partition),
        number(partition.position),
        number(*lag),
        partition.saved_at.map_or_else(|| "never".to_owned(), |at| time(at)[11..].to_owned()),
        state.into_iter().flatten().collect::<Vec<_>>().join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::Timestamp;
    use posthaste::admin::Count;
    use posthaste::source::log::LogPartition;

    #[test]
    fn a_busy_consumer_fits_into_80_columns() {
        let process = ConsumerProcess {
            process: "billing-7d9c5b-x2x4q:12345:ab12cd:billing".to_owned(),
            host: "billing-7d9c5b-x2x4q".to_owned(),
            version: "0.1.0".to_owned(),
            started_at: Timestamp(0),
            seen_at: Timestamp(1_700_000_000_000_000),
            report: json!({
                "why": "waiting for crm", "stopped": [["orders.placed/1", "another log"]],
                "lag": { "orders.placed/0": 7, "orders.placed/1": 9 },
            }),
        };
        let partition = |number| ConsumerPartition {
            topic: "orders.placed".to_owned(),
            partition: number,
            position: Some(123_456_789_012),
            position_time: None,
            saved_at: Some(Timestamp(1_700_000_000_000_000)),
            log_id: None,
            seeks: 1,
            owner: Some(process.process.clone()),
            clean: false,
            unclean: 2,
        };
        let status = ConsumerStatus {
            consumer: "billing".to_owned(),
            paused: true,
            rate_limit: Some(60_000.0),
            deferred: Count { count: 10_000, exact: false },
            oldest_deferred_seconds: Some(7.0),
            dead: Count { count: 12, exact: true },
            partitions: vec![partition(0), partition(1)],
            processes: vec![process.clone()],
        };
        let config = Config::parse(std::path::Path::new("t"), "outbox.url = \"postgres://h/d\"");
        let config = config.map_err(|error| error.to_string()).expect("an outbox");
        let log = LogPartition {
            partition: posthaste::source::Partition::new("orders.placed", 0),
            first: 0,
            end: 123_456_789_112,
            committed: Some(123_456_789_013),
            log_id: None,
        };
        let broker = BrokerView { logs: vec![log], in_hand_max: 8_192, error: Some("no answer".to_owned()) };
        let shown = ShownConsumer::new(&config.outboxes[0], status, broker);
        let json = shown.json().expect("plain");
        let lag = |number: usize| json["partitions"][number]["lag"].as_i64();
        assert_eq!((lag(0), lag(1)), (Some(100), Some(9)), "the broker's word, or else the owner's");
        let foreign = |number: usize| json["partitions"][number]["foreign_position"].as_i64();
        assert_eq!((foreign(0), foreign(1)), (Some(123_456_789_013), None), "beyond ours");
        let text = draw(&[shown]);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?}\n{text}");
        for part in [
            "~10,000",
            "paused",
            "waiting for crm",
            "foreign, #1, 2 deaths, 1 seek",
            "stopped, #1, 2 deaths, 1 seek",
            "013, not ours.",
            "could not be asked",
            "1 is stopped: another log",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }
}
