//! Replies of handlers outside, kept until the transaction with the mark has committed.
//!
//! A reply belongs to one attempt of one delivery in one life of the database: what an earlier life was told
//! may have gone with it, and somebody has to be asked again. It is kept for as long as an asking lasts that
//! may use it, however slow its neighbours are. After that it stays for a minute or more, for the message
//! that comes again; one that nobody has used for so long belongs to a message that went elsewhere.

use posthaste::consumer::store::Witness;
use posthaste::consumer::{Failure, Message};
use posthaste::event::Event;
use posthaste::source::Ticket;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a reply is kept that nobody is about to use; where an answer may take long, four times as long as
/// that. A message that was claimed for it comes again sooner.
const KEPT_MIN: Duration = Duration::from_secs(60);

/// One attempt of one delivery.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct CallId {
    message: Box<str>,
    ticket: Ticket,
    attempt: u32,
}

impl CallId {
    pub(crate) fn of(message: &Message<'_>) -> Self {
        Self { message: message.id().into(), ticket: message.ticket.clone(), attempt: message.attempt() }
    }
}

pub(crate) type Reply = Result<Vec<Event>, Failure>;

struct KeptReply {
    reply: Reply,
    life: Witness,
    /// The asking that used it last, and when.
    asking: u64,
    since: Instant,
}

/// The replies of one handler.
#[derive(Default)]
pub(crate) struct Replies(Mutex<FxHashMap<CallId, KeptReply>>);

impl Replies {
    fn kept(&self) -> MutexGuard<'_, FxHashMap<CallId, KeptReply>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was answered, whenever it was.
    pub(crate) fn get(&self, id: &CallId) -> Option<Reply> {
        self.kept().get(id).map(|kept| kept.reply.clone())
    }

    /// What was answered in this life. It stays for as long as this asking lasts.
    pub(crate) fn take_up(&self, id: &CallId, asking: &Asking) -> Option<Result<(), Failure>> {
        let mut kept = self.kept();
        let kept = kept.get_mut(id).filter(|kept| kept.life == asking.life)?;
        (kept.asking, kept.since) = (asking.number, Instant::now());
        Some(kept.reply.as_ref().map(drop).map_err(Clone::clone))
    }

    /// Keeps a reply, and lets those go that nobody will use.
    pub(crate) fn keep(&self, id: CallId, reply: Reply, asking: &Asking) {
        let (since, oldest) = (Instant::now(), asking.all.oldest());
        let kept_for = KEPT_MIN.max(4 * asking.within);
        let is_used = |kept: &KeptReply| kept.asking >= oldest || since.duration_since(kept.since) < kept_for;
        let mut kept = self.kept();
        kept.retain(|_, kept| is_used(kept));
        kept.insert(id, KeptReply { reply, life: asking.life, asking: asking.number, since });
    }

    pub(crate) fn forget(&self, id: &CallId) {
        self.kept().remove(id);
    }
}

/// The askings that are under way, by their numbers.
#[derive(Default)]
pub(crate) struct Askings(Mutex<(u64, BTreeSet<u64>)>);

impl Askings {
    fn all(&self) -> MutexGuard<'_, (u64, BTreeSet<u64>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn oldest(&self) -> u64 {
        self.all().1.first().copied().unwrap_or(u64::MAX)
    }

    /// Begins one, in this life of the database. It sends nothing after `within`: it may have to wait for its
    /// turn, and what it was told to do may be another's by then.
    pub(crate) fn begin(self: &Arc<Self>, life: Witness, within: Duration) -> Asking {
        let mut all = self.all();
        all.0 += 1;
        let number = all.0;
        all.1.insert(number);
        drop(all);
        Asking { all: Arc::clone(self), number, life, within, sends_until: Instant::now() + within }
    }
}

/// Some messages are being asked about, or their replies are being brought in.
pub(crate) struct Asking {
    all: Arc<Askings>,
    number: u64,
    life: Witness,
    /// For one answer.
    pub(crate) within: Duration,
    sends_until: Instant,
}

impl Asking {
    pub(crate) fn life(&self) -> Witness {
        self.life
    }

    pub(crate) fn is_late(&self) -> bool {
        Instant::now() > self.sends_until
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.all.all().1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::event::Timestamp;
    use posthaste::source::Partition;

    fn id(number: i64) -> CallId {
        let ticket = Ticket { partition: Partition::new("orders", 0), epoch: 1, number };
        CallId { message: format!("m{number}").into(), ticket, attempt: 1 }
    }

    const WITHIN: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_reply_outlasts_its_slow_neighbours_and_not_its_use() {
        let (askings, replies) = (Arc::<Askings>::default(), Replies::default());
        let life = Witness(Some(Timestamp(1)));
        let slow = askings.begin(life, WITHIN);
        for number in 0..100 {
            replies.keep(id(number), Ok(Vec::new()), &slow);
            tokio::time::advance(WITHIN).await;
        }
        assert!((0..100).all(|number| replies.get(&id(number)).is_some()), "its batch is still under way");
        drop(slow);
        let next = askings.begin(life, WITHIN);
        assert!(replies.take_up(&id(0), &next).is_some());
        replies.keep(id(100), Ok(Vec::new()), &next);
        assert!(replies.get(&id(0)).is_some() && replies.get(&id(1)).is_none(), "the others went elsewhere");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_of_another_life_is_none() {
        let (askings, replies) = (Arc::<Askings>::default(), Replies::default());
        let before = askings.begin(Witness(Some(Timestamp(1))), WITHIN);
        replies.keep(id(0), Ok(Vec::new()), &before);
        let after = askings.begin(Witness(Some(Timestamp(2))), WITHIN);
        assert!(replies.take_up(&id(0), &after).is_none());
        assert!(!after.is_late());
        tokio::time::advance(WITHIN * 2).await;
        assert!(after.is_late());
    }
}
