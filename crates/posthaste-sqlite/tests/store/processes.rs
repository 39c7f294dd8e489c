//! Several processes on one file: appenders, two relays with the production engine, and SIGKILL.
//!
//! A child is this very test binary, told by its environment what to be. Its relay delivers into a file, a
//! line for each event, so that the parent sees from outside what was delivered, in which order, by whom.

use crate::fixture::{SqliteFixture, connect};
use posthaste::admin::Admin;
use posthaste::clock::SystemClock;
use posthaste::relay::{RelayPlan, RelaySettings, SinkEntry, start};
use posthaste::route::{Route, RouteTable};
use posthaste::sink::{Capabilities, Message, Ordering, Sink, Verdict};
use posthaste::store::StartAt;
use posthaste::{Event, Limits};
use posthaste_sqlite::{SqliteConfig, SqliteStore, append};
use posthaste_testkit::conformance::eventually;
use rusqlite::TransactionBehavior;
use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const WAIT: Duration = Duration::from_secs(60);
const LANES: u16 = 4;

/// Writes a line for each message, as one write for a call.
struct Journal(Mutex<File>);

#[async_trait::async_trait]
impl Sink for Journal {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Call, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let line = |message: &Message| {
            let stored = &message.stored;
            format!("{} {}\n", stored.seq, stored.event.key.as_deref().unwrap_or("-"))
        };
        let lines: String = messages.iter().map(line).collect();
        self.0.lock().expect("no panic").write_all(lines.as_bytes()).expect("the journal takes it");
        messages.iter().map(|_| Verdict::Delivered).collect()
    }
}

/// What a child does. Without the variable this is a test that passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(role) = std::env::var("POSTHASTE_CHILD") else { return };
    let path = PathBuf::from(std::env::var("POSTHASTE_CHILD_FILE").expect("a file"));
    match role.split_once(':') {
        Some(("relay", name)) => be_a_relay(&path, name).await,
        Some(("append", seed)) => append_many(&path, seed.parse().expect("a number"), 150),
        _ => panic!("{role}"),
    }
}

async fn be_a_relay(path: &Path, name: &str) {
    let store = SqliteStore::connect(SqliteConfig::new(path)).await.expect("the store opens");
    let journal = OpenOptions::new().append(true).create(true).open(journal_of(path)).expect("a journal");
    let routes = RouteTable::new(vec![Route::everything_to("s")]);
    let sink = SinkEntry {
        name: "s".into(),
        sink: Arc::new(Journal(Mutex::new(journal))),
        start_at: StartAt::Earliest,
        classes: Default::default(),
    };
    let plan = RelayPlan {
        host: "host".into(),
        outbox: "test".into(),
        service: "test".into(),
        relay: name.into(),
        store: Arc::new(store),
        sinks: vec![sink],
        routes: routes.clone(),
        limits: Limits::default(),
        lanes: Some(LANES),
    };
    let settings = RelaySettings { heartbeat_ms: 300, page_events_max: 64, ..RelaySettings::default() };
    let handle = start(plan, watch::channel(settings).1, watch::channel(routes).1, Arc::new(SystemClock));
    // The parent lets go of our standard input when it has seen enough.
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await.expect("no panic").expect("standard input");
    handle.drain().await;
}

fn journal_of(path: &Path) -> PathBuf {
    path.with_extension("journal")
}

/// Transactions of one or several events of a few keys; every fifth is rolled back.
fn append_many(path: &Path, seed: u64, transactions: u64) {
    let mut connection = connect(path);
    for n in 0..transactions {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begin");
        for m in 0..=(n + seed) % 4 {
            let event = Event::new("t", format!("{seed} {n} {m}")).with_key(format!("{seed}-{}", n % 5));
            append(&tx, &event).expect("appended");
        }
        if n % 5 == 4 { tx.rollback() } else { tx.commit() }.expect("ended");
    }
}

/// A child that dies with this value.
struct Process(Child);

