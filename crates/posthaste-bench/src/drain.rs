//! How fast a backlog is delivered.
//!
//! The log is filled first, then read by one relay after another. Each has a new sink, whose cursor starts
//! at the beginning: the log keeps its rows, so nothing is filled again. A drain lasts from the receipt by
//! which the relay took the lane to the one that covers the last event, both by the database's clock.
//!
//! Rounds alternate between baselines and relay, and the best of each counts: on a shared machine a slow
//! round says that somebody else was working. All values stand in the JSON.

use super::field::{Drained, Field};
use super::report::{Report, best, rounded};
use super::{Bench, Common, baseline, kill};
use clap::Args;
use posthaste::route::Order;
use serde_json::json;
use std::ops::Range;

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many events
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) events: u64,
    /// Repeat baselines and relay alternately; the best of each counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Leave the baselines out
    #[arg(long)]
    pub(super) no_baselines: bool,
    /// Also drain with order = none: ratio_key_to_none
    #[arg(long, group = "mode")]
    compare_order: bool,
    /// Also drain while a transaction with an event stays open: ratio_held_to_free
    #[arg(long, group = "mode")]
    hold_transaction: bool,
    /// Also drain a larger backlog: SMALL,LARGE gives ratio_large_to_small
    #[arg(long, value_name = "SMALL,LARGE", group = "mode", value_parser = two_numbers)]
    backlog_ratio: Option<(u64, u64)>,
    /// Kill the relay with SIGKILL in the middle and start it again
    #[arg(long, group = "mode")]
    kill: bool,
}

impl DrainArgs {
    /// Asks for more than a plain drain.
    pub(super) fn is_special(&self) -> bool {
        self.kill || self.compare_order || self.hold_transaction || self.backlog_ratio.is_some()
    }
}

pub(super) fn two_numbers(text: &str) -> Result<(u64, u64), String> {
    let (small, large) = text.split_once(',').ok_or("must be two numbers: 100000,3000000")?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| format!("{text:?} is no number"));
    match (number(small)?, number(large)?) {
        (small, large) if 0 < small && small < large => Ok((small, large)),
        _ => Err("the second number must be larger than the first".to_owned()),
    }
}

/// One way to drain, and what came of it.
struct Variant {
    name: &'static str,
    order: Order,
    held: bool,
    drains: Vec<Drained>,
}

impl Variant {
    fn new(name: &'static str, order: Order, held: bool) -> Self {
        Self { name, order, held, drains: Vec::new() }
    }

    fn rates(&self) -> Vec<f64> {
        self.drains.iter().map(|drained| drained.events_per_s).collect()
    }
}

/// Rates of the baselines, one for each round.
#[derive(Default)]
struct Baselines {
    select: Vec<f64>,
    claim_mark: Vec<f64>,
    client_alone: Vec<f64>,
    sink_alone: Vec<f64>,
}

pub(super) async fn run(bench: &Bench<'_>, args: &DrainArgs, report: &mut Report) -> anyhow::Result<()> {
    if args.kill {
        return kill::run(bench, args, report).await;
    }
    let events = args.backlog_ratio.map_or(args.events, |(small, _)| small);
    let mut variants = variants(bench, args);
    let mut field = Field::new(bench, events).await?;
    bench.ground.fill(&bench.load, 0..events).await?;
    let mut baselines = Baselines::default();
    for _ in 0..args.rounds {
        if !args.no_baselines {
            baselines.round(&mut field).await?;
        }
        for variant in &mut variants {
            variant.drains.push(field.drain(variant.order, variant.held).await?);
        }
    }
    report.fact("events", events, "how many");
    main_figures(report, &variants[0], &baselines, bench);
    comparison(report, &variants);
    if let Some((small, large)) = args.backlog_ratio {
        backlog(&mut field, report, &variants[0], &baselines, small..large, args).await?;
    }
    field.leave().await
}

fn variants(bench: &Bench<'_>, args: &DrainArgs) -> Vec<Variant> {
    if args.compare_order {
        return vec![Variant::new("key", Order::Key, false), Variant::new("none", Order::None, false)];
    }
    let mut variants = vec![Variant::new("free", bench.order(), false)];
    if args.hold_transaction {
        variants.push(Variant::new("held", bench.order(), true));
    }
    variants
}

impl Baselines {
    async fn round(&mut self, field: &mut Field<'_>) -> anyhow::Result<()> {
        let ground = field.bench.ground;
        self.select.push(baseline::select(ground, field.events).await?);
        self.claim_mark.push(baseline::claim_and_mark(ground, field.events).await?);
        if let Some(rate) = field.client_alone().await? {
            self.client_alone.push(rate);
        }
        if let Some(rate) = field.sink_alone().await? {
            self.sink_alone.push(rate);
        }
        Ok(())
    }

    /// What somebody without Posthaste could reach: the slower one of reading and publishing.
    fn limit(&self) -> f64 {
        // f64::min prefers a number to none.
        best(&self.select).min(best(&self.client_alone))
    }
}

