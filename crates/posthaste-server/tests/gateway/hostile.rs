//! Requests that are too slow, too large, too deep, too many or none: each is refused by itself, what it
//! costs is bounded, and others are served all the while.

use crate::rig::{Answered, DEADLINE, Rig, answered, exchange};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Within this time somebody else is served. A dripping body has ten seconds: whoever waited for one to end
/// would wait longer.
const SOON: Duration = Duration::from_secs(5);

impl Rig {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
        stream.set_write_timeout(Some(DEADLINE)).expect("a timeout can be set");
        stream
    }

    /// The beginning of a request: its line, its key.
    fn head(&self, key: &str, more: &str) -> String {
        format!("POST /v1/topics/raw HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{more}")
    }

    /// Somebody else is served meanwhile. A machine that does other things is late now and then, so it is
    /// asked again; what `beside` returns lives while it is asked.
    #[track_caller]
    fn serves<T>(&self, other: &str, during: &str, beside: impl Fn() -> T) {
        let begun = Instant::now();
        loop {
            let alive = beside();
            let asked = Instant::now();
            (0..5).for_each(|_| assert_eq!(self.post("raw", other, "1").status, 202, "{during}"));
            let took = asked.elapsed();
            drop(alive);
            if took < SOON {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "{during}: {took:?}");
        }
    }

    /// The most memory that the gateway ever had, in KiB.
    fn memory_kib(&self) -> u64 {
        let dir = self.dir.to_str().expect("UTF-8");
        let all = std::fs::read_dir("/proc").expect("Linux").flatten().map(|entry| entry.path());
        let mut ours = all.filter(|path| {
            std::fs::read_to_string(path.join("cmdline"))
                .is_ok_and(|line| line.contains(dir) && line.contains("run"))
        });
        let status = ours.find_map(|path| std::fs::read_to_string(path.join("status")).ok());
        let status = status.expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    }
}

/// What comes back before the line is closed or cut.
fn read(mut stream: &TcpStream) -> Answered {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answered(&answer)
}

/// Nobody is refused for its rate.
const FREE: &str = "limit = { rate_per_s = 100000, burst = 1000000 }\n";

/// §13.8: one tenant with a thousand bodies that drip costs another one nothing.
#[test]
fn a_thousand_dripping_bodies_of_one_tenant_cost_the_others_nothing() {
    let rig = Rig::start(&format!("{FREE}bounds = {{ body_timeout_ms = 10000 }}\n"));
    let (slow, other) = (rig.key("slow", &[]), rig.key("other", &[]));
    let head = rig.head(&slow, "content-length: 1000\r\n\r\n{");
    let drip = || -> Vec<TcpStream> {
        let one = |_| {
            let mut stream = TcpStream::connect(&rig.address).ok()?;
            stream.write_all(head.as_bytes()).ok()?;
            Some(stream)
        };
        (0..1_000).filter_map(one).collect()
    };
    rig.serves(&other, "beside a thousand dripping bodies", drip);
    // Beyond its eighth the slow one is told so at once.
    let streams = drip();
    rig.until("it is refused", || {
        let answer = rig.post("raw", &slow, "1");
        (answer.status, answer.code().as_str()) == (503, "gateway.busy")
            && answer.field("retry-after") == Some("1")
    });
    drop(streams);
    rig.until("its places are free again", || rig.post("raw", &slow, "1").status == 202);
}

