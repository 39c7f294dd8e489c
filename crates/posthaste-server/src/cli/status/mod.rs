//! `posthaste status`: what is wrong, and how far every sink is, on one screen of 80 columns.
//!
//! All outboxes are asked at once, each within a bound. One whose database is away is shown with the reason,
//! and the others as ever: an operator looks here when something is down.

mod draw;

pub(crate) use draw::{draw_lanes, draw_relays};

use super::{Context, consumer_admin, explain_act, looks};
use crate::config::{Config, Outbox};
use crate::consumers::{BrokerView, ShownConsumer};
use crate::picture::{Named, Picture, named};
use clap::Args;
use posthaste::admin::{Admin, OutboxStatus, Problem};
use posthaste::consumer::admin::{ConsumerAdmin, ConsumerStatus};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Pause between two pictures of `--watch`.
const WATCH: Duration = Duration::from_secs(1);

/// Longest look at consumers, beside that at the outbox: it must not make that one fail.
const BESIDE: Duration = Duration::from_secs(4);

/// Takes the former picture away.
const CLEAR: &[u8] = b"\x1b[H\x1b[J";

const EXAMPLES: &str = "\
Examples:
  posthaste status                      every outbox of the configuration
  posthaste status --watch              redraw every second
  posthaste status --json --outbox orders | jq '.outboxes[0].sinks[].backlog'
  posthaste status --json | jq -r '.outboxes[].problems[].sentence'

First what keeps events from arriving, a sentence for each thing: since when,
and how many wait for it; also of consumers that have their inbox there. Then
the figures of each sink:

backlog   events in the log that the sink has not handled; ~ is an estimate
deferred  events that wait for a retry, their time, or an earlier one of their
          key: see `posthaste deferred causes`
dead      events given up: see `posthaste dead causes`
events/s  delivered, on average of the last minute; - while no relay runs

A database that cannot be reached is shown with the reason. The exit code is 1
then. In JSON it has `unreachable`. Times are texts in RFC 3339 there, and every
other name of a quantity ends with its unit: oldest_age_seconds, lease_ms,
bytes.";

/// Show what is wrong, backlog, ages, rates, lanes, leases and segments
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// Redraw every second until Ctrl-C
    #[arg(long)]
    watch: bool,
}

/// An outbox, and the connections of the former look.
struct Watched {
    outbox: Outbox,
    open: Open,
}

#[derive(Default)]
struct Open {
    admin: Option<Arc<dyn Admin>>,
    consumers: Option<Box<dyn ConsumerAdmin>>,
}

/// What one look found.
struct StatusLook {
    open: Open,
    status: OutboxStatus,
    of_consumers: Vec<Problem>,
}

pub(crate) async fn run(context: &Context, args: StatusArgs) -> anyhow::Result<ExitCode> {
    let config = Arc::new(context.config()?);
    let watched = |outbox: &Outbox| Watched { outbox: outbox.clone(), open: Open::default() };
    let mut all: Vec<Watched> = context.outboxes(&config)?.into_iter().map(watched).collect();
    loop {
        let picture = tokio::select! {
            picture = take(&config, &mut all) => picture,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        };
        if !args.watch {
            return once(context, &picture);
        }
        if !context.out().json {
            context.out().bytes(CLEAR)?;
        }
        context.out().data(&picture, || draw::draw(&picture))?;
        tokio::select! {
            () = tokio::time::sleep(WATCH) => {}
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// One picture. Where there is none to show, the reasons are an error like any other.
fn once(context: &Context, picture: &Picture) -> anyhow::Result<ExitCode> {
    let errors: Vec<&str> =
        picture.outboxes.iter().filter_map(|named| named.unreachable.as_deref()).collect();
    if errors.len() == picture.outboxes.len() && !context.out().json {
        anyhow::bail!("{}", errors.join("\n"));
    }
    context.out().data(picture, || draw::draw(picture))?;
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks all of them at once.
async fn take(config: &Arc<Config>, all: &mut [Watched]) -> Picture {
    let looks = all.iter_mut().map(|watched| {
        let (config, outbox, open) =
            (Arc::clone(config), watched.outbox.clone(), std::mem::take(&mut watched.open));
        async move { Box::pin(looks::within(&outbox, look(&config, &outbox, open))).await }
    });
    let found = looks::at_once(looks).await;
    Picture { outboxes: all.iter_mut().zip(found).map(|(watched, found)| show(watched, found)).collect() }
}

/// What was found, with the connections kept for the next look.
fn show(watched: &mut Watched, found: Result<StatusLook, String>) -> Named {
    let (found, of_consumers) = match found {
        Ok(StatusLook { open, status, of_consumers }) => {
            watched.open = open;
            (Ok(status), of_consumers)
        }
        Err(why) => (Err(why), Vec::new()),
    };
    let mut named = named(&watched.outbox, found);
    if let Some(seen) = &mut named.seen {
        seen.problems.extend(of_consumers);
    }
    named
}

/// One look: at the outbox, and beside it at consumers that have their inbox there.
async fn look(config: &Config, outbox: &Outbox, open: Open) -> anyhow::Result<StatusLook> {
    let status = async {
        let admin = match open.admin {
            Some(admin) => admin,
            None => Arc::from(super::admin(outbox).await?),
        };
        let status = admin.status().await.map_err(|error| explain_act(outbox, error))?;
        anyhow::Ok((admin, status))
    };
    let consumers = timeout(BESIDE, look_at_consumers(config, outbox, open.consumers));
    let (status, consumers) = tokio::join!(status, consumers);
    let ((admin, status), (consumers, found)) = (status?, consumers.ok().flatten().unzip());
    let problems = |status| ShownConsumer::new(outbox, status, BrokerView::default()).problems;
    let of_consumers = found.into_iter().flatten().flat_map(problems).collect();
    Ok(StatusLook { open: Open { admin: Some(admin), consumers }, status, of_consumers })
}

/// `None` where there can be none, or where they cannot be looked at: `posthaste consumers` says why.
async fn look_at_consumers(
    config: &Config,
    outbox: &Outbox,
    admin: Option<Box<dyn ConsumerAdmin>>,
) -> Option<(Box<dyn ConsumerAdmin>, Vec<ConsumerStatus>)> {
    if !outbox.database.has_consumers() {
        return None;
    }
    let admin = match admin {
        Some(admin) => admin,
        None => consumer_admin(config, outbox, None).await.ok()?,
    };
    let found = admin.consumers(None).await.ok()?;
    Some((admin, found))
}
