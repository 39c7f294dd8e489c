//! A group, from the moment it is taken until all of it is answered.

use super::call::{CallEnd, Earlier, GroupCall};
use super::link::{CommitFate, Dial, Link};
use super::room::{QueuedRequest, Room};
use posthaste::crash_point;
use posthaste::intake::IntakeError;
use posthaste::store::StoreError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// What a refused group is cut into. A part that meets a key in flight elsewhere costs 50 ms: cut in eighths,
/// one bad request in 512 is found after three of those, in halves after nine.
const PARTS: usize = 8;

/// Pauses before something is tried again: what collided; a key in flight elsewhere; a database that is away.
const COLLIDED: Duration = Duration::from_millis(5);
const HELD: Duration = Duration::from_millis(50);
const AWAY: Duration = Duration::from_millis(100);

/// Requests that are tried between two such pauses.
const ROUND: usize = 1_024;

/// A task's hands.
pub(super) struct Committer {
    room: Arc<Room>,
    dial: Arc<Dial>,
    link: Option<Link>,
}

impl Committer {
    pub(super) fn new(room: Arc<Room>, dial: Arc<Dial>) -> Self {
        Self { room, dial, link: None }
    }

    /// Stores what gathers, for ever.
    pub(super) async fn run(mut self) {
        loop {
            match self.room.take() {
                Some(group) => self.settle(group).await,
                None => self.room.arrived.notified().await,
            }
        }
    }

    /// Tries requests whose keys are in flight elsewhere, one by one, for ever.
    pub(super) async fn run_held(mut self, holding: &mut mpsc::UnboundedReceiver<QueuedRequest>) {
        let mut round = Vec::new();
        while holding.recv_many(&mut round, ROUND).await > 0 {
            for waiting in round.drain(..) {
                self.settle(vec![waiting]).await;
            }
            // pace: the other transaction cannot signal us.
            sleep(HELD).await;
        }
    }

    /// Goes on until every request of a group is answered, withdrawn, or held.
    async fn settle(&mut self, group: Vec<QueuedRequest>) {
        let mut parts = vec![group];
        while let Some(mut part) = parts.pop() {
            part.retain(|waiting| !waiting.ticket.is_withdrawn());
            part = part.into_iter().filter_map(|waiting| self.room.in_time(waiting)).collect();
            if part.is_empty() {
                continue;
            }
            if let Err(error) = self.connect().await {
                self.not_now(part, &error, &mut parts).await;
                continue;
            }
            part.retain(|waiting| waiting.ticket.take());
            if part.is_empty() {
                continue;
            }
            let end = self.call(&part).await;
            self.after(part, end, &mut parts).await;
        }
    }

    async fn after(&mut self, part: Vec<QueuedRequest>, end: CallEnd, parts: &mut Vec<Vec<QueuedRequest>>) {
        match end {
            CallEnd::Done(earlier) => return self.answer(part, &earlier),
            CallEnd::Unknown(why) | CallEnd::Lost(why) => {
                return answer_all(part, &IntakeError::OutcomeUnknown(why));
            }
            CallEnd::Hopeless(why) => {
                self.room.trouble(&why);
                return answer_all(part, &IntakeError::Unavailable(why));
            }
            CallEnd::Refused(why) if part.len() == 1 => {
                self.room.set_apart(&part[0].request.tenant);
                return answer_all(part, &IntakeError::Refused(why));
            }
            _ => {}
        }
        // In all other cases it is certain that nothing is stored.
        part.iter().for_each(|waiting| waiting.ticket.put_back());
        match end {
            CallEnd::Held if part.len() == 1 => part.into_iter().for_each(|waiting| self.room.hold(waiting)),
            CallEnd::Held => {
                // Whoever has no key is not to blame.
                let (keyed, plain): (Vec<_>, Vec<_>) =
                    part.into_iter().partition(|waiting| waiting.request.idempotency.is_some());
                parts.extend(cut(keyed));
                parts.push(plain);
            }
            CallEnd::Refused(_) => parts.extend(cut(part)),
            CallEnd::Again(why) => {
                self.room.trouble(&why);
                parts.push(part);
                sleep(COLLIDED).await;
            }
            CallEnd::Away(why) => {
                self.room.trouble(&why);
                // Another server may have become the primary: the next connection finds it.
                self.link = None;
                parts.push(part);
                sleep(AWAY).await;
            }
            _ => {}
        }
    }