impl Process {
    fn start(role: &str, path: &Path) -> Self {
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "processes::child", "--nocapture"])
            .env("POSTHASTE_CHILD", role)
            .env("POSTHASTE_CHILD_FILE", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("a process"))
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("reaped");
    }

    fn wait(mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait().expect("reaped");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn committed(fixture: &SqliteFixture) -> BTreeSet<i64> {
    let connection = fixture.connect();
    let mut statement = connection.prepare("select seq from posthaste_outbox").expect("a statement");
    let rows = statement.query_map([], |row| row.get(0)).expect("a query");
    rows.collect::<Result<_, _>>().expect("rows")
}

fn delivered(fixture: &SqliteFixture) -> Vec<(i64, String)> {
    let text = std::fs::read_to_string(journal_of(&fixture.path())).unwrap_or_default();
    let line = |line: &str| {
        let (seq, key) = line.split_once(' ')?;
        Some((seq.parse().ok()?, key.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

fn assert_order(deliveries: &[(i64, String)]) {
    let (mut seen, mut last) = (BTreeSet::new(), HashMap::new());
    for (seq, key) in deliveries.iter().filter(|(seq, _)| seen.insert(*seq)) {
        let before = last.insert(key, *seq);
        assert!(before.is_none_or(|before| before < *seq), "{key}: {before:?} before {seq}");
    }
}

async fn all_delivered(fixture: &SqliteFixture) {
    let committed = committed(fixture);
    assert!(!committed.is_empty());
    eventually("every committed event is delivered", WAIT, || async {
        let delivered: BTreeSet<i64> = delivered(fixture).into_iter().map(|(seq, _)| seq).collect();
        assert!(delivered.is_subset(&committed), "nothing that was rolled back is delivered (G1)");
        (delivered == committed).then_some(())
    })
    .await;
}

/// G1, G2, G3 with everything at once: appenders in three processes, two relays that are killed in turn.
#[tokio::test(flavor = "multi_thread")]
async fn two_relays_on_one_file_survive_kills_and_nothing_is_lost() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let path = fixture.path();
    let mut relays: Vec<Process> =
        (0..2).map(|n| Process::start(&format!("relay:first-{n}"), &path)).collect();
    let appenders: Vec<Process> =
        (0..3).map(|seed| Process::start(&format!("append:{seed}"), &path)).collect();
    for round in 0..6 {
        // Each kill hits a relay that has delivered something since the last one, or has run for a while.
        let before = delivered(&fixture).len();
        let patience = Instant::now() + Duration::from_secs(5);
        while delivered(&fixture).len() < before + 20 && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(10)).await; // pace: the journal is a file
        }
        let victim = &mut relays[round % 2];
        victim.kill();
        *victim = Process::start(&format!("relay:next-{round}"), &path);
    }
    appenders.into_iter().for_each(Process::wait);
    all_delivered(&fixture).await;
    // What a killed relay delivered and could not settle is delivered again by its successor, which may just
    // begin.
    eventually("everything is settled", WAIT, || async {
        let status = fixture.admin().await.status().await.expect("a status");
        (status.sinks[0].backlog.count == 0).then_some(())
    })
    .await;
    relays.into_iter().for_each(Process::wait);
    assert_order(&delivered(&fixture));
    let status = fixture.admin().await.status().await.expect("a status");
    assert!(status.relays.is_empty() && status.sinks[0].lanes.iter().all(|lane| lane.owner.is_none()));
    assert_eq!(status.sinks[0].backlog.count, 0);
}

async fn owners(fixture: &SqliteFixture) -> Vec<Option<String>> {
    let status = fixture.admin().await.status().await.expect("a status");
    status.sinks.iter().flat_map(|sink| &sink.lanes).map(|lane| lane.owner.clone()).collect()
}

/// Two relays share four lanes; when one is killed, the other has all of them within two seconds, and on a
/// machine that does other things too at least long before the lease of 20 s expires.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_relay_is_succeeded_before_its_lease_ends() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let mut first = Process::start("relay:one", &fixture.path());
    let second = Process::start("relay:two", &fixture.path());
    eventually("two lanes each", WAIT, || async {
        let owners = owners(&fixture).await;
        let of = |name: &str| owners.iter().filter(|owner| owner.as_deref() == Some(name)).count();
        (of("one") == 2 && of("two") == 2).then_some(())
    })
    .await;
    first.kill();
    let killed = Instant::now();
    eventually("the other one has them all", WAIT, || async {
        let owners = owners(&fixture).await;
        owners.iter().all(|owner| owner.as_deref() == Some("two")).then_some(())
    })
    .await;
    assert!(killed.elapsed() < Duration::from_secs(12), "{:?}", killed.elapsed());
    second.wait();
    assert!(owners(&fixture).await.iter().all(Option::is_none), "a drained relay leaves no lease (G8)");
}
