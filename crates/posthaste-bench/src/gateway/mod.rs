//! What the gateway takes, against the handler that one would write by hand.
//!
//! ```text
//! tenants, keys ─▶ rounds: bare handlers, gateway, batches, checks alone, with Redis, a lone client
//!               ─▶ half of the baseline's rate ─▶ a neighbour over its limit ─▶ idle ─▶ a crowd
//! ```
//!
//! Both are processes of their own, on the same database, and nothing relays. The clients are here, on the
//! same machine, and the same for both. Rates are of a closed loop, as they are promised: so many clients,
//! each waiting for its answer. Times at a rate are of an open loop (F90).
//!
//! At the end the rows of the log are counted: they are what was answered with 202, or it is an error.

mod bare;
mod client;
mod daemon;
mod others;
mod rounds;

use crate::child::{Product, Scratch};
use crate::judge::{Judge, Target};
use crate::load::{Load, TOPIC};
use crate::output::Usage;
use crate::report::Report;
use crate::{Bench, Common};
pub(super) use bare::run_child;
use bare::{BarePlan, BareServer};
use bytes::Bytes;
use clap::Args;
use client::{Answers, Asking, request};
use daemon::{Door, Gateway, PATH, new_key};
use posthaste_sqlite::SqliteConfig;
use rounds::{GatewayRounds, Side};
use rusqlite::Connection;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Shorter rounds are no measurement.
const JUDGED_FROM_SECONDS: u64 = 3;
/// Clients that hand in batches.
const BATCH_CLIENTS: usize = 32;
const BATCH: &str = "application/vnd.posthaste.batch+json";
/// A tenant has an eighth of the room, so a crowd is of many.
const TENANTS: usize = 32;
/// Who sends more than it may.
const LOUD: &str = "loud";

#[derive(Debug, Args)]
pub(super) struct GatewayArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many clients hand in, one event a request
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4_000))]
    clients: u16,
    /// Events of a batch
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=500))]
    batch_events: u64,
    /// How often all of it is measured in turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// How long each of them has in a round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How long nobody comes
    #[arg(long, value_name = "N", default_value_t = 29, value_parser = clap::value_parser!(u64).range(1..))]
    idle_seconds: u64,
    /// Tenants that are known while memory is looked at
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    known: u32,
    /// Requests in flight meanwhile
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u16).range(1..=4_000))]
    in_flight: u16,
    /// A Redis to count in, for the gateway with one
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// A key of `gateway`: bounds.connections=4; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    gateway_set: Vec<String>,
    /// The baseline's own process
    #[arg(long, hide = true)]
    pub(super) child: Option<PathBuf>,
}

/// What a measurement works with, on either store.
pub(super) struct Site<'a> {
    pub(super) args: &'a GatewayArgs,
    pub(super) common: &'a Common,
    pub(super) scratch: &'a Scratch,
    pub(super) product: &'a Product,
    pub(super) load: Arc<Load>,
    /// Events of all answers with 202.
    accepted: AtomicU64,
}

impl<'a> Site<'a> {
    pub(super) fn new(
        args: &'a GatewayArgs,
        scratch: &'a Scratch,
        product: &'a Product,
        load: &Arc<Load>,
    ) -> anyhow::Result<Self> {
        if args.common.payload_bytes < 2 {
            return Err(
                Usage("--payload-bytes: an event is JSON here, of 2 bytes at least".to_owned()).into()
            );
        }
        let load = Arc::clone(load);
        Ok(Self { args, common: &args.common, scratch, product, load, accepted: AtomicU64::new(0) })
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.args.seconds)
    }

    fn clients(&self) -> usize {
        usize::from(self.args.clients)
    }

    /// A text in JSON, as long as an event is.
    fn event(&self, index: usize) -> Vec<u8> {
        let letters = &self.load.payload(index as u64)[2..];
        whole(&[b"\"", letters, b"\""])
    }

    /// A request of each key, with one event.
    fn singles(&self, path: &str, keys: &[String]) -> Vec<Bytes> {
        let one = |(index, key): (usize, &String)| request(path, key, "application/json", &self.event(index));
        keys.iter().enumerate().map(one).collect()
    }

    /// The same with a batch.
    fn batches(&self, path: &str, keys: &[String]) -> Vec<Bytes> {
        let size = self.args.batch_events as usize;
        let one = |(index, key): (usize, &String)| {
            let events = (0..size).map(|n| whole(&[b"{\"payload\":", &self.event(index * size + n), b"}"]));
            let events = events.collect::<Vec<_>>().join(&b',');
            request(path, key, BATCH, &whole(&[b"{\"events\":[", &events, b"]}"]))
        };
        keys.iter().enumerate().map(one).collect()
    }

    /// Remembers what has to be in the log.
    fn count(&self, answers: &Answers, events: u64) {
        self.accepted.fetch_add(answers.accepted() * events, Ordering::Relaxed);
    }

    /// A gateway, which took one event of this key.
    async fn open(&self, door: &Door<'_>, name: &str, key: &str) -> anyhow::Result<Gateway> {
        let gateway = door.open(self, name, key).await?;
        self.accepted.fetch_add(1, Ordering::Relaxed);
        Ok(gateway)
    }

    /// Makes tenants with a key each.
    async fn tenants(&self) -> anyhow::Result<Vec<String>> {
        let config = Door::default().write(self, "keys").await?;
        let mut keys = Vec::new();
        for n in 0..TENANTS.min(self.clients()) {
            keys.push(new_key(self, &config, &format!("tenant-{n}")).await?);
        }
        Ok(keys)
    }

    /// Compares what was answered with what is there.
    fn prove(&self, rows: i64) -> anyhow::Result<()> {
        let accepted = self.accepted.load(Ordering::Relaxed);
        anyhow::ensure!(rows as u64 == accepted, "{accepted} events were accepted, and the log has {rows}");
        Ok(())
    }
}

