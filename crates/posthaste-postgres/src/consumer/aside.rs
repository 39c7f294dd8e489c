//! T2: messages that cannot run now are deferred, or given up, with their marks.

use super::columns::{Copy, Places, error_text, stack_text, text};
use super::failure::OwnError;
use super::outside::own_lock;
use super::trace::REPLAYED;
use super::{End, PostgresInbox, witness};
use crate::session::{LentTransaction, params};
use posthaste::admin::fingerprint;
use posthaste::consumer::store::{Burial, DeferOrBury, Deferring, InboxError, SetAside, Witness, Work};
use posthaste::consumer::{Disposition, Failure, FailureKind};
use std::collections::HashSet;

/// A failure as columns have it.
pub(super) struct FailureColumns {
    pub(super) class: &'static str,
    pub(super) code: String,
    pub(super) error: String,
    pub(super) stack: Option<String>,
    pub(super) fingerprint: i64,
}

impl FailureColumns {
    pub(super) fn of(consumer: &str, failure: &Failure) -> Self {
        Self {
            class: failure.class(),
            code: text(&failure.code, usize::MAX),
            error: error_text(&failure.message),
            stack: stack_text(failure.stack.as_deref()),
            fingerprint: fingerprint(consumer, failure.class(), &failure.code, &failure.message),
        }
    }
}

impl PostgresInbox {
    pub(super) async fn set_aside(
        &self,
        asked: Option<Witness>,
        key: &[Work],
        how: &DeferOrBury,
    ) -> Result<Deferring, InboxError> {
        let Some(first) = key.first() else {
            return Err(InboxError::Broken("there is nothing to set aside".to_owned()));
        };
        let deferring = self
            .transact(async |tx| {
                let unordered = || self.is_marked_by_app().then(|| own_lock(&first.id));
                let lock = first.order_id.or_else(unordered);
                self.lock_key(tx, &first.delivery.partition().topic, lock).await?;
                let mut ours = self.mark(tx, key, how).await?;
                let (mut behind, witness) = self.held(tx, first).await?;
                if witness.is_not(asked) {
                    return Ok((Deferring { witness, outcomes: Vec::new() }, End::Rollback));
                }
                let mut kept: Vec<(&Work, Option<f64>)> = Vec::new();
                let mut outcome = |(at, work): (usize, &'_ Work)| {
                    let (goes, delay) = match how {
                        DeferOrBury::Bury(_) => (true, None),
                        DeferOrBury::Defer { delay, .. } if at == 0 && !behind => {
                            (true, Some(delay.as_secs_f64()))
                        }
                        _ => (behind, None),
                    };
                    match (ours.remove(&*work.id), goes) {
                        (false, _) => SetAside::Settled,
                        (true, false) => SetAside::Free,
                        (true, true) => {
                            kept.push((&key[at], delay));
                            behind = true;
                            SetAside::Kept
                        }
                    }
                };
                let outcomes = key.iter().enumerate().map(&mut outcome).collect();
                let deferring = Deferring { witness, outcomes };
                match how {
                    // Nothing of ours is to be kept: the marks go.
                    _ if kept.is_empty() => return Ok((deferring, End::Rollback)),
                    DeferOrBury::Bury(burial) => self.bury(tx, kept[0].0, burial).await?,
                    DeferOrBury::Defer { failure, .. } => self.copy(tx, &kept, Some(failure)).await?,
                    DeferOrBury::Behind => self.copy(tx, &kept, None).await?,
                }
                // CRASH(consume.deferred): nothing is durable yet. The message comes again, and is first
                // (G5). If the commit was done, it is settled by its mark.
                posthaste::crash_point!("consume.deferred");
                Ok((deferring, End::Commit))
            })
            .await?;
        if matches!(how, DeferOrBury::Bury(_)) {
            // CRASH(consume.buried): the letter and its event are durable, and nobody has published it. The
            // relay does, whenever it runs: an outage of the dead-letter topic blocks nobody (G6).
            posthaste::crash_point!("consume.buried");
        }
        Ok(deferring)
    }

