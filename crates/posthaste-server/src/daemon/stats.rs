//! Gauges that only the store can tell: backlog, ages, deferred, dead. Asked every few seconds, on a
//! connection of their own, and never a reason to stop a relay. Each look goes on the board, too.
//!
//! While nothing waits anywhere, looks are rare: an idle relay leaves the database alone (F83). What the
//! relay notices itself (something was put aside or died, an operator set something) asks for a look soon.

use super::board::Board;
use crate::api::SeriesBook;
use crate::config::Outbox;
use posthaste::admin::job::JobBell;
use posthaste::admin::{Admin, Count, OutboxStatus, SinkStatus};
use posthaste::task::{Task, spawn};
use posthaste::telemetry;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// Between two looks. Half of a usual scrape interval, so that no scrape sees the same look three times.
const PAUSE: Duration = Duration::from_secs(5);
/// While nothing waits anywhere.
const IDLE_PAUSE: Duration = Duration::from_secs(20);
/// Between two looks at least, whatever happens; and while a new outbox has no sinks yet.
const SHORT_PAUSE: Duration = Duration::from_secs(1);
/// A look that takes longer is given up, and the connection with it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts looking. `process` is this relay's name, `seat` its outbox's place on the board; an API beside the
/// relay has a `series`, and a `bell` for jobs that nobody runs: whoever runs them asks nothing by
/// themselves.
pub(crate) fn watch(
    outbox: Outbox,
    process: Arc<str>,
    board: Arc<Board>,
    seat: usize,
    series: Option<Arc<SeriesBook>>,
    bell: Option<JobBell>,
) -> Task<()> {
    spawn("stats", async move {
        let (mut admin, mut recorded, mut silent, mut news) = (None, BTreeSet::new(), false, 0);
        loop {
            let begun = Instant::now();
            let looked = timeout(PATIENCE, look(&outbox, &mut admin)).await;
            let pause = match looked.unwrap_or_else(|_| Err("no answer".to_owned())) {
                Ok(mut status) => {
                    silent = false;
                    record_all(&outbox, &status, &mut recorded);
                    if let Some(series) = &series {
                        series.note(&outbox.name, &status);
                    }
                    if let Some(bell) = bell.as_ref().filter(|_| status.jobs_wait) {
                        bell.ring();
                    }
                    let pause = pause_after(&status);
                    status.reports.retain(|report| *report.relay != *process);
                    board.look(seat, status);
                    pause
                }
                Err(error) => {
                    admin = None;
                    // Once for a failure that lasts: the relay itself says the rest.
                    if !silent {
                        tracing::warn!(outbox = %outbox.name, %error, "gauges are not refreshed for now");
                    }
                    silent = true;
                    PAUSE
                }
            };
            tokio::select! {
                () = sleep_until(begun + pause) => {}
                heard = board.news_since(seat, news) => {
                    news = heard;
                    sleep_until(begun + SHORT_PAUSE).await;
                }
            }
        }
    })
}

/// When to look again, if nothing happens.
fn pause_after(status: &OutboxStatus) -> Duration {
    let is_idle = |sink: &SinkStatus| sink.backlog.count == 0 && sink.deferred.count == 0;
    match status.sinks.is_empty() {
        true => SHORT_PAUSE,
        false if status.sinks.iter().all(is_idle) => IDLE_PAUSE,
        false => PAUSE,
    }
}

async fn look(outbox: &Outbox, admin: &mut Option<Box<dyn Admin>>) -> Result<OutboxStatus, String> {
    let admin = match admin {
        Some(admin) => admin,
        None => admin.insert(outbox.database.admin().await.map_err(|error| error.to_string())?),
    };
    admin.status().await.map_err(|error| error.to_string())
}

