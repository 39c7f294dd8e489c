//! The inbox on SQLite: a service's database, and handlers on threads of their own.

use crate::rig::Directory;
use async_trait::async_trait;
use posthaste::inbox::Admission;
use posthaste_sqlite::inbox::{AdmitError, Inbox, admit, set_up};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::conformance::inbox::{HandlerTx, InboxFixture, Isolation, NotAdmitted};
use rusqlite::{Connection, TransactionBehavior};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

pub(crate) struct Service {
    directory: Directory,
    /// Transactions that have asked for the write lock and not got it yet.
    waiting: Arc<AtomicUsize>,
}

fn connect(path: &PathBuf) -> Connection {
    let connection = Connection::open(path).expect("opened");
    connection.busy_timeout(Duration::from_secs(20)).expect("set");
    connection
}

impl Service {
    pub(crate) async fn make() -> Option<Self> {
        let directory = Directory::make();
        let connection = connect(&directory.file());
        connection.pragma_update(None, "journal_mode", "wal").expect("WAL");
        set_up(&connection).expect("set up");
        set_up(&connection).expect("harmless when repeated");
        connection.execute_batch("create table effects (id text not null)").expect("a table");
        Some(Self { directory, waiting: Arc::default() })
    }

    fn count(&self, sql: &str, value: &str) -> usize {
        let count: i64 =
            connect(&self.directory.file()).query_row(sql, [value], |row| row.get(0)).expect("counted");
        usize::try_from(count).expect("a count")
    }
}

enum Act {
    Admit(String, String, oneshot::Sender<Result<Admission, NotAdmitted>>),
    Apply(String, oneshot::Sender<()>),
    End { commit: bool, answer: oneshot::Sender<bool> },
}

/// A transaction borrows its connection and stays on its thread.
struct Transacting(std::sync::mpsc::Sender<Act>);

fn transact(
    path: &PathBuf,
    isolation: Isolation,
    waiting: &AtomicUsize,
    acts: &std::sync::mpsc::Receiver<Act>,
) {
    let mut connection = connect(path);
    let tx = match isolation {
        Isolation::Default => {
            waiting.fetch_add(1, Ordering::SeqCst);
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begin");
            waiting.fetch_sub(1, Ordering::SeqCst);
            tx
        }
        Isolation::Snapshot => {
            let tx = connection.transaction().expect("begin");
            let _: i64 = tx.query_row("select count(*) from effects", [], |row| row.get(0)).expect("read");
            tx
        }
    };
    while let Ok(act) = acts.recv() {
        match act {
            Act::Admit(consumer, id, answer) => {
                let _ = answer.send(admit(&tx, &consumer, &id).map_err(|error| refusal(&error)));
            }
            Act::Apply(id, answer) => {
                tx.execute("insert into effects values (?1)", [id]).expect("the handler works");
                let _ = answer.send(());
            }
            Act::End { commit, answer } => {
                let end = if commit { tx.commit() } else { tx.rollback() };
                let _ = answer.send(end.is_ok());
                return;
            }
        }
    }
}

fn refusal(error: &AdmitError) -> NotAdmitted {
    assert_eq!(error.is_transient(), !matches!(error, AdmitError::Unfit(_)));
    match error {
        AdmitError::Unfit(_) => NotAdmitted::Unfit,
        AdmitError::Conflict(_) => NotAdmitted::Conflict,
        _ => NotAdmitted::Database,
    }
}

impl Transacting {
    async fn ask<T>(&self, act: impl FnOnce(oneshot::Sender<T>) -> Act) -> T {
        let (answer, answered) = oneshot::channel();
        assert!(self.0.send(act(answer)).is_ok(), "the transaction lives");
        answered.await.expect("an answer")
    }
}

#[async_trait]
impl HandlerTx for Transacting {
    async fn admit(&mut self, consumer: &str, id: &str) -> Result<Admission, NotAdmitted> {
        self.ask(|answer| Act::Admit(consumer.to_owned(), id.to_owned(), answer)).await
    }

    async fn apply(&mut self, id: &str) {
        self.ask(|answer| Act::Apply(id.to_owned(), answer)).await;
    }

    async fn commit(self: Box<Self>) -> bool {
        self.ask(|answer| Act::End { commit: true, answer }).await
    }

    async fn rollback(self: Box<Self>) {
        self.ask(|answer| Act::End { commit: false, answer }).await;
    }
}

#[async_trait]
impl InboxFixture for Service {
    async fn begin(&self, isolation: Isolation) -> Box<dyn HandlerTx> {
        let (acts, queue) = std::sync::mpsc::channel();
        let (path, waiting) = (self.directory.file(), Arc::clone(&self.waiting));
        std::thread::spawn(move || transact(&path, isolation, &waiting, &queue));
        let tx = Transacting(acts);
        if isolation == Isolation::Snapshot {
            // An answer means that the snapshot is taken.
            let unfit = tx.ask(|answer| Act::Admit(String::new(), String::new(), answer)).await;
            assert_eq!(unfit, Err(NotAdmitted::Unfit));
        }
        Box::new(tx)
    }

    async fn effects(&self, id: &str) -> usize {
        self.count("select count(*) from effects where id = ?1", id)
    }

    async fn marks(&self, consumer: &str) -> usize {
        self.count("select count(*) from posthaste_inbox where consumer = ?1", consumer)
    }

    async fn age(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).expect("small");
        let sql = "update posthaste_inbox set processed_at = processed_at - ?1";
        connect(&self.directory.file()).execute(sql, [micros]).expect("aged");
    }

    async fn purge(&self, consumer: &str, retention: Duration, chunk: u32) -> u64 {
        let (path, inbox) = (self.directory.file(), Inbox::new(consumer));
        let purge = move || inbox.purge(&connect(&path), retention, chunk).expect("purged") as u64;
        tokio::task::spawn_blocking(purge).await.expect("no panic")
    }

    async fn somebody_waits(&self) -> bool {
        eventually("a transaction that waits", Duration::from_secs(20), || async {
            (self.waiting.load(Ordering::SeqCst) > 0).then_some(true)
        })
        .await
    }
}

/// Where it came from is kept with the mark.
#[test]
fn a_mark_says_where_the_message_came_from() {
    let directory = Directory::make();
    let mut connection = connect(&directory.file());
    set_up(&connection).expect("set up");
    let tx = connection.transaction().expect("begin");
    let origin = posthaste::inbox::Origin { topic: Some("orders"), partition: Some(3), position: Some(17) };
    assert_eq!(Inbox::new("billing").admit(&tx, "m-1", origin).expect("admitted"), Admission::First);
    tx.commit().expect("commit");
    let row: (String, i32, i64) = connection
        .query_row("select topic, partition, position from posthaste_inbox", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .expect("one mark");
    assert_eq!(row, ("orders".to_owned(), 3, 17));
}
