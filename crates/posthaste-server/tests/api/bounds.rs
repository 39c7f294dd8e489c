//! Requests that are too large, too deep, too many, too slow or none: each is refused by itself, what it
//! costs is bounded, and others are served all the while.

use crate::rig::{Answered, Rig, answered};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Within this time an orchestrator has its answer.
const SOON: Duration = Duration::from_secs(1);
/// A test that works never waits for it.
const DEADLINE: Duration = Duration::from_secs(60);
const PAUSE: &str = "{\"paused\": true, \"reason\": \"x\"}";

impl Rig {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
        stream.set_write_timeout(Some(DEADLINE)).expect("a timeout can be set");
        stream
    }

    /// The beginning of a request with a token: its line and the headers that each has.
    fn head(&self, line: &str) -> String {
        let bearer = format!("authorization: Bearer {}\r\ncontent-type: application/json\r\n", self.admin);
        format!("{line}\r\nhost: {}\r\n{bearer}", self.address)
    }

    /// Somebody else is served meanwhile, at once.
    #[track_caller]
    fn serves_others(&self, during: &str) {
        self.serves_others_beside(during, || ());
    }

    /// The same beside what is there for a few seconds and made again. Whoever has to wait for it to end
    /// waits each time; a machine that does other things is late now and then.
    #[track_caller]
    fn serves_others_beside<T>(&self, during: &str, flood: impl Fn() -> T) {
        let begun = Instant::now();
        loop {
            let beside = flood();
            let asked = Instant::now();
            assert_eq!(self.daemon.get("/livez").0, 200, "{during}");
            let lives = asked.elapsed();
            self.get("/me", &self.read).ok();
            let all = asked.elapsed();
            drop(beside);
            if lives < SOON && all < 2 * SOON {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "/livez took {lives:?}, with /me {all:?} {during}");
        }
    }
}

/// The most memory that the process ever had whose configuration is in this directory, in KiB.
pub(crate) fn memory_kib(dir: &Path) -> u64 {
    let dir = dir.to_str().expect("UTF-8");
    let all = std::fs::read_dir("/proc").expect("Linux").flatten().map(|entry| entry.path());
    let ours =
        |path: &PathBuf| std::fs::read_to_string(path.join("cmdline")).is_ok_and(|line| line.contains(dir));
    let status = all.filter(ours).find_map(|path| std::fs::read_to_string(path.join("status")).ok());
    let status = status.expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// What comes back before the line is closed or cut.
fn read(mut stream: &TcpStream) -> Answered {
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&part[..count]),
            Err(error) => {
                let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!is_late, "neither an answer nor an end: {}", String::from_utf8_lossy(&answer));
                break;
            }
        }
    }
    answered(&answer)
}

#[test]
fn a_body_of_64_mb_is_refused_at_its_beginning() {
    const WHOLE: usize = 64 << 20;
    let rig = Rig::start("");
    let before = memory_kib(&rig.dir);
    // Whoever says how much is coming is told at once: whoever is waited for is told that it is slow.
    let line = rig.head("PUT /api/v1/outboxes/a/sinks/out/control HTTP/1.1");
    let mut stream = rig.connect();
    stream.write_all(format!("{line}content-length: {WHOLE}\r\n\r\n").as_bytes()).expect("it reads");
    let answer = read(&stream);
    assert_eq!((answer.status, answer.code().as_str()), (413, "api.too_large"));
    // Whoever does not is stopped on the way: eight of them at once.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (rig, line) = (&rig, &line);
            scope.spawn(move || {
                let stream = rig.connect();
                let is_over = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    let sent = scope.spawn(|| {
                        let mut writer = &stream;
                        let head = format!("{line}transfer-encoding: chunked\r\n\r\n");
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
                    // A line that is cut with something unread on it may take the answer along.
                    assert!(matches!(answer.status, 413 | 0), "{} {}", answer.status, answer.text);
                });
            });
        }
        rig.serves_others("beside large bodies");
    });
    let grown = memory_kib(&rig.dir).saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} KiB");
    assert_eq!(rig.get("/outboxes/a", &rig.read).ok()["sinks"][0]["paused"], false);
}

