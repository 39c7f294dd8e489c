//! Every row of the verdict table, provoked on a real server.

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;

#[tokio::test]
async fn f43_what_no_queue_takes_is_never_delivered() {
    let bed = require_service!(Bed::open().await);
    let (queue, exchange) = (bed.queue().await, unique("ex"));
    bed.exchange(&exchange).await;
    bed.bind(&queue, &exchange, "bound.#").await;
    let sink = bed.sink().await;
    let place = |key: &str| format!("{exchange}/{key}");
    let messages = [loose(&place("nobody")), loose(&place("bound.x")), loose("no-such-queue")];
    let verdicts = sink.publish(&messages).await;
    assert_seen(&verdicts[0], "retry", "rabbitmq.unroutable", Scope::Destination);
    assert!(
        seen(&verdicts[0]).3.contains(&format!("{exchange:?} with routing key \"nobody\"")),
        "{verdicts:?}"
    );
    assert_eq!(verdicts[1], Verdict::Delivered);
    assert_seen(&verdicts[2], "retry", "rabbitmq.unroutable", Scope::Destination);
    assert_eq!(bed.take_ids(&queue).await, [messages[1].id()]);
}

/// Returns and confirmations of many messages come mixed: each goes to its own.
#[tokio::test]
async fn f43_a_return_is_nobody_elses() {
    let bed = require_service!(Bed::open().await);
    let (queue, exchange) = (bed.queue().await, unique("ex"));
    bed.exchange(&exchange).await;
    bed.bind(&queue, &exchange, "bound").await;
    let sink = build(RabbitmqConfig { exchange: Some(exchange), ..bed.config() }).await;
    for _ in 0..3 {
        let is_bound = |n: usize| n % 7 < 4;
        let messages: Vec<_> =
            (0..700).map(|n| loose(if is_bound(n) { "bound" } else { "nobody" })).collect();
        let verdicts = sink.publish(&messages).await;
        let mut expected = Vec::new();
        for (n, (message, verdict)) in messages.iter().zip(&verdicts).enumerate() {
            if is_bound(n) {
                assert_eq!(*verdict, Verdict::Delivered, "{n}");
                expected.push(message.id());
            } else {
                assert_seen(verdict, "retry", "rabbitmq.unroutable", Scope::Destination);
            }
        }
        let mut stored = bed.take_ids(&queue).await;
        stored.sort();
        expected.sort();
        assert!(stored == expected, "{} of {} are there", stored.len(), expected.len());
    }
}

/// Classic and quorum queues confirm at their own pace, and returns come between: on RabbitMQ 3.10 a client
/// that guesses takes some of the lost ones for delivered.
#[tokio::test]
async fn f43_a_return_is_nobody_elses_where_classic_and_quorum_queues_are_mixed() {
    let bed = require_service!(Bed::open().await);
    let (classic, quorum) = (bed.queue().await, unique("quorum"));
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    bed.queue_with(&quorum, arguments).await;
    let sink = bed.sink().await;
    let places = [classic.as_str(), "no-such-queue", quorum.as_str(), "no-such-queue"];
    for _ in 0..5 {
        let messages: Vec<_> = (0..400).map(|n| loose(places[n % 4])).collect();
        for (message, verdict) in messages.iter().zip(sink.publish(&messages).await) {
            if message.destination == "no-such-queue" {
                assert_seen(&verdict, "retry", "rabbitmq.unroutable", Scope::Destination);
            } else {
                assert_eq!(verdict, Verdict::Delivered);
            }
        }
        for queue in [&classic, &quorum] {
            let mut expected: Vec<_> =
                messages.iter().filter(|message| message.destination == *queue).map(Message::id).collect();
            let mut stored = bed.take_ids(queue).await;
            stored.sort();
            expected.sort();
            assert!(stored == expected, "{} of {} are there", stored.len(), expected.len());
        }
    }
}

#[tokio::test]
async fn f30_a_missing_exchange_is_an_outage_of_its_own() {
    let bed = require_service!(Bed::open().await);
    let (queue, exchange) = (bed.queue().await, unique("missing"));
    let sink = bed.sink().await;
    let place = format!("{exchange}/k");
    let messages: Vec<_> = (0..40).map(|n| if n % 2 == 0 { loose(&place) } else { loose(&queue) }).collect();
    for _ in 0..3 {
        let verdicts = sink.publish(&messages).await;
        for (n, verdict) in verdicts.iter().enumerate() {
            if n % 2 == 0 {
                assert_seen(verdict, "retry", "rabbitmq.no_exchange", Scope::Destination);
                assert!(seen(verdict).3.contains(&exchange), "{verdict:?}");
            } else {
                assert_eq!(*verdict, Verdict::Delivered, "the others go on");
            }
        }
    }
    bed.exchange(&exchange).await;
    bed.bind(&queue, &exchange, "k").await;
    assert_eq!(publish_one(&sink, loose(&place)).await, Verdict::Delivered);
}

