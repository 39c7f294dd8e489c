//! What others cost: a neighbour over its limit, a crowd, and nobody at all.

use super::daemon::{Door, Gateway, new_key};
use super::{LOUD, Site, asking, path};
use crate::Bench;
use crate::judge::{Judge, Target};
use crate::latency::Idle;
use crate::report::{ProgressLine, rounded};
use crate::sample::{Counter, ProcessUsage, quantile, sorted};
use anyhow::ensure;
use serde_json::Value;

/// Events a second that the loud one may hand in, and at once; it tries so many times more.
const LOUD_RATE: f64 = 100.0;
const TIMES: f64 = 20.0;
/// Requests a second of the others, who are far below their limit.
const INNOCENT_RATE: f64 = 200.0;
const CLIENTS: usize = 32;
/// What a gateway looks at its tenants after, by default.
const REFRESH_MS: f64 = 5_000.0;

/// A tenant with a limit that it will not keep.
pub(super) async fn loud_key(site: &Site<'_>) -> anyhow::Result<String> {
    let config = Door::default().write(site, "keys").await?;
    let key = new_key(site, &config, LOUD).await?;
    let (rate, burst) = (format!("{LOUD_RATE}/s"), LOUD_RATE.to_string());
    let words = ["gateway", "tenants", "set", LOUD, "--rate", &rate, "--burst", &burst];
    site.product.ask(&words, Some(&config)).await?;
    Ok(key)
}

/// The p99 of an innocent tenant in each round.
pub(super) struct Neighbours {
    alone: Vec<f64>,
    beside: Vec<f64>,
    /// Events a second that the loud one got through, and was refused.
    passed_per_s: f64,
    refused_per_s: f64,
}

pub(super) async fn neighbours(
    site: &Site<'_>,
    gateway: &Gateway,
    keys: &[String],
    loud: &String,
) -> anyhow::Result<Neighbours> {
    let innocent = asking(gateway.address, site.singles(&path(), &keys[..1]), CLIENTS);
    let loud = asking(gateway.address, site.singles(&path(), std::slice::from_ref(loud)), CLIENTS);
    let (rounds, time) = (site.args.rounds, site.time());
    let mut told =
        Neighbours { alone: Vec::new(), beside: Vec::new(), passed_per_s: 0.0, refused_per_s: 0.0 };
    let mut progress = ProgressLine::start("a neighbour over its limit", 2 * rounds);
    for round in 0..rounds {
        for is_beside in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
            let quiet = innocent.paced(INNOCENT_RATE, time);
            let answers = if is_beside {
                let (answers, flood) = tokio::try_join!(quiet, loud.paced(LOUD_RATE * TIMES, time))?;
                let statuses = &flood.by_status;
                ensure!(statuses.keys().all(|status| matches!(status, 202 | 429)), "{statuses:?}");
                site.count(&flood, 1);
                told.passed_per_s = flood.per_s();
                let refused = statuses.get(&429).copied().unwrap_or_default();
                told.refused_per_s = refused as f64 / time.as_secs_f64();
                answers
            } else {
                quiet.await?
            };
            let answers = answers.all_accepted("a tenant within its limit")?;
            site.count(&answers, 1);
            let of = if is_beside { &mut told.beside } else { &mut told.alone };
            of.push(quantile(&sorted(answers.times_ms), 0.99));
        }
        progress.set(2 * round + 2);
    }
    progress.finish();
    Ok(told)
}

impl Neighbours {
    pub(super) fn figures(&self, judge: &mut Judge<'_>) {
        let middle = |values: &[f64]| quantile(&sorted(values.to_vec()), 0.5);
        let (alone, beside) = (middle(&self.alone), middle(&self.beside));
        judge.report.figure("innocent_alone_p99_ms", alone, "of a tenant within its limit");
        let words = format!("beside one that sends {TIMES} times its rate");
        judge.report.figure("innocent_p99_ms", beside, &words);
        judge.target("innocent_p99_ratio_to_alone", beside / alone, Target::Most(2.0), "");
        judge.report.figure("loud_passed_per_s", self.passed_per_s, "of the loud one; it may 100");
        judge.report.detail("loud_refused_per_s", self.refused_per_s.round());
        judge.report.detail("round_innocent_alone_p99_ms", rounded(&self.alone));
        judge.report.detail("round_innocent_p99_ms", rounded(&self.beside));
    }
}

/// What a gateway asks the database for while nobody comes.
pub(super) struct Unused {
    /// In the time between two looks.
    per_refresh: f64,
    how: &'static str,
    statements: Value,
    is_alone: bool,
}

pub(super) async fn idle(bench: &Bench<'_>, site: &Site<'_>, key: &str) -> anyhow::Result<Unused> {
    let counter = Counter::find(bench.ground).await;
    let is_alone = counter.is_on_demand(bench.ground).await?;
    let store = &site.common.store;
    let mark = if store.contains('?') { '&' } else { '?' };
    let counted = format!("{store}{mark}options=-c%20pg_stat_statements.track%3Dtop");
    let door = Door { database: is_alone.then_some(&*counted), ..Door::default() };
    let gateway = site.open(&door, "gateway-unused", key).await?;
    let idle = Idle::count(bench, &counter, site.args.idle_seconds).await?;
    gateway.stop().await?;
    // As many looks as may be in the time, whenever the first one was.
    let seconds = site.args.idle_seconds as f64;
    let looks = (seconds * 1e3 / REFRESH_MS).ceil();
    let per_refresh = idle.per_s * seconds / looks;
    Ok(Unused { per_refresh, how: idle.how, statements: idle.statements, is_alone })
}

impl Unused {
    pub(super) fn figures(self, judge: &mut Judge<'_>) {
        let name = "idle_statements_per_refresh";
        if self.is_alone {
            judge.target(name, self.per_refresh, Target::Most(1.0), self.how);
        } else {
            judge.report.figure(name, self.per_refresh, &format!("{}, of everybody", self.how));
        }
        judge.report.detail("idle_statements", self.statements);
    }
}

/// The memory of a gateway at its peak, with many tenants known and many requests in flight.
pub(super) async fn crowd(bench: &Bench<'_>, site: &Site<'_>, keys: &[String]) -> anyhow::Result<f64> {
    let schema = &bench.ground.schema;
    let known = site.args.known;
    let sql = format!(
        "insert into {schema}.gateway_tenants (tenant) select 'known-' || n from generate_series(1, {known}) n;
         insert into {schema}.gateway_keys (id, tenant, hash)
         select lpad(to_hex(n), 12, '0'), 'known-' || n, sha256(convert_to('nobody has it: ' || n, 'UTF8'))
           from generate_series(1, {known}) n"
    );
    bench.ground.client.batch_execute(&sql).await?;
    let gateway = site.open(&Door::default(), "gateway-crowd", &keys[0]).await?;
    let crowd = asking(gateway.address, site.singles(&path(), keys), usize::from(site.args.in_flight));
    let answers = crowd.closed(site.time()).await?.all_accepted("a crowd")?;
    site.count(&answers, 1);
    let peak = ProcessUsage::of(gateway.relay.pid())?.rss_peak_mb;
    gateway.stop().await?;
    Ok(peak)
}
