//! Brokers that are odd: few channels, answers that do not come, and a goodbye in the middle of a message.

use super::fake::Fake;
use super::*;
use posthaste::sink::Level;
use posthaste_testkit::require_service;
use tokio::sync::oneshot;

/// An operator may allow a handful of channels, or a single one.
#[tokio::test]
async fn a_broker_with_few_channels_is_served_all_the_same() {
    let server = require_service!(Rabbitmq::start(&[]).await);
    let bed = Bed::on(&server).await;
    for channel_max in 1..=6 {
        let set = format!("ok = application:set_env(rabbit, channel_max, {channel_max})");
        server.eval(&set).await.expect("set");
        let (queue, exchange) = (bed.queue().await, unique("ex"));
        bed.exchange(&exchange).await;
        bed.bind(&queue, &exchange, "bound").await;
        let sink = bed.sink().await;
        let (bound, nobody) = (format!("{exchange}/bound"), format!("{exchange}/nobody"));
        let messages: Vec<_> = (0..60)
            .map(|n| match n % 10 {
                0..7 => keyed(&queue, &n.to_string()),
                7 => loose(&nobody),
                _ => loose(&bound),
            })
            .collect();
        for _ in 0..3 {
            for (message, verdict) in messages.iter().zip(sink.publish(&messages).await) {
                if message.destination == nobody {
                    assert_seen(&verdict, "retry", "rabbitmq.unroutable", Scope::Destination);
                } else {
                    assert_eq!(verdict, Verdict::Delivered, "{channel_max}");
                }
            }
            // It closes its channel, and the next messages find another one.
            let verdict = publish_one(&sink, loose("missing/k")).await;
            assert_seen(&verdict, "retry", "rabbitmq.no_exchange", Scope::Destination);
        }
        assert_eq!(bed.take(&queue).await.len(), 3 * 54);
        let findings = sink.examine(&[queue.clone(), "nowhere".to_owned()]).await;
        assert_found(&findings, "destination", Level::Ok, &queue);
        assert_found(&findings, "destination", Level::Fail, "nowhere");
        assert_eq!(publish_one(&sink, loose(&queue)).await, Verdict::Delivered);
        sink.close().await;
    }
}

/// Where all messages share one channel, a refused one takes along those that are not confirmed yet: they are
/// sent again.
#[tokio::test]
async fn a_single_channel_loses_nothing_to_a_missing_exchange() {
    let server = require_service!(Rabbitmq::start(&["channel_max = 1"]).await);
    let bed = Bed::on(&server).await;
    let queue = bed.queue().await;
    let sink = bed.sink().await;
    let mut waiting: Vec<_> = (0..200).map(|n| numbered(&queue, &(n % 9).to_string(), n)).collect();
    let ids: Vec<_> = waiting.iter().map(Message::id).collect();
    let started = std::time::Instant::now();
    while !waiting.is_empty() {
        assert!(started.elapsed() < DEADLINE, "{} are left", waiting.len());
        waiting.insert(waiting.len() / 2, loose("missing/k"));
        let mut verdicts = sink.publish(&waiting).await.into_iter();
        waiting.retain(|message| {
            let verdict = verdicts.next().expect("a verdict for each");
            assert!(verdict != Verdict::Delivered || message.destination == queue);
            verdict != Verdict::Delivered && message.destination == queue
        });
    }
    let stored = bed.take_ids(&queue).await;
    assert!(ids.iter().all(|id| stored.contains(id)), "{} of {}", stored.len(), ids.len());
}

/// A queue that hangs behind the only channel: its own fault, or nobody's; and when it answers again, all
/// goes on.
#[tokio::test]
async fn a_single_channel_recovers_from_a_silence() {
    let server = require_service!(Rabbitmq::start(&["channel_max = 1"]).await);
    let (mute, queue) = (unique("q"), unique("q"));
    // The test's own client needs one channel too.
    let bed = Bed::on(&server).await;
    for name in [&mute, &queue] {
        bed.queue_with(name, FieldTable::default()).await;
    }
    let sink = build(bed.config().with(|options| options.delivery_timeout_ms = 4_000)).await;
    suspend(&server, &mute).await;
    let verdicts = sink.publish(&[loose(&mute), loose(&queue)]).await;
    assert_seen(&verdicts[0], "unknown", "rabbitmq.confirm_timeout", Scope::Destination);
    assert_eq!(verdicts[1], Verdict::Delivered);
    resume(&server, &mute).await;
    until_delivered(&sink, &mute, DEADLINE).await;
}