#[tokio::test]
async fn f30_a_denied_exchange_is_an_outage_of_its_own() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let (user, open, shut) = (unique("shop"), unique("open"), unique("shut"));
    let queue = bed.queue().await;
    for exchange in [&open, &shut] {
        bed.exchange(exchange).await;
        bed.bind(&queue, exchange, "#").await;
    }
    server.add_user(&user, "pw", ["", "^open-.*", ""]).await.expect("a user");
    let password = Some(posthaste_brokers::Secret::new("pw"));
    let sink = build(bed.config().with(|options| {
        options.user = Some(user.clone());
        options.password = password;
    }))
    .await;
    let messages: Vec<_> =
        [&shut, &open, &shut, &open].map(|exchange| loose(&format!("{exchange}/k"))).into();
    let verdicts = sink.publish(&messages).await;
    for (message, verdict) in messages.iter().zip(&verdicts) {
        if message.destination.starts_with("open") {
            assert_eq!(*verdict, Verdict::Delivered);
        } else {
            assert_seen(verdict, "retry", "rabbitmq.denied", Scope::Destination);
            let words = seen(verdict).3;
            assert!(words.contains(&format!("user {user:?}")) && words.contains(&shut), "{words}");
            assert!(words.contains("permission write") && !words.contains("pw"), "{words}");
        }
    }
    // A right that is taken away. The broker asks anew when a connection is opened, so its operator closes
    // it.
    server.allow(&user, ["", "^shut-.*", ""]).await.expect("changed");
    let close = format!("ok = rabbit_networking:close_all_user_connections(<<{user:?}>>, <<\"rights\">>)");
    server.eval(&close).await.expect("closed");
    until_refused(&sink, &format!("{open}/k"), "rabbitmq.denied").await;
    until_delivered(&sink, &format!("{shut}/k"), DEADLINE).await;
}

/// F30: a right that is taken away under load stops its own exchange, and the other one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f30_a_right_that_is_lost_under_load_stops_its_exchange_only() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let (user, losing, keeping) = (unique("shop"), unique("losing"), unique("keeping"));
    for name in [&losing, &keeping] {
        bed.exchange(name).await;
        bed.queue_with(name, FieldTable::default()).await;
        bed.bind(name, name, "#").await;
    }
    server.add_user(&user, "pw", ["", "^(losing|keeping)-.*", ""]).await.expect("a user");
    let password = Some(posthaste_brokers::Secret::new("pw"));
    let sink = build(bed.config().with(|options| {
        options.user = Some(user.clone());
        options.password = password;
    }))
    .await;
    let load = |exchange: &str| Load::start(&sink, &format!("{exchange}/k"));
    let loads = [load(&losing), load(&keeping)];
    loads[0].more(300).await;
    loads[1].more(300).await;
    server.allow(&user, ["", "^keeping-.*", ""]).await.expect("changed");
    // A channel remembers what it may, for a minute; the operator does not wait for that.
    let close = format!("ok = rabbit_networking:close_all_user_connections(<<{user:?}>>, <<\"rights\">>)");
    server.eval(&close).await.expect("closed");
    until_refused(&sink, &format!("{losing}/k"), "rabbitmq.denied").await;
    loads[1].more(1_000).await;
    server.allow(&user, ["", "^(losing|keeping)-.*", ""]).await.expect("changed");
    until_delivered(&sink, &format!("{losing}/k"), BACK_WITHIN).await;
    for (load, name) in loads.into_iter().zip([losing, keeping]) {
        let account = load.end().await;
        account.assert_all_there_in_order(&bed.take_copies(&name).await);
        let denied = account.codes().iter().any(|(_, code, _)| *code == "rabbitmq.denied");
        assert_eq!(denied, name.starts_with("losing"), "{:?}", account.failures);
    }
}

/// Publishes until the broker's word is this one, as the relay's probes would.
async fn until_refused(sink: &Arc<dyn Sink>, destination: &str, code: &str) {
    let started = std::time::Instant::now();
    loop {
        let verdict = publish_one(sink, loose(destination)).await;
        if matches!(&verdict, Verdict::Retry(failure) if failure.code == code) {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "still {verdict:?}");
    }
}

