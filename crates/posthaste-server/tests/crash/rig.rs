//! A private server, a relay process, and a sink that is a file.
//!
//! The sink is `stdout`, appended to one file by every process: what a process wrote before it died is
//! there, and the order in it is the order of delivery.

use posthaste_testkit::conformance::eventually;
use posthaste_testkit::services::Postgres;
use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio_postgres::Client;

const WAIT: Duration = Duration::from_secs(90);

/// A relay's process. It ends with whatever test it served.
pub(crate) struct Relay(pub(crate) Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a crash point is reached.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Way {
    /// Any delivery leads there.
    Plain,
    /// There must be an event that dies.
    Dead,
    /// Former owners must have died at this place.
    Careful,
    /// An event that kills its relay.
    Poison,
    /// Retention must have something to do.
    Sweep,
}

pub(crate) struct Rig {
    server: Postgres,
    client: Client,
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
    pub(crate) async fn set(server: Postgres, way: Way) -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-crash-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let client = server.admin().await.expect("the server answers");
        let rig = Self { server, client, dir, way, relay: None };
        std::fs::write(rig.dir.join("posthaste.toml"), rig.config()).expect("the config");
        let migrated = rig.command("migrate").arg("up").status().expect("migrate runs");
        assert!(migrated.success(), "migrate up");
        rig
    }

    fn config(&self) -> String {
        let retention = match self.way {
            Way::Sweep => "retention = { events_hours = 0.0001, turn_after_hours = 0.0001 }",
            _ => "",
        };
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
            url = "{}"
            {retention}
            [sinks.file]
            type = "stdout"
            start_at = "earliest"
            [[route]]
            topics = ["*"]
            sinks = ["file"]
            "#,
            self.server.url()
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

    async fn append(&self, events: i64) {
        let sql = "select posthaste.append('orders', 'x'::text, 'key-' || g % 40) from generate_series(1, $1::bigint) g";
        self.client.query(sql, &[&events]).await.expect("append");
    }

    /// Events, and whatever else leads to the point.
    pub(crate) async fn prepare(&mut self, way: Way) {
        self.append(900).await;
        match way {
            Way::Plain | Way::Sweep => {}
            Way::Dead => {
                let bad = "insert into posthaste.outbox (topic, key, payload) values ('', 'key-1', 'x')";
                self.client.batch_execute(bad).await.expect("a defective event");
            }
            Way::Poison => {
                let sql = "select posthaste.append('orders', 'x'::text, 'poison', '{\"x-posthaste-test-abort\": \"1\"}')";
                self.client.batch_execute(sql).await.expect("the poison");
                self.append(300).await;
            }
            Way::Careful => {
                for _ in 0..5 {
                    assert_eq!(self.run_until_dead("publish.acknowledged@1").await, Some(9));
                }
            }
        }
    }

    /// Runs a relay until it dies, and says of which signal.
    pub(crate) async fn run_until_dead(&mut self, crash: &str) -> Option<i32> {
        self.start(Some(crash));
        self.await_death().await
    }

    async fn await_death(&mut self) -> Option<i32> {
        let relay = self.relay.as_mut().expect("a relay runs");
        let status = eventually("the relay dies", WAIT, || {
            let status = relay.try_wait().expect("the relay is ours");
            async move { status }
        })
        .await;
        self.relay = None;
        status.signal()
    }

    /// Runs a relay without a crash point until its event has killed it, or has been given up.
    pub(crate) async fn run_until_dead_or_buried(&mut self) -> Option<i32> {
        self.start(None);
        loop {
            let relay = self.relay.as_mut().expect("a relay runs");
            if let Some(status) = relay.try_wait().expect("the relay is ours") {
                self.relay = None;
                return status.signal();
            }
            if !self.poison_is_alive().await {
                self.stop().await;
                return Some(6);
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // pace
        }
    }

    pub(crate) async fn poison_is_alive(&self) -> bool {
        let sql = "select not exists (select from posthaste.dead_letters where key = 'poison' and error_code = 'relay.crashed')";
        self.client.query_one(sql, &[]).await.expect("a query").get(0)
    }

    /// Runs a relay that kills the database at the point; brings the database back.
    pub(crate) async fn run_through_server_crash(&mut self, crash: &str) {
        let pid = self.server.pid().expect("the server runs");
        self.start(Some(&format!("{crash}:{pid}")));
        let client = &self.client;
        eventually("the server dies", WAIT, || async { client.is_closed().then_some(()) }).await;
        self.server.kill9().await.expect("its children are gone too");
        self.restart_server().await;
        self.client = self.server.admin().await.expect("the server answers");
        if self.way == Way::Poison {
            // The event aborts the relay right behind the point.
            self.await_death().await;
        }
    }

    /// A postmaster that was killed leaves children behind for a moment, and a new one refuses to start
    /// beside them: it is tried again until they have noticed.
    async fn restart_server(&mut self) {
        let end = tokio::time::Instant::now() + WAIT;
        while let Err(error) = self.server.start_again().await {
            assert!(tokio::time::Instant::now() < end, "the server recovers: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await; // pace
        }
    }

    /// Lets a fresh relay (or the one that lived on) finish, appends more, and checks the guarantees.
    pub(crate) async fn finish(&mut self, point: &str) {
        if self.way == Way::Poison {
            while self.poison_is_alive().await {
                self.run_until_dead_or_buried().await;
            }
        }
        self.append(100).await;
        if self.relay.is_none() {
            self.start(None);
        }
        let committed = self.committed().await;
        self.await_all(&committed, point).await;
        self.await_settled().await;
        if self.way == Way::Sweep {
            self.await_truncation().await;
        }
        self.stop().await;
        self.check(&committed, point).await;
    }

    /// Ids of all committed events, in append order with their keys. Truncated ones were delivered before.
    async fn committed(&self) -> Vec<(String, Option<String>)> {
        let sql = "select id::text, key from posthaste.outbox order by seq";
        let rows = self.client.query(sql, &[]).await.expect("the log");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn dead(&self) -> HashSet<String> {
        let rows = self
            .client
            .query("select id::text from posthaste.dead_letters", &[])
            .await
            .expect("dead letters");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Deliveries in order: id and key. A last line cut by a death is not a delivery.
    fn delivered(&self) -> Vec<(String, Option<String>)> {
        let text = std::fs::read_to_string(self.dir.join("delivered")).unwrap_or_default();
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok();
        let part = |value: &serde_json::Value, name: &str| value[name].as_str().map(str::to_owned);
        text.lines().filter_map(line).filter_map(|v| Some((part(&v, "id")?, part(&v, "key")))).collect()
    }

    async fn await_all(&self, committed: &[(String, Option<String>)], point: &str) {
        eventually(&format!("everything is delivered after {point}"), WAIT, || async {
            let mut there: HashSet<String> = self.delivered().into_iter().map(|(id, _)| id).collect();
            there.extend(self.dead().await);
            committed.iter().all(|(id, _)| there.contains(id)).then_some(())
        })
        .await;
    }

    /// What is delivered is written down too, by whoever owns the lane now.
    async fn await_settled(&self) {
        eventually("everything is settled", WAIT, || async {
            let sql = "select min(position) >= coalesce((select max(seq) from posthaste.outbox), 0) from posthaste.lanes_now";
            self.client.query_one(sql, &[]).await.expect("lanes").get::<_, bool>(0).then_some(())
        })
        .await;
    }

    async fn await_truncation(&self) {
        eventually("old segments are truncated", WAIT, || async {
            self.append(1).await;
            let sql =
                "select max(turn) > 3 and count(*) filter (where turn is null) > 0 from posthaste.segments";
            self.client.query_one(sql, &[]).await.expect("segments").get::<_, bool>(0).then_some(())
        })
        .await;
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

    async fn check(&self, committed: &[(String, Option<String>)], point: &str) {
        let leases = "select count(*) from posthaste.lanes where owner is not null";
        let owners: i64 = self.client.query_one(leases, &[]).await.expect("lanes").get(0);
        assert_eq!(owners, 0, "G8: no live lease after {point}");
        let (delivered, dead) = (self.delivered(), self.dead().await);
        let place: HashMap<&str, usize> =
            committed.iter().enumerate().map(|(at, (id, _))| (id.as_str(), at)).collect();
        let mut seen = HashSet::new();
        let mut last: HashMap<String, usize> = HashMap::new();
        for (id, key) in delivered.iter().filter(|(id, _)| seen.insert(id.clone())) {
            let (Some(at), Some(key)) = (place.get(id.as_str()), key) else { continue };
            let before = last.insert(key.clone(), *at);
            assert!(before.is_none_or(|before| before < *at), "G3: {key} out of order after {point}");
        }
        let lost = committed.iter().filter(|(id, _)| !seen.contains(id) && !dead.contains(id)).count();
        assert_eq!(lost, 0, "G2: nothing lost after {point}");
        let duplicates = delivered.len() - seen.len();
        assert!(duplicates <= 8 * 8_192, "duplicates are bounded: {duplicates}");
        let expected_dead = usize::from(matches!(self.way, Way::Dead | Way::Poison));
        assert_eq!(dead.len(), expected_dead, "dead letters after {point}");
    }
}