#[test]
fn a_head_or_a_body_that_does_not_come_is_waited_for_no_longer_than_said() {
    let rig = Rig::start(&format!("{FREE}bounds = {{ body_timeout_ms = 300 }}\n"));
    let (key, other) = (rig.key("acme", &[]), rig.key("other", &[]));
    let mut head = rig.connect();
    head.write_all(b"POST /v1/topics/raw HTTP/1.1\r\nhost: x\r\nauthor").expect("it reads");
    let mut body = rig.connect();
    body.write_all(rig.head(&key, "content-length: 10\r\n\r\n123").as_bytes()).expect("it reads");
    let mut chunks = rig.connect();
    let text = rig.head(&key, "transfer-encoding: chunked\r\n\r\n1\r\nx\r\n");
    chunks.write_all(text.as_bytes()).expect("it reads");
    rig.serves(&other, "beside slow clients", || ());
    for stream in [&body, &chunks] {
        let answer = read(stream);
        assert_eq!((answer.status, answer.code().as_str()), (408, "gateway.slow"), "{}", answer.text);
    }
    let answer = read(&head);
    assert!(matches!(answer.status, 0 | 408), "{} {}", answer.status, answer.text);
    // A body that ends before its time.
    let mut cut = rig.connect();
    cut.write_all(rig.head(&key, "content-length: 10\r\n\r\n123").as_bytes()).expect("it reads");
    cut.shutdown(std::net::Shutdown::Write).expect("our side ends");
    let answer = read(&cut);
    assert!(matches!(answer.status, 0 | 400), "{} {}", answer.status, answer.text);
    assert_eq!(rig.events().len(), 5, "those of the other one");
}

/// G7: whoever says 64 MB is told at once, whoever sends without an end is stopped on the way.
#[test]
fn bodies_without_an_end_are_refused_and_memory_is_bounded() {
    const WHOLE: usize = 64 << 20;
    let rig = Rig::start(FREE);
    let (key, other) = (rig.key("acme", &[]), rig.key("other", &[]));
    let before = rig.memory_kib();
    let mut told = rig.connect();
    told.write_all(rig.head(&key, &format!("content-length: {WHOLE}\r\n\r\n")).as_bytes()).expect("it reads");
    let answer = read(&told);
    assert_eq!((answer.status, answer.code().as_str()), (413, "gateway.too_large"));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let stream = rig.connect();
                let is_over = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    let sent = scope.spawn(|| {
                        let mut writer = &stream;
                        let head = rig.head(&key, "transfer-encoding: chunked\r\n\r\n");
                        let chunk = [b"10000\r\n".as_slice(), &vec![b' '; 0x10000], b"\r\n"].concat();
                        let mut sent = writer.write(head.as_bytes()).unwrap_or(0);
                        while sent < WHOLE && !is_over.load(Ordering::Relaxed) {
                            match writer.write(&chunk) {
                                Ok(count) => sent += count,
                                Err(_) => break,
                            }
                        }
                        sent
                    });
                    let answer = read(&stream);
                    is_over.store(true, Ordering::Relaxed);
                    let sent = sent.join().expect("it ends");
                    assert!(sent < WHOLE, "all of it was taken");
                    assert!(matches!(answer.status, 413 | 0), "{} {}", answer.status, answer.text);
                });
            });
        }
        rig.serves(&other, "beside large bodies", || ());
    });
    let grown = rig.memory_kib().saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} KiB");
    // F-early: one megabyte is on its way, and the client reads why not.
    let small =
        Rig::start("limit = { rate_per_s = 0.001, burst = 1 }\nbounds = { body_bytes_max = 1048576 }\n");
    let key = small.key("acme", &[]);
    assert_eq!(small.post("raw", &key, "1").status, 202);
    let (large, larger) = (vec![b' '; 1 << 20], vec![b' '; (1 << 20) + 1]);
    for _ in 0..5 {
        let answer = small.post_with("raw", &key, &[], &large);
        assert_eq!((answer.status, answer.code().as_str()), (429, "gateway.limited"));
        let answer = small.post_with("raw", &key, &[], &larger);
        assert_eq!((answer.status, answer.code().as_str()), (413, "gateway.too_large"));
    }
    assert_eq!(small.events().len(), 1);
}

