//! A fresh database file for each case, with the outbox in it.

use async_trait::async_trait;
use posthaste::admin::{Actor, Admin, Control, ControlTarget, DeadAct, DeadFilter};
use posthaste::event::{Event, Timestamp};
use posthaste::store::Store;
use posthaste_sqlite::{SqliteAdmin, SqliteConfig, SqliteStore, append, migrate};
use posthaste_testkit::conformance::store::{OpenTransaction, StoreFixture};
use rusqlite::{Connection, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, oneshot};

/// A directory that is removed in the end.
pub(crate) struct TestDir(PathBuf);

impl TestDir {
    pub(crate) fn make() -> Self {
        let path = std::env::temp_dir().join(format!("posthaste-sqlite-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct SqliteFixture {
    directory: TestDir,
}

impl SqliteFixture {
    #[allow(clippy::unused_async)]
    pub(crate) async fn make() -> Option<Self> {
        let fixture = Self { directory: TestDir::make() };
        migrate::up(&fixture.config()).expect("the migration applies");
        Some(fixture)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("orders.db")
    }

    pub(crate) fn config(&self) -> SqliteConfig {
        SqliteConfig::new(self.path())
    }

    /// A connection as an application has it.
    pub(crate) fn connect(&self) -> Connection {
        connect(&self.path())
    }

    pub(crate) async fn admin(&self) -> SqliteAdmin {
        SqliteAdmin::connect(self.config()).await.expect("the admin connects")
    }

    fn seqs(&self, table: &str, sink: &str) -> Vec<i64> {
        let connection = self.connect();
        let sql = format!("select seq from posthaste_{table} where sink = ?1 order by seq");
        let mut statement = connection.prepare(&sql).expect("a statement");
        let rows = statement.query_map([sink], |row| row.get(0)).expect("a query");
        rows.collect::<Result<_, _>>().expect("rows")
    }
}

pub(crate) fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("a connection");
    connection.busy_timeout(Duration::from_secs(20)).expect("a timeout");
    connection
}

pub(crate) fn actor() -> Actor {
    Actor::new("test", "a case of the suite")
}

enum Command {
    Append(Box<Event>, oneshot::Sender<i64>),
    End { commit: bool, done: oneshot::Sender<()> },
}

/// A transaction of the application, on a thread and a connection of its own.
struct OwnTransaction(mpsc::UnboundedSender<Command>);

impl OwnTransaction {
    async fn begin(path: PathBuf) -> Self {
        let (commands, mut queue) = mpsc::unbounded_channel();
        let (begun, ready) = oneshot::channel();
        std::thread::spawn(move || {
            let mut connection = connect(&path);
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begin");
            begun.send(()).expect("the case waits");
            while let Some(command) = queue.blocking_recv() {
                match command {
                    Command::Append(event, reply) => {
                        append(&tx, &event).expect("append");
                        let _ = reply.send(tx.last_insert_rowid());
                    }
                    Command::End { commit, done } => {
                        if commit { tx.commit() } else { tx.rollback() }.expect("the transaction ends");
                        let _ = done.send(());
                        return;
                    }
                }
            }
        });
        ready.await.expect("the transaction begins");
        Self(commands)
    }

    async fn end(self, commit: bool) {
        let (done, ended) = oneshot::channel();
        self.0.send(Command::End { commit, done }).expect("the transaction lives");
        ended.await.expect("the transaction ends");
    }
}

#[async_trait]
impl OpenTransaction for OwnTransaction {
    async fn append(&mut self, event: Event) -> i64 {
        let (reply, answer) = oneshot::channel();
        self.0.send(Command::Append(Box::new(event), reply)).expect("the transaction lives");
        answer.await.expect("the event is appended")
    }

    async fn commit(self: Box<Self>) {
        self.end(true).await;
    }

    async fn rollback(self: Box<Self>) {
        self.end(false).await;
    }
}

#[async_trait]
impl StoreFixture for SqliteFixture {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::connect(self.config()).await.expect("the store opens"))
    }

    async fn begin(&self) -> Box<dyn OpenTransaction> {
        Box::new(OwnTransaction::begin(self.path()).await)
    }

    /// One transaction writes at a time: nobody can overtake.
    fn writers_overlap(&self) -> bool {
        false
    }

    async fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        Timestamp(since.as_micros() as i64)
    }

    async fn deferred(&self, sink: &str) -> Vec<i64> {
        self.seqs("deferred", sink)
    }

    async fn dead(&self, sink: &str) -> Vec<i64> {
        self.seqs("dead_letters", sink)
    }

    async fn act_on_dead(&self, sink: &str, act: DeadAct) {
        let filter = DeadFilter { sink: Some(sink.to_owned()), ..DeadFilter::default() };
        while self.admin().await.dead_act(&filter, act, &actor(), 100).await.expect("the act succeeds") > 0 {}
    }

    async fn control(&self, target: &ControlTarget, control: &Control) {
        self.admin().await.control(target, control, &actor()).await.expect("the control is set");
    }

    /// Without its file a heart does not beat.
    async fn kill(&self, relay: &str) {
        let sql = "select heart from posthaste_relays where relay = ?1";
        let heart: String =
            self.connect().query_row(sql, [relay], |row| row.get(0)).expect("the relay is known");
        std::fs::remove_file(self.directory.path().join(heart)).expect("the heart's file is removed");
    }
}
