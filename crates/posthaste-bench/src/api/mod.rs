//! How fast the administration answers over a large log, what it costs while nobody asks, and what its jobs
//! do.
//!
//! ```text
//! a tenth of the log ─▶ letters, deferred events, audit ─▶ looks ─▶ all of the log ─▶ idle, without and with
//!                                                             the API ─▶ looks ─▶ viewers ─▶ jobs
//! ```
//!
//! The looks are an open loop (F90): request n has its intended time, goes out then whatever became of those
//! before it, and its time counts from there to the last byte of the answer. Meanwhile events are appended
//! at a steady rate, and the same process delivers them. The same looks at a tenth of the log show whether a
//! time grows with it (F82).
//!
//! What is looked at was made by SQL (`fill`), in rows as the relay writes them. A relay has read all of the
//! log before anything is measured, so that there are receipts behind it.

mod asker;
mod daemon;
mod fill;
mod jobs;
mod looks;
mod viewers;

use crate::judge::{Judge, Target};
use crate::latency::Idle;
use crate::output::{Usage, remark};
use crate::report::Report;
use crate::sample::{Counter, quantile, sorted};
use crate::{Bench, Common};
use clap::Args;
use daemon::{ApiDaemon, Tokens};
use fill::ApiField;
use looks::{KINDS, Looked};

/// Fewer events are no measurement.
const JUDGED_FROM: u64 = 10_000_000;
/// Times below this one are compared as if they were this one: what is above it is more than a machine's
/// noise.
const NOISE_MS: f64 = 5.0;
/// A p99 of some hundred requests moves by less than this by itself.
const GROWS_MOST: f64 = 2.0;
/// Statements a second that are as good as none: one in two seconds.
const STATEMENTS_MORE: f64 = 0.5;

#[derive(Debug, Args)]
pub(super) struct ApiArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many events the log has
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// How many dead letters, and as many deferred events and lines of the audit
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(100..))]
    rows: u64,
    /// How many causes the letters have
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(3..=400))]
    causes: u64,
    /// Requests a second, of all kinds in turn
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Events a second that are appended meanwhile
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    append_rate: u64,
    /// How long nobody asks
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    idle_seconds: u64,
    /// Letters a second of the job with a rate
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    job_rate: u64,
    /// How long that one runs before it is cancelled
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    job_seconds: u64,
}

impl ApiArgs {
    /// A tenth of the log holds the events of all letters and of all that is deferred.
    fn check(&self) -> anyhow::Result<()> {
        if self.events < 20 * self.rows {
            let why = format!("--events {}: must be 20 times --rows at least", self.events);
            return Err(Usage(why).into());
        }
        Ok(())
    }
}

pub(super) async fn run(bench: &Bench<'_>, args: &ApiArgs, report: &mut Report) -> anyhow::Result<()> {
    args.check()?;
    let tokens = Tokens::make(bench, viewers::TOKENS).await?;
    let mut field = ApiField::new(bench, args);
    field.fill(args.events / 10).await?;
    ApiDaemon::drain(&mut field, &tokens).await?;
    field.set_aside().await?;
    let daemon = ApiDaemon::start(bench, &tokens, true).await?;
    let small = looks::run(&mut field, &daemon).await?;
    daemon.stop().await?;
    field.fill(args.events).await?;
    ApiDaemon::drain(&mut field, &tokens).await?;

    let counter = Counter::find(bench.ground).await;
    let mut daemon = ApiDaemon::start(bench, &tokens, false).await?;
    let without = Quiet::watch(bench, &mut daemon, &counter, args.idle_seconds).await?;
    daemon.stop().await?;
    let mut daemon = ApiDaemon::start(bench, &tokens, true).await?;
    let with = Quiet::watch(bench, &mut daemon, &counter, args.idle_seconds).await?;
    let large = looks::run(&mut field, &daemon).await?;
    let after_looks = daemon.rss_mib()?;
    let watched = Box::pin(viewers::run(&mut field, &daemon)).await?;
    let jobs = Box::pin(jobs::run(&field, &daemon)).await?;
    let after_jobs = daemon.rss_mib()?;
    daemon.stop().await?;

    report.fact("events", args.events, "in the log");
    report.fact("rows", args.rows, "dead letters, deferred events, lines of the audit: of each");
    let is_judged = args.events >= JUDGED_FROM;
    let mut judge = Judge::new(report, is_judged);
    answers(&mut judge, &small, &large);
    quiet(&mut judge, &without, &with);
    judge.report.figure("rss_after_looks_mib", after_looks, "of the daemon with the API, behind the load");
    judge.report.figure("rss_after_jobs_mib", after_jobs, "behind the jobs");
    watched.figures(&mut judge);
    jobs.figures(&mut judge, args);
    judge.end();
    for (name, value) in [("rate", args.rate), ("seconds", args.seconds), ("append_rate", args.append_rate)] {
        report.detail(name, value);
    }
    report.detail("idle_seconds", args.idle_seconds);
    report.detail("causes", args.causes);
    Ok(())
}

