//! `/metrics`, `/livez` and `/readyz`: what others see of a running relay.
//!
//! Three fixed pages for machines need no web framework: this is HTTP/1.1 with GET only, one request a
//! connection, and a bound on size, time and connections (G7). Loopback is the default address.
//!
//! `/livez` says that the event loop turns. `/readyz` says that every outbox makes progress or has nothing
//! to do (F85): an idle relay is ready, a stalled one is not. A report that nobody has renewed for a while
//! counts as stalled, so that a frozen task cannot stay green.

use crate::daemon::Board;
use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use posthaste::task::{Task, spawn};
use posthaste::telemetry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A request line and the headers that a scraper sends fit many times over.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Longest time for one request, answer included: a slow reader must not keep a place.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to close after its answer.
const LINGER: Duration = Duration::from_millis(500);
/// Requests at once. More of them wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;
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
        .and_then(|b| b.set_buckets_for_metric(full(telemetry::consumer::BATCH_MESSAGES), &EVENTS));
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

/// Takes the address.
pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot listen on {address} for metrics and health. Nothing was started. \
             Set another http.listen (or --listen), or switch it off with \"off\""
        )
    })
}

/// Serves until the task is dropped.
pub(crate) fn serve(listener: TcpListener, metrics: PrometheusHandle, board: Arc<Board>) -> Task<()> {
    let pages = Arc::new(Pages { metrics, board });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    spawn("http", async move {
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let pages = Arc::clone(&pages);
                    // Bounded by its place and its timeout, so nobody has to own it.
                    tokio::spawn(async move {
                        let _ = timeout(REQUEST_TIMEOUT, pages.answer(stream)).await;
                        drop(place);
                    });
                }
                // Out of file descriptors, usually: it passes, and a busy loop would not help.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for metrics and health");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    })
}

struct Pages {
    metrics: PrometheusHandle,
    board: Arc<Board>,
}

struct Page {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Page {
    fn text(status: &'static str, body: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: body.to_owned() }
    }
}

impl Pages {
    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let request = read_request(&mut stream).await?;
        let page = self.page(&request);
        let head = format!(
            "HTTP/1.1 {}\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            page.status,
            page.kind,
            page.body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(page.body.as_bytes()).await?;
        stream.shutdown().await?;
        linger(stream).await
    }

    fn page(&self, request: &str) -> Page {
        let mut words = request.lines().next().unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = target.split('?').next().unwrap_or_default();
        match (method, path) {
            ("GET", "/metrics") => {
                Page { kind: "text/plain; version=0.0.4", ..Page::text("200 OK", &self.metrics.render()) }
            }
            ("GET", "/livez") => Page::text("200 OK", "alive\n"),
            ("GET", "/readyz") => {
                let report = self.board.report();
                let status = if report.ready { "200 OK" } else { "503 Service Unavailable" };
                let body = serde_json::to_string(&report).unwrap_or_default();
                Page { kind: "application/json", ..Page::text(status, &format!("{body}\n")) }
            }
            ("GET", _) => Page::text("404 Not Found", "there are /metrics, /livez and /readyz\n"),
            _ => Page::text("405 Method Not Allowed", "only GET\n"),
        }
    }
}

/// Reads what is left of a request. Closing over unread bytes resets the connection, and the client may lose
/// the answer that is on its way.
async fn linger(mut stream: TcpStream) -> std::io::Result<()> {
    let mut rest = [0; 1024];
    while let Ok(read) = timeout(LINGER, stream.read(&mut rest)).await {
        if read? == 0 {
            break;
        }
    }
    Ok(())
}

async fn read_request(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut request = Vec::with_capacity(512);
    let ends = |request: &[u8]| request.windows(4).any(|end| end == b"\r\n\r\n");
    while !ends(&request) {
        let room = REQUEST_BYTES_MAX - request.len();
        if room == 0 || stream.take(room as u64).read_buf(&mut request).await? == 0 {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}
