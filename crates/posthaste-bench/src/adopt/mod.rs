//! How fast an adopted table is drained, and what that costs its owners.
//!
//! The table is filled as its owners would have it, from the rows of the log, so that both hold the same
//! events. Then, in turn: a bare loop that claims and marks ([`table::AdoptedTable::claim_and_mark`]), a
//! relay on the table, a relay on the log. All on one server in one run, so what counts are the ratios
//! between them.
//!
//! A drain is over when no row waits, and then every row must be marked once: as many rows published as there
//! were, and as many updates as one claim and one mark of each ([`table::AdoptedTable::audit`]). One that
//! fails the count is an error.

mod bare;
mod plan;
mod receiver;
mod relays;
mod table;

use super::field::Field;
use super::report::{Report, best, rounded};
use super::{Bench, Common};
use clap::Args;
use posthaste::route::Order;
use serde_json::json;
use table::{AdoptedTable, LOCKED, MARKED, Owner, TableDrain};

#[derive(Debug, Args)]
pub(super) struct AdoptArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many rows
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Repeat everything alternately; the best of each counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rows claimed at once, by the relay as by the bare loop
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// Only the relay on the table whose rows are marked: no bare loop, no log, no locks
    #[arg(long)]
    no_baselines: bool,
    /// One relay and two of them, to a receiver that takes 10 ms for an answer: ratio_two_to_one
    #[arg(long, group = "mode")]
    relays: bool,
    /// Plan and time of the claim at two backlogs: SMALL,LARGE gives ratio_claim_ms_large_to_small
    #[arg(long, value_name = "SMALL,LARGE", group = "mode", value_parser = super::drain::two_numbers)]
    backlog: Option<(u64, u64)>,
}

/// What came of all rounds.
#[derive(Default)]
struct Rounds {
    bare: Vec<f64>,
    marked: Vec<TableDrain>,
    locked: Vec<TableDrain>,
    log: Vec<f64>,
}

pub(super) async fn run(bench: &Bench<'_>, args: &AdoptArgs, report: &mut Report) -> anyhow::Result<()> {
    if let Some((small, large)) = args.backlog {
        return plan::run(bench, report, small, large).await;
    }
    bench.ground.fill(&bench.load, 0..args.events).await?;
    if args.relays {
        return relays::run(bench, args.events, report).await;
    }
    let mut field = Field::new(bench, args.events).await?;
    let mut rounds = Rounds::default();
    for _ in 0..args.rounds {
        rounds.one(bench, args, &mut field).await?;
    }
    report.fact("events", args.events, "how many rows");
    rates(report, &rounds);
    costs(report, &rounds);
    updates(bench, args.events.min(5_000), report).await?;
    report.detail("batch", args.batch);
    report.detail("baseline_sql", bare::statements(bench));
    Ok(())
}

impl Rounds {
    async fn one(
        &mut self,
        bench: &Bench<'_>,
        args: &AdoptArgs,
        field: &mut Field<'_>,
    ) -> anyhow::Result<()> {
        if !args.no_baselines {
            let table = AdoptedTable::make(bench, &MARKED, args.events).await?;
            self.bare.push(table.claim_and_mark(args.batch).await?);
        }
        let table = AdoptedTable::make(bench, &MARKED, args.events).await?;
        self.marked.push(table.drain(args.batch).await?);
        if args.no_baselines {
            return Ok(());
        }
        let table = AdoptedTable::make(bench, &LOCKED, args.events).await?;
        self.locked.push(table.drain(args.batch).await?);
        table.drop().await?;
        self.log.push(field.drain(Order::None, false).await?.events_per_s);
        Ok(())
    }
}

fn rates(report: &mut Report, rounds: &Rounds) {
    let of = |drains: &[TableDrain]| drains.iter().map(|drained| drained.rows_per_s).collect::<Vec<_>>();
    let (marked, locked) = (of(&rounds.marked), of(&rounds.locked));
    let (bare, log) = (best(&rounds.bare), best(&rounds.log));
    report.figure(
        "claim_per_s",
        best(&marked),
        "the relay on the table, rows marked while they are published",
    );
    report.figure("claim_mark_per_s", bare, "a bare loop of claim + mark on the same table");
    report.figure("log_per_s", log, "the relay on the log, the same events");
    report.figure(
        "locked_per_s",
        best(&locked),
        "the relay on a table whose rows are locked, for information",
    );
    report.figure("ratio_claim_to_claim_mark", best(&marked) / bare, "claim_per_s to the bare loop");
    report.figure("ratio_log_to_claim", log / best(&marked), "log_per_s to claim_per_s");
    report.detail(
        "rounds",
        json!({
            "claim_per_s": rounded(&marked), "claim_mark_per_s": rounded(&rounds.bare),
            "log_per_s": rounded(&rounds.log), "locked_per_s": rounded(&locked),
        }),
    );
}

fn costs(report: &mut Report, rounds: &Rounds) {
    let most = |pick: fn(&TableDrain) -> f64| best(&rounds.marked.iter().map(pick).collect::<Vec<_>>());
    let least = |pick: fn(&TableDrain) -> f64| rounds.marked.iter().map(pick).fold(f64::NAN, f64::min);
    report.figure(
        "rss_peak_mb",
        most(|drained| drained.rss_peak_mb),
        "the relay's resident memory at its peak",
    );
    report.figure("cpu_us_per_event", least(|drained| drained.cpu_us_per_event), "the relay's CPU time");
    report.figure(
        "updates_per_event",
        most(|drained| drained.updates_per_row),
        "by pg_stat_user_tables: a claim and a mark",
    );
    report.figure(
        "hot_part",
        least(|drained| drained.hot_part),
        "of these updates; a change of the status cannot be HOT while an index has it in its condition",
    );
}

/// What a renewal of claims costs, and whether an index has to know of it.
async fn updates(bench: &Bench<'_>, rows: u64, report: &mut Report) -> anyhow::Result<()> {
    let table = AdoptedTable::make(bench, &MARKED, rows).await?;
    let indexed = table.indexes_with(Owner::lease_column(&MARKED)).await?;
    report.fact("lease_column_indexes", indexed, "indexes that hold the column by which rows are leased");
    report.figure(
        "renewal_hot_part",
        table.renew().await?,
        "HOT updates among renewals of claims, where pages have room (fillfactor 50)",
    );
    table.drop().await
}
