//! How many requests a second an intake stores: events of 500 bytes, of clients that wait for each answer.
//!
//! ```sh
//! cargo run --release -p posthaste-postgres --example measure_intake -- URL [CLIENTS] [SECONDS] [keyed]
//! ```

use posthaste::Event;
use posthaste::intake::{Idempotency, IngestRequest, Intake, IntakeBounds};
use posthaste_postgres::{PostgresConfig, PostgresIntake, migrate};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn request(
    n: u64,
    payload: &bytes::Bytes,
    tenant: &Arc<str>,
    topic: &Arc<str>,
    is_keyed: bool,
) -> IngestRequest {
    let event = Event::new(&**topic, payload.clone())
        .with_key(tenant)
        .with_content_type("application/json")
        .with_header("tenant_id", &**tenant)
        .with_header("type", "CreateCampaign");
    let key = || Idempotency { key: format!("{n:032x}").into(), hash: [7; 32] };
    let (tenant, topic, idempotency) = (Arc::clone(tenant), Arc::clone(topic), is_keyed.then(key));
    IngestRequest { tenant, topic, events: vec![event], idempotency }
}

async fn client(first: u64, intake: Arc<PostgresIntake>, until: Instant, is_keyed: bool) -> Vec<Duration> {
    let (payload, mut took) = (bytes::Bytes::from(vec![b'x'; 500]), Vec::new());
    let (tenant, topic): (Arc<str>, Arc<str>) =
        (format!("tenant-{}", first % 100).into(), "commands.v1".into());
    for n in 0.. {
        let began = Instant::now();
        if began >= until {
            break;
        }
        let request = request(first * 1_000_000_000 + n, &payload, &tenant, &topic, is_keyed);
        intake.append(request).await.expect("stored");
        took.push(began.elapsed());
    }
    took
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let config = PostgresConfig::new(arguments.first().expect("a URL").clone());
        let number =
            |place: usize, usual| arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(usual);
        let (clients, seconds) = (number(1, 256_u64), number(2, 10_u64));
        let is_keyed = arguments.iter().any(|word| word == "keyed");
        migrate::up(&config, &migrate::Roles::default()).await.expect("the migration applies");
        let bounds = IntakeBounds { requests_max: 1 << 20, ..IntakeBounds::default() };
        let intake = Arc::new(PostgresIntake::start(config, bounds));
        let began = Instant::now();
        let until = began + Duration::from_secs(seconds);
        let salt = u64::from(std::process::id()) * 10_000;
        let tasks: Vec<_> = (0..clients)
            .map(|n| tokio::spawn(client(salt + n, Arc::clone(&intake), until, is_keyed)))
            .collect();
        let mut took = Vec::new();
        for task in tasks {
            took.extend(task.await.expect("no client panics"));
        }
        let elapsed = began.elapsed().as_secs_f64();
        took.sort_unstable();
        let figures = intake.figures();
        println!(
            "{clients} clients, keyed: {is_keyed}: {:.0} requests/s, {:.1} in a commit, p50 {:?}, p99 {:?}",
            took.len() as f64 / elapsed,
            figures.committed_events as f64 / figures.commits as f64,
            took[took.len() / 2],
            took[took.len() * 99 / 100]
        );
    });
}