fn whole(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// Clients at one door.
fn asking(address: SocketAddr, requests: Vec<Bytes>, clients: usize) -> Asking {
    Asking { address, requests: Arc::new(requests), clients }
}

fn path() -> String {
    format!("{PATH}{TOPIC}")
}

fn judge<'a>(report: &'a mut Report, args: &GatewayArgs) -> Judge<'a> {
    report.fact("clients", args.clients, "each with one request at a time");
    Judge::new(report, args.seconds >= JUDGED_FROM_SECONDS)
}

fn end(judge: Judge<'_>, args: &GatewayArgs) {
    judge.report.detail("rounds", args.rounds);
    judge.report.detail("seconds", args.seconds);
    judge.end();
}

/// On PostgreSQL: everything.
pub(super) async fn run(bench: &Bench<'_>, args: &GatewayArgs, report: &mut Report) -> anyhow::Result<()> {
    let site = Site::new(args, &bench.scratch, &bench.product, &bench.load)?;
    let keys = site.tenants().await?;
    let loud = others::loud_key(&site).await?;
    let plan =
        BarePlan { store: site.common.store.clone(), schema: site.common.schema.clone(), keys: keys.clone() };
    let mut doors = vec![(Side::Gateway, site.open(&Door::default(), "gateway", &keys[0]).await?)];
    if args.redis.is_some() {
        let door = Door { redis: args.redis.as_deref(), ..Door::default() };
        doors.push((Side::Redis, site.open(&door, "gateway-redis", &keys[0]).await?));
    }
    let bare = BareServer::start(&plan, site.scratch).await?;
    let mut ran = GatewayRounds::new(&site, &keys, bare, doors);
    ran.rounds(Side::on_postgres(args.redis.is_some())).await?;
    let paced = ran.half_rate().await?;
    let neighbours = others::neighbours(&site, ran.gateway()?, &keys, &loud).await?;
    let rates = ran.stop().await?;
    let idle = others::idle(bench, &site, &keys[0]).await?;
    let rss_peak_mb = others::crowd(bench, &site, &keys).await?;
    let count = format!("select count(*) from {}.outbox", bench.ground.schema);
    site.prove(bench.ground.client.query_one(&count, &[]).await?.get(0))?;

    let mut judge = judge(report, args);
    rates.figures(&mut judge, args);
    paced.figures(&mut judge);
    neighbours.figures(&mut judge);
    let words = format!("{} requests in flight, {} tenants known", args.in_flight, args.known);
    judge.target("rss_peak_mb", rss_peak_mb, Target::Most(96.0), &words);
    idle.figures(&mut judge);
    end(judge, args);
    Ok(())
}

/// On SQLite: against a bare handler over the same `Writer`.
pub(super) async fn on_sqlite(
    site: &Site<'_>,
    config: &SqliteConfig,
    report: &mut Report,
) -> anyhow::Result<()> {
    let keys = site.tenants().await?;
    let store = site.common.store.clone();
    let plan = BarePlan { store, schema: site.common.schema.clone(), keys: keys.clone() };
    let doors = vec![(Side::Gateway, site.open(&Door::default(), "gateway", &keys[0]).await?)];
    let bare = BareServer::start(&plan, site.scratch).await?;
    let mut ran = GatewayRounds::new(site, &keys, bare, doors);
    ran.rounds(vec![Side::Writer, Side::Gateway, Side::Checks]).await?;
    let rates = ran.stop().await?;
    let count = "select count(*) from posthaste_outbox";
    site.prove(Connection::open(&config.path)?.query_row(count, [], |row| row.get(0))?)?;
    let mut judge = judge(report, site.args);
    rates.on_sqlite(&mut judge);
    end(judge, site.args);
    Ok(())
}
