//! The checks of a broker.

use crate::binary::Scratch;
use crate::ground::{Said, connect, doctor, execute, file, only, set_up};
use crate::proxy::{self, Rewrite};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{
    Nats, NatsOptions, Port, Postgres, PostgresOptions, ServiceError, Version,
};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

/// An outbox on which all is well, for every configuration here.
pub(crate) async fn outbox() -> Result<Postgres, ServiceError> {
    let options = PostgresOptions::default().setting("max_prepared_transactions", "0");
    let server = Postgres::start(Version::V15, &options).await?;
    set_up(&server.url()).await;
    Ok(server)
}

/// One server has one replica. It says three, so that all is well before something is broken; the same
/// number of bytes, or the frame would be wrong.
fn three_replicas(bytes: &mut Vec<u8>) {
    proxy::replace(bytes, "\"num_replicas\":1", "\"num_replicas\":3");
}

fn one_replica(_: &mut Vec<u8>) {}

fn from_afar(bytes: &mut Vec<u8>) {
    three_replicas(bytes);
    proxy::replace(bytes, "\"client_ip\":\"127.0.0.1\"", "\"client_ip\":\"192.0.2.1\"");
}

fn old_version(bytes: &mut Vec<u8>) {
    three_replicas(bytes);
    let text = String::from_utf8_lossy(bytes).into_owned();
    let Some(at) = text.find("\"version\":\"") else { return };
    let version = text[at..].split('"').nth(3).unwrap_or_default().to_owned();
    proxy::replace(bytes, &format!("\"version\":\"{version}\""), "\"version\":\"2.10.21\"");
}

fn unanswered(bytes: &mut Vec<u8>) {
    proxy::replace(bytes, "$JS.API.", "$JX.API.");
}

/// A configuration that sends everything to this subject, over a line of this kind.
fn config(outbox: &Postgres, nats: SocketAddr, down: Rewrite, subject: &str, more: &str) -> Scratch {
    let line = proxy::between(nats, proxy::nothing, down);
    sink(outbox, line, &[subject], more)
}

fn sink(outbox: &Postgres, nats: SocketAddr, subjects: &[&str], more: &str) -> Scratch {
    let route = |subject: &&str| {
        format!(
            "[[route]]\nname = \"{subject}\"\ntopic = \"*\"\nsink = \"nats\"\ndestination = \"{subject}\"\n"
        )
    };
    let routes: String = subjects.iter().map(route).collect();
    file(
        &outbox.url(),
        "",
        &format!("[sinks.nats]\ntype = \"nats\"\nurl = \"nats://{nats}\"\n{more}\n{routes}"),
    )
}

fn ask(file: &Scratch) -> Said {
    doctor(&["--config", file.path()])
}

/// Makes a stream, by hand: no client library is needed for one question.
fn make_stream(nats: SocketAddr, config: &serde_json::Value) {
    let body = config.to_string();
    let name = config["name"].as_str().expect("a name");
    let mut wire = TcpStream::connect(nats).expect("it listens");
    let question = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB $JS.API.STREAM.CREATE.{name} answer {}\r\n{body}\r\n",
        body.len()
    );
    wire.write_all(question.as_bytes()).expect("it reads");
    let mut lines = BufReader::new(wire).lines().map_while(Result::ok);
    let answer = lines.find(|line| line.contains("stream_create_response")).expect("it answers");
    assert!(!answer.contains("\"error\""), "{answer}");
}

