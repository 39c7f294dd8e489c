//! The relay dies between the local broker's commit and its own settlement: everything is sent again, and
//! within the dedup window nothing is there twice.

use posthaste_sqlite::Synchronous;
use posthaste_sqlite::broker::{Broker, BrokerConfig, StoredMessage};
use posthaste_sqlite::writer::{WriteError, Writer};
use posthaste_testkit::conformance::eventually;
use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(60);

/// The crash points of the local broker, with the visit at which to die.
const POINTS: [(&str, u32); 1] = [("local.committed", 2)];

pub(crate) fn points() -> impl Iterator<Item = &'static str> {
    POINTS.iter().map(|(name, _)| *name)
}

/// Ended with whatever test it served.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Rig(PathBuf);

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Rig {
    fn set() -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-local-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let config = format!(
            "service = \"crash\"\n[relay]\nheartbeat_ms = 200\npage_events_max = 200\n[http]\nlisten = \"off\"\n\
             [[outbox]]\nurl = \"sqlite:{0}/orders.db\"\n\
             [sinks.local]\ntype = \"local\"\nurl = \"sqlite:{0}/broker.db\"\nstart_at = \"earliest\"\n\
             [[route]]\ntopics = [\"*\"]\nsinks = [\"local\"]\n",
            dir.display()
        );
        std::fs::write(dir.join("posthaste.toml"), config).expect("the config");
        Self(dir)
    }

    fn command(&self, verb: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.arg("--config").arg(self.0.join("posthaste.toml")).args(verb);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    async fn append(&self, events: usize) {
        let writer = Writer::open(&self.0.join("orders.db"), Synchronous::Full).expect("the file opens");
        let sql = format!(
            "insert into posthaste_outbox (topic, key, payload) select 'orders', 'key-' || n % 40, cast(n as text)
               from (with recursive n (n) as (select 1 union all select n + 1 from n where n < {events}) select n from n)"
        );
        writer.run(move |tx| tx.execute_batch(&sql).map_err(WriteError::from)).await.expect("appended");
        writer.close().await;
    }

    /// What is at the broker, partition by partition.
    async fn arrived(&self) -> Vec<StoredMessage> {
        let config = BrokerConfig { create: false, ..BrokerConfig::new(self.0.join("broker.db")) };
        let Ok(broker) = Broker::open(config) else { return Vec::new() };
        let mut arrived = Vec::new();
        for topic in broker.topics().await.expect("topics") {
            for (number, _) in topic.partitions.iter().enumerate() {
                let number = i32::try_from(number).expect("small");
                arrived.extend(broker.read(&topic.name, number, 0, 10_000).await.expect("read"));
            }
        }
        arrived
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_dies_at_local_committed() {
    let rig = Rig::set();
    assert!(rig.command(&["migrate", "up"]).status().expect("migrate runs").success());
    rig.append(900).await;
    let (point, visit) = POINTS[0];
    let mut run = rig.command(&["run"]);
    let mut relay =
        Relay(run.env("POSTHASTE_CRASH", format!("{point}@{visit}")).spawn().expect("the relay starts"));
    let status = eventually("the relay dies", WAIT, || {
        let status = relay.0.try_wait().expect("the relay is ours");
        async move { status }
    })
    .await;
    assert_eq!(status.signal(), Some(9), "of SIGKILL at {point}");
    assert!(!rig.arrived().await.is_empty(), "the broker had committed something");
    let _relay = Relay(rig.command(&["run"]).spawn().expect("the relay starts"));
    let arrived = eventually("everything is at the broker", WAIT, || async {
        let arrived = rig.arrived().await;
        (arrived.len() >= 900).then_some(arrived)
    })
    .await;
    let ids: HashSet<_> = arrived.iter().map(|stored| stored.message.id.clone()).collect();
    assert_eq!((ids.len(), arrived.len()), (900, 900), "what was sent again was dropped");
    let mut last: HashMap<_, i64> = HashMap::new();
    for stored in &arrived {
        let text = String::from_utf8(stored.message.payload.clone().unwrap_or_default().to_vec());
        let n: i64 = text.expect("text").parse().expect("a number");
        let before = last.insert(stored.message.key.clone(), n);
        assert!(before.is_none_or(|before| before < n), "G3: {before:?} before {n}");
    }
}