/// An exchange whose messages the broker does not answer for: others are tried meanwhile.
#[tokio::test]
async fn f30_an_exchange_that_hangs_does_not_hold_up_new_ones() {
    let fake = Fake::start().await;
    let sink =
        build(RabbitmqConfig::new(&fake.url()).with(|options| options.delivery_timeout_ms = 4_000)).await;
    let (hung, hangs) = oneshot::channel();
    let broker = async {
        let mut peer = fake.accept().await;
        let begun = peer.until_publish().await.expect("a message");
        assert_eq!(begun.1, "hangs");
        peer.mute.push(begun.0);
        peer.rest(begun).await.expect("the whole message");
        hung.send(()).expect("somebody waits");
        peer.confirm_all().await;
    };
    let calls = async {
        let stuck = [loose("hangs/k")];
        let (first, others) = tokio::join!(sink.publish(&stuck), async {
            hangs.await.expect("the broker hangs");
            let messages: Vec<_> = (0..50).map(|n| loose(&format!("new-{}/k", n % 10))).collect();
            publish_until_delivered(&sink, messages).await
        });
        assert_eq!(others.len(), 50);
        assert_seen(&first[0], "unknown", "rabbitmq.confirm_timeout", Scope::Destination);
        sink.close().await;
    };
    tokio::join!(broker, calls);
}

/// Closing in the middle of a message: what the relay was told was not sent must not arrive after all.
#[tokio::test]
async fn f28_nothing_of_an_event_is_written_at_the_goodbye() {
    let fake = Fake::start().await;
    let sink = build(RabbitmqConfig::new(&fake.url())).await;
    let (begun, begins) = oneshot::channel();
    let (closing, closes) = oneshot::channel();
    let broker = async {
        let mut peer = fake.accept().await;
        let message = peer.until_publish().await.expect("a message");
        begun.send(()).expect("somebody waits");
        closes.await.expect("the sink is closed");
        peer.rest(message).await
    };
    let call = async {
        // More than the kernel keeps for a reader that does not read.
        let messages = [sized("big", 64 << 20)];
        let (verdicts, ()) = tokio::join!(sink.publish(&messages), async {
            begins.await.expect("it has begun");
            closing.send(()).expect("the broker waits");
            sink.close().await;
        });
        verdicts
    };
    let (arrived, verdicts) = tokio::join!(broker, call);
    let (kind, code, scope, _) = seen(&verdicts[0]);
    assert_eq!((code, scope), ("rabbitmq.connection_lost", Scope::Sink));
    assert!(kind == "unknown" || arrived.is_none(), "it was {kind}, and has arrived");
}

/// Ours is asked for, unless the broker wants a shorter one.
#[tokio::test]
async fn a_heartbeat_is_agreed_on() {
    for (ours, theirs, agreed) in [(None, 60, 10), (Some(30), 60, 30), (Some(30), 7, 7), (Some(30), 0, 30)] {
        let fake = Fake::start().await;
        let base = RabbitmqConfig::new(&fake.url());
        let config = match ours {
            Some(heartbeat_secs) => RabbitmqConfig { heartbeat_secs, ..base },
            None => base,
        };
        let sink = build(config).await;
        assert_eq!(fake.accept_with(theirs).await.heartbeat_secs, agreed);
        drop(sink);
    }
}

/// A connection that nobody uses is given up after two heartbeats of silence.
#[tokio::test]
async fn a_silent_connection_is_given_up_without_a_call() {
    let fake = Fake::start().await;
    let sink = build(RabbitmqConfig::new(&fake.url())).await;
    let peer = fake.accept_with(1).await;
    tokio::time::timeout(DEADLINE, peer.until_gone()).await.expect("given up");
    // And another one is dialled for.
    tokio::time::timeout(DEADLINE, fake.accept()).await.expect("a new connection");
    drop(sink);
}