/// Sets the gauges of all sinks. Of one that is gone nothing is left in the database, and its gauges say so:
/// they would keep their last value for ever.
fn record_all(outbox: &Outbox, status: &OutboxStatus, recorded: &mut BTreeSet<String>) {
    let known: BTreeSet<String> = status.sinks.iter().map(|sink| sink.sink.clone()).collect();
    for sink in &status.sinks {
        record(outbox, sink);
    }
    for gone in recorded.difference(&known) {
        let none = Count { count: 0, exact: true };
        set(outbox, gone, [none; 3], [0.0; 2]);
    }
    *recorded = known;
}

fn record(outbox: &Outbox, sink: &SinkStatus) {
    let ages = [sink.oldest_age_seconds, sink.average_age_seconds];
    set(outbox, &sink.sink, [sink.backlog, sink.deferred, sink.dead], ages);
}

fn set(outbox: &Outbox, sink: &str, [backlog, deferred, dead]: [Count; 3], [oldest, average]: [f64; 2]) {
    let gauges = [
        (telemetry::BACKLOG, backlog.count as f64),
        (telemetry::PENDING, backlog.count as f64),
        (telemetry::OLDEST_AGE, oldest),
        (telemetry::AVERAGE_AGE, average),
        (telemetry::DEFERRED, deferred.count as f64),
        (telemetry::DEAD, dead.count as f64),
    ];
    for (name, value) in gauges {
        let (service, outbox) = (outbox.service.to_string(), outbox.name.to_string());
        metrics::gauge!(name, "service" => service, "outbox" => outbox, "sink" => sink.to_owned()).set(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use posthaste::Timestamp;

    fn sink(name: &str, retired: bool, dead: u64) -> SinkStatus {
        let exact = |count| Count { count, exact: true };
        SinkStatus {
            sink: name.to_owned(),
            backlog: exact(0),
            oldest_age_seconds: 0.0,
            average_age_seconds: 0.0,
            deferred: exact(0),
            dead: exact(dead),
            delivered_per_second: 0.0,
            paused: false,
            rate_limit: None,
            set_by: None,
            waiting: Vec::new(),
            retired,
            lanes: Vec::new(),
        }
    }

    fn status(sinks: Vec<SinkStatus>) -> OutboxStatus {
        OutboxStatus {
            now: Timestamp(0),
            relays: Vec::new(),
            reports: Vec::new(),
            schema_version: 4,
            sinks,
            segments: Vec::new(),
            paused_routes: Vec::new(),
            jobs_wait: false,
            unread: None,
        }
    }

    #[test]
    fn a_new_outbox_is_looked_at_soon_and_an_idle_one_seldom() {
        assert_eq!(pause_after(&status(Vec::new())), SHORT_PAUSE);
        assert_eq!(pause_after(&status(vec![sink("a", false, 5)])), IDLE_PAUSE);
        let mut busy = sink("a", false, 0);
        busy.deferred.count = 1;
        assert_eq!(pause_after(&status(vec![busy])), PAUSE);
    }

    #[test]
    fn a_sink_that_left_keeps_what_it_left_and_one_that_is_gone_nothing() {
        let config =
            crate::config::Config::parse(std::path::Path::new("t"), "outbox.url = \"postgres://h/d\"");
        let config = config.map_err(|error| error.to_string()).expect("an outbox");
        let (outbox, mut recorded) = (&config.outboxes[0], BTreeSet::new());
        let recorder = PrometheusBuilder::new().build_recorder();
        let mut seen = |sinks| {
            metrics::with_local_recorder(&recorder, || record_all(outbox, &status(sinks), &mut recorded));
            let text = recorder.handle().render();
            let of_old = |line: &&str| line.starts_with(telemetry::DEAD) && line.contains("sink=\"old\"");
            text.lines().find(of_old).and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
        };
        assert_eq!(seen(vec![sink("new", false, 0), sink("old", false, 3)]).as_deref(), Some("3"));
        assert_eq!(seen(vec![sink("new", false, 0), sink("old", true, 2)]).as_deref(), Some("2"));
        assert_eq!(seen(vec![sink("new", false, 0)]).as_deref(), Some("0"));
    }
}
