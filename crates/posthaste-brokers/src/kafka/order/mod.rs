//! Which message may go to which producer, and when: order by key without waiting for every answer.
//!
//! The table knows the keys and topics that have messages with the sink. A message may go when nothing of
//! its key is unanswered. It may also go *behind* unanswered ones, when the three conditions of
//! [`super`]'s proof hold: the same line, the same topic and partition key, and one message of the key that
//! this line has delivered while the key was in the table. Otherwise it waits.
//!
//! A message behind another is let go only when that one was handed to the producer, or is to be handed
//! over by the same call, which does so in order. Two calls that hold turns of one key at the same time
//! could swap them.
//!
//! A topic that is not proven is on trial: few of its messages are out at once, on the trial line, and
//! none behind another. What has to wait for that is failed with the topic, unsent.
//!
//! A failed key is closed until every call with a message of it has returned. A call that was dropped, or
//! returned with messages unanswered, leaves ghosts: they keep their key from other lines until the
//! producer has told their fate.
//!
//! One lock, taken once for a burst of reports or turns; a call has one waker.

mod table;
mod topics;

use super::verdict::DeliveryFault;
use crate::lock::locked;
use posthaste::sink::Message;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use table::OrderTable;

/// The number of a producer. Never used again.
pub(super) type LineId = u64;

/// What a call hears of one of its messages, by index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum News {
    /// Hand it to this line, then say so.
    Go(LineId),
    /// An earlier message of its key was not delivered.
    Held,
    /// The broker has it.
    Delivered,
    /// It failed. `sent` is whether it had been handed to the producer.
    Failed { fault: DeliveryFault, sent: bool, line: LineId },
}

/// A message, by the call's number and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageRef {
    pub(super) call: u32,
    pub(super) index: u32,
}

#[derive(Debug, Default)]
pub(super) struct KeyOrder {
    table: Mutex<OrderTable>,
}

/// The messages of one call.
#[derive(Debug)]
pub(super) struct OrderedCall<'a> {
    order: &'a KeyOrder,
    id: u32,
}

impl KeyOrder {
    /// Registers a call's messages, in order, before the first of them is sent.
    pub(super) fn enter(&self, messages: &[Message]) -> OrderedCall<'_> {
        OrderedCall { order: self, id: self.table().enter(messages) }
    }

    /// What a producer reports, in order.
    pub(super) fn report(&self, line: LineId, reports: &mut Vec<(MessageRef, Option<DeliveryFault>)>) {
        let mut woken = Vec::new();
        let mut table = self.table();
        for (message, fault) in reports.drain(..) {
            table.settle(message, line, fault, &mut woken);
        }
        drop(table);
        woken.into_iter().for_each(Waker::wake);
    }

    /// From now on proven topics use this line.
    pub(super) fn set_main(&self, line: LineId) {
        self.table().main = line;
    }

    /// From now on topics on trial use this line.
    pub(super) fn set_trial(&self, line: LineId) {
        self.table().trial = line;
    }

    /// This topic has to prove itself again.
    pub(super) fn suspect(&self, topic: &str, fault: DeliveryFault) {
        self.table().topics.suspect(topic, fault);
    }

    fn table(&self) -> MutexGuard<'_, OrderTable> {
        locked(&self.table)
    }
}

impl OrderedCall<'_> {
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Takes the news. If there are none, the waker is kept.
    pub(super) fn poll_news(&self, context: &mut Context<'_>, news: &mut Vec<(u32, News)>) -> Poll<()> {
        let mut table = self.order.table();
        let Some(entry) = table.calls.get_mut(&self.id) else { return Poll::Pending };
        if entry.news.is_empty() {
            if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                entry.waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        }
        news.append(&mut entry.news);
        Poll::Ready(())
    }

    /// Takes the news that are there.
    pub(super) fn take_news(&self, news: &mut Vec<(u32, News)>) {
        if let Some(entry) = self.order.table().calls.get_mut(&self.id) {
            news.append(&mut entry.news);
        }
    }

    /// These were handed to their lines. Others of their keys may follow.
    pub(super) fn sent(&self, indices: &mut Vec<u32>) {
        if indices.is_empty() {
            return;
        }
        let mut woken = Vec::new();
        let mut table = self.order.table();
        for index in indices.drain(..) {
            table.sent(MessageRef { call: self.id, index }, &mut woken);
        }
        drop(table);
        woken.into_iter().for_each(Waker::wake);
    }

    /// The line of this turn is gone. The answer is where to go instead, if nothing else of its key is out.
    pub(super) fn reroute(&self, index: u32) -> Option<LineId> {
        self.order.table().reroute(MessageRef { call: self.id, index })
    }

    /// This message could not be handed over.
    pub(super) fn refuse(&self, index: u32, fault: DeliveryFault) {
        let mut woken = Vec::new();
        let message = MessageRef { call: self.id, index };
        self.order.table().refuse(message, fault, &mut woken);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Drop for OrderedCall<'_> {
    fn drop(&mut self) {
        let mut woken = Vec::new();
        self.order.table().leave(self.id, &mut woken);
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests;
