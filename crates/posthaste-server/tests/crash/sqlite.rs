//! The same on SQLite: the real process dies at every point of that store, and at the engine's own, with an
//! outbox in a file. There is no server to kill: whoever dies here dies with the database's writer in it.

use posthaste_sqlite::Synchronous;
use posthaste_sqlite::writer::{WriteError, Writer};
use posthaste_testkit::conformance::eventually;
use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(60);

/// How a crash point is reached.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Any delivery leads there.
    Plain,
    /// There must be an event that dies.
    Dead,
    /// Retention must have something to do.
    Sweep,
    /// Setting up leads there.
    Migrate,
}

/// Every crash point of the SQLite store, and those of the engine that matter to it: the visit at which to
/// die, and the way that leads there.
const POINTS: [(&str, u32, Way); 10] = [
    ("sqlite.group.before_commit", 4, Way::Plain),
    ("sqlite.group.committed", 4, Way::Plain),
    ("sqlite.take.uncommitted", 1, Way::Plain),
    ("sqlite.take.committed", 1, Way::Plain),
    ("sqlite.settle.uncommitted", 2, Way::Dead),
    ("sqlite.sweep.deleted", 1, Way::Sweep),
    ("sqlite.migrate.before_commit", 1, Way::Migrate),
    ("publish.acknowledged", 2, Way::Plain),
    ("settle.before", 2, Way::Plain),
    ("settle.after", 2, Way::Plain),
];

/// The points of the store itself, for the list that must be complete.
pub(crate) fn points() -> impl Iterator<Item = &'static str> {
    POINTS.iter().map(|(name, ..)| *name).filter(|name| name.starts_with("sqlite."))
}

macro_rules! crash_tests {
    ($($name:ident = $index:literal;)*) => {
        mod relay_dies_at {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::relay_dies(super::POINTS[$index]).await;
                }
            )*
        }
    };
}

crash_tests! {
    group_before_commit = 0;
    group_committed = 1;
    take_uncommitted = 2;
    take_committed = 3;
    settle_uncommitted = 4;
    sweep_deleted = 5;
    migrate_before_commit = 6;
    publish_acknowledged = 7;
    settle_before = 8;
    settle_after = 9;
}

/// The relay is killed at the point; a fresh one finishes.
async fn relay_dies((point, visit, way): (&str, u32, Way)) {
    let mut rig = Rig::set(way);
    let crash = format!("{point}@{visit}");
    if way == Way::Migrate {
        let died =
            rig.command("migrate").arg("up").env("POSTHASTE_CRASH", &crash).status().expect("migrate runs");
        assert_eq!(died.signal(), Some(9), "migrate died of SIGKILL at {point}");
    }
    let migrated = rig.command("migrate").arg("up").status().expect("migrate runs");
    assert!(migrated.success(), "migrate up");
    rig.prepare().await;
    if way != Way::Migrate {
        assert_eq!(rig.run_until_dead(&crash).await, Some(9), "the relay died of SIGKILL at {point}");
    }
    rig.finish(point).await;
}

