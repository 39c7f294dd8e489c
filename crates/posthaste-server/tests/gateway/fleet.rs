//! 003 §5.3: many gateways are one limit, because they count in one Redis.

use crate::clients::{Balancer, keep_sending};
use crate::rig::{Rig, ask};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Redis, RedisOptions, TestDatabase};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PER_S: f64 = 40.0;
const BURST: f64 = 80.0;

/// W2, W3: a tenant at five times its rate passes with its rate, and of what was refused there is no row.
#[tokio::test(flavor = "multi_thread")]
async fn w3_three_gateways_are_one_limit() {
    let time = if std::env::var_os("POSTHASTE_SOAK").is_some() { 30 } else { 4 };
    let redis = require_service!(Redis::start(&RedisOptions::default()).await);
    let database = require_service!(TestDatabase::create().await);
    let client = database.connect().await.expect("a connection");
    // A busy machine must not look like a Redis that is away: then each gateway would count by itself.
    let more = format!(
        "limit = {{ rate_per_s = {PER_S:?}, burst = {BURST}, gateways = 3, timeout_ms = 10000, redis = {{ url = {:?} }} }}\n",
        redis.url()
    );
    let rig = Rig::on_postgres(database, &more);
    let key = rig.key("acme", &[]);
    let others = [rig.another(), rig.another()];
    for (_, address) in &others {
        rig.until("another gateway knows the key", || {
            let head = [("authorization", &*format!("Bearer {key}"))];
            ask(address, "GET", "/v1/openapi.json", &head, b"").status == 200
        });
    }
    let fleet = Balancer::of(&[&rig.address, &others[0].1, &others[1].1]);
    let (taken, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (is_over, first, last) = (AtomicBool::new(false), Mutex::new(None), Mutex::new(Instant::now()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            keep_sending(5.0 * PER_S, 24, &is_over, &|number| {
                let answer = fleet.ask(&key, &[], number.to_string().as_bytes()).expect("an answer");
                let now = Instant::now();
                match answer.status {
                    202 => {
                        first.lock().expect("no panic").get_or_insert(now);
                        *last.lock().expect("no panic") = now;
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                    _ => {
                        assert_eq!((answer.status, answer.code().as_str()), (429, "gateway.limited"));
                        let wait = answer.field("retry-after").and_then(|text| text.parse::<u64>().ok());
                        // A single event could pass within a moment, always: in whole seconds that is one.
                        assert_eq!(wait, Some(1), "{}", answer.head);
                        assert!(answer.field("ratelimit").is_some_and(|left| left.contains("r=0")));
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        });
        std::thread::sleep(Duration::from_secs(time)); // pace: the flood lasts so long
        is_over.store(true, Ordering::Relaxed);
    });
    let whole = begun.elapsed().as_secs_f64();
    let (first, last) = (first.into_inner().expect("no panic"), last.into_inner().expect("no panic"));
    let between = last.duration_since(first.expect("some passed")).as_secs_f64();
    let (taken, refused) = (taken.into_inner(), refused.into_inner());
    println!("gateway: {taken} events passed three gateways in {between:.2} s, {refused} were refused");
    assert!(refused > 0, "it was a flood");
    assert!(taken as f64 <= PER_S * whole + BURST, "{taken} in {whole} s");
    assert!(taken as f64 >= 0.95 * (PER_S * between + BURST), "{taken} in {between} s");
    let rows: i64 =
        client.query_one("select count(*) from posthaste.outbox", &[]).await.expect("a count").get(0);
    assert_eq!(rows, taken as i64, "a row for each 202, and no other");
    let said: String = [&rig.daemon, &others[0].0, &others[1].0].map(|daemon| daemon.said()).concat();
    assert!(!said.contains("judged by this process alone"), "{said}");
    std::thread::sleep(Duration::from_secs(1)); // pace: as long as Retry-After said
    let answer = fleet.ask(&key, &[], b"obeyed").expect("an answer");
    assert_eq!(answer.status, 202, "a client that obeys passes: {}", answer.text);
}
