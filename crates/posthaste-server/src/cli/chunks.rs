//! Acts in chunks that are transactions of their own: consent, progress, a rate, Ctrl-C between two of them.

use crate::output::{Usage, ask, is_interactive};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use posthaste::admin::AdminError;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How fast it goes, and how far.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// Rows in one transaction.
    pub(super) chunk: i64,
    /// Rows a second, at most.
    pub(super) rate: Option<f64>,
    /// Rows at the beginning. No more than these are taken: what comes back meanwhile is not taken again.
    pub(super) matched: u64,
}

/// How it went.
pub(super) struct ActResult {
    pub(super) done: u64,
    pub(super) stopped: bool,
}

/// A chunk is no larger than what a second allows, so that the rate is even and Ctrl-C is quick.
pub(super) fn chunk(most: i64, rate: Option<f64>) -> i64 {
    rate.map_or(most, |rate| most.min((rate.ceil() as i64).max(1)))
}

/// Asks on a terminal; elsewhere silence is no consent. `would` says what is about to be done.
pub(super) fn agreed(question: &str, would: &str) -> anyhow::Result<bool> {
    if !is_interactive() {
        return Err(Usage(format!("{would}: say --yes to do it, or --dry-run to look")).into());
    }
    ask(question)
}

/// Takes chunk after chunk until one is empty.
pub(super) async fn run(
    pace: Pace,
    json: bool,
    mut act: impl AsyncFnMut(i64) -> Result<u64, AdminError>,
) -> Result<ActResult, AdminError> {
    let bar = progress(pace.matched, json);
    let result = in_turn(pace, &bar, &mut act).await;
    bar.finish_and_clear();
    result
}

async fn in_turn(
    pace: Pace,
    bar: &ProgressBar,
    act: &mut impl AsyncFnMut(i64) -> Result<u64, AdminError>,
) -> Result<ActResult, AdminError> {
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let (mut done, mut next) = (0, Instant::now());
    loop {
        let left = pace.matched.saturating_sub(done).try_into().unwrap_or(i64::MAX);
        let chunk = pace.chunk.min(left);
        let rows = if chunk == 0 { 0 } else { act(chunk).await? };
        done += rows;
        bar.set_position(done);
        if rows == 0 {
            return Ok(ActResult { done, stopped: false });
        }
        let pause = pace.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(rows as f64 / rate));
        next = next.max(Instant::now() - pause) + pause;
        tokio::select! {
            biased;
            _ = &mut interrupted => return Ok(ActResult { done, stopped: true }),
            () = sleep_until(next) => {}
        }
    }
}

/// A bar for so many, where somebody sees it.
pub(super) fn progress(matched: u64, json: bool) -> ProgressBar {
    let target = if json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(matched), target);
    let style = ProgressStyle::with_template("{bar:30} {human_pos}/{human_len}  {per_sec}  {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
