//! The same questions for an outbox in a SQLite file: how fast it drains into the local broker, what an
//! append costs.
//!
//! The yardstick is what SQLite itself can write: a bare insert of the same bytes, 1,000 rows a transaction,
//! as durable as the relay's own commits. A drain reads each event from one file and writes it, with the id
//! that drops duplicates, into another, so half of that rate is a good one.
//!
//! The relay is the real process here too, and it is seen from outside: its receipts in the outbox's file,
//! the messages in the broker's.

mod append;
mod drain;
mod ground;

use super::child::{Product, Scratch, Setup};
use super::gateway::{self, Site};
use super::load::Load;
use super::report::Report;
use super::{Common, What, interrupted};
use crate::output::Usage;
use ground::BenchFiles;
pub(super) use ground::broker_of;
use posthaste_sqlite::SqliteConfig;
use std::sync::Arc;

/// What a measurement works with.
struct Bench<'a> {
    common: &'a Common,
    ground: &'a BenchFiles,
    load: Arc<Load>,
    scratch: Scratch,
    product: &'a Product,
}

impl Bench<'_> {
    async fn write(&self, setup: Setup<'_>) -> anyhow::Result<std::path::PathBuf> {
        setup.write(self.common, &self.scratch, self.product).await
    }
}

pub(super) async fn run(
    config: SqliteConfig,
    common: &Common,
    what: &What,
    scratch: Scratch,
    product: &Product,
) -> anyhow::Result<Report> {
    if !matches!(common.sink.as_str(), "local" | "null") {
        return Err(
            Usage("on SQLite, a measurement delivers to --sink local or --sink null".to_owned()).into()
        );
    }
    let ground = BenchFiles::make(config, common.keep)?;
    let load = Arc::new(Load::new(common.payload_bytes, common.keys, common.spread));
    let bench = Bench { common, ground: &ground, load, scratch, product };
    // Dropping the measurement ends its relay, then the ground is left.
    tokio::select! {
        outcome = measure(&bench, what) => outcome,
        name = interrupted() => Err(anyhow::anyhow!("{name}: the measurement was given up")),
    }
}

async fn measure(bench: &Bench<'_>, what: &What) -> anyhow::Result<Report> {
    let mut report = Report::default();
    match what {
        What::Drain(args) => Box::pin(drain::run(bench, args, &mut report)).await?,
        What::Append(args) => append::run(bench, args, &mut report).await?,
        What::Adopt(_) => {
            return Err(Usage("only a table in PostgreSQL can be adopted".to_owned()).into());
        }
        What::Gateway(args) => {
            let site = Site::new(args, &bench.scratch, bench.product, &bench.load)?;
            Box::pin(gateway::on_sqlite(&site, &bench.ground.config, &mut report)).await?;
        }
        // It has no outbox, and never comes here.
        What::Topology(_) => {}
        What::Api(_) => {
            return Err(Usage("api measures PostgreSQL only".to_owned()).into());
        }
        What::Consume(_) => {
            return Err(Usage("consume measures PostgreSQL only".to_owned()).into());
        }
        What::Latency(_) => {
            let why = "latency measures PostgreSQL only; on SQLite there are drain and append";
            return Err(Usage(why.to_owned()).into());
        }
    }
    report.detail("server", bench.ground.facts()?);
    Ok(report)
}
