//! The relay of an adopted table dies at each of its points, in both claim styles: no row is lost, none stays
//! stuck.

use crate::rig::Relay;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio_postgres::Client;

const WAIT: Duration = Duration::from_secs(60);
const ROWS: i64 = 400;

/// The steps of a batch, with the visit at which to die: claimed, acknowledged by the sink, about to be
/// settled, settled but not committed, settled.
const POINTS: [(&str, u32); 5] = [
    ("claim.after", 2),
    ("publish.acknowledged", 2),
    ("settle.before", 2),
    ("claim.settle", 2),
    ("settle.after", 2),
];

pub(crate) fn points() -> impl Iterator<Item = &'static str> {
    POINTS.iter().map(|(name, _)| *name)
}

/// A table, its preset, how rows get in, and which are done.
struct Table {
    ddl: &'static str,
    preset: &'static str,
    insert: &'static str,
    done: &'static str,
}

/// Rows are marked while they are published.
const MARKED: Table = Table {
    ddl: "create table outbox (id uuid primary key default gen_random_uuid(), topic text not null, key text, payload_json jsonb not null,
            idempotency_key text, status text not null default 'pending', retry_count int not null default 0, last_error text,
            last_attempt_at timestamptz, next_attempt_at timestamptz not null default now(), published_at timestamptz,
            created_at timestamptz not null default now(), unique (topic, idempotency_key))",
    preset: "talkie",
    insert: "outbox (topic, payload_json) select 't', jsonb_build_object('n', g)",
    done: "outbox where status = 'published'",
};

/// Rows are locked while they are published.
const LOCKED: Table = Table {
    ddl: "create table outbox_events (id uuid primary key default gen_random_uuid(), aggregate_type varchar(50) not null,
            aggregate_id uuid not null, event_type varchar(100) not null, payload jsonb not null, occurred_at timestamptz default now(),
            status varchar(20) default 'PENDING', retry_count int default 0, next_attempt_at timestamptz default now(),
            last_error text, processed_at timestamptz)",
    preset: "outbox-events",
    insert: "outbox_events (aggregate_type, aggregate_id, event_type, payload) select 'o', gen_random_uuid(), 't', jsonb_build_object('n', g)",
    done: "outbox_events where status = 'PUBLISHED'",
};

struct Rig {
    dir: PathBuf,
    client: Client,
    table: Table,
    _database: TestDatabase,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Rig {
    async fn set(table: Table) -> Option<Self> {
        let database = require_service!(TestDatabase::create().await, None);
        let client = database.connect().await.expect("a connection");
        client.batch_execute(table.ddl).await.expect("the owners' DDL");
        let rows = format!("insert into {} from generate_series(1, {ROWS}) g", table.insert);
        client.batch_execute(&rows).await.expect("rows");
        let dir = std::env::temp_dir().join(format!("posthaste-adopt-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        // Leases as short as they may be: marks of the dead are taken back after them.
        let config = format!(
            "[relay]\nlease_ttl_ms = 2000\nheartbeat_ms = 200\npublish_timeout_ms = 1000\n[http]\nlisten = \"off\"\n\
             [outbox]\nurl = \"{}\"\n[outbox.adopt]\npreset = \"{}\"\nlease_ms = 2000\n[sinks.out]\ntype = \"stdout\"\n\
             [[route]]\ntopic = \"*\"\nsink = \"out\"\n",
            database.url(),
            table.preset
        );
        std::fs::write(dir.join("posthaste.toml"), config).expect("the config");
        Some(Self { dir, client, table, _database: database })
    }

    fn run(&self, crash: Option<&str>) -> Relay {
        let out =
            std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("out")).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.arg("--config").arg(self.dir.join("posthaste.toml")).arg("run");
        command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
        if let Some(crash) = crash {
            command.env("POSTHASTE_CRASH", crash);
        }
        Relay(command.spawn().expect("the relay starts"))
    }

    async fn done(&self) -> i64 {
        let sql = format!("select count(*) from {}", self.table.done);
        self.client.query_one(&sql, &[]).await.expect("a count").get(0)
    }

    /// Distinct ids that the sink got. A line that a death has cut is none.
    fn arrived(&self) -> usize {
        let text = std::fs::read_to_string(self.dir.join("out")).unwrap_or_default();
        let id = |line: &str| {
            Some(serde_json::from_str::<serde_json::Value>(line).ok()?["id"].as_str()?.to_owned())
        };
        text.lines().filter_map(id).collect::<HashSet<_>>().len()
    }
}

async fn dies_at(table: Table, (point, visit): (&str, u32)) {
    let Some(rig) = Rig::set(table).await else { return };
    let mut relay = rig.run(Some(&format!("{point}@{visit}")));
    let status = eventually("the relay dies", WAIT, || {
        let status = relay.0.try_wait().expect("the relay is ours");
        async move { status }
    })
    .await;
    assert_eq!(status.signal(), Some(9), "of SIGKILL at {point}");
    assert!(rig.done().await < ROWS, "it died on the way");
    let _relay = rig.run(None);
    eventually("every row is done", WAIT, || async { (rig.done().await == ROWS).then_some(()) }).await;
    assert_eq!(rig.arrived() as i64, ROWS, "G2: every row was published before it was called so");
}

macro_rules! crash_tests {
    ($style:ident = $table:ident: $($name:ident = $index:literal;)*) => {
        mod $style {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::dies_at(super::$table, super::POINTS[$index]).await;
                }
            )*
        }
    };
}

crash_tests! { marked_rows_and_a_death = MARKED:
    after_the_claim = 0;
    after_the_acknowledgement = 1;
    before_the_settlement = 2;
    before_its_commit = 3;
    after_its_commit = 4;
}

crash_tests! { locked_rows_and_a_death = LOCKED:
    after_the_claim = 0;
    after_the_acknowledgement = 1;
    before_the_settlement = 2;
    before_its_commit = 3;
    after_its_commit = 4;
}
