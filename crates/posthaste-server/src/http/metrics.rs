//! The recorder behind `/metrics`.

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use posthaste::task::{Task, spawn};
use posthaste::telemetry;
use std::time::Duration;

/// Histograms are drained this often, or their samples pile up between scrapes.
const UPKEEP: Duration = Duration::from_secs(1);

/// Latencies from half a millisecond to five minutes: from an idle system's wakeup to an outage. What a
/// service promises is a bound of its own, or a quantile could not say whether it is kept: 50 and 200 ms are.
const SECONDS: [f64; 19] = [
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0,
    150.0, 300.0,
];
/// Events in a page and messages in a batch, by powers of four.
const EVENTS: [f64; 7] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];

/// Makes the recorder that the engine's metrics go to.
pub(crate) fn install_metrics() -> anyhow::Result<PrometheusHandle> {
    let full = |name: &str| Matcher::Full(name.to_owned());
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|b| b.set_buckets_for_metric(full(telemetry::PROCESS_LATENCY), &SECONDS))
        .and_then(|b| b.set_buckets_for_metric(full(telemetry::PAGE_EVENTS), &EVENTS))
        .and_then(|b| b.set_buckets_for_metric(full(telemetry::consumer::BATCH_MESSAGES), &EVENTS))
        .and_then(|b| b.set_buckets_for_metric(full(telemetry::gateway::COMMIT_EVENTS), &EVENTS));
    let handle = builder.and_then(PrometheusBuilder::install_recorder).context("cannot set up metrics")?;
    for (name, text) in telemetry::descriptions() {
        // The exporter keeps one text for a name, whatever its kind.
        metrics::describe_gauge!(name, text);
    }
    Ok(handle)
}

/// Drains histograms now and then.
pub(crate) fn upkeep(metrics: PrometheusHandle) -> Task<()> {
    spawn("metrics-upkeep", async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            metrics.run_upkeep();
        }
    })
}
