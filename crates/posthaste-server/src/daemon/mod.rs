//! What `posthaste run` starts: one relay for each outbox, their shared sinks, consumers, metrics and health.
//!
//! ```text
//! signals ─▶ run ─┬─▶ outbox (connect → relay → …)     one for each that is relayed here
//!                 ├─▶ stats                            one for each
//!                 ├─▶ consumer (inbox → source → …)    one for each
//!                 └─▶ http ◀── board ◀── outbox, consumer
//! ```
//!
//! The daemon ends in three ways. A first SIGTERM or SIGINT drains (G8). A second one ends the process at
//! once, as a crash would: nothing is lost, some events may be sent twice. SIGTERM again within a second is
//! no second one: `timeout` sends it to the process and to its group. And when nobody of them can go on
//! without somebody's help, it says why and ends with code 1.

mod admin;
mod board;
mod consumers;
mod durability;
mod jobs;
mod outbox;
mod rates;
mod reload;
mod runnable;
mod sinks;
mod stats;

#[cfg(feature = "sqlite")]
pub(crate) use admin::no_gateway;
pub(crate) use admin::{AdminServer, serve_alone};
pub(crate) use board::Board;
pub(crate) use durability::{destinations, example, example_destinations};
pub(crate) use sinks::Sinks;

use crate::config::{Config, Flags, LogFormat};
use crate::gateway::Gateway;
use crate::output::remark;
use crate::{http, lifeline};
use anyhow::Context as _;
use consumers::ConsumerLife;
use outbox::{OutboxLife, SinkPart};
use posthaste::relay::DrainOutcome;
use posthaste::task::{Task, spawn};
use reload::LiveSettings;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

const TERM: &str = "SIGTERM";
const LIFELINE: &str = "lifeline cut";
/// Twice within this time is once.
const ECHO: Duration = Duration::from_secs(1);

/// Runs until a signal, or until standard input closes if that is the lifeline.
pub(crate) async fn run(
    mut config: Config,
    flags: Flags,
    format: LogFormat,
    lifeline: bool,
) -> anyhow::Result<ExitCode> {
    // What is looked at is more than what is relayed.
    let everything = config.clone();
    config.outboxes.retain(|outbox| outbox.relays);
    let mut signals = Signals::listen(lifeline)?;
    let metrics = http::install_metrics()?;
    let listener = match config.listen {
        Some(address) => Some(http::bind(address, "metrics and health", "http.listen (or --listen)").await?),
        None => None,
    };
    let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let sinks = Sinks::build(&config).await?;
    let _durability = durability::check(&config, &sinks).await?;
    let consumers = config.consumers.iter().map(|consumer| &*consumer.name);
    let board = Arc::new(Board::new(config.outboxes.iter().map(|outbox| &*outbox.name), consumers));
    let gateway_seat = config.gateway.as_ref().map(|_| board.seat_gateway());
    let mut live = LiveSettings::new(&config);
    let (tell_standing, standing) = watch::channel(None);
    let mut admin = match everything.admin.beside_a_relay() {
        Some(address) => {
            Some(AdminServer::start(&everything, live.settings(), standing, address, true).await?)
        }
        None => None,
    };
    let gateway = match (config.gateway.clone(), gateway_seat) {
        (Some(setting), Some(seat)) => {
            Some(Gateway::start(setting, Arc::clone(&board), seat, tell_standing).await?)
        }
        _ => None,
    };
    announce(&config, address, admin.as_ref(), gateway.as_ref(), format);
    if let Some(admin) = &mut admin {
        admin.tell_code(&everything.admin)?;
    }

    let (stop, stopped) = watch::channel(false);
    // Unique for the process: a restarted relay is another one, whatever its predecessor left behind.
    let suffix = uuid::Uuid::new_v4().simple().to_string();
    let process: Arc<str> =
        format!("{}:{}:{}", crate::output::host(), std::process::id(), &suffix[..6]).into();
    let relays = start(&config, &process, &sinks, &live, &stopped, &board);
    let consumers = start_consumers(&config, &process, &live, &stopped, &board);
    let stats = config.outboxes.iter().cloned().enumerate();
    let series = admin.as_ref().map(AdminServer::series);
    let stats = stats.map(|(seat, outbox)| {
        let bell = admin.as_ref().and_then(|admin| admin.bell(&outbox.name));
        stats::watch(outbox, Arc::clone(&process), Arc::clone(&board), seat, series.clone(), bell)
    });
    let stats: Vec<Task<()>> = stats.collect();
    let _upkeep = http::upkeep(metrics.clone());
    let (pages, probes) = http::pages(metrics, Arc::clone(&board));
    let _server =
        listener.map(|listener| http::serve(listener, http::Listening::pages(), pages, Some(probes)));

    let ended = loop {
        tokio::select! {
            heard = signals.next() => match heard {
                Heard::Stop(name) => break Ok(name),
                Heard::Reload => {
                    let accepted = live.reload(&flags);
                    if let Some(gateway) = &gateway {
                        gateway.reload(accepted.and_then(|config| config.gateway));
                    }
                    if let Some(admin) = &admin {
                        admin.reload();
                        board.note(admin.trouble());
                    }
                }
            },
            why = board.all_failed() => break Err(why),
        }
    };
    drop(stats);
    match ended {
        Ok(name) => {
            let first = (name, Instant::now());
            tracing::info!("{name}: draining; a second signal ends at once");
            stop.send_replace(true);
            let drained = async {
                tokio::join!(drain(relays), drain(consumers), leave_jobs(&mut admin), close(gateway))
            };
            let (relays, consumers, (), ()) = tokio::select! {
                outcomes = drained => outcomes,
                name = signals.stop_again(first) => at_once(name),
            };
            sinks.close().await;
            Ok(farewell(relays, consumers))
        }
        Err(why) => {
            close(gateway).await;
            anyhow::bail!("{why}")
        }
    }
}

