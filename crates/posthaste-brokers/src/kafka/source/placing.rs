//! The polling thread puts the client where a partition is read: it seeks, pauses, and finds positions that
//! are not there.

use super::assignment::Place;
use super::client::{self, all_at, listed, note};
use super::member::ANSWER;
use super::thread::{PAUSE, Poller};
use posthaste::source::Partition;
use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::Offset;
use std::time::Instant;

impl Poller<'_> {
    /// Finds the partition whose fetch was refused for its position: it is the one that cannot be sought.
    pub(super) fn find_misplaced(&mut self) {
        if !self.is_misplaced || Instant::now() < self.patience {
            return;
        }
        let reading: Vec<(Partition, i64)> = {
            let state = self.member.state();
            let set = state.partitions.iter().filter(|(_, owned)| owned.place == Place::Set);
            set.map(|(partition, owned)| (partition.clone(), owned.at)).collect()
        };
        let list = listed(reading.iter().map(|(partition, at)| (partition, Offset::Offset(*at))));
        let sought = match self.client().seek_partitions(list, ANSWER) {
            Ok(sought) => sought,
            Err(error) => return self.refused(&error),
        };
        let failed = sought.elements().into_iter().filter(|e| e.error().is_err());
        let stopped: Vec<_> = failed.map(|e| Partition::new(e.topic(), e.partition())).collect();
        let bounds = client::bounds_known(self.client(), &stopped, ANSWER);
        let is_truncated = self.is_truncated;
        // Those whose leader does not answer are looked for again.
        self.is_misplaced = bounds.len() < stopped.len();
        self.is_truncated &= self.is_misplaced;
        self.patience = if self.is_misplaced { Instant::now() + PAUSE } else { self.patience };
        let mut state = self.member.state();
        for (partition, at) in reading {
            if let Some((first, end)) = bounds.get(&partition) {
                state.misplaced(&partition, at, (*first, *end), is_truncated);
            }
        }
        drop(state);
        self.member.stir();
    }

    pub(super) fn move_client(&mut self) {
        let now = Instant::now();
        let mut moves: Vec<(Partition, i64, i64)> = Vec::new();
        for (partition, owned) in &mut self.member.state().partitions {
            owned.go_back(now);
            if let Place::Move(to) = owned.place {
                moves.push((partition.clone(), owned.epoch, to));
            }
        }
        for (partition, epoch, to) in moves {
            let sought = self.client().seek(&partition.topic, partition.number, Offset::Offset(to), ANSWER);
            // A fetch that has stopped, or has not begun, cannot be sought. While the group waits for our
            // answer, an unassign would be taken for it.
            let anew = sought.is_err();
            if anew && (self.going.is_some() || self.coming.is_some()) {
                continue;
            }
            if anew {
                let list = listed([(&partition, Offset::Offset(to))]);
                let assigned = self.client().incremental_unassign(&list);
                let assigned = assigned.and_then(|()| self.client().incremental_assign(&list));
                note(&self.member.plan.group, assigned.and_then(|()| self.client().resume(&list)));
            }
            if let Some(owned) = self.member.state().partitions.get_mut(&partition)
                && owned.epoch == epoch
            {
                owned.is_silent &= !anew;
                if owned.place == Place::Move(to) {
                    (owned.place, owned.at) = (Place::Set, to);
                }
            }
        }
    }

    /// Pauses and resumes at the client.
    pub(super) fn silence(&mut self) {
        let (mut quiet, mut loud) = (Vec::new(), Vec::new());
        for (partition, owned) in &mut self.member.state().partitions {
            let wanted = owned.wants_silence(self.is_full);
            if wanted != owned.is_silent {
                owned.is_silent = wanted;
                if wanted { &mut quiet } else { &mut loud }.push(partition.clone());
            }
        }
        if !quiet.is_empty() {
            note(&self.member.plan.group, self.client().pause(&all_at(&quiet, Offset::Invalid)));
        }
        if !loud.is_empty() {
            note(&self.member.plan.group, self.client().resume(&all_at(&loud, Offset::Invalid)));
        }
    }

    /// The client's own position is behind the markers that it stepped over. Only this thread may ask for it:
    /// nothing is read meanwhile.
    pub(super) fn reach_end(&mut self) {
        let Ok(list) = self.client().position() else { return };
        let mut state = self.member.state();
        for element in list.elements() {
            if let Offset::Offset(position) = element.offset() {
                state.reached(&Partition::new(element.topic(), element.partition()), position);
            }
        }
    }
}
