//! The table of [`super`] in code: what the relay is told about a message.
//!
//! The functions are pure, so each row can be read and tested without a server. The one rule behind the rows:
//! an event may only be rejected for something that is its own. What an operator can heal (a key of another
//! type, a full memory, a missing right) stays a `Retry`.

use super::client::ErrorReply;
use ::redis::{RedisError, Value};
use posthaste::sink::{Failure, Scope, Verdict};
use std::borrow::Cow;

/// What a message meets at a server: its stream, our identity there, and the scope of that server's failures.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meeting<'a> {
    pub(super) stream: &'a str,
    pub(super) server: &'a str,
    pub(super) identity: &'a str,
    /// `Sink`, or in a cluster `Destination`.
    pub(super) reach: Scope,
}

impl ErrorReply<'_> {
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

    /// A refusal for a missing right names a command, which is missing everywhere, or a key.
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
        Value::ServerError(error) => ErrorReply::of(error).verdict(at),
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

/// The kind of a value. Its content is not shown, because that could be anything.
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

/// The connection ended before the answer came.
pub(super) fn connection_lost(error: &RedisError, server: &str, reach: Scope) -> Failure {
    let text = format!("the connection to {server} was lost: {error}");
    Failure { scope: reach, ..Failure::of_sink("redis.connection_lost", text) }
}

/// No answer came in time.
pub(super) fn timeout(after_ms: u64, reach: Scope) -> Failure {
    let text = format!("no answer within {after_ms} ms: the server is paused, overloaded or out of reach");
    Failure { scope: reach, ..Failure::of_sink("redis.timeout", text) }
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
    use crate::testing::seen;

    const AT: Meeting<'_> =
        Meeting { stream: "orders", server: "redis://h:1", identity: "user \"shop\"", reach: Scope::Sink };

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
            let verdict = ErrorReply { code, words }.verdict(AT);
            assert_eq!(seen(&verdict), (kind, name.to_owned(), scope), "{code} {words}");
        }
        let cluster = Meeting { reach: Scope::Destination, ..AT };
        let oom = ErrorReply { code: "OOM", words: "" };
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
}
