//! A place for a test: a directory, configurations, relays, and a file that the `stdout` sink appends to.
//!
//! All relays of a site write to one file in append mode: what a process wrote before it died is there, and
//! the order in the file is the order of delivery, whoever delivered. A thread follows the file and notes
//! when each line came.

use crate::ledger::{Deliveries, Delivery, Log, missing};
use crate::relay::{Relay, WAIT};
use posthaste_testkit::conformance::eventually;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use tokio_postgres::Client;

/// How often the file is looked at: the error of a measured latency.
const FOLLOW: Duration = Duration::from_millis(1);

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {:?} {:?}", self.out, self.err))
    }
}

pub(crate) struct Site {
    dir: PathBuf,
    started: AtomicU32,
    followed: Arc<AtomicBool>,
    /// What the `stdout` sink wrote.
    pub(crate) file: Deliveries,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.followed.store(true, Ordering::Relaxed);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-faults-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let site =
            Self { dir, started: AtomicU32::new(0), followed: Arc::default(), file: Deliveries::default() };
        let delivered = site.append_to("delivered");
        drop(delivered);
        let file = File::open(site.path("delivered")).expect("the file of deliveries");
        let (ended, deliveries) = (Arc::clone(&site.followed), site.file.clone());
        std::thread::spawn(move || follow(file, &ended, &deliveries));
        site
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn append_to(&self, name: &str) -> File {
        OpenOptions::new().create(true).append(true).open(self.path(name)).expect("a file of the site")
    }

    /// Writes a file and says where it is.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).expect("a file of the site");
        self.path(name).display().to_string()
    }

    /// The binary with a configuration of the site, and nothing of the surroundings.
    fn command(&self, config: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTHASTE_"))
        {
            command.env_remove(&name);
        }
        command.env_remove("RUST_LOG").current_dir(&self.dir).stdin(Stdio::null());
        command.arg("--config").arg(self.path(config)).args(args);
        command
    }

    /// Starts a relay.
    pub(crate) fn start(&self, config: &str) -> Relay {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let log = format!("log-{number}");
        let mut command = self.command(config, &["run"]);
        command.stdout(self.append_to("delivered")).stderr(self.append_to(&log));
        Relay::spawn(command, self.path(&log))
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, config: &str, args: &[&str]) -> Ended {
        let output = self.command(config, args).output().expect("the binary starts");
        Ended {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Reads lines as they come, until the site is gone. A line that a death has cut is no delivery.
fn follow(file: File, ended: &AtomicBool, deliveries: &Deliveries) {
    let mut reader = BufReader::new(file);
    let mut line = String::new();
    while !ended.load(Ordering::Relaxed) {
        match reader.read_line(&mut line) {
            Ok(1..) if line.ends_with('\n') => {
                if let Some(delivery) = parse(&line) {
                    deliveries.push(delivery);
                }
                line.clear();
            }
            Ok(_) => std::thread::sleep(FOLLOW), // pace
            Err(_) => return,
        }
    }
}

fn parse(line: &str) -> Option<Delivery> {
    // What follows a cut line stands behind it.
    let whole = &line[line.rfind("{\"destination\"")?..];
    let value: serde_json::Value = serde_json::from_str(whole).ok()?;
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    Some(Delivery {
        id: text("id")?,
        key: text("key"),
        payload: text("payload").unwrap_or_default().into_bytes(),
        at: SystemTime::now(),
    })
}

/// A configuration: settings of the relay, of the outbox, and the rest. Keys of the same table that come
/// later would be refused, so each test gives only what it wants otherwise.
pub(crate) fn config(url: &str, relay: &str, outbox: &str, rest: &str) -> String {
    format!(
        "service = \"faults\"\n[relay]\n{relay}\n[http]\nlisten = \"off\"\n[[outbox]]\nurl = \"{url}\"\n{outbox}\n{rest}"
    )
}

/// Everything to the `stdout` sink.
pub(crate) const TO_FILE: &str = "[sinks.file]\ntype = \"stdout\"\nstart_at = \"earliest\"\n\
    [[route]]\ntopics = [\"*\"]\nsinks = [\"file\"]\n";

/// The log, in append order.
pub(crate) async fn log(client: &Client) -> Log {
    let sql = "select id::text, key from posthaste.outbox order by seq";
    let rows = client.query(sql, &[]).await.expect("the log");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

pub(crate) async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.expect("a count").get(0)
}

/// Waits until everything in the log has arrived. Answers with the log.
pub(crate) async fn await_all(client: &Client, arrived: &Deliveries, what: &str) -> Log {
    let log = log(client).await;
    // As long as something arrives, once more or for the first time, nothing is lost.
    let (mut came, mut moved) = (0, tokio::time::Instant::now());
    while missing(&log, arrived) > 0 {
        let (gone, len) = (missing(&log, arrived), log.len());
        if arrived.len() > came {
            (came, moved) = (arrived.len(), tokio::time::Instant::now());
        }
        assert!(moved.elapsed() < WAIT, "G2: {gone} of {len} events have not arrived: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await; // pace
    }
    log
}

/// Waits until every lane's cursor has passed all events of the lane.
pub(crate) async fn await_settled(client: &Client) {
    let sql = "select count(*) from posthaste.lanes_now n join posthaste.lanes l using (sink, lane) \
               where n.retired_at is null and n.position < \
               (select max(seq) from posthaste.outbox o where o.slot between l.slot_from and l.slot_to)";
    eventually("everything is settled", WAIT, || async { (count(client, sql).await == 0).then_some(()) })
        .await;
}

/// F50: nothing was given up, and nothing lost an attempt.
#[track_caller]
pub(crate) fn assert_blameless(dead: i64, tried: i64, what: &str) {
    assert_eq!((dead, tried), (0, 0), "F50: dead letters and events with attempts: {what}");
}

/// Dead letters, and deferred events with an attempt.
pub(crate) async fn blame(client: &Client) -> (i64, i64) {
    let dead = count(client, "select count(*) from posthaste.dead_letters").await;
    (dead, count(client, "select count(*) from posthaste.deferred where attempts > 0").await)
}