fn main_figures(report: &mut Report, variant: &Variant, baselines: &Baselines, bench: &Bench<'_>) {
    let rate = best(&variant.rates());
    let most = |pick: fn(&Drained) -> f64| best(&variant.drains.iter().map(pick).collect::<Vec<_>>());
    let least = |pick: fn(&Drained) -> f64| variant.drains.iter().map(pick).fold(f64::NAN, f64::min);
    let (select, claim) = (best(&baselines.select), best(&baselines.claim_mark));
    let (client, sink) = (best(&baselines.client_alone), best(&baselines.sink_alone));
    report.figure("events_per_s", rate, "the relay, from taking the lane to the last receipt");
    report.figure("select_per_s", select, "a bare loop of 1,000-row SELECTs over the same rows");
    report.figure(
        "claim_mark_per_s",
        claim,
        "claim with SKIP LOCKED + mark, 1,000 a batch, in a queue table",
    );
    report.figure(
        "client_alone_per_s",
        client,
        "the broker's client without Posthaste, every message acknowledged",
    );
    report.figure("sink_alone_per_s", sink, "our sink without a relay; - for one that does nothing");
    report.figure("ratio_to_select", rate / select, "events_per_s to it");
    report.figure("ratio_to_claim_mark", rate / claim, "events_per_s to it");
    report.figure("ratio_to_sink_alone", rate / sink, "events_per_s to it");
    report.figure("ratio_to_limit", rate / baselines.limit(), "to the slower one of select and client alone");
    report.figure(
        "rss_peak_mb",
        most(|drained| drained.rss_peak_mb),
        "the relay's resident memory at its peak",
    );
    report.figure("cpu_us_per_event", least(|drained| drained.cpu_us_per_event), "the relay's CPU time");
    if let Some(last) = variant.drains.last() {
        report.fact("distinct_ids", last.distinct_ids, &format!("verified by {}", last.verified));
        report.detail("verified_by", last.verified);
    }
    report.detail("order", if variant.order == Order::Key { "key" } else { "none" });
    report.detail("sink", crate::output::scrub(&bench.common.sink));
    report.detail("baseline_sql", baseline::statements(&bench.ground.schema));
    report.detail("baseline_queue_rows", baseline::QUEUE_ROWS);
    report.detail(
        "rounds",
        json!({
            "events_per_s": rounded(&variant.rates()), "select_per_s": rounded(&baselines.select),
            "claim_mark_per_s": rounded(&baselines.claim_mark),
            "client_alone_per_s": rounded(&baselines.client_alone), "sink_alone_per_s": rounded(&baselines.sink_alone),
        }),
    );
}

/// The second way against the first.
fn comparison(report: &mut Report, variants: &[Variant]) {
    let [first, second] = variants else { return };
    let (a, b) = (best(&first.rates()), best(&second.rates()));
    report.figure(&format!("events_per_s_{}", second.name), b, "");
    match second.name {
        "none" => report.figure("ratio_key_to_none", a / b, "order by key against no order"),
        _ => report.figure("ratio_held_to_free", b / a, "with a transaction held open against without"),
    }
    report.detail(&format!("rounds_{}", second.name), rounded(&second.rates()));
}

/// Fills the log up and drains the whole of it: nothing may grow with the backlog.
async fn backlog(
    field: &mut Field<'_>,
    report: &mut Report,
    small: &Variant,
    baselines: &Baselines,
    sizes: Range<u64>,
    args: &DrainArgs,
) -> anyhow::Result<()> {
    field.bench.ground.fill(&field.bench.load, sizes.clone()).await?;
    field.events = sizes.end;
    let (mut rates, mut selects, mut peak) = (Vec::new(), Vec::new(), f64::NAN);
    for _ in 0..args.rounds {
        if !args.no_baselines {
            selects.push(baseline::select(field.bench.ground, field.events).await?);
        }
        let drained = field.drain(small.order, false).await?;
        rates.push(drained.events_per_s);
        peak = peak.max(drained.rss_peak_mb);
    }
    report.fact("events_large", sizes.end, "how many in the larger backlog");
    report.figure("events_per_s_large", best(&rates), "");
    report.figure("ratio_large_to_small", best(&rates) / best(&small.rates()), "the relay's rates");
    report.figure(
        "select_ratio_large_to_small",
        best(&selects) / best(&baselines.select),
        "what the bare loop loses: it is the server's part",
    );
    report.figure("rss_peak_mb_large", peak, "");
    report.detail("rounds_large", rounded(&rates));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_needs_two_sizes() {
        assert_eq!(two_numbers("100,3000"), Ok((100, 3000)));
        for bad in ["100", "0,5", "5,5", "7,5", "a,b"] {
            assert!(two_numbers(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_limit_is_the_slower_one_that_there_is() {
        let mut baselines = Baselines { select: vec![400.0, 420.0], ..Baselines::default() };
        assert_eq!(baselines.limit(), 420.0);
        baselines.client_alone = vec![90.0];
        assert_eq!(baselines.limit(), 90.0);
    }
}
