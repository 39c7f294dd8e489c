//! From what happened to a message to what the relay is told of it: the table of [`super`] in code.
//!
//! Pure, so that each row can be read and tested without a server. The one rule behind the rows: an
//! event may only be rejected for something that is its own. What could heal by an operator's hand, a
//! key of another type, a full memory, a missing right, stays a `Retry`.

use ::redis::{RedisError, ServerError, Value};
use posthaste::sink::{Failure, Scope, Verdict};
use std::borrow::Cow;

/// What a message meets at a server: where it was to go, as whom, and how far a failure of that server reaches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meeting<'a> {
    pub(super) stream: &'a str,
    pub(super) server: &'a str,
    pub(super) identity: &'a str,
    /// `Sink`, or in a cluster `Destination`.
    pub(super) reach: Scope,
}

/// A server's refusal: the word it begins with, and the rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Refusal<'a> {
    pub(super) code: &'a str,
    pub(super) words: &'a str,
}

impl<'a> Refusal<'a> {
    pub(super) fn of(error: &'a ServerError) -> Self {
        let words = error.details().unwrap_or_default();
        // `EXEC` repeats the reason for which it was itself refused.
        let inner = words.split_once("because of: ").and_then(|(_, reason)| reason.split_once(' '));
        match (error.code(), inner) {
            ("EXECABORT", Some((code, words))) => Self { code, words },
            (code, _) => Self { code, words },
        }
    }

    /// Where a moved slot is now: its number and `host:port`.
    pub(super) fn moved(self) -> Option<(u16, &'a str)> {
        let (slot, address) = self.words.split_once(' ').filter(|_| self.code == "MOVED")?;
        Some((slot.parse().ok()?, address.trim()))
    }

    /// Whether this connection can be of no more use: another one may lead to the master, or be let in.
    pub(super) fn ends_session(self) -> bool {
        matches!(self.code, "READONLY" | "NOAUTH" | "WRONGPASS")
    }

    pub(super) fn verdict(self, at: Meeting<'_>) -> Verdict {
        let (code, scope, meaning) = self.meaning(at);
        let text = format!(
            "{} refused an entry of {:?}: {} {}{meaning}",
            at.server, at.stream, self.code, self.words
        );
        let failure = Failure { scope, ..Failure::of_event(code, text) };
        if code == "redis.too_large" { Verdict::Rejected(failure) } else { Verdict::Retry(failure) }
    }

    /// Code, scope, and what an operator should know beside the server's own words.
    fn meaning(self, at: Meeting<'_>) -> (&'static str, Scope, Cow<'static, str>) {
        let (stream, server) = (Scope::Destination, at.reach);
        match self.code {
            "WRONGTYPE" => {
                ("redis.wrong_type", stream, "; its events wait until the key is a stream or is gone".into())
            }
            "OOM" => ("redis.oom", server, "; events wait until there is memory (maxmemory)".into()),
            "READONLY" => ("redis.readonly", server, "; looking for the master again".into()),
            "MISCONF" => ("redis.misconf", server, "".into()),
            "NOREPLICAS" => ("redis.no_replicas", server, "".into()),
            "LOADING" | "MASTERDOWN" => ("redis.loading", server, "".into()),
            "BUSY" => ("redis.busy", server, "".into()),
            "MOVED" => {
                ("redis.moved", stream, "; is this a node of a cluster? Then set cluster = true".into())
            }
            "ASK" | "TRYAGAIN" => {
                ("redis.migrating", stream, "; its events wait until the slot has moved".into())
            }
            "CLUSTERDOWN" => ("redis.cluster_down", stream, "".into()),
            "NOAUTH" | "WRONGPASS" => ("redis.auth", server, format!(" ({})", at.identity).into()),
            "NOPERM" => self.denied(at),
            "ERR" if self.words.contains("exhausted the last possible ID") => {
                ("redis.stream_full", stream, "".into())
            }
            "ERR" if self.words.contains("unknown command") => ("redis.unsupported", server, "".into()),
            "ERR" if self.words.contains("too large") || self.words.contains("bulk length") => {
                ("redis.too_large", Scope::Event, "".into())
            }
            _ => ("redis.error", Scope::Event, "".into()),
        }
    }