#[test]
fn what_is_too_deep_or_no_json_is_refused() {
    let rig = Rig::start("");
    let deep = |open: &str| open.repeat(100_000);
    let bodies = [
        deep("["),
        deep("{\"a\":"),
        format!("{{\"filter\": {}", deep("[")),
        format!("{{\"kind\": \"dead.replay\", \"filter\": {{\"ids\": {}{}}}}}", deep("["), deep("]")),
        format!("{{\"reason\": \"x\", \"paused\": {}{}}}", deep("{\"a\":"), "}".repeat(100_000)),
        format!("{{\"reason\": \"{}", deep("\\u0000")),
        format!("{{{}\"reason\": 1}}", "\"reason\":\"\",".repeat(50_000)),
        "1e999999999".to_owned(),
        "{\"reason\": \"\\ud800\"}".to_owned(),
        "\u{feff}{}".to_owned(),
        String::new(),
        "null".to_owned(),
        "[]".to_owned(),
    ];
    for (method, path) in [
        ("POST", "/outboxes/a/jobs"),
        ("POST", "/outboxes/a/dead/reprocess"),
        ("POST", "/outboxes/a/jobs/1/pause"),
        ("PUT", "/outboxes/a/sinks/out/control"),
        ("PUT", "/outboxes/a/lanes"),
        ("POST", "/session"),
    ] {
        for body in &bodies {
            let answer = rig.ask(method, path, &rig.admin, body);
            let start: String = body.chars().take(40).collect();
            assert_eq!((answer.status, answer.code().as_str()), (400, "api.bad_body"), "{path} {start}");
        }
    }
    rig.serves_others("after deep bodies");
}

#[test]
fn a_path_a_query_or_a_head_that_is_too_large_is_refused() {
    let rig = Rig::start("");
    for path in [
        format!("/me?{}", "limit=1&".repeat(10_000)),
        format!("/outboxes/a/dead?{}", "topic=x&".repeat(10_000)),
        format!("/{}", "x".repeat(1 << 20)),
        format!("/outboxes/{}", "../".repeat(100_000)),
    ] {
        let mut stream = rig.connect();
        // The other side may have had enough before all of it is sent.
        let _ =
            stream.write_all(format!("{}\r\n", rig.head(&format!("GET /api/v1{path} HTTP/1.1"))).as_bytes());
        let answer = read(&stream);
        assert!(matches!(answer.status, 0 | 400..=499), "{}", answer.status);
        rig.serves_others("after a large head");
    }
    let header = format!("x: {}\r\n", "x".repeat(1 << 20));
    for more in [
        header.as_str(),
        &"a: b\r\n".repeat(10_000),
        &"a: b\r\n".repeat(150),
        "x\r\n",
        "\0: x\r\n",
        "x: \u{7}\r\n",
    ] {
        let mut stream = rig.connect();
        let _ = stream.write_all(format!("{}{more}\r\n", rig.head("GET /api/v1/me HTTP/1.1")).as_bytes());
        let answer = read(&stream);
        assert!(matches!(answer.status, 0 | 400..=499), "{}", answer.status);
    }
    // What fits is answered like anything else that is wrong.
    for (path, status, code) in [
        (format!("/outboxes/a/dead?{}", "topic=x&".repeat(1_500)), 400, "api.bad_query"),
        (format!("/outboxes/a/dead?{}", "a&".repeat(5_000)), 400, "api.bad_query"),
        (format!("/me?{}=1", "x".repeat(10_000)), 400, "api.bad_query"),
        (format!("/{}", "x/".repeat(5_000)), 404, "api.no_route"),
        (format!("/outboxes/{}", "x".repeat(10_000)), 404, "api.unknown_outbox"),
        ("/outboxes/a/dead?topic=%ff%fe&limit=%".to_owned(), 400, "api.bad_query"),
        ("/outboxes/%ff".to_owned(), 400, "api.bad_path"),
        ("/outboxes/a/events/99999999999999999999999".to_owned(), 400, "api.bad_path"),
        ("/outboxes/a/events/-1".to_owned(), 400, "api.bad_path"),
        ("/outboxes/a/jobs/99999999999999999999999".to_owned(), 400, "api.bad_path"),
        ("/outboxes/a/events?from_seq=9223372036854775808".to_owned(), 400, "api.bad_query"),
        ("/outboxes/a/dead?limit=-9223372036854775808".to_owned(), 400, "api.bad_query"),
    ] {
        let answer = rig.get(&path, &rig.admin);
        let start: String = path.chars().take(60).collect();
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{start}: {}", answer.text);
    }
    // The ends of what a number may be are numbers.
    for path in [
        "/outboxes/a/events?from_seq=9223372036854775807",
        "/outboxes/a/events?from_seq=-9223372036854775808&to_seq=9223372036854775807",
        "/outboxes/a/events?since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z",
        "/outboxes/a/dead?since=9999-12-31T23:59:59Z",
    ] {
        rig.get(path, &rig.admin).ok();
    }
    assert_eq!(rig.get("/outboxes/a/events/9223372036854775807", &rig.admin).status, 404);
    rig.serves_others("at the end");
}