fn stream(name: &str) -> serde_json::Value {
    serde_json::json!({ "name": name, "subjects": [format!("{name}.x")], "storage": "file", "num_replicas": 1,
        // Longer than the default route retries.
        "duplicate_window": 900_000_000_000_i64 })
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn what_is_wrong_with_a_stream_is_named() {
    let outbox = require_service!(outbox().await);
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    make_stream(nats.addr(), &stream("good"));
    let before = ask(&config(&outbox, nats.addr(), three_replicas, "good.x", ""));
    let streams = [
        ("dedup", "warn", "duplicate_window", serde_json::json!(120_000_000_000_i64)),
        ("retention", "warn", "retention", "interest".into()),
        ("durability", "warn", "storage", "memory".into()),
        ("acknowledgement", "fail", "no_ack", true.into()),
    ];
    for (check, level, key, value) in streams {
        let mut broken = stream(check);
        broken[key] = value;
        make_stream(nats.addr(), &broken);
        let file = config(&outbox, nats.addr(), three_replicas, &format!("{check}.x"), "");
        only(check, level, &before, &ask(&file), &["--config", file.path()]);
    }
    let single = config(&outbox, nats.addr(), one_replica, "good.x", "");
    only("durability", "warn", &before, &ask(&single), &["--config", single.path()]);
    let nowhere = config(&outbox, nats.addr(), three_replicas, "nowhere.x", "");
    only("destination", "fail", &before, &ask(&nowhere), &["--config", nowhere.path()]);
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn what_is_wrong_with_the_server_is_named() {
    let outbox = require_service!(outbox().await);
    let options = NatsOptions::default().token("right").setting("max_payload: 2097152");
    let nats = require_service!(Nats::start(&options).await);
    let token = "token = \"right\"";
    let before = ask(&routed(&outbox, nats.addr(), three_replicas, token));
    let afar = routed(&outbox, nats.addr(), from_afar, token);
    only("transport", "warn", &before, &ask(&afar), &["--config", afar.path()]);
    let old = routed(&outbox, nats.addr(), old_version, token);
    only("version", "warn", &before, &ask(&old), &["--config", old.path()]);
    let wrong = routed(&outbox, nats.addr(), three_replicas, "token = \"wrong\"");
    only("authenticated", "fail", &before, &ask(&wrong), &["--config", wrong.path()]);
    let nobody = Port::claim().expect("a free port");
    let gone = routed(&outbox, SocketAddr::from(([127, 0, 0, 1], nobody.number())), three_replicas, token);
    only("reachable", "fail", &before, &ask(&gone), &["--config", gone.path()]);
    let small = require_service!(Nats::start(&NatsOptions::default().setting("max_payload: 65536")).await);
    let file = routed(&outbox, small.addr(), three_replicas, "");
    only("payload", "warn", &before, &ask(&file), &["--config", file.path()]);
}

/// A destination that is not known without an event: nothing is asked about streams.
fn routed(outbox: &Postgres, nats: SocketAddr, down: Rewrite, more: &str) -> Scratch {
    config(outbox, nats, down, "{topic}", more)
}

/// A route of patterns names no destination. What waits does, and so does the example that `init` looks at.
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn what_waits_and_where_it_cannot_go_is_named() {
    let outbox = require_service!(outbox().await);
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    let orders = serde_json::json!({ "name": "orders", "subjects": ["orders.*"], "storage": "file",
        "num_replicas": 1, "duplicate_window": 900_000_000_000_i64 });
    make_stream(nats.addr(), &orders);
    let patterns = |topics: &str| {
        let line = proxy::between(nats.addr(), proxy::nothing, three_replicas);
        let rest = format!(
            "[sinks.nats]\ntype = \"nats\"\nurl = \"nats://{line}\"\n[[route]]\ntopics = [{topics}]\nsink = \"nats\"\n"
        );
        file(&outbox.url(), "", &rest)
    };
    let sound = patterns("\"orders.*\", \"*\"");
    let before = ask(&sound);
    let (level, text) = &before.found["destination"];
    assert!(level == "ok" && text.contains("orders.example"), "{text}");
    let elsewhere = patterns("\"invoices.*\"");
    let after = ask(&elsewhere);
    only("destination", "warn", &before, &after, &["--config", elsewhere.path()]);
    assert!(after.found["destination"].1.contains("an example of a route's pattern"));

    let client = connect(&outbox.url()).await;
    let waits = "insert into posthaste.deferred (sink, seq, slot, id, topic, appended_at, route, destination, reason, holds,
                   attempts, due_at, last_error, error_code)
                 select 'nats', n, 0, gen_random_uuid(), 'invoices.paid', now() - interval '5 minutes', 'r', 'invoices.paid',
                   'retry', false, 1, now(), 'no stream takes it', 'nats.no_stream' from generate_series(1, 3) n;
                 insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n)
                 values ('nats', 0, 0, 1023, '', 0);
                 insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot)
                 values ('nats', 0, 1, 0, 'born', 0, 10, pg_current_snapshot())";
    execute(&client, waits).await;
    let after = ask(&sound);
    for (check, level, words) in [
        ("waiting", "warn", "3 events wait for sink nats, destination \"invoices.paid\""),
        ("waiting", "warn", "nats.no_stream"),
        ("destination", "fail", "no stream takes the subject \"invoices.paid\""),
        ("lanes_owned", "warn", "no relay is running, and events wait: 3 for sink nats"),
    ] {
        let (found, text) = &after.found[check];
        assert!(found == level && text.contains(words), "{check} ({found}): {text}");
    }
    // What is worst comes first.
    let shown = crate::binary::run(&["doctor", "--config", sound.path()]);
    let words = shown.out.lines().filter_map(|line| line.split(' ').next());
    let levels: Vec<&str> = words.filter(|word| ["ok", "warn", "fail"].contains(word)).collect();
    let firsts = ["fail", "warn", "warn", "ok"];
    assert_eq!(levels[..firsts.len()], firsts, "{}", shown.out);
}

/// Every question waits for two seconds; with eight of them the doctor's own patience is over first.
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn a_broker_that_does_not_answer_is_named() {
    let outbox = require_service!(outbox().await);
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    make_stream(nats.addr(), &stream("good"));
    let before = ask(&config(&outbox, nats.addr(), three_replicas, "good.x", ""));
    // Somebody listens to the questions and never answers; without a listener the server would say so.
    let mut listener = TcpStream::connect(nats.addr()).expect("it listens");
    listener.write_all(b"CONNECT {\"verbose\":false}\r\nSUB $JX.API.> 1\r\nPING\r\n").expect("it reads");
    let mut lines = BufReader::new(listener.try_clone().expect("a socket")).lines().map_while(Result::ok);
    lines.find(|line| line == "PONG").expect("the subscription is in force");
    let line = proxy::between(nats.addr(), unanswered, proxy::nothing);
    let subjects: Vec<String> = (0..10).map(|n| format!("s{n}.x")).collect();
    let subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
    let file = sink(&outbox, line, &subjects, "");
    only("answer", "fail", &before, &ask(&file), &["--config", file.path()]);
}
