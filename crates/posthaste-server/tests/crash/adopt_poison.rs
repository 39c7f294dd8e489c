//! A row of an adopted table that kills its relay (F21): taken over in ever smaller company, then alone, and
//! given up when its attempts are spent. The others flow, and none of them is charged.

use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio_postgres::Client;

const WAIT: Duration = Duration::from_secs(90);
const ROWS: i64 = 90;

const DDL: &str = "
  create table outbox (id uuid primary key default gen_random_uuid(), topic text not null, key text, payload_json jsonb not null,
    idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text,
    last_attempt_at timestamptz, next_attempt_at timestamptz not null default now(), published_at timestamptz,
    created_at timestamptz not null default now(), headers jsonb not null default '{}');
  insert into outbox (topic, payload_json) select 't', jsonb_build_object('n', g) from generate_series(1, 20) g;
  insert into outbox (topic, payload_json, idempotency_key, headers) values ('t', '{}', 'killer', '{\"x-posthaste-test-abort\": \"1\"}');
  insert into outbox (topic, payload_json) select 't', jsonb_build_object('n', g) from generate_series(21, 90) g";

struct Rig {
    dir: PathBuf,
    client: Client,
    relay: Option<Child>,
    _database: TestDatabase,
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut relay) = self.relay.take() {
            let _ = relay.kill();
            let _ = relay.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Rig {
    async fn set() -> Option<Self> {
        let database = require_service!(TestDatabase::create().await, None);
        let client = database.connect().await.expect("a connection");
        client.batch_execute(DDL).await.expect("the owners' DDL");
        let dir = std::env::temp_dir().join(format!("posthaste-poison-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        // Leases as short as they may be: what the dead had in hand is taken over after them.
        let config = format!(
            "[relay]\nlease_ttl_ms = 2000\nheartbeat_ms = 200\npublish_timeout_ms = 1000\n[http]\nlisten = \"off\"\n\
             [outbox]\nurl = \"{}\"\n[outbox.adopt]\npreset = \"talkie\"\nheaders = \"headers\"\nlease_ms = 2000\n\
             poll_min_ms = 200\npoll_max_ms = 200\n[sinks.out]\ntype = \"stdout\"\n\
             [[route]]\ntopic = \"*\"\nsink = \"out\"\nretry = {{ max_attempts = 2 }}\n",
            database.url(),
        );
        std::fs::write(dir.join("posthaste.toml"), config).expect("the config");
        Some(Self { dir, client, relay: None, _database: database })
    }

    fn run(&mut self) {
        let file = |name: &str| {
            std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join(name)).expect("a file")
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.arg("--config").arg(self.dir.join("posthaste.toml")).arg("run");
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("log"));
        self.relay = Some(command.spawn().expect("the relay starts"));
    }

    async fn ask<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, sql: &str) -> T {
        self.client.query_one(sql, &[]).await.expect("a question of the test").get(0)
    }

    /// Whether the relay died of its event; it is started again then.
    fn has_died(&mut self) -> bool {
        let Some(status) = self.relay.as_mut().and_then(|relay| relay.try_wait().expect("it is ours")) else {
            return false;
        };
        assert_eq!(status.signal(), Some(6), "the event kills it, nobody else: {status}");
        self.run();
        true
    }

    fn arrived(&self) -> usize {
        let text = std::fs::read_to_string(self.dir.join("out")).unwrap_or_default();
        let id = |line: &str| {
            Some(serde_json::from_str::<serde_json::Value>(line).ok()?["id"].as_str()?.to_owned())
        };
        text.lines().filter_map(id).collect::<HashSet<_>>().len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f21_a_row_that_kills_its_relay_is_given_up_and_the_others_flow() {
    let Some(mut rig) = Rig::set().await else { return };
    rig.run();
    let mut deaths = 0;
    let end = tokio::time::Instant::now() + WAIT;
    while !rig
        .ask::<bool>("select status = 'dead_lettered' from outbox where idempotency_key = 'killer'")
        .await
    {
        assert!(tokio::time::Instant::now() < end, "it is given up; the relay has died {deaths} times");
        deaths += usize::from(rig.has_died());
        tokio::time::sleep(Duration::from_millis(20)).await; // pace
    }
    assert!((3..=5).contains(&deaths), "once in company, then alone until its attempts are spent: {deaths}");
    eventually("every other row is done", WAIT, || async {
        let done: i64 =
            rig.ask("select count(*) from outbox where status = 'published' and retry_count = 0").await;
        (done == ROWS).then_some(())
    })
    .await;
    let told = "select retry_count = 2 and last_error like 'relay.crashed: %' from outbox where idempotency_key = 'killer'";
    assert!(rig.ask::<bool>(told).await, "it says why");
    assert_eq!(rig.arrived() as i64, ROWS, "G2: the others were published");
    assert!(!rig.has_died(), "and the relay lives on");
}