/// Rights to single routing keys: one that is denied takes its channel along once, and is alone from then on.
#[tokio::test]
async fn f30_a_denied_routing_key_is_an_outage_of_its_own() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let (user, exchange, queue) = (unique("shop"), unique("topics"), bed.queue().await);
    bed.exchange(&exchange).await;
    bed.bind(&queue, &exchange, "#").await;
    server.add_user(&user, "pw", ["", ".*", ""]).await.expect("a user");
    let topics = format!(
        "ok = rabbit_auth_backend_internal:set_topic_permissions(<<{user:?}>>, <<\"/\">>, <<{exchange:?}>>, <<\"^open$\">>, <<\"\">>, <<\"test\">>)"
    );
    server.eval(&topics).await.expect("set");
    let password = Some(posthaste_brokers::Secret::new("pw"));
    let sink = build(RabbitmqConfig {
        exchange: Some(exchange),
        ..bed.config().with(|options| {
            options.user = Some(user);
            options.password = password;
        })
    })
    .await;
    until_delivered(&sink, "open", DEADLINE).await;
    until_refused(&sink, "shut", "rabbitmq.denied").await;
    for _ in 0..5 {
        let verdicts = sink.publish(&[loose("open"), loose("shut"), loose("open")]).await;
        assert_eq!([&verdicts[0], &verdicts[2]], [&Verdict::Delivered; 2]);
        assert_seen(&verdicts[1], "retry", "rabbitmq.denied", Scope::Destination);
    }
}

#[tokio::test]
async fn a_queue_that_refuses_is_an_outage_of_its_destination() {
    let bed = require_service!(Bed::open().await);
    let (narrow, wide) = (unique("narrow"), bed.queue().await);
    bed.queue_with(&narrow, reject_above(1)).await;
    let sink = bed.sink().await;
    assert_eq!(publish_one(&sink, loose(&narrow)).await, Verdict::Delivered);
    let verdicts = sink.publish(&[loose(&narrow), loose(&wide)]).await;
    assert_seen(&verdicts[0], "retry", "rabbitmq.nacked", Scope::Destination);
    assert!(seen(&verdicts[0]).3.contains(&narrow), "{verdicts:?}");
    assert_eq!(verdicts[1], Verdict::Delivered);
    assert_eq!(bed.take(&narrow).await.len(), 1);
    assert_eq!(publish_one(&sink, loose(&narrow)).await, Verdict::Delivered);
}

#[tokio::test]
async fn what_is_too_large_is_rejected_alone() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = bed.sink().await;
    assert_eq!(sink.capabilities().payload_bytes_max, None, "nobody has asked yet");
    for _ in 0..2 {
        let messages = [loose(&queue), sized(&queue, BYTES_MAX + 1), sized(&queue, 5_000_000), loose(&queue)];
        let verdicts = sink.publish(&messages).await;
        assert_seen(&verdicts[1], "rejected", "rabbitmq.too_large", Scope::Event);
        let delivered = [&verdicts[0], &verdicts[2], &verdicts[3]];
        assert_eq!(delivered, [&Verdict::Delivered; 3]);
        assert_eq!(sink.capabilities().payload_bytes_max, Some(BYTES_MAX));
    }
    assert_eq!(bed.take(&queue).await.len(), 6);
}

/// A frame holds all headers, and one that is larger ends the connection: it must not be sent.
#[tokio::test]
async fn headers_that_cannot_travel_are_rejected_alone() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = bed.sink().await;
    let with =
        |name: &str, value: &str| message(&queue, Event::new("orders.placed", "{}").with_header(name, value));
    let (long, wide) = ("n".repeat(256), "v".repeat(200_000));
    let messages =
        [with(&long, "v"), with("big", &wide), with("CC", "other"), with("BCC", "other"), with("cc", "v")];
    let verdicts = sink.publish(&messages).await;
    assert_seen(&verdicts[0], "rejected", "rabbitmq.bad_header", Scope::Event);
    assert_seen(&verdicts[1], "rejected", "rabbitmq.too_large", Scope::Event);
    assert_seen(&verdicts[2], "rejected", "rabbitmq.bad_header", Scope::Event);
    assert_seen(&verdicts[3], "rejected", "rabbitmq.bad_header", Scope::Event);
    assert_eq!(verdicts[4], Verdict::Delivered);
    assert_eq!(bed.take_ids(&queue).await, [messages[4].id()]);
}

#[tokio::test]
async fn destinations_that_are_none_are_rejected() {
    let bed = require_service!(Bed::open().await);
    let sink = bed.sink().await;
    for destination in ["", "/", &"x".repeat(256), &format!("{}/k", "x".repeat(256))] {
        let verdict = publish_one(&sink, loose(destination)).await;
        assert_seen(&verdict, "rejected", "rabbitmq.bad_destination", Scope::Event);
    }
}

