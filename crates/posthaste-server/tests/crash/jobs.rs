//! The process that runs a job dies at each of its points: nothing is done twice, nothing is left out, and
//! whoever goes on ends it (G6).

use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Letters: more than two chunks.
const LETTERS: i64 = 1_200;
/// The largest chunk.
const CHUNK: i64 = 500;

/// The crash points, and how many chunks are done when the process dies at the second visit.
const POINTS: [(&str, i64); 2] = [("job.chunk", 1), ("job.committed", 2)];

pub(crate) fn points() -> impl Iterator<Item = &'static str> {
    POINTS.iter().map(|(name, _)| *name)
}

#[cfg(feature = "sqlite")]
pub(crate) fn sqlite_points() -> impl Iterator<Item = String> {
    POINTS.iter().map(|(name, _)| format!("sqlite.{name}"))
}

/// A directory with a configuration, removed in the end.
struct Desk(PathBuf);

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Desk {
    fn set(url: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-jobs-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let config = format!(
            "[[outbox]]\nurl = \"{url}\"\n[sinks.s]\ntype = \"null\"\n[[route]]\ntopic = \"*\"\nsink = \"s\"\n"
        );
        std::fs::write(dir.join("posthaste.toml"), config).expect("the configuration");
        let desk = Self(dir);
        desk.run(&["migrate", "up"], None);
        desk
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn run(&self, words: &[&str], crash: Option<&str>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args(words).current_dir(&self.0).env("POSTHASTE_ACTOR", "ann");
        if let Some(crash) = crash {
            command.env("POSTHASTE_CRASH", crash);
        }
        let output = command.output().expect("it runs");
        assert!(crash.is_some() || output.status.success(), "{words:?}: {output:?}");
        output
    }

    /// A replay of everything dies at its second visit of the point.
    fn die(&self, point: &str) {
        let replay = ["dead", "replay", "--all", "--yes", "--reason", "mended"];
        let died = self.run(&replay, Some(&format!("{point}@2")));
        assert_eq!(died.status.signal(), Some(9), "{point}: {died:?}");
    }

    /// Somebody else ends it.
    fn end(&self) {
        let ended = self.run(&["jobs", "resume", "1", "--reason", "its process died", "--json"], None);
        let job: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("JSON");
        assert_eq!((job["state"].as_str(), job["done"].as_i64()), (Some("done"), Some(LETTERS)), "{job}");
    }
}

/// What is true at any time: letters, what was replayed of them, what the job and the audit say of that.
fn check(point: &str, expected: i64, [dead, deferred, done, audited]: [i64; 4]) {
    assert_eq!(dead + deferred, LETTERS, "{point}: letters + replayed = before");
    assert_eq!([deferred, done, audited], [expected; 3], "{point}: replayed, the job's count, the audit's");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_of_a_job_dies_on_postgresql() {
    for (point, chunks) in POINTS {
        let database = require_service!(TestDatabase::create().await);
        let client = database.connect().await.expect("a connection");
        let desk = Desk::set(&database.url());
        let bury = format!(
            "insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n) values ('s', 0, 0, 1023, '', 0);
             insert into posthaste.dead_letters (sink, seq, slot, id, topic, key, payload, appended_at, route, holds_key,
                                                 attempts, error_class, error_code, error)
             select 's', n, 0, gen_random_uuid(), 't', 'k' || n, '\\x01', now(), 'r', false, 5, 'permanent', 'x.no', 'no'
               from generate_series(1, {LETTERS}) n"
        );
        client.batch_execute(&bury).await.expect("letters");
        let look = async || {
            let sql = "select (select count(*) from posthaste.dead_letters), (select count(*) from posthaste.deferred),
                         (select done from posthaste.jobs),
                         (select coalesce(sum((detail ->> 'count')::bigint), 0)::bigint from posthaste.audit where action = 'replay')";
            let row = client.query_one(sql, &[]).await.expect("a look");
            [row.get(0), row.get(1), row.get(2), row.get(3)]
        };
        desk.die(point);
        check(point, chunks * CHUNK, look().await);
        let sql = "update posthaste.jobs set lease_until = clock_timestamp() - interval '1 second'";
        client.batch_execute(sql).await.expect("its lease ends");
        desk.end();
        check(point, LETTERS, look().await);
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn the_process_of_a_job_dies_on_sqlite() {
    for ((point, chunks), name) in POINTS.iter().zip(sqlite_points()) {
        let desk = Desk::set("sqlite:shop.db");
        let file = desk.path().join("shop.db");
        let connection = rusqlite::Connection::open(&file).expect("the file");
        connection.busy_timeout(std::time::Duration::from_secs(20)).expect("a timeout");
        let bury = format!(
            "insert into posthaste_lanes (sink, lane, slot_from, slot_to, filter) values ('s', 0, 0, 1023, '');
             with recursive n (n) as (select 1 union all select n + 1 from n where n < {LETTERS})
             insert into posthaste_dead_letters (sink, seq, slot, id, topic, key, payload, appended_at, route, holds_key,
                                                 attempts, error_class, error_code, error, dead_at)
             select 's', n, 0, printf('01234567-89ab-7def-8123-%012d', n), 't', 'k' || n, x'01', 1, 'r', 0, 5, 'permanent',
                    'x.no', 'no', 1 from n"
        );
        connection.execute_batch(&bury).expect("letters");
        let look = || {
            let sql = "select (select count(*) from posthaste_dead_letters), (select count(*) from posthaste_deferred),
                         (select done from posthaste_jobs),
                         (select coalesce(sum(detail ->> 'count'), 0) from posthaste_audit where action = 'replay')";
            connection
                .query_row(sql, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))
                .expect("a look")
        };
        desk.die(&name);
        check(point, chunks * CHUNK, look());
        connection.execute_batch("update posthaste_jobs set lease_until = 1").expect("its lease ends");
        desk.end();
        check(point, LETTERS, look());
    }
}