    fn answer(&self, part: Vec<QueuedRequest>, earlier: &Earlier) {
        let (outcomes, events) = GroupCall::new(&part).outcomes(&part, earlier);
        self.room.committed(events);
        for (waiting, outcome) in part.into_iter().zip(outcomes) {
            waiting.answer(outcome);
        }
    }

    /// There is no connection.
    async fn not_now(
        &mut self,
        part: Vec<QueuedRequest>,
        error: &StoreError,
        parts: &mut Vec<Vec<QueuedRequest>>,
    ) {
        if !error.is_transient() {
            self.room.trouble(&error.to_string());
            return answer_all(part, &IntakeError::Unavailable(error.to_string()));
        }
        self.room.trouble(&error.to_string());
        parts.push(part);
        sleep(AWAY).await;
    }

    async fn connect(&mut self) -> Result<(), StoreError> {
        if self.link.as_ref().is_none_or(Link::is_closed) {
            self.link = None;
            self.link = Some(Link::open(&self.dial).await?);
            self.room.no_trouble();
        }
        Ok(())
    }

    /// Stores a part in one transaction.
    async fn call(&mut self, part: &[QueuedRequest]) -> CallEnd {
        let Some(link) = &self.link else { return CallEnd::Away("there is no connection".to_owned()) };
        let (call, commit) = (GroupCall::new(part), Uuid::now_v7());
        // CRASH(gateway.before_commit): nothing is stored, and nobody was told otherwise (W1): all repeat.
        crash_point!("gateway.before_commit");
        let end = link.append(&call, &commit).await;
        let end = match end {
            CallEnd::Lost(why) => self.find_out(part, &call, &commit, why).await,
            end => end,
        };
        if matches!(end, CallEnd::Done(_)) {
            // CRASH(gateway.after_commit): all of it is durable, and nobody was told. A client that repeats
            // its request with its Idempotency-Key gets the same ids; without one, a second event (W4).
            crash_point!("gateway.after_commit");
        }
        end
    }

    /// Asks the database what became of a call, until nobody waits for it any more.
    async fn find_out(
        &mut self,
        part: &[QueuedRequest],
        call: &GroupCall<'_>,
        commit: &Uuid,
        why: String,
    ) -> CallEnd {
        self.link = None;
        self.room.trouble(&why);
        let until = part.iter().map(|waiting| waiting.deadline).max().unwrap_or_else(Instant::now);
        while Instant::now() < until {
            let looked = tokio::time::timeout_at(until, self.look(call, commit)).await;
            match looked {
                Ok(Ok(Some(earlier))) => return CallEnd::Done(earlier),
                Ok(Ok(None)) => return CallEnd::Again(why),
                Ok(Err(error)) => self.room.trouble(&error.to_string()),
                Err(_) => break,
            }
            sleep(HELD).await;
        }
        self.link = None;
        CallEnd::Unknown(why)
    }

    /// `None`: nothing was stored, and nothing will be.
    async fn look(&mut self, call: &GroupCall<'_>, commit: &Uuid) -> Result<Option<Earlier>, StoreError> {
        self.connect().await?;
        let Some(link) = &self.link else { return Ok(None) };
        match link.look(commit).await? {
            CommitFate::Never => Ok(None),
            CommitFate::Committed => Ok(Some(call.earlier(&link.requests(call).await?))),
        }
    }
}

/// The parts of a group, the first one last: it is taken next.
fn cut(mut group: Vec<QueuedRequest>) -> Vec<Vec<QueuedRequest>> {
    let size = group.len().div_ceil(PARTS).max(1);
    let mut parts = Vec::with_capacity(PARTS);
    while group.len() > size {
        let at = (group.len() - 1) / size * size;
        parts.push(group.split_off(at));
    }
    parts.push(group);
    parts
}

fn answer_all(part: Vec<QueuedRequest>, error: &IntakeError) {
    for waiting in part {
        waiting.answer(Err(error.clone()));
    }
}