/// A database file, a relay process, and a sink that is a file.
struct Rig {
    dir: PathBuf,
    way: Way,
    relay: Option<Child>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut relay) = self.relay.take() {
            let _ = relay.kill();
            let _ = relay.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(30).collect();
            eprintln!("the relay's last words:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Rig {
    fn set(way: Way) -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-crash-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let rig = Self { dir, way, relay: None };
        std::fs::write(rig.dir.join("posthaste.toml"), rig.config()).expect("the config");
        rig
    }

    fn database(&self) -> PathBuf {
        self.dir.join("orders.db")
    }

    fn config(&self) -> String {
        let retention = if self.way == Way::Sweep { "retention = { events_hours = 0.0001 }" } else { "" };
        format!(
            r#"
            service = "crash"
            [relay]
            heartbeat_ms = 200
            page_events_max = 200
            sweep_interval_ms = 100
            [http]
            listen = "off"
            [[outbox]]
            url = "sqlite:{}"
            {retention}
            [sinks.file]
            type = "stdout"
            start_at = "earliest"
            [[route]]
            topics = ["*"]
            sinks = ["file"]
            "#,
            self.database().display()
        )
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.arg("--config").arg(self.dir.join("posthaste.toml")).arg(verb);
        command.stdout(Stdio::null()).stderr(self.file("log"));
        command
    }

    fn file(&self, name: &str) -> std::fs::File {
        OpenOptions::new().create(true).append(true).open(self.dir.join(name)).expect("a file of the rig")
    }

    fn start(&mut self, crash: Option<&str>) {
        let mut command = self.command("run");
        command.stdout(self.file("delivered"));
        if let Some(crash) = crash {
            command.env("POSTHASTE_CRASH", crash);
        }
        self.relay = Some(command.spawn().expect("the relay starts"));
    }

    /// One statement or several, in a transaction of their own.
    async fn execute(&self, sql: String) {
        let writer = Writer::open(&self.database(), Synchronous::Full).expect("the file opens");
        writer
            .run(move |tx| tx.execute_batch(&sql).map_err(WriteError::from))
            .await
            .expect("a statement of the rig");
        writer.close().await;
    }

    /// Two columns of text.
    async fn rows(&self, sql: &'static str) -> Vec<(String, Option<String>)> {
        let writer = Writer::open(&self.database(), Synchronous::Full).expect("the file opens");
        let rows = writer
            .run(move |tx| {
                let mut statement = tx.prepare(sql)?;
                let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                rows.collect::<Result<Vec<_>, _>>().map_err(WriteError::from)
            })
            .await
            .expect("a query of the rig");
        writer.close().await;
        rows
    }

    async fn append(&self, events: usize) {
        self.execute(format!(
            "insert into posthaste_outbox (topic, key, payload)
             select 'orders', 'key-' || n % 40, 'x'
               from (with recursive n (n) as (select 1 union all select n + 1 from n where n < {events}) select n from n)"
        ))
        .await;
    }

    async fn prepare(&mut self) {
        self.append(900).await;
        if self.way == Way::Dead {
            let bad = "insert into posthaste_outbox (topic, key, payload) values ('', 'key-1', 'x')";
            self.execute(bad.to_owned()).await;
            self.append(300).await;
        }
    }

    async fn run_until_dead(&mut self, crash: &str) -> Option<i32> {
        self.start(Some(crash));
        let mut relay = self.relay.take().expect("a relay runs");
        let status = eventually("the relay dies", WAIT, || {
            let status = relay.try_wait().expect("the relay is ours");
            async move { status }
        })
        .await;
        status.signal()
    }

    /// Lets a fresh relay finish, appends more, and checks the guarantees.
    async fn finish(&mut self, point: &str) {
        // Before retention takes them: what was removed by the one that died was delivered before.
        let mut committed = self.committed().await;
        self.start(None);
        self.append(100).await;
        committed.extend(self.committed().await);
        committed.sort();
        committed.dedup();
        eventually(&format!("everything is delivered after {point}"), WAIT, || async {
            let mut there: HashSet<String> = self.delivered().into_iter().map(|(id, _)| id).collect();
            there.extend(self.dead().await);
            committed.iter().all(|(_, id, _)| there.contains(id)).then_some(())
        })
        .await;
        if self.way == Way::Sweep {
            eventually("old events are removed", WAIT, || async {
                self.committed().await.is_empty().then_some(())
            })
            .await;
        }
        self.stop().await;
        self.check(&committed, point).await;
    }

    /// Number, id and key of each committed event that is still in the log.
    async fn committed(&self) -> Vec<(i64, String, Option<String>)> {
        let rows = self.rows("select printf('%d ', seq) || id, key from posthaste_outbox order by seq").await;
        let split = |(text, key): (String, Option<String>)| {
            let (seq, id) = text.split_once(' ')?;
            Some((seq.parse().ok()?, id.to_owned(), key))
        };
        rows.into_iter().filter_map(split).collect()
    }

    async fn dead(&self) -> HashSet<String> {
        self.rows("select id, null from posthaste_dead_letters").await.into_iter().map(|(id, _)| id).collect()
    }

    /// Deliveries in order: id and key. A last line cut by a death is not a delivery.
    fn delivered(&self) -> Vec<(String, Option<String>)> {
        let text = std::fs::read_to_string(self.dir.join("delivered")).unwrap_or_default();
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok();
        let part = |value: &serde_json::Value, name: &str| value[name].as_str().map(str::to_owned);
        text.lines().filter_map(line).filter_map(|v| Some((part(&v, "id")?, part(&v, "key")))).collect()
    }

    async fn stop(&mut self) {
        let Some(mut relay) = self.relay.take() else { return };
        let pid = rustix::process::Pid::from_child(&relay);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("SIGTERM");
        let status = eventually("the relay drains", WAIT, || {
            let status = relay.try_wait().expect("the relay is ours");
            async move { status }
        })
        .await;
        assert!(status.success(), "a drained shutdown exits with 0: {status:?}");
    }

    async fn check(&self, committed: &[(i64, String, Option<String>)], point: &str) {
        let owners = self.rows("select sink, owner from posthaste_lanes where owner is not null").await;
        assert!(owners.is_empty(), "G8: no live lease after {point}: {owners:?}");
        let (delivered, dead) = (self.delivered(), self.dead().await);
        let place: HashMap<&str, i64> = committed.iter().map(|(seq, id, _)| (id.as_str(), *seq)).collect();
        let (mut seen, mut last) = (HashSet::new(), HashMap::new());
        for (id, key) in delivered.iter().filter(|(id, _)| seen.insert(id.clone())) {
            let (Some(seq), Some(key)) = (place.get(id.as_str()), key) else { continue };
            let before = last.insert(key.clone(), *seq);
            assert!(before.is_none_or(|before| before < *seq), "G3: {key} out of order after {point}");
        }
        let lost = committed.iter().filter(|(_, id, _)| !seen.contains(id) && !dead.contains(id)).count();
        assert_eq!(lost, 0, "G2: nothing lost after {point}");
        let duplicates = delivered.len() - seen.len();
        assert!(duplicates <= 2 * 8_192, "duplicates are bounded: {duplicates}");
        assert_eq!(dead.len(), usize::from(self.way == Way::Dead), "dead letters after {point}");
        let hearts = std::fs::read_dir(&self.dir).expect("the directory").flatten();
        let hearts = hearts.filter(|entry| entry.file_name().to_string_lossy().contains("-heart-")).count();
        assert!(
            hearts <= 1,
            "the drained relay took its heart's file away; the dead one's is swept later: {hearts}"
        );
    }
}
