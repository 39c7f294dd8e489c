//! Outcomes that cannot be written yet, because somebody else holds the row.
//!
//! The application may lock a row of its own table for as long as it likes, and a person with a terminal
//! does. What became of such a row is known, and is kept here. The others are settled without it, its mark is
//! renewed when that is possible, and every look tries again. CRASH: if this process ends before that, the
//! row is taken over after its lease, and published again.

use super::hand::Hand;
use super::lease::{ClaimLease, locked};
use super::session::ClaimSession;
use super::settle::RowOutcomes;
use super::write::Written;
use crate::error::commit_error;
use posthaste::store::StoreError;
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::Duration;
use tokio::time::Instant;

/// Pause between two tries.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What became of rows that are still in hand, by their key.
#[derive(Default)]
pub(super) struct Aside {
    rows: FxHashMap<String, (i64, RowOutcomes)>,
    tried_at: Option<Instant>,
}

impl Aside {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.rows.contains_key(id)
    }

    /// All outcomes, under the marks that the rows bear now. Rows that are no longer in hand are forgotten.
    fn outcome(&mut self, hand: &Hand) -> RowOutcomes {
        let mut outcome = RowOutcomes::default();
        self.rows.retain(|_, (seq, single)| {
            let Some(row) = hand.row(*seq) else { return false };
            single.remark(row.mark);
            outcome.append(single.clone());
            outcome.seqs.push(*seq);
            true
        });
        outcome
    }
}

impl ClaimLease {
    /// Takes the rows of an outcome out of the hand, and puts those aside that somebody holds. Answers the
    /// keys of the former.
    pub(super) fn leave_hand(&self, outcome: &RowOutcomes, written: &Written) -> Vec<String> {
        let held: FxHashSet<String> = written.held.keys().0.into_iter().collect();
        let (mut hand, mut aside) = (locked(&self.hand), locked(&self.aside));
        let mut left = Vec::with_capacity(outcome.seqs.len());
        for seq in &outcome.seqs {
            let Some(row) = hand.row(*seq) else { continue };
            if held.contains(&row.id) {
                let one = FxHashSet::from_iter([row.id.clone()]);
                aside.rows.insert(row.id.clone(), (*seq, written.held.split(&one).0));
            } else if let Some(row) = hand.drop_row(*seq) {
                aside.rows.remove(&row.id);
                left.push(row.id);
            }
        }
        for id in &written.refused {
            hand.keep(id.clone(), self.inner.row_lease(), None);
        }
        left
    }

    /// Tries again to write what was put aside.
    pub(super) async fn write_aside(&self, slot: &mut Option<ClaimSession>) -> Result<(), StoreError> {
        let outcome = {
            let (hand, mut aside) = (locked(&self.hand), locked(&self.aside));
            if aside.rows.is_empty() || aside.tried_at.is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
                return Ok(());
            }
            aside.tried_at = Some(Instant::now());
            aside.outcome(&hand)
        };
        let session = self.ready(slot).await?;
        let written = match self.write_what_is_free(session, &outcome).await {
            Ok(written) => written,
            Err(error) => return Err(self.failed(slot, commit_error(error))),
        };
        self.tell_missed(written.missed);
        for id in self.leave_hand(&outcome, &written) {
            if !written.refused.contains(&id) {
                locked(&self.hand).forget(&id);
            }
        }
        Ok(())
    }
}
