//! The process that moves a table to the log dies at each of its points, while an application writes and a
//! relay relays both: nothing is lost, nothing is published twice, and the same command again goes on.

use crate::rig::Relay;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

const WAIT: Duration = Duration::from_secs(90);

/// The crash points, and the step that leads to each.
const POINTS: [(&str, &[&str]); 5] = [
    ("handover.held", &["start", "--hold"]),
    ("handover.start", &["start"]),
    ("handover.finish", &["finish"]),
    ("handover.off", &["stop"]),
    ("handover.stop", &["stop"]),
];

pub(crate) fn points() -> impl Iterator<Item = &'static str> {
    POINTS.iter().map(|(name, _)| *name)
}

const DDL: &str = "create table outbox (id uuid primary key default gen_random_uuid(), topic text not null, key text, payload_json jsonb not null,
    idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
    next_attempt_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now());
  create index on outbox (next_attempt_at) where status in ('pending', 'failed')";

struct Rig {
    dir: PathBuf,
    client: Client,
    database: TestDatabase,
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "what was said:\n{}",
                std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
            );
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Rig {
    async fn set(lease_ms: u32) -> Option<Self> {
        let database = require_service!(TestDatabase::create().await, None);
        let client = database.connect().await.expect("a connection");
        client.batch_execute(DDL).await.expect("the owners' DDL");
        let dir = std::env::temp_dir().join(format!("posthaste-migrate-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let url = database.url();
        let config = format!(
            "[relay]\nlease_ttl_ms = {lease_ms}\nheartbeat_ms = 200\npublish_timeout_ms = {}\n[http]\nlisten = \"off\"\n\
             [[outbox]]\nname = \"legacy\"\nurl = \"{url}\"\n[outbox.adopt]\npreset = \"talkie\"\nlease_ms = {lease_ms}\npoll_min_ms = 50\npoll_max_ms = 50\n\
             [[outbox]]\nname = \"log\"\nurl = \"{url}\"\n\
             [sinks.out]\ntype = \"stdout\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n",
            lease_ms / 2
        );
        std::fs::write(dir.join("posthaste.toml"), config).expect("the config");
        let rig = Self { dir, client, database };
        assert!(rig.command(&["migrate", "up", "--outbox", "log"]).status().expect("it runs").success());
        Some(rig)
    }

    fn file(&self, name: &str) -> std::fs::File {
        std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join(name)).expect("a file")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.arg("--config").arg(self.dir.join("posthaste.toml")).args(words);
        command.stdin(Stdio::null()).stdout(self.file("log")).stderr(self.file("log"));
        command
    }

    async fn relay(&self) -> Relay {
        let relay = Relay(self.command(&["run"]).stdout(self.file("out")).spawn().expect("the relay starts"));
        let lanes = "select count(*) > 0 from posthaste.lanes where sink = 'out' and owner is not null";
        eventually("the log is read", WAIT, || async { self.ask::<bool>(lanes).await.then_some(()) }).await;
        relay
    }

    /// A step, to its end or to its death.
    fn step(&self, words: &[&str], crash: Option<&str>) -> ExitStatus {
        let mut command = self.command(&["adopt", "migrate"]);
        command.args(words);
        if words != ["finish"] {
            command.args(["--reason", "a test", "--yes"]);
        }
        if let Some(point) = crash {
            command.env("POSTHASTE_CRASH", format!("{point}@1"));
        }
        command.status().expect("it runs")
    }

    async fn step_until_done(&self, words: &[&str]) {
        eventually(words[0], WAIT, || async { self.step(words, None).success().then_some(()) }).await;
    }

    /// The application may be in the way of a step, which says so and has done nothing then.
    async fn step_until_dead(&self, words: &[&str], point: &str) {
        eventually("it dies at its point", WAIT, || async {
            let ended = self.step(words, Some(point));
            assert!(!ended.success(), "it passed {point}");
            (ended.signal() == Some(9)).then_some(())
        })
        .await;
    }

    async fn ask<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, sql: &str) -> T {
        self.client.query_one(sql, &[]).await.expect("a question").get(0)
    }

    /// An application that writes until it is told to stop; some of it is rolled back.
    async fn application(&self, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
        let (client, stop) = (self.database.connect().await.expect("a connection"), Arc::clone(stop));
        tokio::spawn(async move {
            let row = "insert into outbox (topic, key, payload_json) values ('t', 'k', '{}')";
            while !stop.load(Ordering::Relaxed) {
                client
                    .batch_execute(&format!("{row}; begin; {row}; rollback; begin; {row}; {row}; commit"))
                    .await
                    .expect("the application never fails");
                tokio::time::sleep(Duration::from_millis(5)).await; // pace
            }
        })
    }

    /// How often each event arrived.
    fn arrived(&self) -> HashMap<String, usize> {
        let text = std::fs::read_to_string(self.dir.join("out")).unwrap_or_default();
        let id = |line: &str| {
            Some(serde_json::from_str::<serde_json::Value>(line).ok()?["id"].as_str()?.to_owned())
        };
        let mut seen = HashMap::new();
        for id in text.lines().filter_map(id) {
            *seen.entry(id).or_default() += 1;
        }
        seen
    }

    /// Everything that was committed has arrived, and nothing else. Answers how much arrived more than once.
    async fn check(&self) -> usize {
        let rows = self.client.query("select id::text from outbox", &[]).await.expect("rows");
        let committed: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        eventually("everything arrives", WAIT, || async {
            let seen = self.arrived();
            committed.iter().all(|id| seen.contains_key(id)).then_some(())
        })
        .await;
        let seen = self.arrived();
        assert_eq!(seen.len(), committed.len(), "nothing that was rolled back");
        seen.values().filter(|times| **times > 1).count()
    }
}

