//! The ground of a run on SQLite: three files of its own, side by side.
//!
//! The outbox is the file that `--store` names, the broker's and the bare table's names begin with the same.
//! The outbox carries an application id that says whose it is: a file with it was left by an earlier run and
//! is made anew; any other one is somebody's, and refused.

use super::super::load::Load;
use super::super::report::ProgressLine;
use crate::output::{Usage, remark};
use anyhow::{Context as _, anyhow};
use posthaste::Event;
use posthaste_sqlite::{Outbox, SqliteConfig, Synchronous, migrate};
use rusqlite::{Connection, TransactionBehavior, params};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Marks an outbox as ours to remove: "PHbe".
const MARK: i32 = 0x5048_6265;

/// Rows of one transaction, of the bare insert as well as while the log is filled.
pub(super) const BATCH: u64 = 1_000;

/// The bare table: the columns that an event has, and no more.
pub(super) const BARE: &str = "create table bench_bare (seq integer primary key, id text not null, topic text not null, \
                               key text, payload blob, appended_at integer not null)";

pub(super) const INSERT: &str =
    "insert into bench_bare (id, topic, key, payload, appended_at) values (?1, ?2, ?3, ?4, ?5)";

/// The broker's file that belongs to an outbox. Absolute: the relay may look from elsewhere.
pub(in super::super) fn broker_of(outbox: &Path) -> PathBuf {
    let path = std::path::absolute(outbox).unwrap_or_else(|_| outbox.to_owned());
    beside(&path, ".broker")
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Files that nobody else uses.
pub(super) struct BenchFiles {
    pub(super) config: SqliteConfig,
    pub(super) broker: PathBuf,
    bare: PathBuf,
    keep: bool,
}

impl BenchFiles {
    /// Makes the outbox, empty.
    pub(super) fn make(config: SqliteConfig, keep: bool) -> anyhow::Result<Self> {
        let (broker, bare) = (broker_of(&config.path), beside(&config.path, ".bare"));
        let ours = is_ours(&config.path);
        let foreign = [&config.path, &broker, &bare].into_iter().find(|path| !ours && path.exists());
        if let Some(path) = foreign {
            return Err(Usage(format!(
                "{} exists and was not made by `posthaste-bench`. Nothing was changed: name a file that is not there",
                path.display()
            ))
            .into());
        }
        let ground = Self { config, broker, bare, keep };
        ground.remove_all();
        let path = ground.config.path.display();
        let mark = Connection::open(&ground.config.path)
            .and_then(|made| made.pragma_update(None, "application_id", MARK));
        mark.with_context(|| format!("cannot make {path} to measure in"))?;
        migrate::up(&ground.config)
            .map_err(|error| anyhow!(error).context("the outbox could not be set up"))?;
        Ok(ground)
    }

    fn remove_all(&self) {
        remove(&self.config.path);
        remove(&self.broker);
        remove(&self.bare);
    }

    /// Whatever an earlier round left at the broker is gone, and none of its ids are known.
    pub(super) fn fresh_broker(&self) {
        remove(&self.broker);
    }

    /// A connection as an application has it, as durable as the relay's.
    pub(super) fn connect(&self) -> anyhow::Result<Connection> {
        connect(&self.config.path, self.config.synchronous)
    }

    /// Appends events of the load, in order.
    pub(super) async fn fill(&self, load: &Load, events: Range<u64>) -> anyhow::Result<()> {
        let (mut connection, outbox) = (self.connect()?, Outbox::default());
        let mut progress = ProgressLine::start("fill", events.end - events.start);
        for from in events.clone().step_by(BATCH as usize) {
            let batch: Vec<Event> =
                (from..events.end.min(from + BATCH)).map(|index| load.event(index)).collect();
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            outbox.append_all(&tx, &batch)?;
            tx.commit()?;
            progress.set(from - events.start);
            // A signal is heard between two batches.
            tokio::task::yield_now().await;
        }
        progress.finish();
        // What would happen at some time in the middle of a measurement.
        connection.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))?;
        Ok(())
    }

    /// Rows a second of a bare insert into a file of its own. The rows are made before the clock runs.
    pub(super) async fn bare_insert(&self, load: &Load, events: u64) -> anyhow::Result<f64> {
        remove(&self.bare);
        let mut connection = connect(&self.bare, self.config.synchronous)?;
        connection.execute_batch(BARE)?;
        let mut progress = ProgressLine::start("baseline: bare insert", events);
        let mut took = Duration::ZERO;
        for from in (0..events).step_by(BATCH as usize) {
            let batch: Vec<Event> = (from..events.min(from + BATCH)).map(|index| load.event(index)).collect();
            let began = Instant::now();
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for event in &batch {
                insert(&tx, event)?;
            }
            tx.commit()?;
            took += began.elapsed();
            progress.set(from);
            tokio::task::yield_now().await;
        }
        progress.finish();
        remove(&self.bare);
        Ok(events as f64 / took.as_secs_f64())
    }

    /// The library and the settings that decide about figures.
    pub(super) fn facts(&self) -> anyhow::Result<Value> {
        let connection = self.connect()?;
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let mode: String = connection.query_row("pragma journal_mode", [], |row| row.get(0))?;
        Ok(json!({
            "sqlite_version": rusqlite::version(), "journal_mode": mode,
            "synchronous": word(self.config.synchronous), "page_size": number("pragma page_size")?,
            "wal_autocheckpoint": number("pragma wal_autocheckpoint")?,
        }))
    }
}

