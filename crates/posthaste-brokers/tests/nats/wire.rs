//! The connection itself: large frames, servers that do not read, that lie, or that are about to stop.

use super::*;
use futures_util::FutureExt;
use posthaste_testkit::require_service;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
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

/// Messages of megabytes leave in many pieces. A call that is dropped in between leaves no half of one: the
/// next frame would be taken for the rest of it.
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

/// A server that stops reading is not fed without end: what does not fit stays with its call, and is not
/// sent.
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

/// Told that a server is about to stop, we go to the next one of the list; the first would keep us for
/// minutes.
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
    // The first one may have taken another message before it was told.
    until(async || {
        until_delivered(&sink, "s", DEADLINE).await;
        !second.stored("S").await.is_empty()
    })
    .await;
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

/// Somebody between us and the server may add to its greeting, or hide that it has TLS. Asked for TLS, we
/// begin with the handshake all the same, and nothing leaves before its end.
#[tokio::test]
async fn f29_what_is_said_before_tls_is_not_believed() {
    for words in
        ["INFO {\"headers\":true,\"tls_required\":true}\r\nPONG\r\n", "INFO {\"headers\":true}\r\nPONG\r\n"]
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
        let heard = heard.recv().await.expect("a client");
        assert!(heard.starts_with(&[0x16, 3]), "a handshake: {heard:?}");
        assert!(!String::from_utf8_lossy(&heard).contains("CONNECT"), "{heard:?}");
        assert_seen(&publish_one(&sink, loose("s")).await, "retry", "nats.unreachable", Scope::Sink);
    }
}

#[tokio::test]
async fn who_does_not_speak_nats_is_named() {
    for (words, because) in [
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "something that is not NATS"),
        ("PING\r\n", "expected INFO, got Ping"),
        ("INFO [1]\r\n", "something that is not NATS"),
        ("INFO {\"headers\":false}\r\nPONG\r\n", "no headers"),
        ("INFO {\"headers\":true,\"ldm\":true}\r\nPONG\r\n", "lame duck mode"),
        ("INFO {\"headers\":true}\r\nPONG\r\n", "does not answer"),
        ("-ERR 'maximum connections exceeded'\r\n", "maximum connections exceeded"),
        (
            "INFO {\"headers\":true}\r\n-ERR 'maximum connections exceeded'\r\n",
            ": maximum connections exceeded",
        ),
    ] {
        let (url, _heard) = liar(words).await;
        let sink = build(NatsConfig::new(&url)).await;
        let mut said = String::new();
        // The server that does not answer is given its time.
        until(async || {
            let verdict = publish_one(&sink, loose("s")).await;
            assert_seen(&verdict, "retry", "nats.unreachable", Scope::Sink);
            seen(&verdict).3.clone_into(&mut said);
            said.contains(because)
        })
        .await;
        assert!(said.contains(&url), "{said}");
    }
}

/// What a server says about who we are is told as such, also when it says it in other words than at the
/// login.
#[tokio::test]
async fn a_refusal_in_other_words_is_one() {
    for words in ["User Authentication Expired", "Authorization Violation", "Account Authentication Expired"]
    {
        let (url, _heard) = liar(format!("INFO {{\"headers\":true}}\r\n-ERR '{words}'\r\n").leak()).await;
        let verdict = publish_one(&build(NatsConfig::new(&url)).await, loose("s")).await;
        assert_seen(&verdict, "retry", "nats.auth", Scope::Sink);
        assert!(seen(&verdict).3.contains(words), "{verdict:?}");
    }
}

/// Lets a session begin: answers the login and the first ping. What was heard is the answer.
async fn let_in(stream: &mut TcpStream) -> String {
    let (mut said, mut owed) = (String::new(), vec!["PING\r\n", ".ping 0\r\n"]);
    stream.write_all(b"INFO {\"headers\":true,\"max_payload\":1000000}\r\n").await.expect("taken");
    while let Some(next) = owed.first() {
        let mut bytes = [0; 4_096];
        let count = stream.read(&mut bytes).await.expect("readable");
        assert!(count > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&bytes[..count]));
        if !said.contains(next) {
            continue;
        }
        let answer = match owed.remove(0) {
            "PING\r\n" => "PONG\r\n".to_owned(),
            _ => {
                let inbox =
                    said.split("SUB ").nth(1).and_then(|rest| rest.split_once("* 1")).expect("an inbox").0;
                format!("MSG {inbox}ping 1 0\r\n\r\n")
            }
        };
        stream.write_all(answer.as_bytes()).await.expect("taken");
    }
    said
}

/// A client that reconnected by itself would send later what the relay was told had failed: here, what it
/// took and could not write, because the server did not read.
#[tokio::test]
async fn nothing_is_sent_behind_the_relays_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    let sink = build(NatsConfig::new(&url).with(|options| options.delivery_timeout_ms = 1_000)).await;
    let accept = async || listener.accept().await.expect("somebody").0;
    let mut first = accept().await;
    let_in(&mut first).await;
    let messages: Vec<_> = (0..4_000).map(|number| large(number, 10_000)).collect();
    let verdicts = sink.publish(&messages).await;
    let stayed = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Retry(_))).count();
    assert!((1..4_000).contains(&stayed), "{stayed}");
    drop(first);
    let mut second = accept().await;
    let mut said = let_in(&mut second).await;
    let marker = keyed("s", "the marker");
    let publishing = tokio::spawn(async move { publish_one(&sink, marker).await });
    while !said.contains("the marker") {
        let mut bytes = vec![0; 1 << 16];
        let count = second.read(&mut bytes).await.expect("readable");
        assert!(count > 0, "closed");
        said.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert_eq!(said.matches("HPUB ").count(), 1, "only the marker");
    publishing.abort();
}
