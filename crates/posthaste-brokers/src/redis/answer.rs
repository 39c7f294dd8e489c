//! What the replies to a request mean for each of its messages.

use super::client::{Broken, ErrorReply, Servers, Session};
use super::publisher::{Answered, Requests, payload_bytes};
use super::verdict::{self, Meeting};
use crate::call::Flight;
use ::redis::Value;
use posthaste::sink::{Failure, Message, Scope, Verdict};
use std::sync::Arc;

/// How often a call follows a slot that has moved.
const REDIRECTS_MAX: usize = 3;
/// The smallest limit for strings that a server can be configured to.
const BULK_BYTES_MIN: usize = 1 << 20;

impl Requests<'_> {
    pub(super) fn hear(&mut self, answer: &Answered, flight: &mut Flight<'_>) {
        match &answer.replies {
            Ok(replies) if answer.together => self.hear_together(answer, replies, flight),
            Ok(replies) => {
                for (index, reply) in answer.messages.iter().zip(replies) {
                    self.judge(answer, *index, reply, true, flight);
                }
            }
            Err(Broken::Late) => answer.messages.iter().for_each(|index| flight.unsent(*index)),
            Err(Broken::Unsent(failure)) => decide_all(answer, &Verdict::Retry(failure.clone()), flight),
            Err(Broken::Lost(error)) => {
                let failure = verdict::connection_lost(error, &answer.session.server, answer.session.reach);
                // Nothing more is sent over this session, so what waits for it has certainly not left.
                self.leave(&answer.session, &failure);
                decide_all(answer, &lost(answer, failure, flight.messages()), flight);
            }
        }
    }

    /// Reads the replies to a transaction: one for each message when it was queued, and then that of `EXEC`.
    /// The last one is a list of results, or an error. With an error none of the messages was done, and the
    /// reason is what one of them met before, or what `EXEC` itself says.
    fn hear_together(&mut self, answer: &Answered, replies: &[Value], flight: &mut Flight<'_>) {
        let Some((exec, queued)) = replies.split_last() else { return };
        match exec {
            Value::Array(results) if results.len() == answer.messages.len() => {
                self.judge_runs(answer, |place| &results[place], flight);
            }
            exec => {
                let reason = queued.iter().find(|reply| matches!(reply, Value::ServerError(_)));
                self.judge_runs(answer, |_| reason.unwrap_or(exec), flight);
            }
        }
    }

    /// Judges the messages of runs. Within a run, a message behind a refused one is held.
    fn judge_runs<'r>(
        &mut self,
        answer: &Answered,
        reply: impl Fn(usize) -> &'r Value,
        flight: &mut Flight<'_>,
    ) {
        let (mut refused, mut waits): (Option<&str>, Option<&str>) = (None, None);
        for (place, index) in answer.messages.iter().enumerate() {
            let key = flight.messages()[*index].order_key();
            if refused.is_some() && refused == key && matches!(reply(place), Value::ServerError(_)) {
                flight.decide(*index, Verdict::Held);
                continue;
            }
            let leads = waits.is_none() || waits != key;
            self.judge(answer, *index, reply(place), leads, flight);
            let is_waiting = flight.is_unsent(*index);
            waits = if is_waiting { key } else { None };
            refused = if is_waiting || flight.is_delivered(*index) { None } else { key };
        }
    }

    fn judge(
        &mut self,
        answer: &Answered,
        index: usize,
        reply: &Value,
        leads: bool,
        flight: &mut Flight<'_>,
    ) {
        let session = &answer.session;
        let refusal = if let Value::ServerError(error) = reply { Some(ErrorReply::of(error)) } else { None };
        if let Some((slot, to)) = refusal.and_then(ErrorReply::moved)
            && self.follow(answer, slot, to)
        {
            // Only the first message of a run has its turn. The others go with it again, or when it is
            // delivered (G3).
            flight.unsent(index);
            self.streams[answer.stream].parked.extend(leads.then_some(index));
            return;
        }
        let meeting = Meeting {
            stream: self.streams[answer.stream].name,
            server: &session.server,
            identity: &session.identity,
            reach: session.reach,
        };
        let verdict = verdict::of_reply(reply, meeting);
        if let (Some(refusal), Verdict::Retry(failure)) = (refusal, &verdict)
            && refusal.ends_session()
        {
            session.give_up(failure.clone());
        }
        flight.decide(index, verdict);
    }

    /// Follows a slot that has moved, and answers whether its new server is sought.
    fn follow(&mut self, answer: &Answered, slot: u16, to: &str) -> bool {
        let Servers::Many(cluster) = &self.sink.servers else { return false };
        let stream = &mut self.streams[answer.stream];
        match &stream.session {
            None => return true,
            Some(Ok(session)) if Arc::ptr_eq(session, &answer.session) => {
                if stream.redirects == REDIRECTS_MAX {
                    return false;
                }
                stream.redirects += 1;
                cluster.moved(slot, to, &answer.session);
            }
            // The answer is late, and others have followed the slot already.
            Some(_) => {}
        }
        self.seek(answer.stream);
        true
    }

    /// This session is over, for this reason.
    fn leave(&mut self, over: &Arc<Session>, why: &Failure) {
        for stream in &mut self.streams {
            if matches!(&stream.session, Some(Ok(session)) if Arc::ptr_eq(session, over)) {
                stream.session = Some(Err(why.clone()));
            }
        }
    }
}

fn decide_all(answer: &Answered, verdict: &Verdict, flight: &mut Flight<'_>) {
    for index in &answer.messages {
        flight.decide(*index, verdict.clone());
    }
}

/// The verdict on a message whose connection was lost. A server ends the connection over a string that is
/// longer than it takes. Where we may not know its limit, a connection that broke under a large message is
/// that message's fault, because it would break the next one too.
fn lost(answer: &Answered, failure: Failure, messages: &[Message]) -> Verdict {
    let is_large = |index: usize| payload_bytes(&messages[index]) > BULK_BYTES_MIN;
    match answer.messages.as_slice() {
        [alone] if answer.session.bulk_bytes_max.is_none() && is_large(*alone) => {
            Verdict::Unknown(Failure { scope: Scope::Event, ..failure })
        }
        _ => Verdict::Unknown(failure),
    }
}
