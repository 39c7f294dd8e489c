//! A consumer against its baselines, small: each effect is there once and in order, and the figures have
//! their names.

use super::kafka::shared;
use super::whole::{assert_numbers, measured, product, run};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions, Rabbitmq, Redis, RedisOptions, TestDatabase};

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_is_measured_in_all_its_modes_and_on_all_brokers() {
    require_service!(product());
    let database = require_service!(TestDatabase::create().await);
    let kafka = require_service!(shared().await);
    let (plain_nats, plain_redis) = (NatsOptions::default(), RedisOptions::default());
    let others = tokio::join!(Nats::start(&plain_nats), Redis::start(&plain_redis), Rabbitmq::start(&[]));
    let (nats, redis) = (require_service!(others.0), require_service!(others.1));
    let rabbitmq = require_service!(others.2);
    let also = [nats.url(), redis.url(), rabbitmq.url()].join(",");
    let (store, sink) = (database.url(), format!("kafka://{}", kafka.bootstrap()));
    // Of a third of them one dies, and six fail three times.
    let short = ["--messages", "1800", "--rounds", "1", "--rate", "50", "--seconds", "1"];
    let idle = ["--idle-seconds", "1", "--json"];
    let all = [&["consume", "--store", &store, "--sink", &sink, "--also", &also][..], &short, &idle].concat();
    let report = measured(&all).await;
    let wrong = ["effects_twice", "effects_missing", "out_of_order"].map(|name| report[name].as_i64());
    assert_eq!(wrong, [Some(0); 3], "{report}");
    let modes =
        ["set", "batch", "sql", "phoenix", "idle", "http", "asked", "faulty", "read", "insert", "seed"];
    for mode in modes {
        assert_numbers(&report, &[&format!("{mode}_per_s"), &format!("{mode}_cpu_us_per_message")]);
    }
    let ratios = ["set_ratio_to_limit", "batch_ratio_to_seed", "sql_ratio_to_batch", "phoenix_ratio_to_set"];
    assert_numbers(&report, &ratios);
    assert_numbers(&report, &["idle_ratio_to_set", "faulty_ratio_to_batch", "set_messages_per_transaction"]);
    assert_numbers(&report, &["rss_peak_mb", "large_rss_peak_mb", "p50_ms", "p99_ms", "first_after_idle_ms"]);
    assert_numbers(&report, &["hot_free_s", "hot_others_ratio", "hot_rss_peak_mb", "idle_statements_per_s"]);
    assert_numbers(&report, &["schema_per_s", "unchecked_per_s", "schema_us_per_message"]);
    assert_eq!(report["messages"], 1800);
    for broker in ["nats", "redis"] {
        let names =
            ["read_per_s", "set_per_s", "set_cpu_us_per_message", "queue_per_s", "set_ratio_to_limit"];
        names.iter().for_each(|name| assert_numbers(&report, &[&format!("{broker}_{name}")]));
    }
    assert_numbers(&report, &["rabbitmq_set_per_s", "rabbitmq_set_cpu_us_per_message"]);
    for broker in ["nats", "redis", "rabbitmq"] {
        ["rss_peak_mb", "p50_ms", "p99_ms"]
            .iter()
            .for_each(|name| assert_numbers(&report, &[&format!("{broker}_{name}")]));
    }

    let null = run(&["consume", "--store", &store]).await;
    assert_eq!(null.status.code(), Some(2), "there is nothing to read: {null:?}");
    let local = run(&["consume", "--store", &store, "--sink", &sink, "--also", "local"]).await;
    assert_eq!(local.status.code(), Some(2), "no such broker: {local:?}");
}