#[test]
fn a_slow_body_is_cut_and_holds_up_nobody() {
    let rig = Rig::start("");
    let line = rig.head("PUT /api/v1/outboxes/a/sinks/out/control HTTP/1.1");
    let mut with_token = rig.connect();
    with_token
        .write_all(format!("{line}content-length: {}\r\n\r\n{{", PAUSE.len()).as_bytes())
        .expect("it reads");
    // Strangers may open a session, so they may send a body; three hundred of them send none, again and
    // again.
    let head = format!(
        "POST /api/v1/session HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        rig.address
    );
    let knock = |_| {
        let mut stream = TcpStream::connect(&rig.address).ok()?;
        stream.write_all(head.as_bytes()).ok()?;
        Some(stream)
    };
    for round in 0..3 {
        let strangers = || (0..300).filter_map(knock).collect::<Vec<TcpStream>>();
        rig.serves_others_beside(&format!("beside slow bodies of strangers, round {round}"), strangers);
    }
    let answer = read(&with_token);
    assert_eq!((answer.status, answer.code().as_str()), (408, "api.slow_body"));
    // A code is still taken, and a body that breaks off is none.
    assert_eq!(rig.ask("POST", "/session", "", "{\"code\": \"phc_x_y\"}").status, 401);
    let mut broken = rig.connect();
    broken.write_all(format!("{line}content-length: 100\r\n\r\n{PAUSE}").as_bytes()).expect("it reads");
    broken.shutdown(std::net::Shutdown::Write).expect("it is open");
    assert!(matches!(read(&broken).status, 0 | 400));
    assert_eq!(rig.get("/outboxes/a", &rig.read).ok()["sinks"][0]["paused"], false, "nothing was done");
}

#[test]
fn two_thousand_silent_clients_of_the_api_hold_up_nobody() {
    let rig = Rig::start("");
    let connect = |n: usize| {
        let mut stream = TcpStream::connect(&rig.address).ok()?;
        match n % 3 {
            0 => {}
            1 => stream.write_all(b"GET /api/v1/me HTTP/1.1\r\nhost:").ok()?,
            // Answered, and kept open.
            _ => stream
                .write_all(rig.head("GET /api/v1/me HTTP/1.1").as_bytes())
                .and_then(|()| stream.write_all(b"\r\n"))
                .ok()?,
        }
        Some(stream)
    };
    for _ in 0..3 {
        let silent = || (0..2_000).filter_map(connect).collect::<Vec<TcpStream>>();
        rig.serves_others_beside("beside silent clients", silent);
    }
}

