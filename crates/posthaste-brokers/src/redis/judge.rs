//! What the replies to a request mean for each of its messages.

use super::flight::{Answered, Fate, Flight};
use super::link::{Broken, Session};
use super::sink::Servers;
use super::verdict::{self, Meeting, Refusal};
use ::redis::Value;
use posthaste::sink::{Failure, Scope, Verdict};

/// How often a call follows a slot that has moved.
const REDIRECTS_MAX: usize = 3;
/// The least that the longest string can be told to be.
const BULK_BYTES_MIN: usize = 1 << 20;

impl Flight<'_> {
    /// One reply for each message.
    pub(super) fn judge_each(&mut self, answer: &Answered, replies: &[Value]) {
        for (index, reply) in answer.messages.iter().zip(replies) {
            self.judge(answer, *index, reply, true);
        }
    }

    /// A reply for each message when it was queued, and then that of `EXEC`: a list of their results, or an error,
    /// and then none of them was done, for the reason that one of them met before or that `EXEC` itself gives.
    pub(super) fn judge_together(&mut self, answer: &Answered, replies: &[Value]) {
        let Some((exec, queued)) = replies.split_last() else { return };
        match exec {
            Value::Array(results) if results.len() == answer.messages.len() => {
                self.judge_runs(answer, |place| &results[place]);
            }
            exec => {
                let reason = queued.iter().find(|reply| matches!(reply, Value::ServerError(_)));
                self.judge_runs(answer, |_| reason.unwrap_or(exec));
            }
        }
    }

    /// Within a run, a message behind one that was refused is held.
    fn judge_runs<'r>(&mut self, answer: &Answered, reply: impl Fn(usize) -> &'r Value) {
        let mut refused: Option<&str> = None;
        let mut waits: Option<&str> = None;
        for (place, index) in answer.messages.iter().enumerate() {
            let key = self.messages[*index].order_key();
            if refused.is_some() && refused == key && matches!(reply(place), Value::ServerError(_)) {
                self.decide(*index, Verdict::Held);
                continue;
            }
            let leads = waits.is_none() || waits != key;
            self.judge(answer, *index, reply(place), leads);
            waits = if self.fates[*index] == Fate::Waiting { key } else { None };
            let goes_on = matches!(self.fates[*index], Fate::Decided(Verdict::Delivered) | Fate::Waiting);
            refused = if goes_on { None } else { key };
        }
    }

    fn judge(&mut self, answer: &Answered, index: usize, reply: &Value, leads: bool) {
        let (session, stream) = (&answer.session, answer.stream);
        let refusal = if let Value::ServerError(error) = reply { Some(Refusal::of(error)) } else { None };
        if let (Some((slot, to)), Servers::Many(cluster)) = (refusal.and_then(Refusal::moved), &self.sink.way)
            && self.redirects < REDIRECTS_MAX
        {
            cluster.moved(slot, to);
            self.moved.push(stream);
            return self.wait_again(index, leads);
        }
        let meeting = Meeting {
            stream: self.streams.names[stream],
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
        self.decide(index, verdict);
    }

    pub(super) fn judge_broken(&mut self, answer: &Answered, broken: &Broken) {
        let reach = answer.session.reach;
        let verdict = match (broken, answer.messages.as_slice()) {
            (Broken::Unsent(failure), _) => Verdict::Retry(Failure { scope: reach, ..failure.clone() }),
            (Broken::Lost(silence), [alone]) if self.may_have_broken(*alone, &answer.session) => {
                silence.sent(Scope::Event)
            }
            (Broken::Lost(silence), _) => silence.sent(reach),
        };
        if let Broken::Lost(silence) = broken {
            // Nothing more is sent on it: what waits has not left, and is known not to be there.
            self.streams.leave(&answer.session, &silence.failure(reach));
        }
        for index in &answer.messages {
            self.decide(*index, verdict.clone());
        }
    }

    /// A server ends the connection over a string that is longer than it takes. Where we may not know its limit, a
    /// connection that broke under a large message is that message's fault: it would break the next one too.
    fn may_have_broken(&self, index: usize, session: &Session) -> bool {
        session.bulk_bytes_max.is_none() && self.payload_bytes(index) > BULK_BYTES_MIN
    }

    /// Back to those that may be sent: the server has said that it did not take it. Only the first of a run has its
    /// turn: the others go with it again, or when it is delivered (G3).
    fn wait_again(&mut self, index: usize, leads: bool) {
        self.in_flight -= 1;
        self.fates[index] = Fate::Waiting;
        if leads {
            self.ready.push_back(index);
        }
    }
}
