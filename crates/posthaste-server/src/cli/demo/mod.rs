//! `posthaste demo`: everything at work on a bare machine, with things going wrong on purpose.
//!
//! ```text
//! order service ─▶ orders.db ─▶ posthaste run ─▶ broker.db ─▶ consumer ─▶ billing.db
//!  (this process)   (outbox)     (a process)                  (a process)   (inbox)
//! ```
//!
//! Nothing in it is made for show. The service appends in its own transaction, the relay is this binary's
//! `run` with a configuration file, the consumer is the runtime with a handler as any other would write it.
//! Faults are real: a directory is moved away, a file that the handler needs is gone, processes are killed.
//! And the ledger at the end is counted from the files, by queries that know nothing of what the demo
//! believes to have done.
//!
//! The applications are in [`crate::demo`]. Here, one file a concern: `child` is a process that cannot
//! outlive us, `gauge` reads how far things are, `view` shows it, `script` is the course of events, `page` is
//! the dashboard.

mod child;
mod gauge;
mod page;
mod script;
mod view;

use super::Context;
use crate::demo::consumer;
use crate::demo::ledger::Ledger;
use crate::demo::stage::Stage;
use crate::output::{Out, Usage};
use anyhow::Context as _;
use clap::Args;
use page::DemoPage;
use script::Script;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use view::View;

const EXAMPLES: &str = "\
Examples:
  posthaste demo
      A shop, a relay, a broker and a consumer on this machine; the broker goes
      away, events are poison, a handler fails, processes are killed. Then the
      ledger.
  posthaste demo --ui
      The same, and then orders without end: poison every 20 s, the broker away
      once a minute, and a link to the dashboard. Ctrl-C ends it.
  posthaste demo --gateway
      The orders are handed in by HTTP: one tenant floods and gets 429, the
      gateway is killed while a request is under way, and clients repeat. Takes
      --ui, too.
  posthaste demo --events 50000 --seed 7
  posthaste demo --keep /tmp/shop
      Keep the files, and see how to look around in them.
  posthaste demo --audit /tmp/shop
      Count them again.

It needs no server and no configuration, and removes what it made. After a
SIGKILL its processes end by themselves, and its files stay.

Exit codes: 0 the ledger balances, 1 it does not, 130 interrupted.";

/// See it work: a shop, faults on purpose, and a ledger
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Events to commit
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    events: u64,
    /// Which orders: the same seed makes the same ones
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Keep the files here; the directory must be new or empty
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Count the files of an earlier run again
    #[arg(long, value_name = "DIR", conflicts_with_all = ["events", "seed", "keep"])]
    audit: Option<PathBuf>,
    /// Hand in the orders by HTTP, through a gateway
    #[arg(long, conflicts_with = "audit")]
    gateway: bool,
    /// Go on behind the story, with the dashboard, until Ctrl-C; the ledger comes then
    #[arg(long, conflicts_with = "audit")]
    ui: bool,
    /// With --ui: end by itself after so many minutes
    #[arg(long, value_name = "N", requires = "ui", value_parser = clap::value_parser!(u64).range(0..=1_440))]
    minutes: Option<u64>,
    /// Be the consumer of the demo in this directory. How the demo starts its own.
    #[arg(long, value_name = "DIR", hide = true)]
    consumer: Option<PathBuf>,
    /// Die after so many messages, between commit and acknowledgement
    #[arg(long, value_name = "N", hide = true, requires = "consumer")]
    die_after: Option<u64>,
    /// How long the script looks away between two looks at the files, in milliseconds. Others write them and
    /// cannot signal us. A test makes it long, as on a busy machine.
    #[arg(long, value_name = "MS", hide = true, default_value_t = 40)]
    look_ms: u64,
}

