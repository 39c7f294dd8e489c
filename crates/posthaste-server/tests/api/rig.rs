//! A relay with an API: two outboxes in files, one whose database is away, and a token for each role.

use crate::binary::run;
use crate::daemon::Daemon;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; a test that works never waits for it.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    pub(crate) dir: PathBuf,
    pub(crate) daemon: Daemon,
    pub(crate) address: String,
    pub(crate) read: String,
    pub(crate) operate: String,
    pub(crate) admin: String,
    /// An administrator of outbox `b` only.
    pub(crate) other: String,
    /// An administrator's whose time is over.
    pub(crate) over: String,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// An answer.
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

    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// The code of a problem, which has all its members.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        let problem = self.json();
        for member in ["code", "detail", "events", "do", "type"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {problem}");
        }
        assert!(self.head.contains("application/problem+json"), "{}", self.head);
        problem["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A new token, and its entry for the file.
pub(crate) fn token(args: &[&str]) -> (String, String) {
    let made = run(&[&["token", "new", "--json"], args].concat()).ok().json();
    let text = |name: &str| made[name].as_str().expect("a text").to_owned();
    (text("token"), text("entry"))
}

/// The same, but its day is over.
fn expired((token, entry): (String, String)) -> (String, String) {
    let line = entry.lines().find(|line| line.starts_with("expires")).expect("it ends");
    let entry = entry.replace(line, "expires = \"2020-01-01T00:00:00Z\"");
    (token, entry)
}

/// A directory of its own, with this name in it.
pub(crate) fn directory() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("posthaste-api-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
}

/// Writes a file that only its owner may read.
pub(crate) fn write(path: &std::path::Path, text: &str) {
    std::fs::write(path, text).expect("it can be written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("ours");
}

impl Rig {
    /// Outbox `a` gets what fails and what does not before the relay starts.
    pub(crate) fn start(more: &str) -> Self {
        let rig = Self::with(more, |dir| {
            let url = |name: &str| format!("sqlite:{}", dir.join(format!("{name}.db")).display());
            for name in ["a", "b"] {
                run(&["migrate", "up", "--url", &url(name)]).ok();
            }
            for n in 0..5 {
                let key = format!("order-{n}");
                run(&["append", "bad", "--key", &key, "--payload", "no <b>JSON</b>", "--url", &url("a")])
                    .ok();
            }
            run(&["append", "good", "--payload", "{}", "--url", &url("a")]).ok();
            format!(
                "[[outbox]]\nname = \"a\"\nurl = {:?}\n[[outbox]]\nname = \"b\"\nurl = {:?}\n\
                 [[outbox]]\nname = \"away\"\nrelay = false\nurl = \"postgres://u:hunter2@127.0.0.1:1/d\"\n\
                 [sinks.out]\ntype = \"null\"\nstart_at = \"earliest\"\n\
                 [[route]]\nname = \"all\"\ntopic = \"*\"\nsink = \"out\"\nvalidate = \"json\"\noutboxes = [\"a\", \"b\"]\n",
                url("a"),
                url("b"),
            )
        });
        if !more.contains("cert_file") {
            rig.eventually("/outboxes/a/dead", |page| {
                page["dead"].as_array().is_some_and(|all| all.len() == 5)
            });
        }
        rig
    }

    /// What else a configuration has in `[admin]`, and what stands behind it, made in the directory of the
    /// rig. Further tokens may be added to `tokens.toml` there.
    pub(crate) fn with(more: &str, prepare: impl FnOnce(&std::path::Path) -> String) -> Self {
        let dir = directory();
        let made = [
            token(&["--name", "rita", "--role", "read"]),
            token(&["--name", "ann", "--role", "operate"]),
            token(&["--name", "root", "--role", "admin"]),
            token(&["--name", "bea", "--role", "admin", "--for", "b", "--consumer", "none"]),
            expired(token(&["--name", "otto", "--role", "admin", "--days", "1"])),
        ];
        write(&dir.join("tokens.toml"), &made.each_ref().map(|(_, entry)| entry.as_str()).join("\n"));
        let file = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\ntokens_file = {:?}\n{more}\n{}",
            dir.join("tokens.toml"),
            prepare(&dir)
        );
        write(&dir.join("posthaste.toml"), &file);
        let daemon = Daemon::start(&["--config", dir.join("posthaste.toml").to_str().expect("UTF-8")]);
        let line = daemon.says("API http");
        let address = line.split("API ").nth(1).and_then(|rest| rest.split("//").nth(1));
        let address = address.and_then(|rest| rest.split(';').next()).expect("an address").to_owned();
        let [read, operate, admin, other, over] = made.map(|(token, _)| token);
        Self { dir, daemon, address, read, operate, admin, other, over }
    }

    /// A command on the configuration of the rig.
    pub(crate) fn cli(&self, args: &[&str]) -> crate::binary::Ended {
        let file = self.dir.join("posthaste.toml");
        run(&[args, &["--config", file.to_str().expect("UTF-8")]].concat())
    }

    /// A request as it is written.
    pub(crate) fn send(&self, head: &str, body: &str) -> Answered {
        sent_to(&self.address, head, body)
    }

    /// The bytes of an answer, its head before them.
    pub(crate) fn bytes(&self, path: &str, token: &str) -> Vec<u8> {
        let host = &self.address;
        let head = format!("GET /api/v1{path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n");
        exchange(host, &head, "")
    }

    /// A request with a token, or without one.
    pub(crate) fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> Answered {
        answered_by(&self.address, method, path, token, body)
    }

    pub(crate) fn get(&self, path: &str, token: &str) -> Answered {
        self.ask("GET", path, token, "")
    }

    /// Waits for a token to be none.
    pub(crate) fn eventually_refused(&self, token: &str) {
        let begun = Instant::now();
        while self.get("/me", token).status != 401 {
            assert!(begun.elapsed() < DEADLINE, "it enters");
            std::thread::sleep(Duration::from_millis(50)); // pace: a file cannot call when it is read
        }
    }

    /// Waits for a page to say something.
    pub(crate) fn eventually(&self, path: &str, found: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let page = self.get(path, &self.admin);
            if page.status == 200 && found(&page.json()) {
                return page.json();
            }
            assert!(begun.elapsed() < DEADLINE, "{path}: {} {}", page.status, page.text);
            std::thread::sleep(Duration::from_millis(50)); // pace: a page cannot call when it changes
        }
    }
}

fn sent_to(address: &str, head: &str, body: &str) -> Answered {
    answered(&exchange(address, head, body))
}

fn exchange(address: &str, head: &str, body: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
    let length = body.len();
    let text = format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    answer
}

/// A request to whoever listens there.
pub(crate) fn answered_by(address: &str, method: &str, path: &str, token: &str, body: &str) -> Answered {
    let authorization = match token {
        "" => String::new(),
        token => format!("authorization: Bearer {token}\r\n"),
    };
    let kind = "content-type: application/json\r\n";
    let host = format!("host: {address}\r\n");
    sent_to(address, &format!("{method} /api/v1{path} HTTP/1.1\r\n{host}{authorization}{kind}"), body)
}

/// An answer out of its bytes.
pub(crate) fn answered(bytes: &[u8]) -> Answered {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, text) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answered { status, head: head.to_ascii_lowercase(), text: text.to_owned() }
}
