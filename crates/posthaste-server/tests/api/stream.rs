//! What a page watches: everything that its token is for, as it changes, and nothing else.

use crate::binary::run;
use crate::rig::{Rig, token, write};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Proxy, TestDatabase};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; a test that works never waits for it.
const DEADLINE: Duration = Duration::from_secs(60);

/// A stream that is read. By HTTP/1.0, whose bodies are not in chunks.
pub(crate) struct Watching {
    lines: BufReader<TcpStream>,
    pub(crate) status: u16,
    /// What it asked whom: a connection lives for a minute, and then a page asks again.
    address: String,
    head: String,
}

/// What comes on a stream.
enum Came {
    Event(String, Value),
    Heartbeat,
    End,
}

impl Watching {
    pub(crate) fn open(rig: &Rig, path: &str, token: &str) -> Self {
        let host = &rig.address;
        let head =
            format!("GET /api/v1{path} HTTP/1.0\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\r\n");
        Self::ask(host.clone(), head)
    }

    fn ask(address: String, head: String) -> Self {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut watching = Self { lines: BufReader::new(stream), status: 0, address, head };
        let first = watching.line().expect("it answers");
        watching.status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        while watching.line().is_some_and(|line| !line.is_empty()) {}
        watching
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).expect("it goes on within the deadline");
        (read > 0).then(|| line.trim_end().to_owned())
    }

    fn next(&mut self) -> Came {
        let Some(name) = self.line() else { return Came::End };
        if name.starts_with(':') {
            assert_eq!(self.line().as_deref(), Some(""));
            return Came::Heartbeat;
        }
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        let data = self.line().expect("data");
        let data = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(self.line().as_deref(), Some(""));
        Came::Event(name, data)
    }

    /// The same on a stream that is opened again when its minute is over.
    fn next_of_all(&mut self) -> Came {
        let came = self.next();
        if matches!(came, Came::End) {
            *self = Self::ask(self.address.clone(), self.head.clone());
            assert_eq!(self.status, 200, "the next stream");
        }
        came
    }

    /// Waits for an event that says something.
    pub(crate) fn until(&mut self, wanted: &str, found: impl Fn(&Value) -> bool) -> Value {
        let (begun, mut last) = (Instant::now(), Value::Null);
        while begun.elapsed() < DEADLINE {
            let Came::Event(name, data) = self.next_of_all() else { continue };
            if name == wanted {
                if found(&data) {
                    return data;
                }
                last = data;
            }
        }
        panic!("no such {wanted}, but {last}");
    }

    /// Heartbeats come every five seconds.
    fn heartbeats(&mut self, count: usize) {
        for _ in 0..count {
            while !matches!(self.next_of_all(), Came::Heartbeat) {}
        }
    }

    /// Waits for the end.
    fn ends(mut self) {
        let begun = Instant::now();
        while self.line().is_some() {
            assert!(begun.elapsed() < DEADLINE, "it goes on");
        }
    }
}

fn names(outboxes: &Value) -> Vec<&str> {
    outboxes["outboxes"].as_array().expect("a list").iter().filter_map(|one| one["outbox"].as_str()).collect()
}

#[test]
fn a_page_sees_what_changes_and_what_its_token_may() {
    let rig = Rig::start("");
    let mut page = Watching::open(&rig, "/stream?outbox=a&tail=true", &rig.admin);
    assert_eq!(page.status, 200);
    let series = page.until("series", |_| true);
    assert_eq!(series["step_ms"], 5000);
    // One that has not answered in time is shown without an answer, whichever it is.
    let outboxes = page.until("outboxes", |all| {
        let all = &all["outboxes"];
        all[0]["sinks"].is_array() && all[1]["sinks"].is_array() && all[2]["unreachable"].is_string()
    });
    assert_eq!(names(&outboxes), ["a", "b", "away"]);
    assert!(!outboxes.to_string().contains("hunter2"), "{outboxes}");
    assert_eq!(outboxes["outboxes"][0]["sinks"][0]["dead"]["count"], 5);

    let body = r#"{"paused": true, "reason": "upgrade"}"#;
    rig.ask("PUT", "/outboxes/a/sinks/out/control", &rig.operate, body).ok();
    // A look is an instant, and the relay's next report is another one: at rest they are the same.
    let begun = Instant::now();
    loop {
        let outbox = page.until("outbox", |outbox| outbox["sinks"][0]["paused"] == true);
        assert_eq!(outbox["sinks"][0]["set_by"]["reason"], "upgrade");
        let asked = rig.get("/outboxes/a", &rig.admin).ok().same_but_for_clocks(&outbox);
        if outbox == asked {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "the stream has {outbox}, and whoever asks gets {asked}");
    }
    let body = r#"{"paused": false, "reason": "done"}"#;
    rig.ask("PUT", "/outboxes/a/sinks/out/control", &rig.operate, body).ok();

    let body = r#"{"kind": "dead.replay", "filter": {"code": "payload.not_json"}, "reason": "again"}"#;
    let job = rig.ask("POST", "/outboxes/a/jobs", &rig.operate, body).ok();
    let seen = page.until("jobs", |jobs| jobs["jobs"][0]["state"] == "done");
    assert_eq!((&seen["jobs"][0]["job"], &seen["jobs"][0]["done"]), (&job["job"], &5.into()));
    let url = format!("sqlite:{}", rig.dir.join("a.db").display());
    run(&["append", "fresh", "--payload", "{}", "--url", &url]).ok();
    assert!(page.until("tail", |event| event["topic"] == "fresh")["seq"].is_i64());
    // The next stream goes on where this one is, also with what came before it was asked for.
    let place = page.until("tail_at", |_| true);
    run(&["append", "later", "--payload", "{}", "--url", &url]).ok();
    page.until("tail", |event| event["topic"] == "later");
    let mut next =
        Watching::open(&rig, &format!("/stream?outbox=a&tail=true&tail_after={place}"), &rig.admin);
    next.until("tail", |event| event["topic"] == "later");
    let point = page.until("point", |point| point["sinks"]["out"]["dead"] == 5.0);
    assert!(rig.get("/outboxes/a/series", &rig.read).ok()["sinks"]["out"]["dead"].is_array(), "{point}");

    // Another outbox's administrator sees nothing of it, and nobody more than they may.
    let mut other = Watching::open(&rig, "/stream?outbox=b", &rig.other);
    assert_eq!(names(&other.until("outboxes", |_| true)), ["b"]);
    assert_eq!(Watching::open(&rig, "/stream?outbox=a", &rig.other).status, 404);
    let mut reader = Watching::open(&rig, "/stream?outbox=a&tail=true", &rig.read);
    reader.until("outboxes", |_| true);
    run(&["append", "kept", "--key", "secret-key", "--payload", "{}", "--url", &url]).ok();
    assert_eq!(reader.until("tail", |event| event["topic"] == "kept")["key"], "(hidden)");
}