#[test]
fn methods_versions_and_requests_in_a_row_are_what_http_says() {
    let rig = Rig::start("");
    let exchange = |text: String| {
        let mut stream = rig.connect();
        let _ = stream.write_all(text.as_bytes());
        read(&stream)
    };
    for (method, path) in [
        ("DELETE", "/me"),
        ("POST", "/outboxes"),
        ("PATCH", "/outboxes/a/dead"),
        ("OPTIONS", "/outboxes/a"),
        ("TRACE", "/me"),
        ("GET", "/session"),
        ("GET", "/outboxes/a/lanes"),
        ("QUERY", "/me"),
        ("get", "/me"),
    ] {
        let answer = rig.ask(method, path, &rig.admin, "{}");
        assert_eq!((answer.status, answer.code().as_str()), (405, "api.no_method"), "{method} {path}");
        assert!(answer.head.contains("\r\nallow: "), "{method} {path}: {}", answer.head);
    }
    let head = exchange(format!("{}connection: close\r\n\r\n", rig.head("HEAD /api/v1/me HTTP/1.1")));
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    // HTTP/1.0 is answered, and its line closed.
    let old = exchange(format!("{}\r\n", rig.head("GET /api/v1/me HTTP/1.0")));
    assert_eq!(old.status, 200, "{}", old.head);
    // Of HTTP/2 and of what is none nothing is taken.
    let none = [
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(),
        format!("{}\r\n", rig.head("GET /api/v1/me HTTP/3.0")),
        format!("{}\r\n", rig.head("GET  /api/v1/me  HTTP/1.1")),
        format!("{}\r\n", rig.head("CONNECT evil.example:443 HTTP/1.1")),
        "\x16\x03\x01\x02\0\x01\0\x01".to_owned(),
        "\r\n\r\n\r\n".to_owned(),
    ];
    std::thread::scope(|scope| {
        for text in &none {
            let exchange = &exchange;
            scope.spawn(move || {
                let answer = exchange(text.clone());
                let is_none = matches!(answer.status, 0 | 400..=499 | 505);
                assert!(is_none, "{text:?}: {} {}", answer.status, answer.head);
            });
        }
    });
    // Two in a row are answered in that order, and an act among them is done once.
    let body = "{\"paused\": true, \"reason\": \"x\"}";
    let act = rig.head("PUT /api/v1/outboxes/a/sinks/out/control HTTP/1.1");
    let me = rig.head("GET /api/v1/me HTTP/1.1");
    let both =
        exchange(format!("{act}content-length: {}\r\n\r\n{body}{me}connection: close\r\n\r\n", body.len()));
    let whole = format!("{}\r\n\r\n{}", both.head, both.text);
    assert_eq!(whole.to_ascii_lowercase().matches("http/1.1 200 ok").count(), 2, "{whole}");
    let (done, name) = (whole.find("\"done\"").expect("the act"), whole.find("\"name\"").expect("the look"));
    assert!(done < name, "{whole}");
    let audit = rig.get("/audit?outbox=a&action=pause", &rig.admin).ok();
    assert_eq!(audit["audit"].as_array().map(Vec::len), Some(1), "{audit}");
    // Two lengths, or a length and chunks, are how a request is smuggled past a proxy.
    for two in
        ["content-length: 5\r\ncontent-length: 6\r\n", "content-length: x\r\n", "transfer-encoding: x\r\n"]
    {
        let answer = exchange(format!("{act}{two}\r\n{body}{me}\r\n"));
        assert!(matches!(answer.status, 0 | 400..=499 | 501), "{two:?}: {} {}", answer.status, answer.text);
        let smuggled = format!("{}{}", answer.head, answer.text).to_ascii_lowercase();
        assert!(!smuggled.contains("http/1.1 200"), "{two:?}: {smuggled}");
    }
    rig.serves_others("at the end");
}
