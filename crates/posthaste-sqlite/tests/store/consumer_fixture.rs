//! A consuming service's file for each case of the consumer suite.

use crate::fixture::{SqliteFixture, actor};
use async_trait::async_trait;
use posthaste::admin::history::History;
use posthaste::admin::{AdminError, DeadAct, DeadFilter};
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::consumer::store::{ConsumerControls, InboxStore, Work};
use posthaste::consumer::{Filter, HandlerError, Message};
use posthaste::inbox::kept::KeptHeaders;
use posthaste::source::Partition;
use posthaste_sqlite::SqliteAdmin;
use posthaste_sqlite::consumer::{Handler, InboxOptions, SqliteInbox};
use posthaste_sqlite::writer::Writer;
use posthaste_testkit::conformance::consumer::{
    ConsumerFixture, DeferredView, LetterView, PartitionRecord, Script,
};
use rusqlite::{Params, Row, Transaction, params};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const NEVER: i64 = i64::MAX;

pub(crate) struct Service(SqliteFixture);

struct Scripted(Arc<Script>);

impl Handler for Scripted {
    fn handle(&self, tx: &Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        tx.execute("insert into effects values (?1, ?2)", [message.consumer(), message.id()])?;
        self.0.run(message)
    }
}

impl Service {
    pub(crate) async fn make() -> Option<Self> {
        let fixture = SqliteFixture::make().await?;
        let table = "create table effects (consumer text not null, id text not null)";
        fixture.connect().execute_batch(table).expect("a table of the service");
        Some(Self(fixture))
    }

    fn member(&self, consumer: &str, filter: Filter, handler: Arc<dyn Handler>) -> SqliteInbox {
        let writer = Writer::open(&self.0.path(), Default::default()).expect("opened");
        SqliteInbox::with(writer, InboxOptions::new(consumer), vec![(filter, handler)])
    }

    fn admin(&self) -> SqliteAdmin {
        SqliteAdmin::new(self.0.config())
    }

    fn rows<T>(&self, sql: &str, params: impl Params, read: fn(&Row<'_>) -> rusqlite::Result<T>) -> Vec<T> {
        let connection = self.0.connect();
        let mut statement = connection.prepare(sql).expect(sql);
        let rows = statement.query_map(params, read).expect(sql);
        rows.collect::<Result<_, _>>().expect(sql)
    }

    fn act(&self, sql: &str, params: impl Params) {
        self.0.connect().execute(sql, params).expect(sql);
    }
}

fn codes(row: &Row<'_>) -> rusqlite::Result<Vec<String>> {
    let history = row.get::<_, Option<String>>("history")?.unwrap_or_default();
    let history = History::from_json(&history);
    Ok(history.attempts().iter().map(|attempt| attempt.code.clone()).collect())
}

fn deferred(row: &Row<'_>) -> rusqlite::Result<DeferredView> {
    Ok(DeferredView {
        id: row.get("message_id")?,
        holds: row.get("holds")?,
        repeat: row.get("repeat")?,
        attempts: row.get("attempts")?,
        replays: row.get("replays")?,
        is_behind: row.get::<_, i64>("due_at")? == NEVER,
        code: row.get("error_code")?,
        history: codes(row)?,
    })
}

fn letter(row: &Row<'_>) -> rusqlite::Result<LetterView> {
    Ok(LetterView {
        letter: row.get::<_, String>("letter")?.parse().expect("a UUID"),
        id: row.get("message_id")?,
        holds_key: row.get("holds_key")?,
        repeat: row.get("repeat")?,
        attempts: row.get("attempts")?,
        disposition: row.get("disposition")?,
        code: row.get("error_code")?,
        history: codes(row)?,
    })
}

#[async_trait]
impl ConsumerFixture for Service {
    async fn inbox(&self, consumer: &str, filter: Filter, script: &Arc<Script>) -> Arc<dyn InboxStore> {
        Arc::new(self.member(consumer, filter, Arc::new(Scripted(Arc::clone(script)))))
    }

    async fn effects(&self, consumer: &str) -> Vec<String> {
        self.rows("select id from effects where consumer = ?1 order by rowid", [consumer], |row| row.get(0))
    }

    async fn marks(&self, consumer: &str) -> BTreeMap<String, char> {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, String>(1)?.chars().next().unwrap_or('?')));
        let sql = "select message_id, outcome from posthaste_inbox where consumer = ?1";
        self.rows(sql, [consumer], read).into_iter().collect()
    }

    async fn deferred(&self, consumer: &str) -> Vec<DeferredView> {
        let sql = "select * from posthaste_inbox_deferred where consumer = ?1 order by seq";
        self.rows(sql, [consumer], deferred)
    }

    async fn letters(&self, consumer: &str) -> Vec<LetterView> {
        let sql = "select * from posthaste_inbox_dead_letters where consumer = ?1 order by seq";
        self.rows(sql, [consumer], letter)
    }

    async fn partition(&self, consumer: &str, partition: &Partition) -> Option<PartitionRecord> {
        let sql = "select position, clean, in_hand, seeks from posthaste_inbox_partitions
                    where consumer = ?1 and topic = ?2 and partition = ?3";
        let read = |row: &Row<'_>| {
            let (position, clean) = (row.get(0)?, row.get(1)?);
            Ok(PartitionRecord { position, clean, in_hand: row.get(2)?, seeks: row.get(3)? })
        };
        self.rows(sql, params![consumer, &*partition.topic, partition.number], read).pop()
    }

    async fn make_due(&self, consumer: &str) {
        let sql = "update posthaste_inbox_deferred set due_at = 0 where consumer = ?1 and due_at < ?2";
        self.act(sql, params![consumer, NEVER]);
    }

    async fn age(&self, consumer: &str, by: Duration) {
        let micros = i64::try_from(by.as_micros()).expect("small");
        let marks = "update posthaste_inbox set processed_at = processed_at - ?2 where consumer = ?1";
        self.act(marks, params![consumer, micros]);
        let letters = "update posthaste_inbox_dead_letters set dead_at = dead_at - ?2 where consumer = ?1";
        self.act(letters, params![consumer, micros]);
        let taken = "update posthaste_inbox_partitions set taken_at = taken_at - ?2 where consumer = ?1";
        self.act(taken, params![consumer, micros]);
    }

    async fn replay(&self, consumer: &str, letter: Uuid) -> bool {
        let filter = DeadFilter { ids: vec![letter], ..DeadFilter::default() };
        match self.admin().letter_act(consumer, &filter, DeadAct::Replay, &actor(), 10).await {
            Ok(replayed) => replayed == 1,
            Err(AdminError::Conflict { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    async fn discard(&self, consumer: &str, letter: Uuid) {
        let filter = DeadFilter { ids: vec![letter], ..DeadFilter::default() };
        let gone = self.admin().letter_act(consumer, &filter, DeadAct::Discard, &actor(), 10).await;
        assert_eq!(gone.expect("an answer"), 1);
    }

    async fn seek(&self, consumer: &str, partition: &Partition, to: i64) {
        self.admin().seek(consumer, partition, to, None, &actor()).await.expect("sought");
    }

    async fn copy_range(&self, consumer: &str, range: &[Work], repeat: bool) {
        self.admin()
            .copy_range(consumer, range, repeat, &KeptHeaders::default(), &actor())
            .await
            .expect("copied");
    }

    async fn control(&self, consumer: &str, controls: &ConsumerControls) {
        let sql = "insert or replace into posthaste_controls (kind, name, paused, rate_limit)
                   values ('consumer', ?1, ?2, ?3)";
        self.act(sql, params![consumer, controls.paused, controls.rate_limit]);
    }
}