/// The same but for what ticks by itself.
trait SameButForClocks {
    fn same_but_for_clocks(self, of: &Value) -> Value;
}

impl SameButForClocks for Value {
    fn same_but_for_clocks(mut self, of: &Value) -> Value {
        const TICKING: [&str; 8] = [
            "now",
            "seen_at",
            "lease_ms",
            "settled_seconds_ago",
            "delivered_per_second",
            "oldest_age_seconds",
            "average_age_seconds",
            "pulse",
        ];
        fn copy(from: &Value, into: &mut Value) {
            match (from, into) {
                (Value::Object(from), Value::Object(into)) => {
                    for (name, value) in into.iter_mut() {
                        match from.get(name) {
                            Some(seen) if TICKING.contains(&name.as_str()) => *value = seen.clone(),
                            Some(seen) => copy(seen, value),
                            None => {}
                        }
                    }
                }
                (Value::Array(from), Value::Array(into)) => {
                    from.iter().zip(into).for_each(|(from, into)| copy(from, into));
                }
                _ => {}
            }
        }
        copy(of, &mut self);
        self
    }
}

#[test]
fn a_stream_ends_with_its_token_and_a_token_has_four() {
    let rig = Rig::start("");
    let tokens = rig.dir.join("tokens.toml");
    let before = std::fs::read_to_string(&tokens).expect("ours");
    let (guest, entry) = token(&["--name", "guest", "--role", "read"]);
    write(&tokens, &format!("{before}\n{entry}"));
    rig.daemon.signal(Signal::HUP);
    rig.eventually("/me", |_| rig.get("/me", &guest).status == 200);
    let mut pages: Vec<Watching> = (0..4).map(|_| Watching::open(&rig, "/stream", &guest)).collect();
    pages.iter_mut().for_each(|page| drop(page.until("outboxes", |_| true)));
    let fifth = rig.get("/stream", &guest);
    assert_eq!((fifth.status, fifth.code().as_str()), (429, "api.too_many_streams"));
    assert_eq!(Watching::open(&rig, "/stream", &rig.read).status, 200, "others have their own");
    // One that is closed makes room.
    pages.pop();
    let begun = Instant::now();
    while pages.len() < 4 {
        let page = Watching::open(&rig, "/stream", &guest);
        if page.status == 200 {
            pages.push(page);
        }
        assert!(begun.elapsed() < DEADLINE, "a page that was closed is still counted");
    }
    write(&tokens, &before);
    rig.daemon.signal(Signal::HUP);
    pages.into_iter().for_each(Watching::ends);
    assert_eq!(rig.get("/stream", &guest).status, 401);
}

/// A session of a token, and a page that watches by it.
fn watched_by_a_session(rig: &Rig, token: &str) -> (String, Watching) {
    let session = rig.ask("POST", "/session", token, "{}").ok()["session"].as_str().expect("one").to_owned();
    let mut page = Watching::open(rig, "/stream", &session);
    page.until("outboxes", |_| true);
    (session, page)
}