#[tokio::test]
async fn f28_a_connection_lost_after_sending_is_unknown() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let (proxy, url) = Proxy::start_before(&bed.url).await.expect("a proxy");
    let sink = build(RabbitmqConfig::new(&url)).await;
    until_delivered(&sink, &queue, DEADLINE).await;
    proxy.half_open().await;
    let sent = [loose(&queue), keyed(&queue, "k"), keyed(&queue, "k")];
    let (verdicts, ()) = tokio::join!(sink.publish(&sent), async {
        // The first two are there, though we do not hear of it; the third waits for the second.
        bed.until_holds(&queue, 3).await;
        proxy.cut().await;
    });
    assert_seen(&verdicts[0], "unknown", "rabbitmq.connection_lost", Scope::Sink);
    assert_seen(&verdicts[1], "unknown", "rabbitmq.connection_lost", Scope::Sink);
    assert!(matches!(&verdicts[2], Verdict::Held | Verdict::Retry(_)), "{:?}", verdicts[2]);
    proxy.pass().await;
    until_delivered(&sink, &queue, Duration::from_secs(5)).await;
    assert!(!bed.take_ids(&queue).await.contains(&sent[2].id()), "it was not sent");
}

/// The broker's own words are the operator's first clue.
#[tokio::test]
async fn a_connection_that_the_broker_closes_says_why() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let (user, mute) = (unique("shop"), bed.queue().await);
    server.add_user(&user, "pw", ["", ".*", ""]).await.expect("a user");
    let password = Some(posthaste_brokers::Secret::new("pw"));
    let config = bed.config().with(|options| options.delivery_timeout_ms = 60_000);
    let sink = build(config.with(|options| {
        options.user = Some(user.clone());
        options.password = password;
    }))
    .await;
    until_delivered(&sink, &mute, DEADLINE).await;
    suspend(server, &mute).await;
    let sent = [loose(&mute)];
    let (verdicts, ()) = tokio::join!(sink.publish(&sent), async {
        until_unanswered(server, &mute).await;
        let close =
            format!("ok = rabbit_networking:close_all_user_connections(<<{user:?}>>, <<\"maintenance\">>)");
        server.eval(&close).await.expect("closed");
    });
    assert_seen(&verdicts[0], "unknown", "rabbitmq.connection_lost", Scope::Sink);
    let words = seen(&verdicts[0]).3;
    assert!(words.contains("CONNECTION_FORCED") && words.contains("maintenance"), "{words}");
    resume(server, &mute).await;
    until_delivered(&sink, &mute, DEADLINE).await;
}

/// A queue that hangs: its process is suspended, and everybody else's goes on.
#[tokio::test]
async fn f30_no_confirmation_from_a_living_broker_is_the_destinations_fault() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let (mute, queue) = (bed.queue().await, bed.queue().await);
    suspend(server, &mute).await;
    let config = bed.config().with(|options| {
        options.delivery_timeout_ms = 4_000;
        options.max_in_flight = 3;
    });
    let sink = build(config).await;
    let started = std::time::Instant::now();
    let messages = [keyed(&mute, "a"), loose(&mute), loose(&queue), keyed(&queue, "a")];
    let verdicts = sink.publish(&messages).await;
    assert_seen(&verdicts[0], "unknown", "rabbitmq.confirm_timeout", Scope::Destination);
    assert_seen(&verdicts[1], "unknown", "rabbitmq.confirm_timeout", Scope::Destination);
    assert_eq!(verdicts[2..], [Verdict::Delivered, Verdict::Held]);
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    resume(server, &mute).await;
    until_delivered(&sink, &mute, DEADLINE).await;
}

#[tokio::test]
async fn no_confirmation_from_a_silent_broker_is_the_sinks_fault() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let (proxy, url) = Proxy::start_before(&bed.url).await.expect("a proxy");
    let sink = build(RabbitmqConfig::new(&url).with(|options| options.delivery_timeout_ms = 3_000)).await;
    until_delivered(&sink, &queue, DEADLINE).await;
    proxy.black_hole().await;
    let verdict = publish_one(&sink, loose(&queue)).await;
    assert_seen(&verdict, "unknown", "rabbitmq.confirm_timeout", Scope::Sink);
}

#[tokio::test]
async fn a_closed_sink_says_so() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = bed.sink().await;
    assert_eq!(publish_one(&sink, loose(&queue)).await, Verdict::Delivered);
    sink.close().await;
    let verdict = publish_one(&sink, loose(&queue)).await;
    assert_seen(&verdict, "retry", "rabbitmq.closed", Scope::Sink);
}