/// The files go with the run, however it ends.
impl Drop for BenchFiles {
    fn drop(&mut self) {
        if self.keep {
            remark(&format!("{} is kept; the next run there removes it", self.config.path.display()));
        } else {
            self.remove_all();
        }
    }
}

pub(super) fn word(synchronous: Synchronous) -> &'static str {
    match synchronous {
        Synchronous::Full => "full",
        Synchronous::Normal => "normal",
    }
}

/// An event's bytes into the bare table.
pub(super) fn insert(tx: &rusqlite::Transaction<'_>, event: &Event) -> rusqlite::Result<()> {
    let mut text = uuid::Uuid::encode_buffer();
    let id: &str = event.id.hyphenated().encode_lower(&mut text);
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |age| age.as_micros() as i64);
    let payload = event.payload.as_deref();
    tx.prepare_cached(INSERT)?.execute(params![id, event.topic, event.key, payload, now])?;
    Ok(())
}

fn connect(path: &Path, synchronous: Synchronous) -> anyhow::Result<Connection> {
    let connection = Connection::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    connection.query_row("pragma journal_mode = wal", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", word(synchronous))?;
    connection.busy_timeout(Duration::from_secs(10))?;
    Ok(connection)
}

/// Whether an earlier run made this file.
fn is_ours(path: &Path) -> bool {
    let mark = |connection: Connection| {
        connection.query_row("pragma application_id", [], |row| row.get::<_, i32>(0))
    };
    path.exists() && Connection::open(path).and_then(mark).is_ok_and(|found| found == MARK)
}

/// Removes a database with all that SQLite and a killed relay left beside it.
fn remove(path: &Path) {
    for end in ["", "-wal", "-shm", "-journal"] {
        let _ = std::fs::remove_file(beside(path, end));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let hearts = format!("{}-heart-", name.to_string_lossy());
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&hearts) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_are_left_alone_and_ours_go() {
        let dir = std::env::temp_dir().join(format!("posthaste-bench-ground-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&dir).expect("a directory");
        let make = |name: &str, keep| BenchFiles::make(SqliteConfig::new(dir.join(name)), keep);
        std::fs::write(dir.join("a.db.broker"), "somebody's").expect("written");
        assert!(make("a.db", false).is_err());
        assert!(!dir.join("a.db").exists(), "nothing is made");
        assert_eq!(std::fs::read(dir.join("a.db.broker")).expect("there"), b"somebody's");
        drop(make("b.db", true).expect("made"));
        std::fs::write(dir.join("b.db-heart-1"), "").expect("written");
        std::fs::write(dir.join("b.db.broker"), "of the last run").expect("written");
        drop(make("b.db", false).expect("made anew"));
        assert_eq!(std::fs::read_dir(&dir).expect("a directory").count(), 1, "only somebody's file");
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
