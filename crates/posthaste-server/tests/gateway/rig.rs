//! A gateway in front of an outbox, and clients of it.

use crate::binary::{Ended, posthaste, run};
use crate::daemon::Daemon;
use posthaste_testkit::services::TestDatabase;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; a test that works never waits for it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// What every rig offers: a topic of JSON that is keyed by tenant, one of anything keyed by the client.
pub(crate) const TOPICS: &str = "\
[[gateway.topic]]
topic = \"orders.placed\"
content_types = [\"application/json\"]
[[gateway.topic]]
topic = \"raw\"
key = \"client\"
";

/// What a gateway says when it has looked at its database.
const KNOWN: &str = "the gateway's tenants are known";

/// Where events go if nothing else is said.
const ROUTES: &str = "\
[sinks.out]
type = \"null\"
[[route]]
name = \"all\"
topic = \"*\"
sink = \"out\"
";

pub(crate) struct Rig {
    pub(crate) dir: PathBuf,
    pub(crate) daemon: Daemon,
    pub(crate) address: String,
    /// Dropped with it.
    _database: Option<TestDatabase>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answered {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text))
    }

    /// The ids of what was taken.
    #[track_caller]
    pub(crate) fn ids(&self) -> Vec<String> {
        assert_eq!(self.status, 202, "{} {}", self.head, self.text);
        let ids = self.json()["ids"].as_array().expect("a list").clone();
        ids.iter().map(|id| id.as_str().expect("an id").to_owned()).collect()
    }

    /// The code of a refusal, which has all its members.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        let problem = self.json();
        for member in ["code", "detail", "events", "do", "type"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {problem}");
        }
        assert!(self.head.contains("application/problem+json"), "{}", self.head);
        problem["code"].as_str().unwrap_or_default().to_owned()
    }

    /// A field of the head.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let start = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&start))
    }
}

/// A directory of its own.
pub(crate) fn directory() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("posthaste-gateway-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
}

impl Rig {
    /// On a SQLite file, with more of the configuration.
    pub(crate) fn start(more: &str) -> Self {
        let dir = directory();
        let url = format!("sqlite:{}", dir.join("outbox.db").display());
        Self::on(dir, &url, more, None)
    }

    /// On PostgreSQL.
    pub(crate) fn on_postgres(database: TestDatabase, more: &str) -> Self {
        let url = database.url().to_owned();
        Self::on(directory(), &url, more, Some(database))
    }

    /// In front of a database that nobody reaches.
    pub(crate) fn away() -> Self {
        Self::before(directory(), "postgres://nobody@127.0.0.1:1/nowhere", "", None)
    }

    fn on(dir: PathBuf, url: &str, more: &str, database: Option<TestDatabase>) -> Self {
        run(&["migrate", "up", "--url", url]).ok();
        let rig = Self::before(dir, url, more, database);
        rig.daemon.says(KNOWN);
        rig
    }

    fn before(dir: PathBuf, url: &str, more: &str, database: Option<TestDatabase>) -> Self {
        write_config(&dir, url, more);
        let (daemon, address) = begin(&dir, &[]);
        Self { dir, daemon, address, _database: database }
    }

    /// Another gateway on the same database and configuration.
    pub(crate) fn another(&self) -> (Daemon, String) {
        let (daemon, address) = begin(&self.dir, &[]);
        daemon.says(KNOWN);
        (daemon, address)
    }

    /// Another configuration: SIGHUP, and wait until it was read.
    pub(crate) fn reload(&self, url: &str, more: &str, said: &str) {
        write_config(&self.dir, url, more);
        self.daemon.signal(Signal::HUP);
        self.daemon.says(said);
    }

