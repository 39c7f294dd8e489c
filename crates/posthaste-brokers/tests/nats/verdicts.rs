//! Every row of the verdict table, provoked on a real server.

use super::*;
use crate::ground::load::complaint;
use async_nats::jetstream::stream::DiscardPolicy;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;

#[tokio::test]
async fn a_duplicate_is_delivered_and_stored_once() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    let event = Event::new("orders.placed", "{}");
    for _ in 0..3 {
        assert_eq!(publish_one(&sink, message("s", event.clone())).await, Verdict::Delivered);
    }
    assert_eq!(bed.stored_ids("S").await, [event.id.to_string()]);
}

/// A stream knows ids and no subjects. An event that two sinks send to two subjects of one stream is two
/// messages there.
#[tokio::test]
async fn an_event_for_two_subjects_of_one_stream_is_stored_for_both() {
    let bed = require_service!(Bed::open().await);
    bed.stream("ALL", &["orders.>", "audit.>"]).await;
    let (orders, audit) = (bed.sink().await, bed.sink().await);
    let event = Event::new("orders.placed", "{}");
    for _ in 0..2 {
        for (sink, subject) in [(&orders, "orders.placed"), (&audit, "audit.placed")] {
            assert_eq!(publish_one(sink, message(subject, event.clone())).await, Verdict::Delivered);
        }
    }
    let stored = bed.stored("ALL").await;
    let subjects: Vec<_> = stored.iter().map(|message| message.subject.as_str()).collect();
    assert_eq!(subjects, ["orders.placed", "audit.placed"]);
    assert_eq!(bed.stored_ids("ALL").await, vec![event.id.to_string(); 2]);
}

#[tokio::test]
async fn f40_a_subject_without_a_stream_is_never_delivered() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["here"]).await;
    let sink = bed.sink().await;
    let verdicts = sink.publish(&[loose("nowhere"), loose("here")]).await;
    assert_seen(&verdicts[0], "retry", "nats.no_stream", Scope::Destination);
    assert!(seen(&verdicts[0]).3.contains("\"nowhere\""), "{verdicts:?}");
    assert_eq!(verdicts[1], Verdict::Delivered);
}

/// A service that listens on the subject takes the message, and even answers. That is no stream's word.
#[tokio::test]
async fn f40_an_answer_that_is_not_a_streams_is_none() {
    let bed = require_service!(Bed::open().await);
    let client = bed.jetstream.client();
    let mut requests = client.subscribe("svc").await.expect("subscribed");
    client.flush().await.expect("flushed");
    let responder = tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let reply = request.reply.expect("a reply subject");
            client.publish(reply, r#"{"ok":true}"#.into()).await.expect("answered");
        }
    });
    let sink = build(bed.config().with(|options| options.delivery_timeout_ms = 1_000)).await;
    let verdict = publish_one(&sink, loose("svc")).await;
    assert_seen(&verdict, "unknown", "nats.ack_timeout", Scope::Destination);
    responder.abort();
}

#[tokio::test]
async fn what_is_too_large_for_the_server_or_for_the_stream_is_rejected() {
    let bed = require_service!(Bed::start(&NatsOptions::default().setting("max_payload: 4096")).await);
    bed.stream("WIDE", &["wide"]).await;
    bed.stream_with(stream::Config { max_message_size: 1_000, ..plain("NARROW", &["narrow"]) }).await;
    let sink = bed.sink().await;
    let body = |bytes: usize| Event::new("orders.placed", vec![b'x'; bytes]);
    let messages =
        [message("wide", body(4_096)), message("narrow", body(2_000)), message("wide", body(2_000))];
    let verdicts = sink.publish(&messages).await;
    assert_seen(&verdicts[0], "rejected", "nats.too_large", Scope::Event);
    assert_seen(&verdicts[1], "rejected", "nats.too_large", Scope::Event);
    assert_eq!(verdicts[2], Verdict::Delivered);
    assert_eq!(sink.capabilities().payload_bytes_max, Some(4_096));
}

#[tokio::test]
async fn a_full_stream_is_an_outage_of_its_destination() {
    let bed = require_service!(Bed::open().await);
    let full =
        |name: &str, subject: &str| stream::Config { discard: DiscardPolicy::New, ..plain(name, &[subject]) };
    bed.stream_with(stream::Config { max_messages: 1, ..full("COUNT", "count") }).await;
    bed.stream_with(stream::Config { max_bytes: 400, ..full("BYTES", "bytes") }).await;
    let each =
        stream::Config { max_messages_per_subject: 1, discard_new_per_subject: true, ..full("EACH", "each") };
    bed.stream_with(each).await;
    let sink = bed.sink().await;
    for subject in ["count", "bytes", "each"] {
        assert_eq!(publish_one(&sink, loose(subject)).await, Verdict::Delivered, "{subject}");
        let verdict = publish_one(&sink, loose(subject)).await;
        assert_seen(&verdict, "retry", "nats.stream_full", Scope::Destination);
    }
}

