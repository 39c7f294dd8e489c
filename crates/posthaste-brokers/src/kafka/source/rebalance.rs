//! The polling thread follows the group: it takes the partitions that come, and gives up those that go.

use super::assignment::{OwnedPartition, Place};
use super::client::{self, LogBounds, Rebalance, all_at, listed, note};
use super::member::ANSWER;
use super::thread::{Known, PAUSE, Poller};
use posthaste::source::Partition;
use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::Offset;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

/// For the last commit of a partition whose time is over.
pub(super) const COMMIT_GRACE: Duration = Duration::from_secs(2);

impl Poller<'_> {
    pub(super) fn follow_group(&mut self) {
        for rebalance in self.client().context().take_rebalances() {
            match rebalance {
                Rebalance::Assign(partitions) => {
                    self.member.causes.forget();
                    self.coming = Some(partitions);
                }
                Rebalance::Revoke { partitions, lost } => {
                    let deadline = Instant::now() + self.member.plan.handover_wait;
                    let mut state = self.member.state();
                    for partition in &partitions {
                        if let Some(owned) = state.partitions.get_mut(partition) {
                            owned.leaving.get_or_insert(deadline);
                        }
                    }
                    drop(state);
                    self.unplaced.retain(|partition| !partitions.contains(partition));
                    self.going = Some(partitions);
                    if lost {
                        self.let_go();
                    }
                }
            }
        }
    }

    /// Gives up what is empty, what has had its time, and what is lost.
    pub(super) fn give_up(&mut self) {
        let Some(going) = &self.going else { return };
        let (now, state) = (Instant::now(), self.member.state());
        let stays = |partition| {
            let owned: Option<&OwnedPartition> = state.partitions.get(partition);
            owned.is_some_and(|owned| !owned.may_go(now, COMMIT_GRACE))
        };
        let waits = going.iter().any(stays);
        drop(state);
        if !waits || self.client().assignment_lost() {
            self.let_go();
        }
    }

    pub(super) fn let_go(&mut self) {
        let Some(going) = self.going.take() else { return };
        let mut state = self.member.state();
        going.iter().for_each(|partition| drop(state.lose(partition)));
        drop(state);
        let gone = self.client().incremental_unassign(&all_at(&going, Offset::Invalid));
        note(&self.member.plan.group, gone);
        self.member.stir();
    }

    /// Takes new partitions, at the group's positions. Where it has none the client is paused at once, and
    /// nothing is said of the partition until its place is known. The client is told a number and never a
    /// word like "end": its answer to that may come after a seek, and undo it.
    pub(super) fn take_new(&mut self) {
        let Some(coming) = &self.coming else { return };
        let of_no_use = coming.is_empty() || !self.subscribed || self.client().assignment_lost();
        if of_no_use {
            return self.take_unread();
        }
        if Instant::now() < self.patience {
            return;
        }
        let (committed, declared) = match client::committed_or_declared(self.client(), coming, ANSWER) {
            Ok(found) => found,
            Err(error) => return self.refused(&error),
        };
        let mut places: Vec<(Partition, i64)> = Vec::new();
        let mut unplaced: Vec<Partition> = Vec::new();
        for partition in coming {
            match committed.get(partition).copied().flatten() {
                Some(at) => places.push((partition.clone(), at)),
                None => unplaced.push(partition.clone()),
            }
        }
        let log_id = self.client().client().fetch_cluster_id(ANSWER);
        let read = listed(places.iter().map(|(partition, at)| (partition, Offset::Offset(*at))));
        let unread = unplaced.iter().map(|partition| (partition, 0));
        let all = places.iter().map(|(partition, at)| (partition, *at)).chain(unread);
        let all = listed(all.map(|(partition, at)| (partition, Offset::Offset(at))));
        note(&self.member.plan.group, self.client().incremental_assign(&all));
        note(&self.member.plan.group, self.client().resume(&read));
        note(&self.member.plan.group, self.client().pause(&all_at(&unplaced, Offset::Invalid)));
        self.coming = None;
        self.unplaced.extend(unplaced);
        self.next_question = Instant::now();
        let mut state = self.member.state();
        state.log_id = log_id.map(Into::into).or(state.log_id.take());
        for (partition, at) in places {
            state.begin(partition.clone(), at, Place::Set, Some(at), false);
            if let Some(owned) = state.partitions.get_mut(&partition) {
                owned.declared = declared.contains(&partition).then_some(at);
            }
        }
        drop(state);
        self.member.stir();
    }

    /// Places the partitions of which the group has no position. Their leaders are asked beside this thread:
    /// one that is missing keeps its own partitions waiting, and neither the others nor the group.
    pub(super) fn place_new(&mut self) {
        if let Some(asked) = &self.asked {
            let bounds = match asked.try_recv() {
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => LogBounds::new(),
                Ok(bounds) => bounds,
            };
            self.asked = None;
            self.begin_as_declared(bounds);
        }
        if !self.subscribed {
            self.unplaced.clear();
        }
        let now = Instant::now();
        if self.unplaced.is_empty() || now < self.next_question {
            return;
        }
        self.next_question = now + PAUSE;
        let (answer, asked) = std::sync::mpsc::channel();
        self.asked = Some(asked);
        let (member, client) = (Arc::clone(self.member), Arc::clone(&self.connection.client));
        let partitions: Vec<Partition> = self.unplaced.iter().cloned().collect();
        self.member.runtime.spawn_blocking(move || {
            // Nobody takes the answer where the client has ended meanwhile.
            let _ = answer.send(client::bounds_known(&client, &partitions, ANSWER));
            drop(client);
            member.wake();
        });
    }

    /// Begins where the group is to begin. The client is moved there, and goes on.
    fn begin_as_declared(&mut self, bounds: LogBounds) {
        let mut state = self.member.state();
        for (partition, (first, end)) in bounds {
            if !self.unplaced.remove(&partition) || !self.subscribed {
                continue;
            }
            let was_there =
                |known: &Known| known.get(&partition.topic).is_some_and(|n| partition.number < *n);
            let at = if self.known.as_ref().is_some_and(was_there) { end } else { first };
            state.begin(partition.clone(), at, Place::Move(at), None, true);
            if let Some(owned) = state.partitions.get_mut(&partition) {
                owned.is_silent = true;
            }
        }
        drop(state);
        self.member.stir();
    }

    /// Takes new partitions only so that they can be taken away again.
    pub(super) fn take_unread(&mut self) {
        if let Some(coming) = self.coming.take() {
            let taken = self.client().incremental_assign(&all_at(&coming, Offset::Offset(0)));
            note(&self.member.plan.group, taken);
        }
    }
}