async fn dies_at((point, words): (&str, &[&str])) {
    // Longer leases: the relay lives, and what it publishes twice because it stood still would look like a
    // fault of the step.
    let Some(rig) = Rig::set(12_000).await else { return };
    let relay = rig.relay().await;
    let stop = Arc::new(AtomicBool::new(false));
    let application = rig.application(&stop).await;
    // The steps before the one that dies.
    if words[0] != "start" {
        rig.step_until_done(&["start", "--hold"]).await;
    }
    if words[0] == "finish" {
        let drained = "select count(*) = 0 from outbox where status <> 'published'";
        eventually("it is drained", WAIT, || async { rig.ask::<bool>(drained).await.then_some(()) }).await;
    }
    rig.step_until_dead(words, point).await;
    rig.step_until_done(words).await;
    let held = "select count(*) from posthaste.controls where paused";
    if words[0] != "start" {
        assert_eq!(rig.ask::<i64>(held).await, 0, "nothing is held after {point}");
        let on = i64::from(words[0] == "finish");
        let there = "select count(*) from pg_trigger where tgname = 'posthaste_hand_over'";
        assert_eq!(rig.ask::<i64>(there).await, on, "the trigger after {point}");
    }
    // To the end, whatever came before.
    if words[0] != "finish" {
        rig.step_until_done(&["start"]).await;
        rig.step_until_done(&["finish"]).await;
    }
    stop.store(true, Ordering::Relaxed);
    application.await.expect("it ends");
    assert_eq!(rig.check().await, 0, "nothing twice: no relay has died");
    assert!(rig.ask::<i64>("select count(*) from posthaste.outbox").await > 0, "some of it by the log");
    assert_eq!(rig.ask::<i64>(held).await, 0);
    drop(relay);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_dies_with_sinks_held() {
    dies_at(POINTS[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_dies_before_its_commit() {
    dies_at(POINTS[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_dies_before_its_commit() {
    dies_at(POINTS[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_dies_with_the_trigger_switched_off() {
    dies_at(POINTS[3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_dies_before_the_trigger_is_gone() {
    dies_at(POINTS[4]).await;
}

/// The relay of both is killed again and again while the table moves: nothing is lost, and what comes twice
/// is what was in its hands.
#[tokio::test(flavor = "multi_thread")]
async fn the_relay_dies_while_a_table_moves() {
    let Some(rig) = Rig::set(2_000).await else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let mut relay = rig.relay().await;
    let application = rig.application(&stop).await;
    for step in [&["start"][..], &["stop"], &["start"]] {
        rig.step_until_done(step).await;
        let seen = rig.arrived().len();
        eventually("more arrives", WAIT, || async { (rig.arrived().len() > seen + 20).then_some(()) }).await;
        drop(relay);
        relay = rig.relay().await;
    }
    rig.step_until_done(&["finish"]).await;
    stop.store(true, Ordering::Relaxed);
    application.await.expect("it ends");
    rig.check().await;
    drop(relay);
}
