//! The script takes as Rust does, and three gateways are one.

use super::*;
use posthaste::gcra::{Taken, take};
use posthaste_brokers::LIMITER_SCRIPT;
use posthaste_testkit::require_service;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::time::MissedTickBehavior;

const NOW: u64 = 1_790_000_000_000_000;

/// What the script answers, and what it leaves: the row as a text, and the milliseconds until it is gone.
type Answer = (Vec<i64>, Option<String>, i64);

/// The script at a moment of ours. In one transaction, because a row may be gone within a millisecond.
async fn scripted(
    client: &MultiplexedConnection,
    row: Option<&str>,
    now: u64,
    rate: Rate,
    cost: u32,
) -> Answer {
    let script = LIMITER_SCRIPT.replacen("redis.call('TIME')", "{ARGV[4], ARGV[5]}", 1);
    assert_ne!(script, LIMITER_SCRIPT, "the clock is another one");
    let mut commands = ::redis::pipe();
    commands.atomic().cmd("DEL").arg("k").ignore();
    if let Some(row) = row {
        commands.cmd("SET").arg("k").arg(row).ignore();
    }
    let (seconds, micros) = (now / 1_000_000, now % 1_000_000);
    commands.cmd("EVAL").arg(script).arg(1).arg("k").arg(rate.interval_us().to_string());
    commands.arg(rate.burst).arg(cost).arg(seconds).arg(micros);
    commands.cmd("GET").arg("k").cmd("PTTL").arg("k");
    commands.query_async(&mut client.clone()).await.expect("the script runs")
}

fn milliseconds(us: f64) -> i64 {
    (us / 1_000.0).ceil() as i64
}

/// Every number, to the last bit: what is answered, and what is kept.
async fn assert_same(
    client: &MultiplexedConnection,
    rate: Rate,
    asks: &[(i64, u32)],
    mut row: Option<String>,
) {
    let mut now = NOW;
    for (pause, cost) in asks {
        now = now.saturating_add_signed(*pause);
        let stored = row.as_ref().map(|row| row.parse::<f64>().expect("a number"));
        let (answer, kept, ttl) = scripted(client, row.as_deref(), now, rate, *cost).await;
        let at = format!("{rate:?} at {now}, {cost} out of {row:?}");
        match take(stored, now as f64, rate, *cost) {
            Taken::Now { tat_us, left, full_in_us } => {
                assert_eq!(answer, [1, i64::from(left), full_in_us as i64], "{at}");
                let bits = kept.as_ref().map(|row| row.parse::<f64>().expect("a number").to_bits());
                assert_eq!(bits, Some(tat_us.to_bits()), "{at}: {kept:?}");
                // Since then some time has passed at the server.
                let whole = milliseconds(tat_us - now as f64);
                assert!(ttl <= whole && (ttl < 0 || ttl > whole - 1_000), "{at}: {ttl} ms of {whole}");
                row = kept;
            }
            Taken::Wait { for_us, one_us, left, nearer_us } => {
                assert_eq!(answer, [0, for_us as i64, one_us as i64, i64::from(left)], "{at}");
                let bits =
                    |row: &Option<String>| row.as_ref().map(|row| row.parse::<f64>().map(f64::to_bits));
                let nearer = nearer_us.map(|tat| Ok(tat.to_bits())).or(bits(&row));
                assert_eq!(bits(&kept), nearer, "nothing is taken: {at}");
                row = kept;
            }
        }
    }
}

/// §13.6: the same doubles in both languages, on the same clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_takes_as_rust_does_to_the_last_bit() {
    let bed = require_service!(Bed::open().await);
    let (client, runtime) = (bed.client.clone(), tokio::runtime::Handle::current());
    let rates = prop_oneof![0.000_1f64..1.0, 1.0f64..1_000.0, 1_000.0f64..100_000.0, Just(3.0), Just(7.0)];
    let bursts = prop_oneof![1u32..20, 1u32..1_000, Just(1_000_000)];
    // A clock may also go back.
    let pauses = prop_oneof![0i64..10, 0i64..3_000_000, -5_000_000i64..0];
    let costs = prop_oneof![Just(1u32), 1u32..30, 1u32..2_000];
    let rows = prop_oneof![
        Just(None),
        (-4e9f64..4e9).prop_map(|off| Some(format!("{}", NOW as f64 + off))),
        prop_oneof![Just("0"), Just("-1"), Just("1e300"), Just("inf"), Just("-inf"), Just("nan")]
            .prop_map(|row| Some(row.to_owned())),
    ];
    let asks = proptest::collection::vec((pauses, costs), 1..30);
    let compare = move || {
        let mut runner =
            TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
        runner.run(&(rates, bursts, asks, rows), |(per_s, burst, asks, row)| {
            runtime.block_on(assert_same(&client, Rate { per_s, burst }, &asks, row));
            Ok(())
        })
    };
    tokio::task::spawn_blocking(compare).await.expect("it runs").expect("the same numbers");
}

