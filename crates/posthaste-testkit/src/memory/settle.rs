//! Writing down what became of events: the receipt, the deferred, the dead letters; all or nothing.
//!
//! Everything is checked before the first change, so a settlement applies as a whole or not at all. The
//! fence is the unique number of the receipt: whoever took the lane over wrote it first (G4).

use super::mvcc::Log;
use super::tables::{DeferredRow, DueAt, Letter, ReceiptRow, Tables, plus};
use posthaste::admin::DeadAct;
use posthaste::cursor::{Position, Xid};
use posthaste::event::{StoredEvent, Timestamp};
use posthaste::mutation::{Mutation, active};
use posthaste::store::{
    Death, Deferral, Due, DueBatch, DueEvent, DueQuery, LaneId, Reason, Settlement, StoreError,
};
use std::sync::Arc;
use std::time::Duration;

/// What a lease knows when it settles.
pub(super) struct Claim<'a> {
    pub(super) id: &'a LaneId,
    pub(super) epoch: i64,
    /// The receipt number it is about to write.
    pub(super) n: i64,
    /// The cursor after the last settled page, if pages are settled.
    pub(super) position: Option<Position>,
    pub(super) events: u64,
    pub(super) seq_sum: i64,
}

impl Tables {
    /// Whether a lease may still write.
    pub(super) fn check_lease(&self, id: &LaneId, epoch: i64, n: i64) -> Result<(), StoreError> {
        let lost = || StoreError::LeaseLost(id.clone());
        let lane = self.lanes.get(id).ok_or_else(lost)?;
        if active(Mutation::IgnoreEpoch) {
            return Ok(());
        }
        if lane.token != Some(epoch) || lane.last().n >= n { Err(lost()) } else { Ok(()) }
    }

    /// Applies a settlement and answers with the receipt it wrote.
    pub(super) fn settle(
        &mut self,
        claim: Claim<'_>,
        settlement: &Settlement,
    ) -> Result<ReceiptRow, StoreError> {
        self.check_lease(claim.id, claim.epoch, claim.n)?;
        let (sink, now) = (Arc::clone(&claim.id.sink), self.now());
        let settled = self.lanes[claim.id].last().position.clone();
        // What a page that is settled already left behind stays as it is.
        let is_new = |log: &Log, stored: &StoredEvent| {
            log.row(stored.seq).is_none_or(|row| !settled.has_handled(stored.seq, row.xid))
        };
        for (stored, deferral) in &settlement.deferred {
            if is_new(&self.log, stored) {
                self.defer(&sink, stored.clone(), deferral.clone(), now);
            }
        }
        for (stored, death) in &settlement.dead {
            if is_new(&self.log, stored) {
                self.bury(&sink, stored.clone(), death.clone(), String::new());
            }
        }
        self.settle_due(&sink, settlement, now);
        let xid = self.log.transact();
        Ok(self.write_receipt(claim, settled, xid))
    }

    fn settle_due(&mut self, sink: &Arc<str>, settlement: &Settlement, now: Timestamp) {
        for seq in &settlement.delivered {
            self.deferred.remove(&(Arc::clone(sink), *seq));
        }
        for (seq, deferral) in &settlement.again {
            if let Some(waiting) = self.deferred.remove(&(Arc::clone(sink), *seq)) {
                self.defer(sink, waiting.stored, deferral.clone(), now);
            }
        }
        for (seq, death) in &settlement.died {
            if let Some(waiting) = self.deferred.remove(&(Arc::clone(sink), *seq)) {
                self.bury(sink, waiting.stored, death.clone(), waiting.deferral.destination);
            }
        }
    }

    fn write_receipt(&mut self, claim: Claim<'_>, settled: Position, xid: Xid) -> ReceiptRow {
        let settled_at = self.now();
        let lane = self.lanes.get_mut(claim.id).expect("it was checked");
        let position = claim.position.unwrap_or(settled);
        let receipt = ReceiptRow {
            // The next number, which is the claimed one unless the fence is broken on purpose.
            n: lane.last().n + 1,
            epoch: claim.epoch,
            xid,
            mark: position.position,
            position,
            events: claim.events,
            seq_sum: claim.seq_sum,
            settled_at,
        };
        lane.receipts.push(receipt.clone());
        receipt
    }

    fn defer(&mut self, sink: &Arc<str>, stored: StoredEvent, deferral: Deferral, now: Timestamp) {
        let due = match deferral.due {
            Due::In(delay) => DueAt::Time(plus(now, delay)),
            Due::AtDelivery => DueAt::Time(stored.event.deliver_at.unwrap_or(now)),
            Due::Behind => DueAt::Behind,
        };
        self.deferred.insert((Arc::clone(sink), stored.seq), DeferredRow { stored, deferral, due });
    }

    fn bury(&mut self, sink: &Arc<str>, stored: StoredEvent, death: Death, destination: String) {
        let letter = Letter { stored, death, dead_at: self.now(), gone_at: None, destination };
        self.burials.push((Arc::clone(sink), letter.clone()));
        self.dead.insert((Arc::clone(sink), letter.stored.seq), letter);
    }

