//! A transaction of the application, on a thread and a connection of its own.
//!
//! It begins with its first append, not before: from then on it is the only writer of the file. A writer of
//! the simulation has the locks of its keys by that time, so nobody waits for a key while it holds the file.

use super::ground::connect;
use async_trait::async_trait;
use posthaste::event::Event;
use posthaste_sqlite::append;
use posthaste_testkit::simulation::Transaction;
use rusqlite::TransactionBehavior;
use std::path::PathBuf;
use tokio::sync::{mpsc, oneshot};

enum Command {
    Append(Box<Event>, oneshot::Sender<()>),
    End { commit: bool, done: oneshot::Sender<()> },
}

pub(crate) struct OwnTransaction {
    path: PathBuf,
    thread: Option<mpsc::UnboundedSender<Command>>,
}

impl OwnTransaction {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, thread: None }
    }

    fn begin(&mut self) -> &mpsc::UnboundedSender<Command> {
        self.thread.get_or_insert_with(|| {
            let (commands, queue) = mpsc::unbounded_channel();
            let path = self.path.clone();
            std::thread::spawn(move || transact(&path, queue));
            commands
        })
    }

    async fn end(self, commit: bool) {
        let Some(thread) = self.thread else { return };
        let (done, ended) = oneshot::channel();
        thread.send(Command::End { commit, done }).expect("the transaction lives");
        ended.await.expect("the transaction ends");
    }
}

/// The thread of one transaction. Without a word about its end it is rolled back.
fn transact(path: &PathBuf, mut queue: mpsc::UnboundedReceiver<Command>) {
    let mut connection = connect(path);
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begin");
    while let Some(command) = queue.blocking_recv() {
        match command {
            Command::Append(event, done) => {
                append(&tx, &event).expect("append");
                let _ = done.send(());
            }
            Command::End { commit, done } => {
                if commit { tx.commit() } else { tx.rollback() }.expect("the transaction ends");
                let _ = done.send(());
                return;
            }
        }
    }
}

#[async_trait]
impl Transaction for OwnTransaction {
    async fn append(&mut self, event: Event) {
        let (done, appended) = oneshot::channel();
        self.begin().send(Command::Append(Box::new(event), done)).expect("the transaction lives");
        appended.await.expect("the event is appended");
    }

    async fn commit(self: Box<Self>) -> bool {
        self.end(true).await;
        true
    }

    async fn rollback(self: Box<Self>) {
        self.end(false).await;
    }
}