#[tokio::test]
async fn exhausted_storage_is_an_outage_of_its_destination() {
    let bed = require_service!(Bed::start(&NatsOptions::default().jetstream("max_file_store: 64KB")).await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    let body = || message("s", Event::new("orders.placed", vec![b'x'; 30_000]));
    for _ in 0..10 {
        let verdict = publish_one(&sink, body()).await;
        if verdict != Verdict::Delivered {
            assert_seen(&verdict, "retry", "nats.resources", Scope::Destination);
            return;
        }
    }
    panic!("300 kB in a store of 64 kB");
}

#[tokio::test]
async fn a_sealed_stream_and_a_broken_expectation_reject() {
    let bed = require_service!(Bed::open().await);
    bed.stream("SEALED", &["sealed"]).await;
    bed.stream("S", &["s"]).await;
    let sealed = stream::Config { sealed: true, ..plain("SEALED", &["sealed"]) };
    bed.jetstream.update_stream(sealed).await.expect("sealed");
    let sink = bed.sink().await;
    let expecting =
        |name: &str, value: &str| message("s", Event::new("orders.placed", "{}").with_header(name, value));
    let messages = [
        loose("sealed"),
        expecting("Nats-Expected-Last-Sequence", "99"),
        expecting("Nats-Expected-Stream", "OTHER"),
        expecting("Nats-Expected-Last-Msg-Id", "other"),
        expecting("Nats-TTL", "5s"),
        expecting("Nats-Rollup", "all"),
    ];
    let verdicts = sink.publish(&messages).await;
    assert_seen(&verdicts[0], "rejected", "nats.sealed", Scope::Destination);
    for verdict in &verdicts[1..4] {
        assert_seen(verdict, "rejected", "nats.expectation", Scope::Event);
    }
    for verdict in &verdicts[4..] {
        assert_seen(verdict, "rejected", "nats.bad_header", Scope::Event);
    }
    assert_eq!(bed.stored("S").await.len(), 0);
}

#[tokio::test]
async fn headers_that_cannot_travel_and_subjects_that_are_none_are_rejected() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s.>", "$JS.EVENT.X"]).await;
    let sink = bed.sink().await;
    let injected = keyed("s.x", "k\r\nNats-Msg-Id: stolen");
    let verdict = publish_one(&sink, injected).await;
    assert_seen(&verdict, "rejected", "nats.bad_header", Scope::Event);
    for subject in ["", "s x", "s.*", "s.>", ".s", "s.", "s..x", "s\tx", "$JS.EVENT.X"] {
        let verdict = publish_one(&sink, loose(subject)).await;
        assert_seen(&verdict, "rejected", "nats.bad_subject", Scope::Event);
    }
    assert_eq!(bed.stored("S").await.len(), 0);
}

/// An event cannot take the dedup slot of another one, or give its own away.
#[tokio::test]
async fn the_dedup_slot_is_the_event_id_and_the_subject_whatever_the_event_says() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let event = Event::new("orders.placed", "{}").with_header("Nats-Msg-Id", "mine");
        ids.push(Some(format!("{}:s", event.id)));
        assert_eq!(publish_one(&sink, message("s", event)).await, Verdict::Delivered);
    }
    let slot = |message: &jetstream::Message| header(message, "Nats-Msg-Id");
    assert_eq!(bed.stored("S").await.iter().map(slot).collect::<Vec<_>>(), ids);
}

const LIMITED: &str = r#"authorization { users: [
    { user: "admin", password: "admin" }
    { user: "shop", password: "pw", permissions: { publish: ["open.>"], subscribe: ["_INBOX.>"] } }
    { user: "deaf", password: "pw", permissions: { publish: [">"], subscribe: ["nothing"] } }
] }"#;

/// A server on which `shop` may publish to `open.>` only, and `deaf` may not hear answers.
async fn limited() -> Result<(Nats, jetstream::Context), ServiceError> {
    let server = Nats::start(&NatsOptions::default().setting(LIMITED)).await?;
    let admin = async_nats::ConnectOptions::with_user_and_password("admin".into(), "admin".into());
    let jetstream = jetstream::new(admin.connect(server.url()).await.expect("connected"));
    jetstream.create_stream(plain("S", &["open.>", "shut.>"])).await.expect("a stream");
    Ok((server, jetstream))
}

fn login(server: &Nats, user: &str) -> NatsConfig {
    let password = Some(posthaste_brokers::Secret::new("pw"));
    NatsConfig::new(&server.url()).with(|options| {
        options.user = Some(user.to_owned());
        options.password = password;
    })
}