#[test]
fn a_stream_ends_with_the_token_of_its_session() {
    let rig = Rig::start("");
    let tokens = rig.dir.join("tokens.toml");
    let before = std::fs::read_to_string(&tokens).expect("ours");
    let (guest, gone) = token(&["--name", "guest", "--role", "read"]);
    let (visitor, over) = token(&["--name", "visitor", "--role", "read", "--days", "1"]);
    write(&tokens, &[before.as_str(), &gone, &over].join("\n"));
    rig.daemon.signal(Signal::HUP);
    rig.eventually("/me", |_| [&guest, &visitor].iter().all(|token| rig.get("/me", token).status == 200));
    let (first, revoked) = watched_by_a_session(&rig, &guest);
    let (second, expired) = watched_by_a_session(&rig, &visitor);
    let (_, mut mine) = watched_by_a_session(&rig, &rig.admin);
    // The one is taken away, the other one's time is over soon after its file was read.
    let soon = std::time::SystemTime::now() + Duration::from_secs(3);
    let soon = soon.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_micros();
    let soon = serde_json::to_value(posthaste::Timestamp(soon as i64)).expect("a text");
    let line = over.lines().find(|line| line.starts_with("expires")).expect("it ends");
    write(&tokens, &format!("{before}\n{}", over.replace(line, &format!("expires = {soon}"))));
    rig.daemon.signal(Signal::HUP);
    for (page, session) in [(revoked, first), (expired, second)] {
        page.ends();
        assert_eq!(rig.get("/me", &session).status, 401);
        assert_eq!(rig.get("/stream", &session).status, 401);
    }
    // Somebody else's goes on.
    mine.heartbeats(1);
    assert_eq!(mine.status, 200);
}

#[test]
fn the_page_is_there_for_everybody_at_home_and_asks_for_a_token() {
    let rig = Rig::start("");
    let ask = |path: &str, host: &str| rig.send(&format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n"), "");
    let index = ask("/", &rig.address);
    assert_eq!(index.status, 200);
    for header in ["content-type: text/html", "content-security-policy: default-src 'none'", "etag: \""] {
        assert!(index.head.contains(header), "{header}: {}", index.head);
    }
    assert!(index.text.contains("./app.js"), "{}", index.text);
    for path in ["/app.js", "/app.css", "/favicon.svg"] {
        assert_eq!(ask(path, &rig.address).status, 200, "{path}");
        assert_eq!(ask(path, "evil.example").status, 421, "{path}");
    }
    assert_eq!(ask("/", "evil.example:80").status, 421);
    for path in ["/index.html", "/app.js.map", "/../app.js", "//app.js", "/api/v1/me"] {
        assert_eq!(ask(path, &rig.address).status, 401, "{path}");
    }
}

/// An outbox that one page watches, beside one that nine watch, at the same time and on the same machine:
/// what the one database and the other one are asked is counted on their lines.
#[tokio::test(flavor = "multi_thread")]
async fn many_pages_cost_the_database_what_one_costs() {
    let database = require_service!(TestDatabase::create().await);
    let other = TestDatabase::create().await.expect("a database");
    let (mut lines, mut outboxes) = (Vec::new(), String::new());
    for (name, database) in [("one", &database), ("nine", &other)] {
        run(&["migrate", "up", "--url", &database.url()]).ok();
        let (line, url) = Proxy::start_before(&database.url()).await.expect("a proxy");
        lines.push(line);
        outboxes.push_str(&format!("[[outbox]]\nname = {name:?}\nrelay = false\nurl = {url:?}\n"));
    }
    let tokens = ["one", "nine", "nine", "nine"]
        .map(|outbox| token(&["--name", "x", "--role", "read", "--for", outbox]));
    // No relay works in these databases, so all that happens there is for those who watch.
    let rig = Rig::with("", |dir| {
        let file = dir.join("tokens.toml");
        let before = std::fs::read_to_string(&file).expect("ours");
        let more = tokens.each_ref().map(|(_, entry)| entry.as_str()).join("\n");
        write(&file, &format!("{before}\n{more}"));
        let relayed = format!("sqlite:{}", dir.join("q.db").display());
        run(&["migrate", "up", "--url", &relayed]).ok();
        format!(
            "{outboxes}[[outbox]]\nname = \"q\"\nurl = {relayed:?}\n[sinks.out]\ntype = \"null\"\n\
             [[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\n"
        )
    });
    let open = |(token, _): &(String, String), outbox: &str| {
        Watching::open(&rig, &format!("/stream?outbox={outbox}"), token)
    };
    let mut one = open(&tokens[0], "one");
    let mut nine: Vec<Watching> =
        tokens[1..].iter().flat_map(|token| [0; 3].map(|_| open(token, "nine"))).collect();
    for page in nine.iter_mut().chain([&mut one]) {
        page.until("outboxes", |all| all["outboxes"][0]["sinks"].is_array());
    }
    let answers = || [lines[0].answers(), lines[1].answers()];
    let before = answers();
    // Five looks or so of the one.
    let begun = Instant::now();
    while answers()[0] < before[0] + 50 {
        assert!(begun.elapsed() < DEADLINE, "nobody looks");
        tokio::time::sleep(Duration::from_millis(20)).await; // pace
    }
    let after = answers();
    let cost = |at: usize| after[at] - before[at];
    assert!(cost(1) > 0, "somebody looks");
    assert!(cost(1) <= 2 * cost(0), "one page costs {} answers, nine cost {}", cost(0), cost(1));
}
