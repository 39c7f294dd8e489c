//! Who may read: relays, their hearts, and the leases of lanes.
//!
//! A lease has two ends. Its expiry, by the store's clock, for a host that vanished. And its heart: the
//! relay's session; when that is gone, a successor need not wait for the expiry. Being wrong about a
//! death costs nothing: the receipts fence the old owner (G4).
//!
//! A lane counts the owners that died at one place of it (F21). After a few of them the
//! next owner is told to go carefully, and which event was in hand at the last death.

use super::tables::{LaneState, Member, Owner, ReceiptRow, Tables, plus};
use posthaste::cursor::Position;
use posthaste::store::{
    Care, Deaths, JoinPlan, LaneId, LaneView, Roll, SinkPlan, StartAt, StoreCode, StoreError,
};
use std::sync::Arc;

/// How far the cursor moves and is still at one place: little, so that a simulation leaves such places too.
const REACH: i64 = 32;

impl Tables {
    fn is_alive(&self, relay: &str) -> bool {
        let now = self.now();
        self.relays.get(relay).is_some_and(|m| m.expires_at > now && self.sessions.contains(&m.session))
    }

    fn others_alive(&self, relay: &str) -> bool {
        self.relays.keys().any(|other| **other != *relay && self.is_alive(other))
    }

    /// Opens a session: the heart of a relay.
    pub(super) fn connect(&mut self) -> u64 {
        let session = self.next_session;
        self.next_session += 1;
        self.sessions.insert(session);
        session
    }

    /// Makes a relay known, or refuses it.
    pub(super) fn join(&mut self, plan: &JoinPlan, session: u64) -> Result<(), StoreError> {
        if self.others_alive(&plan.relay) && self.routes != plan.routes {
            let why = "relays with other routes are alive; stop them first, or start with theirs";
            return Err(StoreError::fatal(StoreCode::OtherRoutes, why));
        }
        self.routes.clone_from(&plan.routes);
        let lanes = *self.lane_count.get_or_insert(plan.lanes.unwrap_or(1));
        for sink in &plan.sinks {
            for lane in 0..i16::try_from(lanes).expect("few lanes") {
                self.create_lane(sink, lane);
            }
        }
        let expires_at = plus(self.now(), plan.lease_ttl);
        self.relays
            .insert(Arc::clone(&plan.relay), Member { session, expires_at, lease_ttl: plan.lease_ttl });
        Ok(())
    }

    /// A cursor is born with a mark: the last number is read, then an xid is taken; never with none, or
    /// its first reads would scan the whole log.
    fn create_lane(&mut self, sink: &SinkPlan, lane: i16) {
        let id = LaneId { sink: Arc::clone(&sink.name), lane };
        if self.lanes.contains_key(&id) {
            return;
        }
        let (mark, snapshot) = (self.log.last_seq(), self.log.snapshot());
        let position = match sink.start_at {
            StartAt::Auto if self.lanes.keys().all(|lane| lane.sink == sink.name) => 0,
            StartAt::Now | StartAt::Auto => mark,
            StartAt::Earliest => 0,
            StartAt::Seq(seq) => seq,
        };
        let receipt = ReceiptRow {
            n: 1,
            epoch: 0,
            xid: self.log.transact(),
            mark,
            position: Position::new(position, snapshot),
            events: 0,
            seq_sum: 0,
            settled_at: self.now(),
        };
        self.lanes.insert(id, LaneState { receipts: vec![receipt], ..LaneState::default() });
    }

    fn is_free(&self, lane: &LaneState) -> bool {
        match &lane.owner {
            None => true,
            Some(owner) => lane.expires_at <= self.now() || !self.sessions.contains(&owner.session),
        }
    }