/// One line that says what is going on. Standard output belongs to the `stdout` sink.
fn announce(
    config: &Config,
    address: Option<SocketAddr>,
    admin: Option<&AdminServer>,
    gateway: Option<&Gateway>,
    format: LogFormat,
) {
    let outboxes = config.outboxes.iter().map(|outbox| {
        let sinks: Vec<&str> = outbox.sinks(config).iter().map(|sink| &*sink.name).collect();
        format!("{} → {}", outbox.name, sinks.join(", "))
    });
    let address = address.map_or_else(|| "off".to_owned(), |address| format!("http://{address}"));
    let consumers = config
        .consumers
        .iter()
        .map(|consumer| format!("{} ← {}", consumer.name, consumer.own.topics.join(", ")));
    let [relaying, consuming] =
        [("relaying", outboxes.collect::<Vec<_>>()), ("consuming", consumers.collect())]
            .map(|(what, all)| (!all.is_empty()).then(|| format!("{what} {}; ", all.join("; "))));
    let work = [relaying, consuming].into_iter().flatten().collect::<String>();
    let api = admin.map_or_else(String::new, |admin| format!("API {}; ", admin.url()));
    let gateway = gateway.map_or_else(String::new, |gateway| format!("gateway {}; ", gateway.url()));
    let line = format!("{work}{gateway}{api}metrics and health {address}");
    match format {
        LogFormat::Human => remark(&format!("posthaste {}: {line}", env!("CARGO_PKG_VERSION"))),
        LogFormat::Json => tracing::info!(version = env!("CARGO_PKG_VERSION"), "{line}"),
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
}

fn start(
    config: &Config,
    relay: &Arc<str>,
    sinks: &Sinks,
    live: &LiveSettings,
    stop: &watch::Receiver<bool>,
    board: &Arc<Board>,
) -> Vec<Task<DrainOutcome>> {
    let process = posthaste::relay::Process::default();
    let life = |(seat, outbox): (usize, &crate::config::Outbox)| OutboxLife {
        outbox: outbox.clone(),
        relay: Arc::clone(relay),
        process: process.clone(),
        sinks: parts(config, outbox, sinks),
        settings: live.settings(),
        routes: live.routes(seat),
        rates: live.rates(),
        pace: live.pace(seat),
        stop: stop.clone(),
        board: Arc::clone(board),
        seat,
    };
    config.outboxes.iter().enumerate().map(life).map(|life| spawn("outbox", life.run())).collect()
}

/// The consumers. Their seats come after the relays'.
fn start_consumers(
    config: &Config,
    process: &Arc<str>,
    live: &LiveSettings,
    stop: &watch::Receiver<bool>,
    board: &Arc<Board>,
) -> Vec<Task<DrainOutcome>> {
    let life = |(index, setting): (usize, &crate::config::ConsumerSetting)| ConsumerLife {
        setting: setting.clone(),
        process: Arc::clone(process),
        settings: live.consumer(index),
        stop: stop.clone(),
        board: Arc::clone(board),
        seat: config.outboxes.len() + index,
    };
    config.consumers.iter().enumerate().map(life).map(|life| spawn("consumer", life.run())).collect()
}

fn parts(config: &Config, outbox: &crate::config::Outbox, sinks: &Sinks) -> Vec<SinkPart> {
    let part = |setting: &crate::config::SinkSetting| {
        Some(SinkPart {
            name: Arc::clone(&setting.name),
            sink: sinks.share(&setting.name)?,
            start_at: setting.start_at,
            classes: outbox.database.classes(&setting.classes),
        })
    };
    outbox.sinks(config).into_iter().filter_map(part).collect()
}

/// Waits for all of them. Each one keeps its own deadline; all of them drain at the same time.
async fn drain(tasks: Vec<Task<DrainOutcome>>) -> DrainOutcome {
    let mut all = DrainOutcome::Clean;
    for task in tasks {
        if task.await.unwrap_or(DrainOutcome::Hurried) != DrainOutcome::Clean {
            all = DrainOutcome::Hurried;
        }
    }
    all
}

/// Jobs are left to whoever comes next.
async fn leave_jobs(admin: &mut Option<AdminServer>) {
    if let Some(admin) = admin {
        admin.stop().await;
    }
}

/// The gateway answers what is under way.
async fn close(gateway: Option<Gateway>) {
    if let Some(gateway) = gateway {
        gateway.stop().await;
    }
}

fn farewell(relays: DrainOutcome, consumers: DrainOutcome) -> ExitCode {
    if relays == DrainOutcome::Hurried {
        tracing::warn!(
            "not everything was settled before the deadline: the next relay delivers those events again, \
             after the leases have expired. relay.drain_timeout_ms gives more time"
        );
    }
    if consumers == DrainOutcome::Hurried {
        tracing::warn!(
            "not every consumer ended its transactions and saved its positions before the deadline: what was not \
             committed is handled by the next one, what was is not handled again. Their drain_timeout_ms gives more time"
        );
    }
    if [relays, consumers].contains(&DrainOutcome::Hurried) {
        return ExitCode::FAILURE;
    }
    tracing::info!("drained: no lease is held, nothing is unsettled");
    ExitCode::SUCCESS
}

fn at_once(name: &str) -> ! {
    remark(&format!("{name} again: ending at once. Nothing is lost; events in flight may be sent twice."));
    std::process::exit(1)
}

struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    /// Ends with standard input, once.
    lifeline: Option<Task<()>>,
}

