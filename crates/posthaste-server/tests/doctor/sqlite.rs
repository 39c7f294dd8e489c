//! The checks of an outbox in a SQLite file, each broken by itself.

use crate::binary::{posthaste, run};
use posthaste_sqlite::Synchronous;
use posthaste_sqlite::writer::{WriteError, Writer};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A directory with a database in it.
struct Ground(PathBuf);

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Ground {
    fn make() -> Self {
        let ground = Self::empty();
        run(&["migrate", "up", "--url", &ground.url()]).ok();
        ground
    }

    fn empty() -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-doctor-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("orders.db")
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.file().display())
    }

    fn execute(&self, sql: &str) {
        let writer = Writer::open(&self.file(), Synchronous::Full).expect("the file opens");
        let sql = sql.to_owned();
        writer
            .run_blocking(move |tx| tx.execute_batch(&sql).map_err(WriteError::from))
            .expect("a statement of the test");
    }

    /// What a check says.
    fn said(&self, check: &str) -> String {
        let findings = run(&["doctor", "--json", "--url", &self.url()]).json();
        let found = findings.as_array().into_iter().flatten().find(|finding| finding["check"] == check);
        found.and_then(|finding| finding["text"].as_str()).unwrap_or_default().to_owned()
    }

    /// Names of the checks that are not as they should be.
    fn ill(&self) -> Vec<String> {
        ill(&self.url())
    }
}

fn ill(url: &str) -> Vec<String> {
    let ended = run(&["doctor", "--json", "--url", url]);
    let findings = ended.json();
    let bad = |finding: &&serde_json::Value| finding["level"] != "ok";
    let names = findings.as_array().into_iter().flatten().filter(bad);
    let names: Vec<String> =
        names.filter_map(|finding| finding["check"].as_str().map(str::to_owned)).collect();
    assert_eq!(ended.code == 0, names.is_empty(), "the exit code says whether anything was found");
    names
}

#[test]
fn what_somebody_changed_is_found() {
    let breaks = [
        ("append_only", "drop trigger posthaste_outbox_no_update"),
        ("append_only", "drop trigger posthaste_outbox_no_early_delete"),
        ("audit_topic", "insert into posthaste_state (name, value) values ('audit_topic', 'elsewhere')"),
        (
            "log_went_back",
            "insert into posthaste_outbox (topic) values ('t'); update sqlite_sequence set seq = 0 where name = 'posthaste_outbox'",
        ),
        (
            "clock",
            "insert into posthaste_lanes (sink, lane, slot_from, slot_to, filter) values ('s', 0, 0, 1023, '');
             insert into posthaste_receipts (sink, lane, n, epoch, kind, position, settled_at)
             values ('s', 0, 1, 1, 'born', 0, (unixepoch() + 3600) * 1000000)",
        ),
        (
            "retired_sinks",
            "insert into posthaste_lanes (sink, lane, slot_from, slot_to, filter, retired_at) values ('s', 0, 0, 1023, '', 1)",
        ),
    ];
    for (check, sql) in breaks {
        let ground = Ground::make();
        assert_eq!(ground.ill(), [""; 0], "before {check} is broken");
        ground.execute(sql);
        only(check, &ground.ill());
    }
}

#[test]
fn a_file_that_is_not_what_it_should_be_is_found() {
    let ground = Ground::make();
    ground.execute("delete from posthaste_migrations");
    only("schema_version", &ground.ill());
    let ground = Ground::make();
    let writer = Writer::open(&ground.file(), Synchronous::Full).expect("the file opens");
    drop(writer);
    // The mode stays with the file; changing it needs the file alone, and our writer's thread ends in a
    // moment.
    eventually(|| {
        let by_hand = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=5).execute('pragma journal_mode = delete')";
        let done = std::process::Command::new("python3").args(["-c", by_hand]).arg(ground.file()).status();
        done.is_ok_and(|status| status.success()) && !ground.ill().is_empty()
    });
    only("journal_mode", &ground.ill());
    let ground = Ground::empty();
    std::fs::write(ground.file(), "no database at all, but long enough to be looked at".repeat(50))
        .expect("a file");
    only("file", &ground.ill());
}

/// Just this was found, beside events that nobody reads.
#[track_caller]
fn only(check: &str, found: &[String]) {
    let found: Vec<&String> = found.iter().filter(|name| *name != "lanes_owned").collect();
    assert_eq!(found, [check]);
}

/// This was found, whatever else it led to.
#[track_caller]
fn among(check: &str, found: &[String]) {
    assert!(found.iter().any(|name| name == check), "{found:?}");
}

