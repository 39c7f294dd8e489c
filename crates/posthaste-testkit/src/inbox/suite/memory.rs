//! The model as a fixture of the consumer suite.

use super::{ConsumerFixture, DeferredView, LetterView, PartitionRecord, Script};
use crate::inbox::{InboxDatabase, MarkOutcome, MemoryHandler, MemoryTransaction};
use async_trait::async_trait;
use posthaste::admin::history::History;
use posthaste::consumer::store::{ConsumerControls, InboxStore, Work};
use posthaste::consumer::{Filter, HandlerError, Message};
use posthaste::source::Partition;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A fresh database in memory.
#[derive(Default)]
pub struct MemoryInboxFixture(InboxDatabase);

impl MemoryInboxFixture {
    /// One more.
    pub async fn make() -> Option<Self> {
        Some(Self::default())
    }
}

struct Scripted(Arc<Script>);

#[async_trait]
impl MemoryHandler for Scripted {
    async fn handle(&self, tx: &mut MemoryTransaction, message: &Message<'_>) -> Result<(), HandlerError> {
        tx.effect(message);
        self.0.run(message)
    }
}

fn codes(history: &History) -> Vec<String> {
    history.attempts().iter().map(|attempt| attempt.code.clone()).collect()
}

#[async_trait]
impl ConsumerFixture for MemoryInboxFixture {
    async fn inbox(&self, consumer: &str, filter: Filter, script: &Arc<Script>) -> Arc<dyn InboxStore> {
        Arc::new(self.0.inbox(consumer, filter, Arc::new(Scripted(Arc::clone(script)))))
    }

    async fn effects(&self, consumer: &str) -> Vec<String> {
        let effects = self.0.tables().effects;
        effects.into_iter().filter(|effect| effect.consumer == consumer).map(|effect| effect.id).collect()
    }

    async fn marks(&self, consumer: &str) -> BTreeMap<String, char> {
        let letter = |outcome| match outcome {
            MarkOutcome::Done => 'd',
            MarkOutcome::Deferred => 'w',
            MarkOutcome::Dead => 'x',
        };
        let marks = self.0.tables().marks.into_iter().filter(|((of, _), _)| of == consumer);
        marks.map(|((_, id), mark)| (id, letter(mark.outcome))).collect()
    }

    async fn deferred(&self, consumer: &str) -> Vec<DeferredView> {
        let tables = self.0.tables();
        let view = |row: &crate::inbox::SetAsideRow| DeferredView {
            id: row.work.id.to_string(),
            holds: row.holds,
            repeat: row.repeat,
            attempts: row.work.attempts,
            replays: row.replays,
            is_behind: row.is_behind(),
            code: row.failure.as_ref().map(|failure| failure.code.to_string()),
            history: codes(&row.work.history),
        };
        tables.deferred_of(consumer).map(view).collect()
    }

    async fn letters(&self, consumer: &str) -> Vec<LetterView> {
        let tables = self.0.tables();
        let view = |letter: &&crate::inbox::BuriedMessage| LetterView {
            letter: letter.burial.letter,
            id: letter.row.work.id.to_string(),
            holds_key: letter.burial.holds_key,
            repeat: letter.row.repeat,
            attempts: letter.row.work.attempts,
            disposition: letter.burial.disposition.as_str().to_owned(),
            code: letter.burial.failure.code.to_string(),
            history: codes(&letter.row.work.history),
        };
        tables.letters_of(consumer).iter().map(view).collect()
    }

    async fn partition(&self, consumer: &str, partition: &Partition) -> Option<PartitionRecord> {
        let tables = self.0.tables();
        let row = tables.partitions.get(&(consumer.to_owned(), partition.clone()))?;
        let (position, clean, in_hand, seeks) = (row.position, row.clean, row.in_hand, row.seeks);
        Some(PartitionRecord { position, clean, in_hand, seeks })
    }

    async fn make_due(&self, consumer: &str) {
        self.0.make_due(consumer);
    }

    async fn age(&self, consumer: &str, by: Duration) {
        self.0.age(consumer, by);
    }

    async fn replay(&self, consumer: &str, letter: Uuid) -> bool {
        self.0.replay(consumer, letter).await
    }

    async fn discard(&self, consumer: &str, letter: Uuid) {
        assert!(self.0.discard(consumer, letter).await, "the letter is there");
    }

    async fn seek(&self, consumer: &str, partition: &Partition, to: i64) {
        self.0.seek(consumer, partition, to);
    }

    async fn copy_range(&self, consumer: &str, range: &[Work], repeat: bool) {
        self.0.copy_range(consumer, range, repeat);
    }

    async fn control(&self, consumer: &str, controls: &ConsumerControls) {
        self.0.alter(|tables| tables.controls.insert(consumer.to_owned(), controls.clone()));
    }

    async fn restart_server(&self) -> bool {
        self.0.restart();
        true
    }
}
