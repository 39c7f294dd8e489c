//! Every row of the verdict table, provoked on a real server.

use super::*;
use posthaste_brokers::Secret;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;

/// F41: an error reply in the middle of a pipeline, of a transaction too, is the message's own.
#[tokio::test]
async fn f41_a_key_of_another_type_is_an_outage_of_its_own() {
    let bed = require_service!(Bed::open().await);
    bed.run(&["SET", "text", "x"]).await;
    let sink = bed.sink().await;
    let messages = [
        loose("text"),
        loose("s"),
        keyed("text", "a"),
        keyed("text", "a"),
        keyed("s", "b"),
        keyed("s", "b"),
        loose("s"),
    ];
    let verdicts = sink.publish(&messages).await;
    assert_seen(&verdicts[0], "retry", "redis.wrong_type", Scope::Destination);
    assert_seen(&verdicts[2], "retry", "redis.wrong_type", Scope::Destination);
    assert!(seen(&verdicts[0]).3.contains("\"text\""), "{verdicts:?}");
    assert_eq!(verdicts[3], Verdict::Held);
    for index in [1, 4, 5, 6] {
        assert_eq!(verdicts[index], Verdict::Delivered, "{verdicts:?}");
    }
    assert_eq!(bed.stored("s").await.len(), 4);
    bed.run(&["DEL", "text"]).await;
    assert_eq!(sink.publish(&messages).await, vec![Verdict::Delivered; 7]);
}

/// Makes the server refuse writes, sees the verdict alone and in a run, and lets it write again.
async fn refuses_until(bed: &Bed, sink: &Arc<dyn Sink>, code: &str, heal: &[&str]) {
    let messages = [keyed("s", "a"), keyed("s", "a"), keyed("s", "a"), loose("s")];
    let before = bed.stored("s").await.len();
    let verdicts = sink.publish(&messages).await;
    assert_seen(&verdicts[0], "retry", code, Scope::Sink);
    assert_eq!(verdicts[1..3], [Verdict::Held, Verdict::Held]);
    assert_seen(&verdicts[3], "retry", code, Scope::Sink);
    assert_eq!(bed.stored("s").await.len(), before, "nothing of it is there");
    bed.run(heal).await;
    until_delivered(sink, "s", Duration::from_secs(5)).await;
    assert_eq!(sink.publish(&messages).await, vec![Verdict::Delivered; 4]);
}

#[tokio::test]
async fn f41_full_memory_is_an_outage() {
    let bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    refuses_until(&bed, &sink, "redis.oom", &["CONFIG", "SET", "maxmemory", "0"]).await;
}