pub(crate) async fn run(context: &Context, args: DemoArgs) -> anyhow::Result<ExitCode> {
    if let Some(dir) = &args.consumer {
        return consumer::run(&Stage::at(dir), args.die_after).await;
    }
    if let Some(dir) = &args.audit {
        return audit(context.out(), dir);
    }
    Box::pin(play(context.out(), &args)).await
}

/// The whole demo, and what is to be cleaned up whatever happens.
async fn play(out: Out, args: &DemoArgs) -> anyhow::Result<ExitCode> {
    // Before anything is made: an interrupt comes when it likes.
    let interrupted = interrupt()?;
    let stage = match &args.keep {
        Some(dir) => Stage::keep(dir)?,
        None => Stage::temporary()?,
    };
    let view = View::new(out, args.events);
    let mut script = Script::new(&stage, &view, args);
    let played = acts(&mut script, &stage, &view, args, interrupted).await;
    view.clear();
    // Whatever still runs ends here, before its files do.
    script.end().await;
    match played.map_err(anyhow::Error::downcast) {
        Ok(ledger) => {
            view.ledger(&ledger)?;
            if args.keep.is_some() {
                view.look_around(&stage)?;
            }
            Ok(verdict(&ledger))
        }
        Err(Ok(Interrupt { name, code })) => {
            let files = if args.keep.is_some() { "kept" } else { "removed" };
            view.say_goodbye(name, files);
            Ok(ExitCode::from(code))
        }
        Err(Err(error)) => Err(error),
    }
}

/// From the first line to the ledger, or to a signal.
async fn acts(
    script: &mut Script<'_>,
    stage: &Stage,
    view: &View,
    args: &DemoArgs,
    interrupted: impl Future<Output = Interrupt>,
) -> anyhow::Result<Ledger> {
    if !args.ui {
        let whole = async {
            script.story().await?;
            script.reckoning().await
        };
        return unless(interrupted, whole).await;
    }
    unless(interrupted, script.story()).await?;
    // A signal ends the traffic, and the next one everything.
    let interrupted = interrupt()?;
    let page = DemoPage::open(stage).await?;
    page.tell(view, args.minutes)?;
    tokio::select! {
        ended = script.steady_traffic(args.minutes) => ended?,
        _ = interrupted => {}
    }
    let interrupted = interrupt()?;
    let reckoning = async {
        view.say("", "No more orders. What is under way is delivered and booked.")?;
        script.last_orders().await?;
        page.close().await?;
        script.reckoning().await
    };
    unless(interrupted, reckoning).await
}

/// What was begun, unless a signal comes first.
async fn unless<T>(
    interrupted: impl Future<Output = Interrupt>,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        done = work => done,
        signal = interrupted => Err(signal.into()),
    }
}

fn audit(out: Out, dir: &Path) -> anyhow::Result<ExitCode> {
    let stage = Stage::at(dir);
    if !stage.is_complete() {
        return Err(
            Usage(format!("{} holds no files of a demo; make some with --keep", dir.display())).into()
        );
    }
    let ledger = Ledger::count(&stage).with_context(|| format!("cannot count {}", dir.display()))?;
    View::new(out, 0).ledger(&ledger)?;
    Ok(verdict(&ledger))
}

fn verdict(ledger: &Ledger) -> ExitCode {
    if ledger.balances() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A signal to stop, and the exit code that shells expect after it.
#[derive(Debug, thiserror::Error)]
#[error("{name}")]
struct Interrupt {
    name: &'static str,
    code: u8,
}

/// Waits for the first of them. Listening begins with the call, not with the first poll.
fn interrupt() -> anyhow::Result<impl Future<Output = Interrupt>> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let mut int = listen(SignalKind::interrupt())?;
    let mut term = listen(SignalKind::terminate())?;
    let mut hup = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = int.recv() => Interrupt { name: "interrupted", code: 130 },
            _ = term.recv() => Interrupt { name: "terminated", code: 143 },
            _ = hup.recv() => Interrupt { name: "hung up", code: 129 },
        }
    })
}