#[test]
fn a_damaged_file_is_found() {
    let ground = Ground::make();
    ground.execute(
        "insert into posthaste_outbox (topic, payload) select 't', zeroblob(600)
           from (with recursive n (n) as (select 1 union all select n + 1 from n where n < 400) select n from n)",
    );
    // The log beside the file is folded in by whoever closes it last.
    eventually(|| !Path::new(&format!("{}-wal", ground.file().display())).exists());
    let mut bytes = std::fs::read(ground.file()).expect("the file");
    let (from, to) = (bytes.len() / 2, bytes.len() - 8_192);
    bytes[from..to].fill(0xa5);
    std::fs::write(ground.file(), bytes).expect("damaged");
    among("integrity", &ground.ill());
}

/// Somebody who never ends a transaction that writes.
#[test]
fn a_write_lock_that_cannot_be_had_is_found() {
    let ground = Ground::make();
    let writer = Writer::open(&ground.file(), Synchronous::Full).expect("the file opens");
    let (let_go, wait) = std::sync::mpsc::channel::<()>();
    let (held, ready) = std::sync::mpsc::channel();
    let holder = std::thread::spawn(move || {
        writer.run_blocking(move |_| {
            held.send(()).expect("the test waits");
            let _ = wait.recv();
            Ok::<(), WriteError>(())
        })
    });
    ready.recv().expect("the lock is held");
    among("write_access", &ground.ill());
    drop(let_go);
    holder.join().expect("no panic").expect("let go");
}

/// A directory where no file can be made beside the database: here, because its name would be too long.
#[test]
fn a_heart_that_cannot_be_made_is_found() {
    let ground = Ground::empty();
    let url = format!("sqlite:{}", ground.0.join("x".repeat(245)).display());
    run(&["migrate", "up", "--url", &url]).ok();
    only("file_locks", &ill(&url));
}

#[test]
fn lanes_without_a_live_owner_are_found() {
    let ground = Ground::make();
    let mut relay = posthaste(&["run", "--sink", "null", "--listen", "off", "--url", &ground.url()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the relay starts");
    eventually(|| ground.said("lanes_owned").contains("every lane has an owner"));
    relay.kill().expect("killed");
    relay.wait().expect("reaped");
    eventually(|| ground.said("lanes_owned").contains("no relay is running, and nothing waits"));
    ground.execute("insert into posthaste_outbox (topic) values ('t'), ('t')");
    among("lanes_owned", &ground.ill());
    let said = ground.said("lanes_owned");
    assert!(said.contains("no relay is running, and events wait: 2 for sink null"), "{said}");
}

/// Before a relay has run there is no sink, and so no backlog; what waits is the whole log.
#[test]
fn events_that_no_relay_ever_saw_are_counted() {
    let ground = Ground::make();
    let said = ground.said("lanes_owned");
    assert!(said.contains("nothing waits"), "{said}");
    assert_eq!(ground.ill(), [""; 0], "an empty file has nothing that waits");
    ground.execute("insert into posthaste_outbox (topic) values ('t'), ('t'), ('t')");
    let said = ground.said("lanes_owned");
    assert!(said.contains("no relay has run on this outbox yet, and events wait in the log: 3."), "{said}");
    assert_eq!(ground.ill(), ["lanes_owned"]);
}

/// The local broker's own checks: a file that is none, and commits that a power cut may undo.
#[test]
fn a_local_broker_that_is_not_sound_is_found() {
    let ground = Ground::make();
    let config = ground.0.join("posthaste.toml");
    let with = |more: &str| {
        let broker = ground.0.join("broker.db");
        let text = format!(
            "outbox.url = {:?}\n[sinks.local]\ntype = \"local\"\npath = {broker:?}\n{more}\n[[route]]\ntopics = [\"*\"]\nsinks = [\"local\"]",
            ground.url()
        );
        std::fs::write(&config, text).expect("the config");
        let ended = run(&["doctor", "--json", "--config", config.to_str().expect("UTF-8")]);
        let findings = ended.json();
        let ill = findings.as_array().into_iter().flatten().filter(|finding| finding["level"] != "ok");
        ill.filter_map(|finding| finding["check"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(with(""), [""; 0]);
    only("durability", &with("synchronous = \"normal\""));
    std::fs::write(
        ground.0.join("broker.db"),
        "no database at all, but long enough to be looked at".repeat(50),
    )
    .expect("a file");
    only("local_file", &with(""));
}

fn eventually(mut ask: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(90);
    while !ask() {
        assert!(Instant::now() < end, "not within the deadline");
        std::thread::sleep(Duration::from_millis(20)); // pace: another process
    }
}