impl Signals {
    fn listen(lifeline: bool) -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            term: on(SignalKind::terminate())?,
            int: on(SignalKind::interrupt())?,
            hup: on(SignalKind::hangup())?,
            lifeline: lifeline.then(|| spawn("lifeline", lifeline::closed())),
        })
    }

    async fn next(&mut self) -> Heard {
        tokio::select! {
            _ = self.term.recv() => Heard::Stop(TERM),
            _ = self.int.recv() => Heard::Stop("SIGINT"),
            _ = self.hup.recv() => Heard::Reload,
            () = cut(&mut self.lifeline) => Heard::Stop(LIFELINE),
        }
    }

    /// The next signal to stop that is not the first one's echo.
    async fn stop_again(&mut self, first: (&str, Instant)) -> &'static str {
        loop {
            if let Heard::Stop(name) = self.next().await
                && !is_echo(first, (name, Instant::now()))
            {
                return name;
            }
        }
    }
}

/// Whether a signal is the first one over again. Nobody types SIGTERM; two SIGINT are two strokes of a key.
/// A lifeline that is cut says that nobody needs the daemon any more, and not that it must hurry.
fn is_echo(first: (&str, Instant), again: (&str, Instant)) -> bool {
    let terminated_twice = (first.0, again.0) == (TERM, TERM) && again.1.duration_since(first.1) < ECHO;
    terminated_twice || again.0 == LIFELINE
}

/// Waits until the lifeline is cut; for ever if there is none, or none any more.
async fn cut(lifeline: &mut Option<Task<()>>) {
    let Some(task) = lifeline else { return std::future::pending().await };
    // A reader that failed is an end of standard input, too.
    let _ = task.await;
    *lifeline = None;
}

enum Heard {
    Stop(&'static str),
    Reload,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sigterm_soon_after_another_is_the_same_one() {
        let first = Instant::now();
        let again = |then: &'static str, now: &'static str, ms| {
            is_echo((then, first), (now, first + Duration::from_millis(ms)))
        };
        assert!(again(TERM, TERM, 0) && again(TERM, TERM, 999));
        assert!(!again(TERM, TERM, 1_000) && !again(TERM, "SIGINT", 0));
        assert!(!again("SIGINT", TERM, 0) && !again("SIGINT", "SIGINT", 0));
        assert!(again(TERM, LIFELINE, 5_000) && again("SIGINT", LIFELINE, 0) && !again(LIFELINE, TERM, 0));
    }
}