#[test]
fn json_that_is_too_deep_or_too_long_breaks_nobody() {
    let rig = Rig::start(FREE);
    let key = rig.key("acme", &[]);
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    let json = [("content-type", "application/json")];
    let batch = [("content-type", "application/vnd.posthaste.batch+json")];
    let (mut stored, mut refused) = (0, 0);
    for text in [
        deep("[", "]"),
        deep("{\"a\":", "}").replace(":}", ":1}"),
        deep("[{\"a\":", "}]").replace(":}", ":1}"),
        "9".repeat(1 << 20),
        format!("-0.{}e-9999999", "0".repeat(1 << 20)),
        format!("1e{}", "9".repeat(1_000)),
        format!("\"{}\"", "\\u0000".repeat(100_000)),
        format!("{{{}\"a\":1}}", "\"a\":1,".repeat(100_000)),
    ] {
        let bodies = [(&json, text.clone()), (&batch, format!("{{\"events\": [{{\"payload\": {text}}}]}}"))];
        for (head, body) in bodies {
            let answer = rig.post_with("orders.placed", &key, head, body.as_bytes());
            if text.starts_with(['[', '{']) && text.contains("1}}}") || text.starts_with("[[") {
                assert_eq!((answer.status, answer.code().as_str()), (422, "gateway.not_json"));
            }
            match answer.status {
                202 => stored += answer.ids().len(),
                // No JSON, or more than is taken.
                400 | 413 | 422 => refused += usize::from(!answer.code().is_empty()),
                _ => panic!("{text:.40}: {} {}", answer.status, answer.text),
            }
        }
    }
    for body in ["{\"events\": {}}", "{\"events\": [1]}", "[]", "{\"events\": [], \"events\": []}", "null"] {
        let answer = rig.post_with("orders.placed", &key, &batch, body.as_bytes());
        assert_eq!((answer.status, answer.code().as_str()), (400, "gateway.malformed"), "{body}");
    }
    assert!(refused > 0 && stored > 0, "{refused} {stored}");
    assert_eq!(rig.events().len(), stored);
    assert!(!rig.daemon.said().contains("panicked"), "{}", rig.daemon.said());
}

