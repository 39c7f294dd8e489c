//! The connection itself: large frames, servers that do not read, that lie, or that are about to stop.

use super::*;
use futures_util::FutureExt;
use posthaste_testkit::require_service;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

fn large(number: usize, bytes: usize) -> Message {
    let byte = b'a' + (number % 26) as u8;
    message("s", Event::new("orders.placed", vec![byte; bytes]))
}

fn assert_whole(stored: &[jetstream::Message]) {
    for message in stored {
        let first = message.payload.first().copied();
        assert!(message.payload.iter().all(|byte| Some(*byte) == first), "frames are mixed");
    }
}

/// Messages of megabytes leave in many pieces. A call that is dropped in between leaves no half of one: the next
/// frame would be taken for the rest of it.
#[tokio::test]
async fn calls_that_are_dropped_while_they_write_leave_whole_frames() {
    let bed = require_service!(Bed::start(&NatsOptions::default().setting("max_payload: 8MB")).await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    until_delivered(&sink, "s", DEADLINE).await;
    for round in 0..10 {
        let messages = [large(round, 5_000_000), large(round + 1, 3_000_000)];
        // Once: what it had to write is written, and nobody waits for the answers.
        assert_eq!(sink.publish(&messages).now_or_never(), None);
        assert_eq!(publish_one(&sink, large(round, 500)).await, Verdict::Delivered);
    }
    let stored = bed.stored("S").await;
    // The connection was never lost: each small one was acknowledged behind the large ones.
    assert!(stored.len() >= 21, "{}", stored.len());
    assert_whole(&stored[1..]);
}

/// A server that stops reading is not fed without end: what does not fit stays with its call, and is not sent.
#[tokio::test]
async fn g7_a_server_that_does_not_read_gets_no_more_than_fits() {
    let bed = require_service!(Bed::start(&NatsOptions::default().setting("max_payload: 8MB")).await);
    bed.stream("S", &["s"]).await;
    let sink = build(bed.config().with(|options| options.delivery_timeout_ms = 1_000)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    bed.server.pause();
    let messages: Vec<_> = (0..100).map(|number| large(number, 2_000_000)).collect();
    let verdicts = sink.publish(&messages).await;
    let left = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Unknown(_))).count();
    let stayed = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Retry(_))).count();
    assert!(left > 0 && stayed > 70 && left + stayed == 100, "{left} left, {stayed} stayed");
    bed.server.resume();
    until_delivered(&sink, "s", BACK_WITHIN).await;
    let stored = bed.stored("S").await;
    assert_whole(&stored[1..stored.len() - 1]);
    assert!(stored.len() <= left + 50, "what stayed was not sent: {}", stored.len());
}

/// Told that a server is about to stop, we go to the next one of the list; the first would keep us for minutes.
#[tokio::test]
async fn a_server_in_lame_duck_mode_is_left() {
    let slow = "lame_duck_grace_period: \"200s\"\nlame_duck_duration: \"400s\"";
    let first = require_service!(Bed::start(&NatsOptions::default().setting(slow)).await);
    let second = require_service!(Bed::open().await);
    for bed in [&first, &second] {
        bed.stream("S", &["s"]).await;
    }
    let sink = build(NatsConfig::new(&format!("{}, {}", first.server.url(), second.server.url()))).await;
    until_delivered(&sink, "s", DEADLINE).await;
    assert_eq!(first.stored("S").await.len(), 1);
    let pid = first.server.pid().expect("it runs").to_string();
    let told = std::process::Command::new("kill").args(["-USR2", &pid]).status().expect("kill is there");
    assert!(told.success());
    until_delivered(&sink, "s", DEADLINE).await;
    assert!(!second.stored("S").await.is_empty());
    assert!(first.server.pid().is_some(), "it has not stopped yet");
}

/// A server finds the first `Nats-Msg-Id` among the headers, wherever it stands.
#[tokio::test]
async fn an_event_that_mentions_the_dedup_header_is_still_stored_once() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let sink = bed.sink().await;
    let event = Event::new("orders.placed", "{}").with_key("Nats-Msg-Id").with_header("a", "Nats-Msg-Id: x");
    for _ in 0..3 {
        assert_eq!(publish_one(&sink, message("s", event.clone())).await, Verdict::Delivered);
    }
    assert_eq!(bed.stored_ids("S").await, [event.id.to_string()]);
}

/// Longer than a line may be: the server would hang up, and hang up again at each retry.
#[tokio::test]
async fn a_subject_that_would_end_the_connection_is_rejected_alone() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s.>", "s"]).await;
    let sink = bed.sink().await;
    let long = |bytes: usize| loose(&format!("s.{}", "x".repeat(bytes - 2)));
    let verdicts = sink.publish(&[long(3_800), long(3_801), long(100_000), loose("s")]).await;
    assert_eq!((&verdicts[0], &verdicts[3]), (&Verdict::Delivered, &Verdict::Delivered));
    for verdict in &verdicts[1..3] {
        assert_seen(verdict, "rejected", "nats.bad_subject", Scope::Event);
    }
}

/// Says this to everybody who comes, and tells what it heard from them.
async fn liar(words: &'static str) -> (String, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    let (hear, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while !hear.is_closed() {
            let (mut stream, _) = listener.accept().await.expect("somebody");
            stream.write_all(words.as_bytes()).await.expect("taken");
            let mut said = Vec::new();
            // An error is an end too, and so is a test that is over.
            let _ = stream.read_to_end(&mut said).await;
            let _ = hear.send(said);
        }
    });
    (url, heard)
}

/// Somebody between us and the server may add to its greeting. It must not count as said under TLS, and no password
/// may leave before TLS.
#[tokio::test]
async fn f29_what_is_said_before_tls_is_not_believed() {
    let greeting = "INFO {\"headers\":true,\"tls_required\":true}\r\nPONG\r\n";
    for (words, because) in
        [(greeting, "talks on before the handshake"), ("INFO {\"headers\":true}\r\n", "offers none")]
    {
        let (url, mut heard) = liar(words).await;
        let password = Some(posthaste_brokers::Secret::new(SECRET));
        let user = Some("shop".to_owned());
        let sink = build(NatsConfig::new(&url).with(|options| {
            options.require_tls = true;
            options.user = user;
            options.password = password;
        }))
        .await;
        let verdict = publish_one(&sink, loose("s")).await;
        assert_seen(&verdict, "retry", "nats.tls", Scope::Sink);
        assert!(seen(&verdict).3.contains(because), "{verdict:?}");
        assert_eq!(heard.recv().await.as_deref(), Some(b"".as_slice()));
    }
}

#[tokio::test]
async fn who_does_not_speak_nats_is_named() {
    for (words, because) in [
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "something that is not NATS"),
        ("PING\r\n", "no NATS server"),
        ("INFO [1]\r\n", "a strange greeting"),
        ("INFO {\"headers\":false}\r\n", "no headers"),
        ("-ERR 'maximum connections exceeded'\r\n", "maximum connections exceeded"),
    ] {
        let (url, _heard) = liar(words).await;
        let verdict = publish_one(&build(NatsConfig::new(&url)).await, loose("s")).await;
        assert_seen(&verdict, "retry", "nats.unreachable", Scope::Sink);
        assert!(seen(&verdict).3.contains(because), "{verdict:?}");
    }
}
