//! Pages that are open: what they cost a relay that drains, and what memory they take.
//!
//! A viewer reads its stream, opens the next one when that ends, and does nothing else. A token may have four
//! streams, so the viewers are several people. The sink is paused while a backlog is made, and timed from
//! being resumed: once with nobody watching, once beside all viewers.

use super::asker::{Asker, StreamReader};
use super::daemon::{ApiDaemon, SINK};
use super::fill::ApiField;
use super::looks::OUTBOX;
use crate::judge::{Judge, Target};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many watch.
const VIEWERS: usize = 20;
/// Streams of one token.
const OF_ONE: usize = 4;
/// Tokens of all viewers.
pub(super) const TOKENS: usize = VIEWERS / OF_ONE;
/// Events of a backlog, at most.
const BACKLOG_MOST: u64 = 2_000_000;
/// For so long they watch before their memory is looked at: each has had many looks.
const WATCHED: Duration = Duration::from_secs(10);

/// What watching costs.
pub(super) struct ViewedDrain {
    backlog: u64,
    alone_s: f64,
    beside_s: f64,
    rss_more_mib: f64,
    messages: u64,
}

impl ViewedDrain {
    pub(super) fn figures(&self, judge: &mut Judge<'_>) {
        judge.report.fact("viewers", VIEWERS as u64, "pages that only read their stream");
        judge.report.fact("viewers_backlog", self.backlog, "events, drained without and with them");
        let rate = |seconds: f64| self.backlog as f64 / seconds;
        judge.report.figure("drain_alone_per_s", rate(self.alone_s), "with nobody watching");
        judge.report.figure("drain_beside_per_s", rate(self.beside_s), "beside all of them");
        let ratio = self.alone_s / self.beside_s;
        judge.target("drain_beside_ratio", ratio, Target::Least(0.9), "beside them to without");
        let words = "resident memory with their streams open, to before";
        judge.target("viewers_rss_more_mib", self.rss_more_mib, Target::Most(12.0), words);
        judge.report.detail("viewers_messages", self.messages);
    }
}

pub(super) async fn run(field: &mut ApiField<'_>, daemon: &ApiDaemon) -> anyhow::Result<ViewedDrain> {
    let backlog = (field.args.events / 5).min(BACKLOG_MOST);
    let alone_s = drain(field, daemon, backlog).await?;
    let before = daemon.rss_mib()?;
    let messages = Arc::new(AtomicU64::new(0));
    let mut viewers = JoinSet::new();
    for viewer in daemon.viewers().iter().flat_map(|viewer| [viewer; OF_ONE]) {
        viewers.spawn(watch(viewer.clone(), open(viewer).await?, Arc::clone(&messages)));
    }
    tokio::time::sleep(WATCHED).await; // pace
    let rss_more_mib = daemon.rss_mib()? - before;
    let beside_s = drain(field, daemon, backlog).await?;
    // One that was sent away would be no load.
    if let Some(ended) = viewers.try_join_next() {
        ended??;
    }
    let messages = messages.load(Ordering::Relaxed);
    anyhow::ensure!(messages > 0, "no viewer was told anything");
    Ok(ViewedDrain { backlog, alone_s, beside_s, rss_more_mib, messages })
}

async fn open(viewer: &Asker) -> anyhow::Result<StreamReader> {
    let outbox = OUTBOX.trim_start_matches("/outboxes/");
    viewer.stream(&format!("/stream?outbox={outbox}&tail=true")).await
}

/// As a page does: a stream ends with the time of its connection, and the next one goes on.
async fn watch(viewer: Asker, mut stream: StreamReader, messages: Arc<AtomicU64>) -> anyhow::Result<()> {
    loop {
        while let Some(count) = stream.next().await? {
            messages.fetch_add(count, Ordering::Relaxed);
        }
        stream = open(&viewer).await?;
    }
}

/// Seconds from resuming the sink until a backlog is delivered.
async fn drain(field: &mut ApiField<'_>, daemon: &ApiDaemon, events: u64) -> anyhow::Result<f64> {
    pause(daemon.asker()?, true).await?;
    field.grow(events).await?;
    let begun = Instant::now();
    pause(daemon.asker()?, false).await?;
    field.delivered(None).await?;
    Ok(begun.elapsed().as_secs_f64())
}

async fn pause(asker: &Asker, paused: bool) -> anyhow::Result<()> {
    asker.put(&format!("{OUTBOX}/sinks/{SINK}/control"), json!({ "paused": paused })).await?;
    Ok(())
}
