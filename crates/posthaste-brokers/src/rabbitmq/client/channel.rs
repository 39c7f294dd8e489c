//! The channels of a connection: which of them is for what, and what is under way on one.
//!
//! An error of one publish (no such exchange, no right, too large) closes the whole channel, and everything
//! unanswered on it has an unknown fate. So a message of which nothing is known does not go among the others.
//! That is the first message for an exchange, one that is larger than any before, and one whose destination
//! was on a channel that was closed. It goes to a channel for trials, one at a time, with a question behind
//! it that is answered in order. If the answer comes, the broker took the message, and its like go on by the
//! ordinary channels. If the channel is closed instead, it is known which message did it. That is the
//! topology check of each new connection, too. A passive declaration was refused for it, because it shows
//! that an exchange is there, not that we may use it.
//!
//! Each trial channel has one trial at a time, and an exchange has one trial on all of them. So an exchange
//! whose trial is never answered keeps its own messages waiting. New exchanges are tried beside it, until as
//! many hang as there are trial channels.
//!
//! There are a few ordinary channels, chosen by the exchange's name. They bound what the deletion of an
//! exchange costs others.
//!
//! | channels allowed | questions | trials | ordinary |
//! |---|---|---|---|
//! | 5 and more | 1 | 2, 3, 4 | 5 to 12 |
//! | 4 | 1 | 2, 3 | 4 |
//! | 3 | 1 | 2 | 3 |
//! | 2 | 1 | 1 | 2 |
//! | 1 | 1 | 1 | none: every message is a trial |
//!
//! On a channel with both, questions and trials are answered in the order in which they were written. The
//! fewer channels there are, the more unconfirmed messages a refused one takes along. They are sent again,
//! and nothing is lost.

use super::answer::Close;
use rustc_hash::FxHasher;
use std::collections::VecDeque;
use std::hash::Hasher;
use std::ops::Range;

/// The channel for questions.
pub(super) const CONTROL: u16 = 1;
/// All channels together, if the broker allows them.
pub(super) const CHANNELS: u16 = 12;

/// Which channel is for what, by the number of channels that the broker allows.
#[derive(Debug, Clone, Default)]
pub(super) struct ChannelPlan {
    /// Channels for messages that have not proven themselves.
    pub(super) trials: Range<u16>,
    pub(super) ordinary: Range<u16>,
}

impl ChannelPlan {
    pub(super) fn of(channels: u16) -> Self {
        let (trials, ordinary) = match channels {
            0 | 1 => (1..2, 2..2),
            2 => (1..2, 2..3),
            3 => (2..3, 3..4),
            4 => (2..4, 4..5),
            more => (2..5, 5..more.saturating_add(1)),
        };
        Self { trials, ordinary }
    }

    /// The channel of an exchange whose messages need no trial.
    pub(super) fn ordinary_channel(&self, exchange: &str) -> u16 {
        let mut hasher = FxHasher::default();
        hasher.write(exchange.as_bytes());
        // Less than CHANNELS.
        self.ordinary.start + (hasher.finish() % self.ordinary.len().max(1) as u64) as u16
    }
}

/// A message that has been encoded for its channel.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) call: u64,
    pub(super) index: usize,
    pub(super) id: String,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) bytes: usize,
    /// The position of its last byte among all that were ever written here.
    pub(super) end: u64,
    pub(super) returned: Option<Close>,
}

#[derive(Debug, Default)]
pub(super) struct Channel {
    pub(super) open: bool,
    /// The number of the first entry. Entries that were answered out of turn leave a gap.
    pub(super) first: u64,
    pub(super) entries: VecDeque<Option<InFlight>>,
    /// A message comes back now, for this reason. Its properties follow.
    pub(super) returning: Option<Close>,
    /// The questions that are answered in order.
    pub(super) awaits: VecDeque<Awaited>,
}

impl Channel {
    /// Takes the entries that a confirmation is about.
    pub(super) fn answered(&mut self, tag: u64, multiple: bool) -> Vec<InFlight> {
        let place = tag.checked_sub(self.first).map(|place| place as usize);
        let Some(last) = place.filter(|place| *place < self.entries.len()) else { return Vec::new() };
        let from = if multiple { 0 } else { last };
        let found = self.entries.range_mut(from..).take(last + 1 - from).filter_map(Option::take).collect();
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
        found
    }

    pub(super) fn mark_returned(&mut self, id: &str) {
        let Some(close) = self.returning.take() else { return };
        // Every copy is marked. A copy too many is sent again, and none is lost.
        for entry in self.entries.iter_mut().flatten().filter(|entry| entry.id == id) {
            entry.returned = Some(close.clone());
        }
    }

    pub(super) fn trial(&self) -> Option<&Trial> {
        self.awaits.iter().find_map(|awaited| match awaited {
            Awaited::Trial(trial) => Some(trial),
            Awaited::Answer => None,
        })
    }
}

/// A question that is written and has no answer.
#[derive(Debug)]
pub(super) enum Awaited {
    /// Whether a message was taken.
    Trial(Trial),
    /// What somebody asked.
    Answer,
}

/// A message of which nothing is known yet.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) tag: u64,
    pub(super) exchange: String,
    pub(super) bytes: usize,
}
