//! The inbox on a real server.

use crate::fixture::PostgresFixture;
use async_trait::async_trait;
use posthaste::inbox::{Admission, Origin};
use posthaste_postgres::{AdmitError, Inbox, admit};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::conformance::inbox::{HandlerTx, InboxFixture, Isolation, NotAdmitted};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{Client, IsolationLevel};

/// A database with a table in which effects are counted.
pub(crate) struct Service {
    database: PostgresFixture,
    client: Client,
}

impl Service {
    pub(crate) async fn make() -> Option<Self> {
        let database = PostgresFixture::make().await?;
        let client = database.connect().await;
        client.batch_execute("create table effects (id text not null)").await.expect("a table of the test");
        Some(Self { database, client })
    }

    async fn count(&self, sql: &str, value: &str) -> usize {
        let row = self.client.query_one(sql, &[&value]).await.expect("a query of the test");
        usize::try_from(row.get::<_, i64>(0)).expect("a count")
    }
}

enum Act {
    Admit(String, String, oneshot::Sender<Result<Admission, NotAdmitted>>),
    Apply(String, oneshot::Sender<()>),
    End { commit: bool, answer: oneshot::Sender<bool> },
}

/// A transaction borrows its connection, so both live in a task of their own.
struct Transacting(mpsc::Sender<Act>);

async fn transact(mut client: Client, isolation: Isolation, mut acts: mpsc::Receiver<Act>) {
    let builder = client.build_transaction();
    let mut tx = match isolation {
        Isolation::Default => builder.start().await,
        Isolation::Snapshot => builder.isolation_level(IsolationLevel::RepeatableRead).start().await,
    }
    .expect("begin");
    if isolation == Isolation::Snapshot {
        tx.query("select 1 from effects", &[]).await.expect("the snapshot is taken");
    }
    while let Some(act) = acts.recv().await {
        match act {
            Act::Admit(consumer, id, answer) => {
                let admission = admit(&mut tx, &consumer, &id).await;
                let _ = answer.send(admission.map_err(|error| refusal(&error)));
            }
            Act::Apply(id, answer) => {
                tx.execute("insert into effects values ($1)", &[&id]).await.expect("the handler works");
                let _ = answer.send(());
            }
            Act::End { commit: true, answer } => {
                let _ = answer.send(tx.commit().await.is_ok());
                return;
            }
            Act::End { commit: false, answer } => {
                let _ = answer.send(tx.rollback().await.is_ok());
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
        assert!(self.0.send(act(answer)).await.is_ok(), "the transaction lives");
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
        let (acts, queue) = mpsc::channel(1);
        tokio::spawn(transact(self.database.connect().await, isolation, queue));
        let tx = Transacting(acts);
        if isolation == Isolation::Snapshot {
            // An answer means that the snapshot is taken.
            assert_eq!(
                tx.ask(|answer| Act::Admit(String::new(), String::new(), answer)).await,
                Err(NotAdmitted::Unfit)
            );
        }
        Box::new(tx)
    }

    async fn effects(&self, id: &str) -> usize {
        self.count("select count(*) from effects where id = $1", id).await
    }

    async fn marks(&self, consumer: &str) -> usize {
        self.count("select count(*) from posthaste.inbox where consumer = $1", consumer).await
    }

    async fn age(&self, by: Duration) {
        let sql = "update posthaste.inbox set processed_at = processed_at - make_interval(secs => $1)";
        self.client.execute(sql, &[&by.as_secs_f64()]).await.expect("aged");
    }

    async fn purge(&self, consumer: &str, retention: Duration, chunk: u32) -> u64 {
        let client = self.database.connect().await;
        Inbox::new(consumer).purge(&client, retention, chunk).await.expect("purged")
    }

    async fn somebody_waits(&self) -> bool {
        let sql = "select count(*) from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock' and $1 = ''";
        eventually("a transaction that waits", Duration::from_secs(90), || async {
            (self.count(sql, "").await > 0).then_some(true)
        })
        .await
    }
}

/// Where it came from is kept with the mark, in any schema; and the table can be read by whoever traces.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_says_where_the_message_came_from() {
    let Some(fixture) = PostgresFixture::with_schema("My Outbox").await else { return };
    let mut client = fixture.connect().await;
    let mut tx = client.transaction().await.expect("begin");
    let inbox = Inbox::in_schema("My Outbox", "billing");
    let origin = Origin { topic: Some("orders"), partition: Some(3), position: Some(17) };
    assert_eq!(inbox.admit(&mut tx, "m-1", origin).await.expect("admitted"), Admission::First);
    tx.commit().await.expect("commit");
    let sql = r#"select topic, partition, position, processed_at <= now() from "My Outbox".inbox"#;
    let row = client.query_one(sql, &[]).await.expect("one mark");
    assert_eq!((row.get(0), row.get(1), row.get(2), row.get(3)), ("orders", 3_i32, 17_i64, true));
}

/// A deadlock between two handlers is a conflict, not a fault of the message.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_a_conflict() {
    let Some(service) = Service::make().await else { return };
    let mut one = service.begin(Isolation::Default).await;
    let mut two = service.begin(Isolation::Default).await;
    assert_eq!(one.admit("billing", "a").await, Ok(Admission::First));
    assert_eq!(two.admit("billing", "b").await, Ok(Admission::First));
    let crossing = async {
        let end = two.admit("billing", "a").await;
        two.rollback().await;
        end
    };
    let (first, second) = tokio::join!(one.admit("billing", "b"), crossing);
    assert!([first, second].contains(&Err(NotAdmitted::Conflict)), "{first:?} {second:?}");
}