/// NUL and other bytes that no column holds are the client's mistake: never ours, never stored.
#[test]
fn what_no_column_holds_is_refused() {
    refuses_what_no_column_holds(&Rig::start(FREE));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_column_holds_is_refused_on_postgres() {
    use posthaste_testkit::{require_service, services::TestDatabase};
    let database = require_service!(TestDatabase::create().await);
    refuses_what_no_column_holds(&Rig::on_postgres(database, FREE));
}

fn refuses_what_no_column_holds(rig: &Rig) {
    let key = rig.key("acme", &[]);
    let batch = [("content-type", "application/vnd.posthaste.batch+json")];
    for member in [
        r#""type": "\u0000""#,
        r#""key": "a\u0000b""#,
        r#""headers": {"a": "\u0000"}"#,
        r#""headers": {"\u0000": "a"}"#,
        r#""headers": {"": "a"}"#,
        r#""headers": {"a\r\nb": "c"}"#,
        r#""headers": {"TENANT_ID": "c"}"#,
        r#""content_type": "text/\u0000""#,
        r#""content_type": "\r\n""#,
        r#""type": "\ud800""#,
        r#""deliver_at": "\u0000""#,
        r#""deliver_at": "2999-01-01T00:00:00Z""#,
        r#""payload_base64": "AA==""#,
        r#""payload": 2"#,
        r#""tenant": "other""#,
    ] {
        let body = format!("{{\"events\": [{{\"payload\": 1}}, {{\"payload\": 1, {member}}}]}}");
        let answer = rig.post_with("raw", &key, &batch, body.as_bytes());
        assert!(matches!(answer.code().as_str(), "gateway.header" | "gateway.malformed"), "{member}");
        assert_eq!(answer.status, 400, "{member}: {}", answer.text);
    }
    for (name, value) in [("event-key", "a\u{7f}"), ("event-type", "\u{7f}"), ("event-key", "\u{85}")] {
        let answer = rig.post_with("raw", &key, &[(name, value)], b"1");
        assert!(matches!(answer.status, 202 | 400), "{name} {value:?}: {} {}", answer.status, answer.text);
    }
    assert!(rig.events().len() <= 3);
    assert!(!rig.daemon.said().contains("the database refused"), "{}", rig.daemon.said());
}

#[test]
fn tricks_with_paths_and_versions_are_answered_as_they_deserve() {
    let rig = Rig::start(FREE);
    let key = rig.key("acme", &["--topic", "orders.placed"]);
    let all = rig.key("other", &[]);
    let send = |key: &str, line: &str, more: &str| {
        let text = format!(
            "{line}\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n{more}content-length: 1\r\n\r\n1"
        );
        exchange(&rig.address, text.as_bytes())
    };
    for path in [
        "/v1/topics/%72aw%00",
        "/v1/topics/%ff",
        "/v1/topics/%c0%af",
        "/v1/topics/orders.placed/../raw",
        "/v1/topics/..%2fraw",
        "/v1/topics//raw",
        "/v1/topics/raw/",
        "/v1/topics/raw%2f",
        "/v1/topics/RAW",
        "/v1/topics/raw;x=1",
        "/v1/topics/%2e%2e/raw",
        "//v1/topics/raw",
        "/v1/./topics/raw",
        "/V1/topics/raw",
        "/v1/topics/",
        "/v1/topics/*",
    ] {
        for key in [&key, &all] {
            let answer = send(key, &format!("POST {path} HTTP/1.1"), "");
            assert_eq!(answer.status, 404, "{path} {}", answer.text);
            assert!(matches!(answer.code().as_str(), "gateway.no_topic" | "gateway.no_page"), "{path}");
        }
    }
    assert_eq!(rig.events().len(), 0);
    // A topic that is spelled in another way is the same one, and the right of the key is for the topic.
    assert_eq!(send(&key, "POST /v1/topics/r%61w HTTP/1.1", "").code(), "gateway.topic");
    assert_eq!(send(&all, "POST /v1/topics/r%61w?x=%00 HTTP/1.1", "").status, 202);
    assert_eq!(send(&all, "POST http://elsewhere.example/v1/topics/raw HTTP/1.1", "").status, 202);
    // HTTP/1.0 is answered, and what is none is not.
    let answer = send(&all, "POST /v1/topics/raw HTTP/1.0", "");
    assert_eq!(answer.status, 202, "{}", answer.text);
    assert_eq!(rig.events().len(), 3);
    for line in ["POST /v1/topics/raw HTTP/2.0", "POST /v1/topics/raw", "POST  HTTP/1.1", "PRI * HTTP/2.0"] {
        let mut stream = rig.connect();
        let text = format!("{line}\r\nhost: x\r\nauthorization: Bearer {all}\r\ncontent-length: 1\r\n\r\n1");
        stream.write_all(text.as_bytes()).expect("it reads");
        let answer = read(&stream);
        assert!(matches!(answer.status, 0 | 400 | 404 | 505), "{line}: {} {}", answer.status, answer.text);
    }
    for more in ["transfer-encoding: chunked\r\n", "transfer-encoding: identity\r\n", "content-length: 2\r\n"]
    {
        let answer = send(&all, "POST /v1/topics/raw HTTP/1.1", more);
        assert!(matches!(answer.status, 400 | 408 | 501), "{more}: {} {}", answer.status, answer.text);
    }
    // What comes behind a body is no second request of somebody else.
    let mut stream = rig.connect();
    let one = rig.head(&all, "content-length: 1\r\n\r\n1");
    let last = rig.head(&all, "connection: close\r\ncontent-length: 1\r\n\r\n1");
    stream.write_all(format!("{one}{one}{last}").as_bytes()).expect("it reads");
    let mut answers = String::new();
    let _ = (&stream).read_to_string(&mut answers);
    assert_eq!(answers.matches("HTTP/1.1 202").count(), 3, "{answers}");
    assert_eq!(rig.events().len(), 6);
}

#[test]
fn connections_that_say_nothing_hold_up_nobody() {
    let rig = Rig::start(&format!("{FREE}bounds = {{ sockets_max = 500 }}\n"));
    let key = rig.key("acme", &[]);
    let idle =
        || -> Vec<TcpStream> { (0..2_200).filter_map(|_| TcpStream::connect(&rig.address).ok()).collect() };
    rig.serves(&key, "beside two thousand idle connections", idle);
    assert!(rig.memory_kib() < 256 << 10, "{} KiB", rig.memory_kib());
}