    /// The marks. Answers which of them are ours.
    async fn mark(
        &self,
        tx: &mut LentTransaction<'_>,
        key: &[Work],
        how: &DeferOrBury,
    ) -> Result<HashSet<String>, OwnError> {
        let (consumer, places) = (&*self.consumer, Places::of(key));
        let outcome = if matches!(how, DeferOrBury::Bury(_)) { "x" } else { "w" };
        let params = params![
            TEXT consumer, TEXT_ARRAY places.ids, TEXT_ARRAY places.topics, INT4_ARRAY places.partitions,
            INT8_ARRAY places.positions, TEXT outcome,
        ];
        let rows = tx.query(&self.statements.mark, params).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Whether something of the key is in the way.
    async fn held(&self, tx: &mut LentTransaction<'_>, work: &Work) -> Result<(bool, Witness), OwnError> {
        let (consumer, topic) = (&*self.consumer, &*work.delivery.partition().topic);
        let params = params![TEXT consumer, TEXT topic, UUID work.order_id];
        let rows = tx.query(&self.statements.held, params).await?;
        Ok(rows.first().map_or_else(Default::default, |row| (row.get("held"), witness(row))))
    }

    /// Copies of messages, each with its delay, or behind another.
    async fn copy(
        &self,
        tx: &mut LentTransaction<'_>,
        kept: &[(&Work, Option<f64>)],
        failure: Option<&Failure>,
    ) -> Result<(), OwnError> {
        let (consumer, places) = (&*self.consumer, Places::of(kept.iter().map(|(work, _)| *work)));
        let copies: Vec<Copy<'_>> = kept.iter().map(|(work, _)| Copy::of(work)).collect();
        fn column<'a, 'b, T>(copies: &'b [Copy<'a>], of: impl Fn(&'b Copy<'a>) -> T) -> Vec<T> {
            copies.iter().map(of).collect()
        }
        let delays: Vec<Option<f64>> = kept.iter().map(|(_, delay)| *delay).collect();
        // The failure is that of the first. The others only wait.
        let failed = failure.map(|failure| FailureColumns::of(consumer, failure));
        let of_first = |at: usize| failed.as_ref().filter(|_| at == 0);
        let classes: Vec<_> = (0..kept.len()).map(|at| of_first(at).map(|failed| failed.class)).collect();
        let codes: Vec<_> = (0..kept.len()).map(|at| of_first(at).map(|failed| &*failed.code)).collect();
        let errors: Vec<_> = (0..kept.len()).map(|at| of_first(at).map(|failed| &*failed.error)).collect();
        let params = params![
            TEXT consumer, TEXT_ARRAY places.ids, TEXT_ARRAY places.topics, INT4_ARRAY places.partitions,
            INT8_ARRAY places.positions, TEXT_ARRAY column(&copies, |copy| copy.address.as_deref()),
            BYTEA_ARRAY column(&copies, |copy| copy.key), UUID_ARRAY places.order_ids,
            TEXT_ARRAY column(&copies, |copy| &*copy.headers),
            BYTEA_ARRAY column(&copies, |copy| copy.payload),
            INT8_ARRAY column(&copies, |copy| copy.published_at),
            INT4_ARRAY column(&copies, |copy| copy.attempts),
            TEXT_ARRAY column(&copies, |copy| copy.history.as_deref()), FLOAT8_ARRAY delays,
            TEXT_ARRAY classes, TEXT_ARRAY codes, TEXT_ARRAY errors,
        ];
        tx.query(&self.statements.defer, params).await?;
        Ok(())
    }

    /// The letter, and its event for the dead-letter topic.
    async fn bury(&self, tx: &mut LentTransaction<'_>, work: &Work, burial: &Burial) -> Result<(), OwnError> {
        let (consumer, partition, copy) = (&*self.consumer, work.delivery.partition(), Copy::of(work));
        let failure = FailureColumns::of(consumer, &burial.failure);
        let params = params![
            TEXT consumer, TEXT &*work.id, TEXT &*partition.topic, INT4 partition.number,
            INT8 work.delivery.position, TEXT copy.address, BYTEA copy.key, UUID work.order_id,
            TEXT copy.headers, BYTEA copy.payload, INT8 copy.published_at, INT4 copy.attempts,
            TEXT copy.history, UUID burial.letter, BOOL burial.holds_key, TEXT burial.disposition.as_str(),
            TEXT failure.class, TEXT failure.code, TEXT failure.error, TEXT failure.stack,
            INT8 failure.fingerprint,
        ];
        self.replace_letter(tx, &work.id, None).await?;
        tx.query(&self.statements.bury, params).await?;
        self.trace_death(tx, work, burial, false).await?;
        self.tell(tx, work, burial).await
    }

    /// A message has one letter, the newest. `seq`: its number among the deferred.
    pub(super) async fn replace_letter(
        &self,
        tx: &mut LentTransaction<'_>,
        id: &str,
        seq: Option<i64>,
    ) -> Result<(), OwnError> {
        let params = params![TEXT &*self.consumer, TEXT id, INT8 seq];
        for row in tx.query_anew(&self.statements.former_letter, params).await? {
            self.trace_letter(tx, row.get(0), REPLAYED).await?;
        }
        Ok(())
    }

    /// Appends the event of a letter, where there is a topic for it.
    pub(super) async fn tell(
        &self,
        tx: &mut LentTransaction<'_>,
        work: &Work,
        burial: &Burial,
    ) -> Result<(), OwnError> {
        let Some(topic) = &self.dead_letters else { return Ok(()) };
        let event = topic.event(&self.consumer, work, burial);
        self.outbox.append(&mut tx.tx, &event).await?;
        Ok(())
    }
}

/// Why a message that no handler takes any more is given up.
pub(super) fn unmatched() -> Failure {
    let kind = FailureKind::Poison(Disposition::Unmatched);
    Failure::new(kind, "consumer.unmatched", "no handler takes this message")
}