#[tokio::test]
async fn f30_a_denied_subject_is_an_outage_of_its_own() {
    let (server, _jetstream) = require_service!(limited().await);
    let sink = build(login(&server, "shop")).await;
    let messages: Vec<_> = ["shut.x", "open.x", "shut.y", "open.y", "shut.x"].map(loose).into();
    let started = std::time::Instant::now();
    let verdicts = sink.publish(&messages).await;
    for (message, verdict) in messages.iter().zip(&verdicts) {
        if message.destination.starts_with("open") {
            assert_eq!(*verdict, Verdict::Delivered);
        } else {
            assert_seen(verdict, "retry", "nats.denied", Scope::Destination);
            let words = seen(verdict).3;
            assert!(words.contains("user \"shop\"") && words.contains(&message.destination), "{words}");
        }
    }
    assert!(started.elapsed() < Duration::from_secs(4), "told by the server, not by the clock");
}

/// A server writes names in quotes as Go does.
#[tokio::test]
async fn f30_a_denied_subject_with_quotes_is_known_by_its_name() {
    let (server, _jetstream) = require_service!(limited().await);
    let sink = build(login(&server, "shop")).await;
    for subject in ["shut.\"x\"", r"shut.a\b", "shut.\u{200b}ä"] {
        assert_seen(&publish_one(&sink, loose(subject)).await, "retry", "nats.denied", Scope::Destination);
    }
}

/// A right that is taken away under load: its subject waits, and the other one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f30_a_right_that_is_lost_under_load_stops_its_subject_only() {
    let (server, jetstream) = require_service!(limited().await);
    let bed = Bed { server, jetstream };
    let sink = build(login(&bed.server, "shop")).await;
    let (losing, keeping) = (Load::start(&sink, "open.losing"), Load::start(&sink, "open.keeping"));
    losing.more(500).await;
    keeping.more(500).await;
    let without = LIMITED.replace("[\"open.>\"]", "[\"open.keeping\"]");
    bed.server.reload(&NatsOptions::default().setting(&without)).await.expect("revoked");
    assert_seen(&complaint(&sink, "open.losing").await, "retry", "nats.denied", Scope::Destination);
    keeping.more(2_000).await;
    bed.server.reload(&NatsOptions::default().setting(LIMITED)).await.expect("allowed");
    until_delivered(&sink, "open.losing", BACK_WITHIN).await;
    let (mut all, other) = (losing.end().await, keeping.end().await);
    all.delivered.extend(other.delivered);
    all.assert_all_there_in_order(&bed.copies("S").await);
}

#[tokio::test]
async fn a_user_who_may_not_hear_answers_is_an_outage_with_a_name() {
    let (server, _jetstream) = require_service!(limited().await);
    let sink = build(login(&server, "deaf")).await;
    let verdict = publish_one(&sink, loose("open.x")).await;
    assert_seen(&verdict, "retry", "nats.denied", Scope::Sink);
    assert!(seen(&verdict).3.contains("inbox_prefix"), "{verdict:?}");
}

#[tokio::test]
async fn f28_a_connection_lost_after_sending_is_unknown() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(NatsConfig::new(&url)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    proxy.half_open().await;
    let sent = [loose("s"), keyed("s", "k"), keyed("s", "k")];
    let (verdicts, ()) = tokio::join!(sink.publish(&sent), async {
        // The first two are there, though we do not hear of it; the third waits for the second.
        let mut stream = bed.jetstream.get_stream("S").await.expect("the stream");
        while stream.info().await.expect("info").state.messages < 3 {
            tokio::task::yield_now().await;
        }
        proxy.cut().await;
    });
    assert_seen(&verdicts[0], "unknown", "nats.connection_lost", Scope::Sink);
    assert_seen(&verdicts[1], "unknown", "nats.connection_lost", Scope::Sink);
    assert!(matches!(&verdicts[2], Verdict::Held | Verdict::Retry(_)), "{:?}", verdicts[2]);
    proxy.pass().await;
    until_delivered(&sink, "s", Duration::from_secs(5)).await;
    assert!(!bed.stored_ids("S").await.contains(&sent[2].id()), "it was not sent");
}

#[tokio::test]
async fn no_acknowledgement_from_a_living_server_is_the_destinations_fault() {
    let bed = require_service!(Bed::open().await);
    bed.stream_with(stream::Config { no_ack: true, ..plain("MUTE", &["mute"]) }).await;
    bed.stream("S", &["s"]).await;
    let sink = build(bed.config().with(|options| options.delivery_timeout_ms = 1_000)).await;
    let started = std::time::Instant::now();
    let verdicts = sink.publish(&[loose("mute"), loose("s")]).await;
    assert_seen(&verdicts[0], "unknown", "nats.ack_timeout", Scope::Destination);
    assert_eq!(verdicts[1], Verdict::Delivered);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn no_acknowledgement_from_a_silent_server_is_the_sinks_fault() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let (proxy, url) = Proxy::start_before(&bed.server.url()).await.expect("a proxy");
    let sink = build(NatsConfig::new(&url).with(|options| options.delivery_timeout_ms = 1_000)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    proxy.black_hole().await;
    let verdict = publish_one(&sink, loose("s")).await;
    assert_seen(&verdict, "unknown", "nats.ack_timeout", Scope::Sink);
}