/// W3: three gateways on one server, a tenant at five times its rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_give_a_tenant_its_rate_and_no_more() {
    let bed = require_service!(Bed::open().await);
    // A burst is half a second: a busy machine may hold everybody up that long.
    let rate = Rate { per_s: 200.0, burst: 100 };
    let gateways: Vec<_> =
        (0..3).map(|_| Arc::new(Gateway::new(&bed.config(), OnLoss::Closed, DEADLINE))).collect();
    for gateway in &gateways {
        gateway.shared.real.tried(DEADLINE).await.expect("it is there");
    }
    let (began, length) = (Instant::now(), Duration::from_secs(5));
    let flood = |gateway: Arc<Gateway>| async move {
        let (acme, mut passed) = (tenant("acme"), 0_u32);
        let mut pace = tokio::time::interval(Duration::from_secs_f64(3.0 / (5.0 * rate.per_s)));
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        while began.elapsed() < length {
            pace.tick().await;
            passed += u32::from(passes(&gateway.guard.take(&acme, rate, 1).await));
        }
        passed
    };
    let floods: Vec<_> = gateways.iter().map(|gateway| tokio::spawn(flood(Arc::clone(gateway)))).collect();
    let mut passed = 0;
    for flood in floods {
        passed += flood.await.expect("it ends");
    }
    let by_rate = rate.per_s * began.elapsed().as_secs_f64();
    let (least, most) = (0.95 * rate.per_s * length.as_secs_f64(), by_rate + f64::from(rate.burst) + 1.0);
    assert!((least..=most).contains(&f64::from(passed)), "{passed}, and {least} to {most} were right");
    assert!(gateways.iter().all(|gateway| gateway.guard.errors() == 0));
}

/// A master whose clock was an hour ahead, or that took over from such a one.
#[tokio::test]
async fn a_clock_that_was_an_hour_ahead_costs_one_burst() {
    let bed = require_service!(Bed::open().await);
    let limiter = limiter(&bed.config(), DEADLINE);
    limiter.tried(DEADLINE).await.expect("it is there");
    let time: (u64, u64) = ::redis::cmd("TIME").query_async(&mut bed.client.clone()).await.expect("a time");
    let ahead = ((time.0 + 3_600) * 1_000_000 + time.1).to_string();
    bed.run(&["SET", "ph:acme:rate", &ahead]).await;
    let LimitDecision::Wait { wait, one, left } = limiter.take(&tenant("acme"), RATE, 1).await else {
        panic!("its bucket is empty")
    };
    assert!(wait <= Duration::from_micros(33_334) && one == wait && left == 0, "{wait:?} {one:?} {left}");
    until(async || passes(&limiter.take(&tenant("acme"), RATE, 10).await)).await;
}

#[tokio::test]
async fn a_limit_that_is_raised_is_in_force_at_once() {
    let bed = require_service!(Bed::open().await);
    let gateway = Gateway::new(&bed.config(), OnLoss::Closed, DEADLINE);
    gateway.shared.real.tried(DEADLINE).await.expect("it is there");
    let (acme, slow) = (tenant("acme"), Rate { per_s: 0.01, burst: 1 });
    assert!(passes(&gateway.guard.take(&acme, slow, 1).await));
    for _ in 0..10 {
        assert!(!passes(&gateway.guard.take(&acme, slow, 1).await));
    }
    assert_eq!(gateway.asked(), 2, "a refusal is remembered");
    until(async || passes(&gateway.guard.take(&acme, RATE, 1).await)).await;
}

/// A row goes when its bucket is full again: memory is that of who is active.
#[tokio::test]
async fn a_row_goes_when_its_bucket_is_full() {
    let bed = require_service!(Bed::open().await);
    let limiter = limiter(&bed.config(), DEADLINE);
    limiter.tried(DEADLINE).await.expect("it is there");
    let slow = Rate { per_s: 0.01, burst: 10 };
    assert!(passes(&limiter.take(&tenant("slow"), slow, 3).await));
    let ttl: i64 = bed.server.cli(&["PTTL", "ph:slow:rate"]).expect("asked").parse().expect("a number");
    assert!((200_000..=300_000).contains(&ttl), "{ttl}");
    assert!(passes(&limiter.take(&tenant("acme"), RATE, 3).await));
    until(async || bed.server.cli(&["KEYS", "*"]).expect("asked") == "ph:slow:rate").await;
}

#[tokio::test]
async fn an_odd_row_costs_its_own_tenant_only() {
    let bed = require_service!(Bed::open().await);
    let gateway = Gateway::new(&bed.config(), OnLoss::Closed, DEADLINE);
    gateway.shared.real.tried(DEADLINE).await.expect("it is there");
    bed.run(&["LPUSH", "ph:list:rate", "x"]).await;
    bed.run(&["SET", "ph:text:rate", "many"]).await;
    for odd in ["list", "text"] {
        let LimitDecision::Odd(words) = gateway.shared.real.take(&tenant(odd), RATE, 1).await else {
            panic!("{odd}")
        };
        assert!(words.contains(&format!("ph:{odd}:rate")), "{words}");
        // In process, by its share: the burst passes, and then a third of the rate.
        for _ in 0..2 {
            assert!(passes(&gateway.guard.take(&tenant(odd), SLOW, 5).await), "{odd}");
        }
        assert!(is_a_share(&gateway.guard.take(&tenant(odd), SLOW, 10).await), "{odd}");
        for _ in 0..10 {
            gateway.guard.take(&tenant(odd), SLOW, 10).await;
            assert!(passes(&gateway.guard.take(&anybody(), RATE, 10).await), "others are judged as ever");
        }
        assert_eq!(gateway.mode(), LimiterMode::Shared);
    }
    bed.run(&["DEL", "ph:list:rate"]).await;
    until(async || passes(&gateway.guard.take(&tenant("list"), RATE, 10).await)).await;
    assert_eq!(bed.server.cli(&["TYPE", "ph:list:rate"]).expect("asked"), "string");
}
