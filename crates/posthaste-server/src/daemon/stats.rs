//! Gauges that only the store can tell: backlog, ages, deferred, dead. Asked every few seconds, on a
//! connection of their own, and never a reason to stop a relay.

use crate::config::Outbox;
use posthaste::admin::{Admin, OutboxStatus, SinkStatus};
use posthaste::task::{Task, spawn};
use posthaste::telemetry;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Between two looks. Half of a usual scrape interval, so that no scrape sees the same look three times.
const PAUSE: Duration = Duration::from_secs(5);
/// While nothing waits anywhere, only every so many pauses: an idle relay leaves the database alone (F83).
const IDLE_PAUSES: u32 = 4;
/// A look that takes longer is given up, and the connection with it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts looking.
pub(crate) fn watch(outbox: Outbox) -> Task<()> {
    spawn("stats", async move {
        let mut ticks = interval(PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut admin = None;
        let mut silent = false;
        let mut idle_pauses_left = 0;
        loop {
            ticks.tick().await;
            if idle_pauses_left > 0 {
                idle_pauses_left -= 1;
                continue;
            }
            match timeout(PATIENCE, look(&outbox, &mut admin))
                .await
                .unwrap_or_else(|_| Err("no answer".to_owned()))
            {
                Ok(status) => {
                    silent = false;
                    let idle =
                        status.sinks.iter().all(|sink| sink.backlog.count == 0 && sink.deferred.count == 0);
                    idle_pauses_left = if idle { IDLE_PAUSES - 1 } else { 0 };
                    for sink in &status.sinks {
                        record(&outbox, sink);
                    }
                }
                Err(error) => {
                    admin = None;
                    // Once for a failure that lasts: the relay itself says the rest.
                    if !silent {
                        tracing::warn!(outbox = %outbox.name, %error, "gauges are not refreshed for now");
                    }
                    silent = true;
                }
            }
        }
    })
}

async fn look(outbox: &Outbox, admin: &mut Option<Box<dyn Admin>>) -> Result<OutboxStatus, String> {
    let admin = match admin {
        Some(admin) => admin,
        None => admin.insert(outbox.database.admin().await.map_err(|error| error.to_string())?),
    };
    admin.status().await.map_err(|error| error.to_string())
}

fn record(outbox: &Outbox, sink: &SinkStatus) {
    let gauges = [
        (telemetry::BACKLOG, sink.backlog.count as f64),
        (telemetry::PENDING, sink.backlog.count as f64),
        (telemetry::OLDEST_AGE, sink.oldest_age_seconds),
        (telemetry::AVERAGE_AGE, sink.average_age_seconds),
        (telemetry::DEFERRED, sink.deferred.count as f64),
        (telemetry::DEAD, sink.dead.count as f64),
    ];
    for (name, value) in gauges {
        let (service, outbox) = (outbox.service.to_string(), outbox.name.to_string());
        metrics::gauge!(name, "service" => service, "outbox" => outbox, "sink" => sink.sink.clone())
            .set(value);
    }
}