    /// The URL of its SQLite file.
    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.dir.join("outbox.db").display())
    }

    /// A command on the configuration of the rig.
    pub(crate) fn cli(&self, args: &[&str]) -> Ended {
        let file = self.dir.join("posthaste.toml");
        run(&[args, &["--config", file.to_str().expect("UTF-8")]].concat())
    }

    /// A new key that the gateway knows already.
    pub(crate) fn key(&self, tenant: &str, more: &[&str]) -> String {
        let key = self.new_key(tenant, more);
        self.until_it_opens(&key);
        key
    }

    /// A new key.
    pub(crate) fn new_key(&self, tenant: &str, more: &[&str]) -> String {
        let made = self.cli(&[&["gateway", "keys", "new", tenant, "--json"], more].concat()).ok().json();
        made["key"].as_str().expect("a key").to_owned()
    }

    /// Waits until the gateway knows a key.
    pub(crate) fn until_it_opens(&self, key: &str) {
        self.until("the key opens", || self.get("/v1/openapi.json", key).status == 200);
    }

    pub(crate) fn until(&self, what: &str, found: impl Fn() -> bool) {
        let begun = Instant::now();
        while !found() {
            assert!(begun.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(20)); // pace: nobody calls when a look was made
        }
    }

    pub(crate) fn get(&self, path: &str, key: &str) -> Answered {
        self.ask("GET", path, &[("authorization", &format!("Bearer {key}"))], b"")
    }

    /// Hands in one JSON event.
    pub(crate) fn post(&self, topic: &str, key: &str, payload: &str) -> Answered {
        self.post_with(topic, key, &[("content-type", "application/json")], payload.as_bytes())
    }

    pub(crate) fn post_with(&self, topic: &str, key: &str, head: &[(&str, &str)], body: &[u8]) -> Answered {
        let authorization = format!("Bearer {key}");
        let head = [&[("authorization", authorization.as_str())], head].concat();
        self.ask("POST", &format!("/v1/topics/{topic}"), &head, body)
    }

    /// The status of one JSON event, if there is an answer.
    pub(crate) fn tries(&self, topic: &str, key: &str, payload: &str) -> Option<u16> {
        let authorization = format!("Bearer {key}");
        let head = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        let path = format!("/v1/topics/{topic}");
        let request = request_of(&self.address, "POST", &path, &head, payload.as_bytes());
        try_exchange(&self.address, &request).ok().map(|answer| answer.status)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, head: &[(&str, &str)], body: &[u8]) -> Answered {
        ask(&self.address, method, path, head, body)
    }

    /// All events of the log, oldest first.
    pub(crate) fn events(&self) -> Vec<Value> {
        let page = self.cli(&["events", "list", "--json", "--limit", "1000"]).ok().json();
        let mut events = page["events"].as_array().expect("a list").clone();
        events.sort_by_key(|event| event["seq"].as_i64());
        events
    }

    /// One event with its payload.
    pub(crate) fn event(&self, id: &str) -> Value {
        self.cli(&["events", "show", id, "--json"]).ok().json()
    }
}

/// Starts a gateway on the configuration of a directory, with these variables.
pub(crate) fn begin(dir: &Path, variables: &[(&str, &str)]) -> (Daemon, String) {
    let file = dir.join("posthaste.toml");
    let file = file.to_str().expect("UTF-8");
    let mut command = posthaste(&["run", "--listen", "127.0.0.1:0", "--config", file]);
    command.envs(variables.iter().copied());
    let daemon = Daemon::spawn(command);
    let address = gateway_of(&daemon);
    (daemon, address)
}

/// `more` begins in the section `[gateway]`. It may have topics and routes of its own, behind that.
pub(crate) fn write_config(dir: &Path, url: &str, more: &str) {
    let topics = if more.contains("[[gateway.topic]]") { "" } else { TOPICS };
    let tenants = if more.contains("tenants =") { "" } else { "tenants = { refresh_ms = 100 }\n" };
    let routes = if more.contains("[[route]]") { "" } else { ROUTES };
    let file = format!(
        "[admin]\nlisten = \"off\"\n[[outbox]]\nname = \"shop\"\nurl = {url:?}\n\
         [gateway]\nlisten = \"127.0.0.1:0\"\n{tenants}{more}\n{topics}{routes}"
    );
    std::fs::write(dir.join("posthaste.toml"), file).expect("it can be written");
}

/// Where a daemon's gateway listens.
pub(crate) fn gateway_of(daemon: &Daemon) -> String {
    let line = daemon.says("gateway http");
    let address = line.split("gateway ").nth(1).and_then(|rest| rest.split("//").nth(1));
    address.and_then(|rest| rest.split(';').next()).expect("an address").to_owned()
}

pub(crate) fn ask(address: &str, method: &str, path: &str, head: &[(&str, &str)], body: &[u8]) -> Answered {
    exchange(address, &request_of(address, method, path, head, body))
}

/// The bytes of a request.
pub(crate) fn request_of(
    host: &str,
    method: &str,
    path: &str,
    head: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    for (name, value) in head {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !head.iter().any(|(name, _)| *name == "content-length" || *name == "transfer-encoding") {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    [text.as_bytes(), body].concat()
}

/// Sends bytes and reads what is answered.
#[track_caller]
pub(crate) fn exchange(address: &str, bytes: &[u8]) -> Answered {
    try_exchange(address, bytes).unwrap_or_else(|error| panic!("no answer: {error}"))
}

/// The same, where there may be no answer.
pub(crate) fn try_exchange(address: &str, bytes: &[u8]) -> io::Result<Answered> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    exchange_on(stream, bytes)
}

/// The same on a connection that is there, with TLS or without.
pub(crate) fn exchange_on(mut stream: impl Read + Write, bytes: &[u8]) -> io::Result<Answered> {
    // An answer may come before all is sent.
    let sent = stream.write_all(bytes);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    if answer.is_empty() {
        return Err(io::Error::other(format!("{sent:?} {read:?}")));
    }
    Ok(answered(&answer))
}

/// An answer out of its bytes.
pub(crate) fn answered(bytes: &[u8]) -> Answered {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, text) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answered { status, head: head.to_ascii_lowercase(), text: text.to_owned() }
}
