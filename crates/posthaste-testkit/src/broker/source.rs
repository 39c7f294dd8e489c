//! A member of a group of the broker in memory: the source seam on its table.

use super::{BrokerKind, MemoryBroker, MessageState, Slot};
use async_trait::async_trait;
use posthaste::source::{
    AckScope, Batch, Capabilities, Change, Delivery, Drained, Limit, NackOrder, Partition, PartitionView,
    SeekTo, Source, SourceError, Standing, Ticket,
};
use std::time::Duration;
use tokio::time::Instant;

/// How often a waiting call looks again. Free on a paused clock.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A member of a group of a [`MemoryBroker`].
pub struct MemorySource {
    pub(super) broker: MemoryBroker,
    pub(super) group: String,
    pub(super) member: String,
    pub(super) stall_limit: Duration,
}

impl MemorySource {
    fn look(&self, limit: Limit) -> Result<Batch, SourceError> {
        let mut world = self.broker.world();
        let world = &mut *world;
        let life = world.groups.get_mut(&self.group).and_then(|group| group.members.get_mut(&self.member));
        let life = life.ok_or(SourceError::Closed)?;
        if life.closing.is_some() {
            return Err(SourceError::Closed);
        }
        life.last_call = Instant::now();
        world.settle(&self.group, self.broker.kind);
        let Some(group) = world.groups.get_mut(&self.group) else { return Ok(Batch::default()) };
        let changes = group.members.get_mut(&self.member).map(|life| std::mem::take(&mut life.changes));
        let mut batch = Batch { changes: changes.unwrap_or_default(), deliveries: Vec::new() };
        let mut bytes = 0;
        let mine = group.slots.values().filter(|slot| slot.owner.as_deref() == Some(&self.member));
        let open: usize = mine.map(Slot::out).sum();
        let mut room = self.broker.in_hand_max.saturating_sub(open).min(limit.events);
        for (partition, slot) in &mut group.slots {
            if slot.owner.as_deref() != Some(&self.member) || slot.leaving || slot.paused {
                continue;
            }
            let log =
                &world.topics[&partition.topic].partitions[usize::try_from(partition.number).unwrap_or(0)];
            let mut position = slot.start.max(log.first);
            while room > 0 && position < log.entries.len() as i64 {
                let status = slot.messages.get(&position).copied();
                if let Some(MessageState::Back(due)) = status
                    && due > Instant::now()
                    && self.broker.kind == BrokerKind::Log
                {
                    break;
                }
                let goes = match status {
                    None => true,
                    Some(MessageState::Back(due)) => due <= Instant::now(),
                    Some(_) => false,
                };
                if goes {
                    let (message, at) = &log.entries[usize::try_from(position).unwrap_or(0)];
                    bytes += message.bytes();
                    if bytes > limit.bytes && !batch.deliveries.is_empty() {
                        return Ok(batch);
                    }
                    slot.messages.insert(position, MessageState::Out);
                    room -= 1;
                    let ticket = Ticket { partition: partition.clone(), epoch: slot.epoch, number: position };
                    batch.deliveries.push(Delivery {
                        ticket,
                        position: (self.broker.kind == BrokerKind::Log).then_some(position),
                        redelivery: Some(slot.counts.get(&position).copied().unwrap_or(0)),
                        published_at: Some(*at),
                        address: None,
                        message: message.clone(),
                    });
                }
                position += 1;
            }
        }
        Ok(batch)
    }

    /// Does something to the slot of a ticket, if it is still this member's.
    fn settle(&self, ticket: &Ticket, status: MessageState) -> Standing {
        let mut world = self.broker.world();
        world.settle(&self.group, self.broker.kind);
        let slot = world.groups.get_mut(&self.group).and_then(|group| group.slots.get_mut(&ticket.partition));
        let Some(slot) =
            slot.filter(|slot| slot.epoch == ticket.epoch && slot.owner.as_deref() == Some(&self.member))
        else {
            return Standing::Revoked;
        };
        if slot.messages.get(&ticket.number) == Some(&MessageState::Out) {
            slot.messages.insert(ticket.number, status);
            if status != MessageState::Done {
                *slot.counts.entry(ticket.number).or_default() += 1;
            }
        }
        Standing::Settled
    }

    fn with_slot<T>(
        &self,
        partition: &Partition,
        act: impl FnOnce(&mut Slot) -> T,
    ) -> Result<T, SourceError> {
        let mut world = self.broker.world();
        let slot = world.groups.get_mut(&self.group).and_then(|group| group.slots.get_mut(partition));
        let slot = slot.filter(|slot| slot.owner.as_deref() == Some(&self.member));
        slot.map(act).ok_or_else(|| SourceError::NotAssigned(partition.clone()))
    }
}