/// The times of each kind, and what became of them with the log.
fn answers(judge: &mut Judge<'_>, small: &Looked, large: &Looked) {
    for (at, kind) in KINDS.iter().enumerate() {
        let (few, all) = (sorted(small.times_ms[at].clone()), sorted(large.times_ms[at].clone()));
        let name = kind.name;
        judge.report.figure(&format!("{name}_p50_ms"), quantile(&all, 0.5), kind.words);
        let p99 = quantile(&all, 0.99);
        judge.target(&format!("{name}_p99_ms"), p99, Target::Most(kind.p99_most_ms), "");
        judge.report.detail(&format!("{name}_max_ms"), quantile(&all, 1.0));
        judge.report.detail(&format!("{name}_requests"), all.len());
        let tenth = quantile(&few, 0.99);
        judge.report.figure(&format!("{name}_tenth_p99_ms"), tenth, "with a tenth of the log");
        let ratio = p99.max(NOISE_MS) / tenth.max(NOISE_MS);
        let words = format!("what it grows by; below {NOISE_MS} ms counts as {NOISE_MS}");
        judge.target(&format!("{name}_p99_ratio_to_tenth"), ratio, Target::Most(GROWS_MOST), &words);
    }
    let failed = small.failed.len() + large.failed.len();
    judge.target("failed_requests", failed as f64, Target::Most(0.0), "answers that were none");
    for why in small.failed.iter().chain(&large.failed).take(3) {
        remark(&format!("bench: a request failed: {why}"));
    }
}

/// A daemon of which nobody wants anything.
struct Quiet {
    idle: Idle,
    rss_mib: f64,
}

impl Quiet {
    async fn watch(
        bench: &Bench<'_>,
        daemon: &mut ApiDaemon,
        counter: &Counter,
        seconds: u64,
    ) -> anyhow::Result<Self> {
        let idle = Idle::count(bench, counter, seconds).await?;
        daemon.relay.check()?;
        Ok(Self { idle, rss_mib: daemon.rss_mib()? })
    }
}

/// What the API costs while nobody asks.
fn quiet(judge: &mut Judge<'_>, without: &Quiet, with: &Quiet) {
    let how = without.idle.how;
    judge.report.figure("idle_statements_off_per_s", without.idle.per_s, how);
    judge.report.figure("idle_statements_per_s", with.idle.per_s, "with the API, and nobody asks");
    let more = with.idle.per_s - without.idle.per_s;
    judge.target("idle_statements_more_per_s", more, Target::Most(STATEMENTS_MORE), "the difference");
    judge.report.figure("rss_off_mib", without.rss_mib, "the daemon's memory without the API, idle");
    judge.report.figure("rss_idle_mib", with.rss_mib, "with it, and nobody asks");
    let more = with.rss_mib - without.rss_mib;
    judge.target("rss_more_mib", more, Target::Most(4.0), "the difference");
    judge.report.detail("idle_statements_off", without.idle.statements.clone());
    judge.report.detail("idle_statements", with.idle.statements.clone());
}
