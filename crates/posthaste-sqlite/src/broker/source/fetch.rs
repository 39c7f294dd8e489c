//! One look of a member: which partitions are read and how much of each, in one read transaction, and what
//! goes out.

use super::assignment::{MemberState, Owned};
use super::{SourceMember, source_error};
use crate::broker::group;
use crate::broker::look::{StoredMessage, message_at, messages};
use crate::error::store_error;
use posthaste::source::{Batch, Limit, Partition, SourceError};
use posthaste::store::StoreError;
use tokio::time::Instant;

/// What one look asks of one partition.
struct Want {
    partition: Partition,
    row: i64,
    epoch: i64,
    /// Positions that go out again, or else new ones from `from` on.
    again: Vec<i64>,
    from: i64,
    events: usize,
}

/// What it found for each want, and how often groups have changed.
struct FetchedParts {
    readings: Vec<PartitionRead>,
    group_changes: i64,
}

/// Messages, and positions that were asked for and are gone.
#[derive(Default)]
pub(super) struct PartitionRead {
    pub(super) messages: Vec<StoredMessage>,
    pub(super) gone: Vec<i64>,
}

impl SourceMember {
    /// One look: changes, then messages that are there. `None`: nothing; ask again at the instant, or when
    /// stirred.
    pub(super) async fn look(&self, limit: Limit) -> Result<Option<Batch>, SourceError> {
        let (changes, wants) = {
            let mut state = self.state();
            state.called(&self.beat_now)?;
            (state.take_changes(), self.wants(&mut state, limit))
        };
        if !changes.is_empty() {
            return Ok(Some(Batch { changes, deliveries: Vec::new() }));
        }
        // Also when there is nothing to ask for: a member without partitions hears here that some became
        // free.
        let (wants, found) = self.fetch(wants, limit.bytes).await?;
        let mut state = self.state();
        if found.group_changes != state.group_changes {
            self.beat_now.notify_one();
        }
        let batch = hand_out(&mut state, &wants, found.readings);
        if batch.is_empty() { state.take_fault().map_or(Ok(None), Err) } else { Ok(Some(batch)) }
    }

    /// What to read. Partitions take turns to be first, and none takes more than its part of the room.
    fn wants(&self, state: &mut MemberState, limit: Limit) -> Vec<Want> {
        let now = Instant::now();
        let open: usize = state.partitions.values().map(|owned| owned.hand.open()).sum();
        let mut room = self.config.in_hand_max.saturating_sub(open).min(limit.events);
        let mut again_room = limit.events;
        let ready: Vec<(&Partition, &Owned)> =
            state.partitions.iter().filter(|(_, owned)| owned.is_open()).collect();
        let count = ready.len();
        let mut wants = Vec::new();
        for index in 0..count {
            let (partition, owned) = ready[(state.turn + index) % count];
            let again = owned.hand.due_again(now, again_room);
            again_room -= again.len();
            let part = room.div_ceil(count - index).min(again_room);
            let events = if owned.hand.is_clear() { part } else { 0 };
            room -= events;
            again_room -= events;
            if !again.is_empty() || events > 0 {
                let (row, epoch, from) = (owned.row, owned.epoch, owned.hand.next());
                wants.push(Want { partition: partition.clone(), row, epoch, again, from, events });
            }
        }
        state.turn = state.turn.wrapping_add(1);
        wants
    }

    async fn fetch(&self, wants: Vec<Want>, bytes: usize) -> Result<(Vec<Want>, FetchedParts), SourceError> {
        let readers = self.broker.link().map_err(source_error)?.readers;
        let read = readers.read(move |tx| {
            let (mut left, mut found) = (bytes, Vec::with_capacity(wants.len()));
            for want in &wants {
                // One message may exceed the bytes, but only as the first of all.
                let first = found.iter().all(|reading: &PartitionRead| reading.messages.is_empty());
                let reading = read_want(tx, want, left, first).map_err(store_error)?;
                left =
                    left.saturating_sub(reading.messages.iter().map(|stored| stored.message.bytes()).sum());
                found.push(reading);
            }
            let group_changes = group::changes(tx).map_err(store_error)?;
            Ok::<_, StoreError>((wants, FetchedParts { readings: found, group_changes }))
        });
        read.await.map_err(source_error)
    }
}

fn read_want(
    tx: &rusqlite::Transaction<'_>,
    want: &Want,
    bytes: usize,
    first: bool,
) -> rusqlite::Result<PartitionRead> {
    let mut reading = PartitionRead::default();
    if want.again.is_empty() {
        if want.events > 0 {
            let found = messages(tx, want.row, want.from, want.events, bytes)?;
            let fits = |stored: &StoredMessage| first || stored.message.bytes() <= bytes;
            reading.messages = if found.first().is_some_and(fits) { found } else { Vec::new() };
        }
        return Ok(reading);
    }
    let mut left = bytes;
    for position in &want.again {
        let Some(stored) = message_at(tx, want.row, *position)? else {
            reading.gone.push(*position);
            continue;
        };
        let size = stored.message.bytes();
        if size > left && !(first && reading.messages.is_empty()) {
            break;
        }
        left = left.saturating_sub(size);
        reading.messages.push(stored);
    }
    Ok(reading)
}

/// Notes what goes out. A partition that was lost or moved since is left out.
fn hand_out(state: &mut MemberState, wants: &[Want], found: Vec<PartitionRead>) -> Batch {
    let mut batch = Batch::default();
    for (want, reading) in wants.iter().zip(found) {
        let Some(owned) = state.partitions.get_mut(&want.partition) else { continue };
        let moved = want.again.is_empty() && owned.hand.next() != want.from;
        if owned.epoch != want.epoch || !owned.is_open() || moved {
            continue;
        }
        if want.again.is_empty() {
            owned.deliver_new(&want.partition, reading.messages, &mut batch);
        } else {
            owned.deliver_again(&want.partition, reading, &mut batch);
        }
    }
    batch
}