#[async_trait]
impl Source for MemorySource {
    fn capabilities(&self) -> Capabilities {
        let log = self.broker.kind == BrokerKind::Log;
        Capabilities {
            ack_scope: if log { AckScope::Prefix } else { AckScope::Each },
            nack_order: if log { NackOrder::Kept } else { NackOrder::Overtaken },
            orders_keys: true,
            counts_redeliveries: true,
            seeks: log,
            stall_limit: self.stall_limit,
            ahead_max: (!log).then_some(self.broker.in_hand_max),
        }
    }

    async fn next(&self, limit: Limit, wait: Duration) -> Result<Batch, SourceError> {
        let until = Instant::now() + wait;
        loop {
            let batch = self.look(limit)?;
            if !batch.is_empty() || Instant::now() >= until {
                return Ok(batch);
            }
            tokio::time::sleep(LOOK_EVERY.min(until - Instant::now())).await;
        }
    }

    async fn ack(&self, tickets: &[Ticket]) -> Result<Vec<Standing>, SourceError> {
        self.broker.world().acks += 1;
        Ok(tickets.iter().map(|ticket| self.settle(ticket, MessageState::Done)).collect())
    }

    async fn nack(&self, ticket: &Ticket, delay: Duration) -> Result<Standing, SourceError> {
        Ok(self.settle(ticket, MessageState::Back(Instant::now() + delay)))
    }

    async fn pause(&self, partition: &Partition) -> Result<(), SourceError> {
        self.with_slot(partition, |slot| slot.paused = true)
    }

    async fn resume(&self, partition: &Partition) -> Result<(), SourceError> {
        self.with_slot(partition, |slot| slot.paused = false)
    }

    async fn seek(&self, partition: &Partition, to: SeekTo) -> Result<i64, SourceError> {
        let is_queue = self.broker.kind == BrokerKind::Queue;
        if is_queue && to != SeekTo::Earliest {
            return Err(SourceError::Unsupported("seek"));
        }
        let log = {
            let world = self.broker.world();
            let topic = world.topics.get(&partition.topic);
            let number = usize::try_from(partition.number).unwrap_or(0);
            topic.and_then(|topic| topic.partitions.get(number)).cloned().unwrap_or_default()
        };
        let end = log.entries.len() as i64;
        let start = match to {
            SeekTo::Earliest => log.first,
            SeekTo::Latest => end,
            SeekTo::Position(position) => position.clamp(log.first, end),
            SeekTo::Time(time) => (log.first..end)
                .find(|n| log.entries[usize::try_from(*n).unwrap_or(0)].1 >= time)
                .unwrap_or(end),
        };
        let (before, after) = self.with_slot(partition, |slot| {
            slot.epoch += 1;
            if is_queue {
                slot.messages.retain(|_, status| *status == MessageState::Done);
            } else {
                slot.start = start;
                slot.messages.clear();
            }
            (slot.epoch - 1, slot.epoch)
        })?;
        let mut world = self.broker.world();
        let life = world.groups.get_mut(&self.group).and_then(|group| group.members.get_mut(&self.member));
        if let Some(life) = life {
            life.changes.push(Change::Revoked { partition: partition.clone(), epoch: before });
            life.changes.push(Change::Assigned { partition: partition.clone(), epoch: after });
            life.changes.extend(Change::misplaced(partition, to, log.first, end));
        }
        Ok(after)
    }

    async fn view(&self) -> Result<Vec<PartitionView>, SourceError> {
        let world = self.broker.world();
        let Some(group) = world.groups.get(&self.group) else { return Ok(Vec::new()) };
        let mine = group.slots.iter().filter(|(_, slot)| slot.owner.as_deref() == Some(&self.member));
        let view = |(partition, slot): (&Partition, &Slot)| {
            let log =
                &world.topics[&partition.topic].partitions[usize::try_from(partition.number).unwrap_or(0)];
            PartitionView {
                partition: partition.clone(),
                epoch: slot.epoch,
                committed: Some(slot.committed()),
                declared: false,
                first: Some(log.first),
                end: Some(log.entries.len() as i64),
                log_id: None,
                in_hand: slot.out(),
                paused: slot.paused,
            }
        };
        Ok(mine.map(view).collect())
    }

    async fn drain(&self, wait: Duration) -> Result<Drained, SourceError> {
        let deadline = Instant::now() + wait;
        loop {
            {
                let mut world = self.broker.world();
                let life =
                    world.groups.get_mut(&self.group).and_then(|group| group.members.get_mut(&self.member));
                let life = life.ok_or(SourceError::Closed)?;
                life.closing.get_or_insert(deadline);
                world.settle(&self.group, self.broker.kind);
                let life = world.groups.get(&self.group).and_then(|group| group.members.get(&self.member));
                if let Some(life) = life.filter(|life| life.closed) {
                    return Ok(Drained { abandoned: life.abandoned, ..Drained::default() });
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