    /// A missing right names either a command, which is missing everywhere, or a key.
    fn denied(self, at: Meeting<'_>) -> (&'static str, Scope, Cow<'static, str>) {
        let who = at.identity;
        if self.words.contains("access a key") || self.words.contains("keys used as arguments") {
            let more = format!("; {who} may not write to the key {:?} (ACL SETUSER … %W~{0})", at.stream);
            return ("redis.denied", Scope::Destination, more.into());
        }
        let more = format!("; {who} needs the commands xadd, multi, exec and discard");
        ("redis.denied", at.reach, more.into())
    }
}

/// The answer to one `XADD`, alone or in an `EXEC`.
pub(super) fn of_reply(reply: &Value, at: Meeting<'_>) -> Verdict {
    match reply {
        Value::BulkString(id) if is_entry_id(id) => Verdict::Delivered,
        Value::ServerError(error) => Refusal::of(error).verdict(at),
        other => {
            let text = format!("{} answered an XADD with {}, which is no entry's id", at.server, kind(other));
            Verdict::Unknown(Failure { scope: at.reach, ..Failure::of_event("redis.error", text) })
        }
    }
}

/// `1700000000000-0`. Nothing else is called delivered.
fn is_entry_id(id: &[u8]) -> bool {
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    id.iter().position(|byte| *byte == b'-').is_some_and(|at| digits(&id[..at]) && digits(&id[at + 1..]))
}

/// Not its content: that could be anything.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "a text",
        Value::Okay => "OK",
        Value::Array(_) => "a list",
        _ => "something else",
    }
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(super) enum Silence {
    /// The connection ended, for this reason if one is known.
    ConnectionLost(String),
    Timeout {
        after_ms: u64,
    },
}

impl Silence {
    pub(super) fn of(error: &RedisError, server: &str) -> Self {
        Self::ConnectionLost(format!("the connection to {server} was lost: {error}"))
    }

    pub(super) fn failure(&self, reach: Scope) -> Failure {
        let failure = match self {
            Self::ConnectionLost(why) => Failure::of_sink("redis.connection_lost", why.clone()),
            Self::Timeout { after_ms } => Failure::of_sink(
                "redis.timeout",
                format!("no answer within {after_ms} ms: the server is paused, overloaded or out of reach"),
            ),
        };
        Failure { scope: reach, ..failure }
    }

    /// Of a message that may have left.
    pub(super) fn sent(&self, reach: Scope) -> Verdict {
        Verdict::Unknown(self.failure(reach))
    }

    /// Of a message that has not left. `silent`: the one server that there is owes us answers. Otherwise it waited
    /// for its turn or for room, and its own stream is not to blame.
    pub(super) fn unsent(&self, reach: Scope, silent: bool) -> Verdict {
        match self {
            Self::Timeout { .. } if !(silent && reach == Scope::Sink) => Verdict::Held,
            _ => Verdict::Retry(self.failure(reach)),
        }
    }
}

pub(super) fn bad_stream() -> Verdict {
    Verdict::Rejected(Failure::of_event("redis.bad_stream", "the route gives an empty name of a stream"))
}