    /// Renews what is held, and shows everybody's state.
    pub(super) fn roll(&mut self, plan: &JoinPlan, session: u64, held: &[(LaneId, i64)]) -> Roll {
        let now = self.now();
        let expires_at = plus(now, plan.lease_ttl);
        self.relays
            .insert(Arc::clone(&plan.relay), Member { session, expires_at, lease_ttl: plan.lease_ttl });
        for (id, epoch) in held {
            self.renew(id, *epoch, plan, session);
        }
        let served = |id: &LaneId| plan.sinks.iter().any(|sink| sink.name == id.sink);
        let lanes = self.lanes.iter().filter(|(id, _)| served(id)).map(|(id, lane)| self.view(id, lane));
        Roll {
            lanes: lanes.collect(),
            relays: self.relays.keys().filter(|relay| self.is_alive(relay)).count(),
            now,
            controls: self.controls.clone(),
            refused: (self.routes != plan.routes)
                .then(|| "other routes are in force: another relay started with them".to_owned()),
        }
    }

    /// A lease that expired and that nobody took is renewed all the same: the fence stands elsewhere.
    fn renew(&mut self, id: &LaneId, epoch: i64, plan: &JoinPlan, session: u64) {
        let expires_at = plus(self.now(), plan.lease_ttl);
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let mine = lane.owner.as_ref().is_some_and(|owner| owner.relay == plan.relay);
        if mine && lane.epoch == epoch && lane.token == Some(epoch) {
            lane.owner = Some(Owner { relay: Arc::clone(&plan.relay), session });
            lane.expires_at = expires_at;
        }
    }

    fn view(&self, id: &LaneId, lane: &LaneState) -> LaneView {
        let is_free = self.is_free(lane);
        let owner = lane.owner.as_ref().filter(|_| !is_free).map(|owner| Arc::clone(&owner.relay));
        LaneView { id: id.clone(), owner, epoch: lane.epoch, is_free }
    }

    /// Every lane as everybody sees it.
    pub(super) fn views(&self) -> Vec<LaneView> {
        self.lanes.iter().map(|(id, lane)| self.view(id, lane)).collect()
    }

    /// Takes a lane if it is free: a new epoch, and the receipt that fences the former owner.
    pub(super) fn take(&mut self, id: &LaneId, relay: &Arc<str>, session: u64) -> Option<i64> {
        let now = self.now();
        let lease_ttl = self.relays.get(relay)?.lease_ttl;
        let lane = self.lanes.get(id)?;
        if !self.is_free(lane) {
            return None;
        }
        let xid = self.log.transact();
        let lane = self.lanes.get_mut(id).expect("it was there a moment ago");
        // Whoever lost its token with the server, and asks again, did not die.
        if lane.owner.as_ref().is_some_and(|owner| owner.relay != *relay || lane.token.is_some()) {
            lane.count_death();
        }
        lane.epoch += 1;
        lane.owner = Some(Owner { relay: Arc::clone(relay), session });
        lane.expires_at = plus(now, lease_ttl);
        lane.token = Some(lane.epoch);
        lane.in_hand = None;
        let last = lane.last().clone();
        lane.receipts.push(ReceiptRow {
            n: last.n + 1,
            epoch: lane.epoch,
            xid,
            mark: last.position.position,
            events: 0,
            seq_sum: 0,
            settled_at: now,
            position: last.position,
        });
        Some(lane.epoch)
    }

    /// Gives a lane back. A lane that is somebody else's by now is left alone.
    pub(super) fn release(&mut self, id: &LaneId, epoch: i64) {
        if let Some(lane) = self.lanes.get_mut(id).filter(|lane| lane.epoch == epoch) {
            lane.owner = None;
            lane.token = None;
            lane.in_hand = None;
            (lane.died, lane.care) = (Deaths::default(), Care::None);
            self.ring_lanes();
        }
    }
}

impl LaneState {
    fn count_death(&mut self) {
        self.deaths += 1;
        let last = &self.last().position;
        let place = last.catching_up.as_ref().map_or(last.position, |catch_up| catch_up.late_position);
        self.died = self.died.and_one(place, self.in_hand, REACH);
        self.care = self.died.care(self.in_hand);
    }
}