    /// When a deferred event comes due; `None` while it is behind another.
    fn due_at(&self, sink: &Arc<str>, waiting: &DeferredRow) -> Option<Timestamp> {
        match waiting.due {
            DueAt::Time(at) => Some(at),
            DueAt::Behind => (!self.is_held(sink, &waiting.stored)).then_some(Timestamp(0)),
        }
    }

    /// Deferred events of a lane that are due, each with the run that waits behind it.
    pub(super) fn due(&self, id: &LaneId, query: &DueQuery) -> DueBatch {
        let now = self.now();
        let mut batch = DueBatch::default();
        let mut bytes = 0;
        for waiting in self.deferred_of(id).filter(|waiting| is_asked_for(query, &waiting.deferral)) {
            let Some(at) = self.due_at(&id.sink, waiting) else { continue };
            let wait = Duration::from_micros(u64::try_from(at.0 - now.0).unwrap_or(0));
            if !wait.is_zero() || !fill(&mut batch, &mut bytes, query, waiting) {
                batch.next_in = Some(batch.next_in.map_or(wait, |next| next.min(wait)));
                continue;
            }
            for behind in self.run_behind(id, waiting, query) {
                if !fill(&mut batch, &mut bytes, query, behind) {
                    break;
                }
            }
        }
        batch
    }

    fn deferred_of(&self, id: &LaneId) -> impl Iterator<Item = &DeferredRow> {
        let range = (Arc::clone(&id.sink), i64::MIN)..=(Arc::clone(&id.sink), i64::MAX);
        let lane = id.lane;
        self.deferred
            .range(range)
            .map(|(_, waiting)| waiting)
            .filter(move |waiting| self.lane_of(waiting.stored.slot) == lane)
    }

    /// Events that wait behind this one and for nothing else: none, if something before it waits too, as with
    /// an event whose time of its own has come. The run ends at the first that is not asked for or has a time
    /// of its own, or before which a dead letter holds the key: whatever is behind that one waits for it.
    fn run_behind<'a>(
        &'a self,
        id: &'a LaneId,
        head: &'a DeferredRow,
        query: &'a DueQuery,
    ) -> impl Iterator<Item = &'a DeferredRow> + 'a {
        let key = head.stored.event.key.as_ref();
        let in_key = move |waiting: &&DeferredRow| {
            waiting.stored.event.key.as_ref() == key && waiting.stored.seq > head.stored.seq
        };
        let in_turn =
            |waiting: &&DeferredRow| waiting.due == DueAt::Behind && is_asked_for(query, &waiting.deferral);
        let leads = head.deferral.holds && !self.is_held(&id.sink, &head.stored);
        let most = if key.is_some() && leads && query.events > 1 { self.run_max } else { 0 };
        let behind_the_dead = move |waiting: &&DeferredRow| {
            let between = (Arc::clone(&id.sink), head.stored.seq)..(Arc::clone(&id.sink), waiting.stored.seq);
            let same = |letter: &Letter| letter.stored.event.key.as_ref() == key;
            self.dead.range(between).any(|(_, letter)| letter.death.holds && same(letter))
        };
        self.deferred_of(id)
            .filter(in_key)
            .filter(|waiting| waiting.deferral.holds)
            .take_while(move |waiting| in_turn(waiting) && !behind_the_dead(waiting))
            .take(most)
    }

    /// An operator's act on the dead letters of a sink: back into their place, or gone.
    pub(super) fn act_on_dead(&mut self, sink: &Arc<str>, act: DeadAct) -> u64 {
        let now = self.now();
        let range = (Arc::clone(sink), i64::MIN)..=(Arc::clone(sink), i64::MAX);
        let keys: Vec<_> = self.dead.range(range).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            let Some(letter) = self.dead.remove(key) else { continue };
            let burial = self.burials.iter_mut().rfind(|(s, old)| *s == key.0 && old.stored.seq == key.1);
            if let Some((_, burial)) = burial {
                burial.gone_at = Some(now);
            }
            if act == DeadAct::Replay {
                let deferral = Deferral {
                    reason: Reason::Replayed,
                    due: Due::In(Duration::ZERO),
                    attempts: 0,
                    class: None,
                    code: None,
                    error: None,
                    route: letter.death.route,
                    destination: letter.destination,
                    holds: letter.stored.event.key.is_some(),
                    holds_when_dead: letter.death.holds,
                };
                self.defer(sink, letter.stored, deferral, now);
            }
        }
        self.ring();
        keys.len() as u64
    }
}

/// Puts an event into the batch if it fits. One may exceed the bytes alone.
fn fill(batch: &mut DueBatch, bytes: &mut usize, query: &DueQuery, waiting: &DeferredRow) -> bool {
    let size = waiting.stored.bytes();
    let fits = batch.events.len() < query.events && *bytes + size <= query.bytes;
    if !fits && !batch.events.is_empty() {
        return false;
    }
    *bytes += size;
    batch.events.push(DueEvent {
        stored: waiting.stored.clone(),
        attempts: waiting.deferral.attempts,
        reason: waiting.deferral.reason,
    });
    true
}

fn is_asked_for(query: &DueQuery, deferral: &Deferral) -> bool {
    !query.closed_destinations.contains(&deferral.destination)
        && !query.paused_routes.iter().any(|route| **route == *deferral.route)
        && query.only_destination.as_ref().is_none_or(|only| *only == deferral.destination)
}