pub(super) fn too_large(bytes: usize, most: usize) -> Verdict {
    let text =
        format!("an entry with {bytes} bytes is larger than the server takes ({most}, proto-max-bulk-len)");
    Verdict::Rejected(Failure::of_event("redis.too_large", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Meeting<'_> =
        Meeting { stream: "orders", server: "redis://h:1", identity: "user \"shop\"", reach: Scope::Sink };

    fn seen(verdict: &Verdict) -> (&'static str, String, Scope) {
        let (name, failure) = match verdict {
            Verdict::Retry(failure) => ("retry", failure),
            Verdict::Rejected(failure) => ("rejected", failure),
            Verdict::Unknown(failure) => ("unknown", failure),
            other => panic!("{other:?} has no failure"),
        };
        (name, failure.code.to_string(), failure.scope)
    }

    #[test]
    fn every_row_of_the_servers_errors() {
        let rows = [
            ("WRONGTYPE", "Operation against a key", "retry", "redis.wrong_type", Scope::Destination),
            ("OOM", "command not allowed when used memory > 'maxmemory'.", "retry", "redis.oom", Scope::Sink),
            (
                "READONLY",
                "You can't write against a read only replica.",
                "retry",
                "redis.readonly",
                Scope::Sink,
            ),
            ("MISCONF", "Errors writing to the AOF file", "retry", "redis.misconf", Scope::Sink),
            ("NOREPLICAS", "Not enough good replicas to write.", "retry", "redis.no_replicas", Scope::Sink),
            ("LOADING", "Redis is loading the dataset in memory", "retry", "redis.loading", Scope::Sink),
            ("MASTERDOWN", "Link with MASTER is down", "retry", "redis.loading", Scope::Sink),
            ("BUSY", "Redis is busy running a script.", "retry", "redis.busy", Scope::Sink),
            ("MOVED", "3999 127.0.0.1:6381", "retry", "redis.moved", Scope::Destination),
            ("ASK", "3999 127.0.0.1:6381", "retry", "redis.migrating", Scope::Destination),
            (
                "TRYAGAIN",
                "Multiple keys request during rehashing",
                "retry",
                "redis.migrating",
                Scope::Destination,
            ),
            ("CLUSTERDOWN", "Hash slot not served", "retry", "redis.cluster_down", Scope::Destination),
            ("NOAUTH", "Authentication required.", "retry", "redis.auth", Scope::Sink),
            ("NOPERM", "No permissions to access a key", "retry", "redis.denied", Scope::Destination),
            (
                "NOPERM",
                "This user has no permissions to access one of the keys used as arguments",
                "retry",
                "redis.denied",
                Scope::Destination,
            ),
            (
                "NOPERM",
                "This user has no permissions to run the 'xadd' command",
                "retry",
                "redis.denied",
                Scope::Sink,
            ),
            (
                "ERR",
                "The stream has exhausted the last possible ID, unable to add more items",
                "retry",
                "redis.stream_full",
                Scope::Destination,
            ),
            (
                "ERR",
                "unknown command 'XADD', with args beginning with: ",
                "retry",
                "redis.unsupported",
                Scope::Sink,
            ),
            ("ERR", "Protocol error: invalid bulk length", "rejected", "redis.too_large", Scope::Event),
            ("ERR", "Elements are too large to be stored", "rejected", "redis.too_large", Scope::Event),
            ("ERR", "who knows", "retry", "redis.error", Scope::Event),
            ("NEWCODE", "", "retry", "redis.error", Scope::Event),
        ];
        for (code, words, kind, name, scope) in rows {
            let verdict = Refusal { code, words }.verdict(AT);
            assert_eq!(seen(&verdict), (kind, name.to_owned(), scope), "{code} {words}");
        }
        let cluster = Meeting { reach: Scope::Destination, ..AT };
        let oom = Refusal { code: "OOM", words: "" };
        assert_eq!(seen(&oom.verdict(cluster)).2, Scope::Destination, "other nodes have memory of their own");
    }

    #[test]
    fn only_an_entrys_id_is_a_delivery() {
        let of = |text: &str| of_reply(&Value::BulkString(text.as_bytes().to_vec()), AT);
        assert_eq!(of("1700000000000-0"), Verdict::Delivered);
        for foreign in ["", "-", "1-", "-1", "1", "QUEUED", "1-x"] {
            assert_eq!(seen(&of(foreign)).0, "unknown", "{foreign}");
        }
        for value in [Value::Nil, Value::Okay, Value::Int(1), Value::SimpleString("QUEUED".into())] {
            assert_eq!(seen(&of_reply(&value, AT)).0, "unknown", "{value:?}");
        }
    }

    #[test]
    fn where_a_moved_slot_is() {
        let moved = |code, words| Refusal { code, words }.moved();
        assert_eq!(moved("MOVED", "3999 127.0.0.1:6381"), Some((3999, "127.0.0.1:6381")));
        assert_eq!(moved("MOVED", "3999 :6381"), Some((3999, ":6381")));
        assert_eq!(moved("ASK", "3999 127.0.0.1:6381"), None);
        assert_eq!(moved("MOVED", "x"), None);
    }

    #[test]
    fn silence_is_unknown_once_the_message_had_left() {
        let lost = Silence::ConnectionLost("gone".to_owned());
        assert_eq!(
            seen(&lost.sent(Scope::Sink)),
            ("unknown", "redis.connection_lost".to_owned(), Scope::Sink)
        );
        assert_eq!(seen(&lost.unsent(Scope::Sink, true)).0, "retry");
        let late = Silence::Timeout { after_ms: 1 };
        assert_eq!(seen(&late.sent(Scope::Sink)), ("unknown", "redis.timeout".to_owned(), Scope::Sink));
        assert_eq!(seen(&late.unsent(Scope::Sink, true)), ("retry", "redis.timeout".to_owned(), Scope::Sink));
        assert_eq!(late.unsent(Scope::Sink, false), Verdict::Held);
        assert_eq!(
            late.unsent(Scope::Destination, true),
            Verdict::Held,
            "another node is silent, not this one's"
        );
    }
}
