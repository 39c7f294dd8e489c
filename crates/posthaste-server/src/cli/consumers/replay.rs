//! `consumers replay`: a range of a topic once more, chunk by chunk, no faster than it was asked for.
//!
//! Ctrl-C stops between two chunks. What was copied is handled and audited, and the command says where to go
//! on.

use super::{ask_source, setting};
use crate::cli::headers::HeaderArgs;
use crate::cli::place::seek_to;
use crate::cli::{Context, consumer_admin, explain_act, rate};
use crate::output::{Usage, plural, remark, table, thousands};
use clap::Args;
use posthaste::admin::Actor;
use posthaste::clock::SystemClock;
use posthaste::consumer::Filter;
use posthaste::consumer::range::{RangeError, RangeFilter, RangeReplay, Span, WAITING_MAX};
use posthaste::source::SeekTo;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How often it is looked whether some of those that wait were handled.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// The consumer
    #[arg(value_name = "NAME")]
    consumer: String,
    /// The topic
    #[arg(long)]
    topic: String,
    /// Only this partition
    #[arg(long, value_name = "NUMBER")]
    partition: Option<i32>,
    /// From here on: a time (also 2h), position:NUMBER or earliest
    #[arg(long, value_name = "PLACE", value_parser = seek_to)]
    from: SeekTo,
    /// Up to here, and not with it; never beyond the saved position
    #[arg(long, value_name = "PLACE", value_parser = seek_to, default_value = "latest")]
    to: SeekTo,
    /// Only this key
    #[arg(long)]
    key: Option<String>,
    /// Only this type, exact or with a last *
    #[arg(long = "type", value_name = "PATTERN")]
    kind: Option<String>,
    /// Also what is done: it is handled once more
    #[arg(long)]
    repeat: bool,
    #[command(flatten)]
    headers: HeaderArgs,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Only read and count
    #[arg(long)]
    dry_run: bool,
    /// Messages in one transaction
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    chunk: u16,
    /// At most this many messages a second, like 100/s
    #[arg(long, value_name = "N/s", value_parser = rate)]
    rate: Option<f64>,
}

pub(super) async fn run(context: &Context, args: ReplayArgs) -> anyhow::Result<ExitCode> {
    let config = context.config()?;
    let outbox = context.outbox_of(&config, &args.consumer)?;
    let setting = setting(&config, &args.consumer)?;
    let explain = |error: RangeError| match error {
        RangeError::Source(error) => ask_source(setting, &error),
        RangeError::Admin(error) => explain_act(outbox, error),
        RangeError::Refused(why) => Usage(why).into(),
    };
    let replay = RangeReplay {
        consumer: args.consumer.clone(),
        admin: consumer_admin(&config, outbox, Some(&args.consumer)).await?,
        reader: crate::source::reader(setting).map_err(|error| ask_source(setting, &error))?,
        filter: RangeFilter {
            key: args.key.clone(),
            types: args.kind.as_ref().map_or_else(Filter::default, |kind| Filter::types([kind])),
            handlers: setting.handlers().map(|(filter, _)| filter).collect(),
            identity: setting.identity(),
            order: setting.own.order,
        },
        repeat: args.repeat,
        headers: args.headers.kept(&config, &args.consumer)?,
        marks_days: setting.settings.retention.marks_days,
    };
    let mut spans =
        replay.plan(&SystemClock, &args.topic, args.partition, args.from..args.to).await.map_err(explain)?;
    for Span { place, from, gone_from, .. } in &spans {
        if let Some(gone) = gone_from {
            remark(&format!("{place}: positions {gone} to {} are gone from the broker", from - 1));
        }
    }
    let actor = context.actor(args.reason.as_deref().unwrap_or_default());
    let actor = (!args.dry_run).then_some(&actor);
    let stopped = match copy(&replay, &args, &mut spans, actor).await {
        Ok(stopped) => stopped,
        Err(error) => {
            remark(&rest(&spans));
            return Err(explain(error));
        }
    };
    report(context, &args, &spans, stopped, actor)
}

/// Copies, or only counts. Answers whether it was stopped.
async fn copy(
    replay: &RangeReplay,
    args: &ReplayArgs,
    spans: &mut [Span],
    actor: Option<&Actor>,
) -> Result<bool, RangeError> {
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let (mut next, mut told) = (Instant::now(), false);
    let rate = args.rate.filter(|_| actor.is_some());
    let chunk = rate.map_or(f64::INFINITY, f64::ceil).clamp(1.0, f64::from(args.chunk)) as usize;
    for span in spans {
        while span.reached < span.to {
            let pause = match replay.copy(span, chunk, actor).await? {
                Some(copied) => {
                    rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(copied as f64 / rate))
                }
                None => {
                    if !std::mem::replace(&mut told, true) {
                        let most = thousands(WAITING_MAX);
                        remark(&format!(
                            "{most} messages wait: it goes on when the consumer has handled some"
                        ));
                    }
                    LOOK
                }
            };
            next = next.max(Instant::now() - pause) + pause;
            tokio::select! {
                biased;
                _ = &mut interrupted => return Ok(true),
                () = sleep_until(next) => {}
            }
        }
    }
    Ok(false)
}

/// How to go on.
fn rest(spans: &[Span]) -> String {
    let open = spans.iter().filter(|span| span.reached < span.to);
    let lines = open.map(|span| {
        format!(
            "\n  --partition {} --from position:{} --to position:{}",
            span.partition, span.reached, span.to
        )
    });
    let copied = spans.iter().map(|span| span.copied).sum();
    format!(
        "{} copied. For the rest: the same command with{}",
        plural(copied, "message"),
        lines.collect::<String>()
    )
}

fn report(
    context: &Context,
    args: &ReplayArgs,
    spans: &[Span],
    stopped: bool,
    actor: Option<&Actor>,
) -> anyhow::Result<ExitCode> {
    let sum = |of: fn(&Span) -> u64| spans.iter().map(of).sum::<u64>();
    let (matched, copied) = (sum(|span| span.matched), sum(|span| span.copied));
    let answer = json!({
        "consumer": args.consumer, "topic": args.topic, "repeat": args.repeat, "dry_run": args.dry_run,
        "matched": matched, "copied": copied, "stopped": stopped, "partitions": spans,
    });
    context.out().acted(answer, actor, || {
        let row = |span: &Span| {
            let numbers = [span.from, span.reached, span.to].map(|position| position.to_string());
            let counts = [span.matched, span.copied].map(thousands);
            [vec![span.place.to_string()], numbers.to_vec(), counts.to_vec()].concat()
        };
        let headers = ["partition", ">from", ">reached", ">to", ">matched", ">copied"];
        let rows = table(&headers, spans.iter().map(row).collect());
        let marked = thousands(matched - copied.min(matched));
        let left_out = if args.repeat { String::new() } else { format!("; {marked} had a mark") };
        let end = match (args.dry_run, stopped) {
            (true, _) if args.repeat => format!("{} would be handled again", plural(matched, "message")),
            (true, _) => format!("{} would be copied, but for those with a mark", plural(matched, "message")),
            (_, true) => format!("stopped: {}", rest(spans)),
            _ => format!("{} to be handled{left_out}", plural(copied, "message")),
        };
        if rows.is_empty() { end } else { format!("{rows}\n\n{end}") }
    })?;
    Ok(if stopped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