#[tokio::test]
async fn too_few_replicas_are_an_outage() {
    let bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    refuses_until(&bed, &sink, "redis.no_replicas", &["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
}

/// A snapshot that cannot be written stops writes. A directory is where the file should be.
#[tokio::test]
async fn a_server_that_cannot_write_its_files_is_an_outage() {
    let bed = require_service!(Bed::start(&RedisOptions::default().setting("save 3600 1")).await);
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    let (_, dir): (String, String) = ::redis::cmd("CONFIG")
        .arg("GET")
        .arg("dir")
        .query_async(&mut bed.client.clone())
        .await
        .expect("the server's directory");
    std::fs::create_dir(std::path::Path::new(&dir).join("dump.rdb")).expect("a directory");
    bed.run(&["BGSAVE"]).await;
    until(async || bed.server.cli(&["INFO", "persistence"]).expect("info").contains("bgsave_status:err"))
        .await;
    let heal = ["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"];
    refuses_until(&bed, &sink, "redis.misconf", &heal).await;
}

#[tokio::test]
async fn f41_a_master_that_became_a_replica_is_left_and_found_again() {
    let bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.run(&["REPLICAOF", "127.0.0.1", "1"]).await;
    refuses_until(&bed, &sink, "redis.readonly", &["REPLICAOF", "NO", "ONE"]).await;
}

#[tokio::test]
async fn a_replica_is_not_written_to() {
    let bed = require_service!(Bed::open().await);
    let replica =
        Redis::start(&RedisOptions::default().replica_of(bed.server.addr())).await.expect("a replica");
    let verdict = publish_one(&build(RedisConfig::new(&replica.url())).await, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.readonly", Scope::Sink);
    assert!(seen(&verdict).3.contains(&replica.addr().to_string()), "{verdict:?}");
}

#[tokio::test]
async fn a_replica_that_lost_its_master_is_an_outage() {
    let bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.run(&["CONFIG", "SET", "replica-read-only", "no", "replica-serve-stale-data", "no"]).await;
    bed.run(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let verdict = publish_one(&sink, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.loading", Scope::Sink);
    assert!(seen(&verdict).3.contains("MASTERDOWN"), "{verdict:?}");
    bed.run(&["REPLICAOF", "NO", "ONE"]).await;
    until_delivered(&sink, "s", Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_an_outage() {
    let options = RedisOptions::default()
        .setting("enable-debug-command yes")
        .setting("key-load-delay 20000")
        .setting("loading-process-events-interval-bytes 1024");
    let bed = require_service!(Bed::start(&options).await);
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    for number in 0..100 {
        bed.run(&["SET", &format!("filler:{number}"), &"x".repeat(4_096)]).await;
    }
    let mut reloading = client(&bed.server.url()).await;
    let reload = tokio::spawn(async move {
        let done: Result<(), _> = ::redis::cmd("DEBUG").arg("RELOAD").query_async(&mut reloading).await;
        done.expect("reloaded");
    });
    let started = std::time::Instant::now();
    loop {
        let verdict = publish_one(&sink, loose("s")).await;
        if verdict != Verdict::Delivered {
            assert_seen(&verdict, "retry", "redis.loading", Scope::Sink);
            break;
        }
        assert!(started.elapsed() < DEADLINE, "it never loads");
    }
    // And a new connection meets the same.
    let verdict = publish_one(&bed.sink().await, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.loading", Scope::Sink);
    reload.await.expect("the reload ends");
    until_delivered(&sink, "s", Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_script_that_blocks_the_server_is_an_outage() {
    let bed = require_service!(Bed::start(&RedisOptions::default().setting("busy-reply-threshold 50")).await);
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    let mut blocking = client(&bed.server.url()).await;
    let script = tokio::spawn(async move {
        let ended: Result<(), _> =
            ::redis::cmd("EVAL").arg("while true do end").arg(0).query_async(&mut blocking).await;
        ended.expect_err("killed");
    });
    let started = std::time::Instant::now();
    loop {
        let verdict = publish_one(&sink, loose("s")).await;
        if verdict != Verdict::Delivered {
            assert_seen(&verdict, "retry", "redis.busy", Scope::Sink);
            break;
        }
        assert!(started.elapsed() < DEADLINE, "it is never busy");
    }
    bed.run(&["SCRIPT", "KILL"]).await;
    script.await.expect("the script ends");
    until_delivered(&sink, "s", Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_stream_without_ids_is_an_outage_of_its_own() {
    let bed = require_service!(Bed::open().await);
    let last = format!("{0}-{0}", u64::MAX);
    bed.run(&["XADD", "full", &last, "id", "x"]).await;
    let sink = bed.sink().await;
    let verdicts = sink.publish(&[loose("full"), loose("s")]).await;
    assert_seen(&verdicts[0], "retry", "redis.stream_full", Scope::Destination);
    assert_eq!(verdicts[1], Verdict::Delivered);
}

#[tokio::test]
async fn a_server_without_the_command_is_an_outage_with_a_name() {
    let bed =
        require_service!(Bed::start(&RedisOptions::default().setting("rename-command XADD \"\"")).await);
    let verdict = publish_one(&bed.sink().await, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.unsupported", Scope::Sink);
}

/// `shop` may write to `open:*`, and knows nothing else.
const SHOP: &str = "user shop on >pw resetkeys ~open:* +xadd +multi +exec +discard +ping";

fn shop(server: &Redis) -> RedisConfig {
    let password = Some(Secret::new("pw"));
    RedisConfig::new(&server.url()).with(|options| {
        options.user = Some("shop".into());
        options.password = password;
    })
}

#[tokio::test]
async fn f30_a_denied_key_is_an_outage_of_its_own() {
    let bed = require_service!(Bed::start(&RedisOptions::default().setting(SHOP)).await);
    let sink = build(shop(&bed.server)).await;
    let messages = [
        loose("shut"),
        loose("open:a"),
        keyed("shut", "k"),
        keyed("shut", "k"),
        keyed("open:a", "l"),
        keyed("open:a", "l"),
    ];
    let verdicts = sink.publish(&messages).await;
    assert_seen(&verdicts[0], "retry", "redis.denied", Scope::Destination);
    assert_seen(&verdicts[2], "retry", "redis.denied", Scope::Destination);
    let words = seen(&verdicts[0]).3;
    assert!(words.contains("user \"shop\"") && words.contains("\"shut\""), "{words}");
    assert_eq!(verdicts[3], Verdict::Held);
    assert_eq!([&verdicts[1], &verdicts[4], &verdicts[5]], [&Verdict::Delivered; 3]);
    assert!(bed.stored("shut").await.is_empty());
}

#[tokio::test]
async fn a_right_that_is_lost_under_way_is_an_outage_with_a_name() {
    let bed = require_service!(Bed::start(&RedisOptions::default().setting(SHOP)).await);
    let sink = build(shop(&bed.server)).await;
    until_delivered(&sink, "open:a", DEADLINE).await;
    bed.run(&["ACL", "SETUSER", "shop", "-xadd"]).await;
    let verdict = publish_one(&sink, loose("open:a")).await;
    assert_seen(&verdict, "retry", "redis.denied", Scope::Sink);
    assert!(seen(&verdict).3.contains("xadd"), "{verdict:?}");
    bed.run(&["ACL", "SETUSER", "shop", "+xadd"]).await;
    until_delivered(&sink, "open:a", DEADLINE).await;
}

/// Without transactions a run would be single commands, each of which can fail alone: then nothing is sent.
#[tokio::test]
async fn g3_without_the_right_to_transactions_nothing_of_a_run_is_sent() {
    let bed = require_service!(Bed::start(&RedisOptions::default().setting(SHOP)).await);
    let sink = build(shop(&bed.server)).await;
    until_delivered(&sink, "open:a", DEADLINE).await;
    let run = || [keyed("open:a", "k"), keyed("open:a", "k"), keyed("open:a", "k")];
    assert_eq!(sink.publish(&run()).await, vec![Verdict::Delivered; 3]);
    bed.run(&["ACL", "SETUSER", "shop", "-multi"]).await;
    // One transaction was open already, and the server keeps to it; after that there is none.
    let first = sink.publish(&run()).await;
    let before = bed.stored("open:a").await.len();
    assert_eq!(before, if first[0] == Verdict::Delivered { 7 } else { 4 }, "all of it or nothing: {first:?}");
    let verdicts = sink.publish(&run()).await;
    assert_seen(&verdicts[0], "retry", "redis.denied", Scope::Sink);
    assert!(seen(&verdicts[0]).3.contains("+multi"), "{verdicts:?}");
    assert_eq!(bed.stored("open:a").await.len(), before);
    bed.run(&["ACL", "SETUSER", "shop", "+multi"]).await;
    until_delivered(&sink, "open:a", Duration::from_secs(5)).await;
    assert_eq!(sink.publish(&run()).await, vec![Verdict::Delivered; 3]);
}

/// Who may not ask for the limit sees the refusal, or only that the connection breaks. Either is put down to
/// the large message alone, so that it ends as a dead letter instead of breaking every connection to come.
#[tokio::test]
async fn what_is_larger_than_the_server_takes_is_rejected() {
    let options = RedisOptions::default().setting("proto-max-bulk-len 1mb").setting(SHOP);
    let bed = require_service!(Bed::start(&options).await);
    let body = |bytes: usize| message("open:a", Event::new("orders.placed", vec![b'x'; bytes]));
    let knowing = bed.sink().await;
    let verdicts = knowing.publish(&[body(2 << 20), body(1 << 20)]).await;
    assert_seen(&verdicts[0], "rejected", "redis.too_large", Scope::Event);
    assert_eq!(verdicts[1], Verdict::Delivered);
    let sink = build(shop(&bed.server)).await;
    until_delivered(&sink, "open:a", DEADLINE).await;
    let verdict = publish_one(&sink, body(2 << 20)).await;
    match seen(&verdict) {
        ("rejected", "redis.too_large", Scope::Event, _) => {}
        ("unknown", "redis.connection_lost", Scope::Event, _) => {}
        other => panic!("{other:?}"),
    }
    until_delivered(&sink, "open:a", Duration::from_secs(5)).await;
    assert_eq!(publish_one(&sink, body(1 << 20)).await, Verdict::Delivered);
}

#[tokio::test]
async fn an_empty_name_is_rejected_and_odd_ones_are_not() {
    let bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    assert_seen(&publish_one(&sink, loose("")).await, "rejected", "redis.bad_stream", Scope::Event);
    for stream in [" ", "a b\r\nDEL s", "ключ:1", "*", "{}"] {
        assert_eq!(publish_one(&sink, loose(stream)).await, Verdict::Delivered, "{stream:?}");
        assert_eq!(bed.stored(stream).await.len(), 1, "{stream:?}");
    }
}

/// F42: the same event twice is there twice, and can be told by its id.
#[tokio::test]
async fn f42_a_second_copy_has_the_same_id() {
    let bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    let event = Event::new("orders.placed", "{}").with_header("id", "stolen").with_header("h:id", "stolen");
    let id = event.id.to_string();
    for _ in 0..2 {
        assert_eq!(publish_one(&sink, message("s", event.clone())).await, Verdict::Delivered);
    }
    assert_eq!(bed.stored_ids("s").await, [id.clone(), id]);
    assert!(!sink.capabilities().dedupes);
}

#[tokio::test]
async fn streams_are_trimmed_only_when_asked() {
    let bed = require_service!(Bed::open().await);
    let publish = async |config: RedisConfig, stream: &str| {
        let messages: Vec<_> = (0..500).map(|_| loose(stream)).collect();
        assert_eq!(build(config).await.publish(&messages).await, vec![Verdict::Delivered; 500]);
        bed.stored(stream).await.len()
    };
    assert_eq!(publish(bed.config(), "all").await, 500);
    let exact = RedisConfig { maxlen: Some(10), maxlen_exact: true, ..bed.config() };
    assert_eq!(publish(exact, "exact").await, 10);
    let about = publish(RedisConfig { maxlen: Some(10), ..bed.config() }, "about").await;
    assert!((10..500).contains(&about), "{about}");
}

#[tokio::test]
async fn f28_a_connection_lost_after_sending_is_unknown() {
    let bed = require_service!(Bed::open().await);
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(RedisConfig::new(&url)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    proxy.half_open().await;
    // The last one waits for the first of its key, which goes to another stream.
    let sent = [loose("s"), keyed("s", "k"), keyed("s", "k"), keyed("other", "k")];
    let (verdicts, ()) = tokio::join!(sink.publish(&sent), async {
        until(async || bed.stored("s").await.len() == 4).await;
        proxy.cut().await;
    });
    for verdict in &verdicts[..3] {
        assert_seen(verdict, "unknown", "redis.connection_lost", Scope::Sink);
    }
    assert_eq!(verdicts[3], Verdict::Held);
    proxy.pass().await;
    until_delivered(&sink, "s", Duration::from_secs(5)).await;
    assert!(bed.stored("other").await.is_empty(), "it was not sent");
}

/// What waited for room when the connection went has not left.
#[tokio::test]
async fn f28_a_connection_lost_before_sending_is_a_retry() {
    let bed = require_service!(Bed::open().await);
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(RedisConfig::new(&url).with(|options| options.max_in_flight = 2)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    proxy.half_open().await;
    let sent = [loose("s"), loose("s"), loose("s")];
    let (verdicts, ()) = tokio::join!(sink.publish(&sent), async {
        until(async || bed.length("s").await == 3).await;
        proxy.cut().await;
    });
    assert_seen(&verdicts[0], "unknown", "redis.connection_lost", Scope::Sink);
    assert_seen(&verdicts[1], "unknown", "redis.connection_lost", Scope::Sink);
    assert_seen(&verdicts[2], "retry", "redis.connection_lost", Scope::Sink);
    proxy.pass().await;
    until_delivered(&sink, "s", Duration::from_secs(5)).await;
    assert!(!bed.stored_ids("s").await.contains(&sent[2].id()), "it was not sent");
}

#[tokio::test]
async fn no_answer_in_time_is_unknown_and_the_servers_fault() {
    let bed = require_service!(Bed::open().await);
    let sink = build(bed.config().with(|options| {
        options.delivery_timeout_ms = 3_000;
        options.max_in_flight = 3;
    }))
    .await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.server.pause();
    let messages = [loose("s"), keyed("s", "k"), keyed("s", "k"), loose("s")];
    let started = std::time::Instant::now();
    let verdicts = sink.publish(&messages).await;
    bed.server.resume();
    assert!(started.elapsed() < Duration::from_secs(9), "{:?}", started.elapsed());
    for verdict in &verdicts[..3] {
        assert_seen(verdict, "unknown", "redis.timeout", Scope::Sink);
    }
    assert_seen(&verdicts[3], "retry", "redis.timeout", Scope::Sink);
    until_delivered(&sink, "s", Duration::from_secs(5)).await;
    assert!(!bed.stored_ids("s").await.contains(&messages[3].id()), "it was not sent");
}
