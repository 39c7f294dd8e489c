//! What `posthaste doctor` says about Redis servers and the streams behind the destinations.
//!
//! The examination reads, and adds nothing. Whether a stream can be written to is asked with an `XADD` of the
//! id 0-0, which no stream takes. The server judges rights, memory, role and slot before the id. So its
//! answer says which of them is missing, and "the ID must be greater" says that none is.
//!
//! # What counts as durable
//!
//! An acknowledged event must survive the process, the machine and the operator's next restart. That takes
//! `appendonly yes` with `appendfsync always`, synced during rewrites too, and no eviction of keys without an
//! expiry. It also takes no automatic failover. Replicas get an entry after we have been told that it is
//! there, so a replica may take over without it (F42). Redis with sentinels or as a cluster is available, not
//! durable, and never passes.

use super::RedisConfig;
use super::client::{ErrorReply, Servers, Session};
use super::verdict::Meeting;
use crate::findings::no_session;
use ::redis::{Pipeline, Value};
use posthaste::sink::{Finding, Level, Verdict};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The time for a first try. A diagnosis is not in a hurry.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// What we ask `CONFIG GET` for.
const SETTINGS: [&str; 5] =
    ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory", "maxmemory-policy"];

/// Names of all checks. Each finding bears one of them.
pub const CHECKS: &[&str] = &[
    "reachable",
    "authenticated",
    "transport",
    "version",
    "cluster",
    "destination",
    "durability",
    "retention",
    "dedup",
];

pub(super) async fn examine(
    config: &RedisConfig,
    servers: &Servers,
    destinations: &[String],
) -> Vec<Finding> {
    let sessions = servers.sessions(CONNECT_WAIT).await;
    let mut findings = Vec::new();
    for session in &sessions {
        match session {
            Ok(session) => findings.extend(server(config, session).await),
            Err(failure) => findings.extend(no_session(failure, &["redis.auth", "redis.denied"])),
        }
    }
    if sessions.iter().all(Result::is_err) {
        return findings;
    }
    findings.extend(shape(config, servers));
    findings.push(trimming(config));
    let text =
        "XADD knows no duplicates: an event that is sent again is there twice, with the same field \"id\"";
    findings.push(finding("dedup", Level::Ok, text));
    for stream in destinations {
        findings.push(destination(servers, stream).await);
    }
    findings
}

fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

async fn server(config: &RedisConfig, session: &Session) -> Vec<Finding> {
    let (settings, info) = facts(session).await;
    let mut findings = vec![
        finding("reachable", Level::Ok, format!("{} answers", session.server)),
        finding("authenticated", Level::Ok, format!("connected as {}", session.identity)),
        transport(config, session),
    ];
    findings.extend(info.as_deref().map(version));
    findings.extend(durability(&session.server, settings.as_ref()));
    findings
}

/// What the server says of itself, as far as we may ask.
async fn facts(session: &Session) -> (Option<BTreeMap<String, String>>, Option<String>) {
    let mut questions = Pipeline::new();
    questions.cmd("INFO").arg("server");
    for setting in SETTINGS {
        questions.cmd("CONFIG").arg("GET").arg(setting);
    }
    let answer = timeout(ANSWER_TIMEOUT, session.ask(&questions)).await;
    let Ok(Ok(replies)) = answer else { return (None, None) };
    let info = replies.first().and_then(text);
    let pair = |reply: &Value| match reply {
        Value::Array(pair) => Some((text(pair.first()?)?, text(pair.get(1)?)?)),
        _ => None,
    };
    (replies[1..].iter().map(pair).collect(), info)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn transport(config: &RedisConfig, session: &Session) -> Finding {
    match (session.server.starts_with("rediss"), config.sends_secret() && !session.loopback) {
        (true, _) => finding("transport", Level::Ok, "TLS, with the server's certificate verified"),
        (false, false) => finding("transport", Level::Ok, "not encrypted"),
        (false, true) => {
            finding("transport", Level::Warn, "not encrypted, and a password travels over it: use rediss://")
        }
    }
}

fn version(info: &str) -> Finding {
    let found = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("unknown").trim();
    let mut numbers = found.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let remark = match (next(), next()) {
        (0..=4, _) => {
            return finding("version", Level::Fail, format!("version {found} has no streams: upgrade"));
        }
        (5, _) | (6, 0..=1) => "is older than 6.2, which is the oldest that Posthaste is meant for: upgrade",
        _ => return finding("version", Level::Ok, format!("version {found}")),
    };
    finding("version", Level::Warn, format!("version {found} {remark}"))
}

/// The settings by which this server can lose an acknowledged event, each in a finding of its own.
/// What a server can lose of what it has acknowledged.
pub(super) async fn durability_of(session: &Session) -> Vec<Finding> {
    let (settings, _) = facts(session).await;
    durability(&session.server, settings.as_ref())
}

fn durability(server: &str, settings: Option<&BTreeMap<String, String>>) -> Vec<Finding> {
    let warn = |text: String| finding("durability", Level::Warn, text);
    let Some(settings) = settings else {
        return vec![warn(format!(
            "cannot see whether {server} keeps what it has acknowledged (CONFIG GET is denied; grant +config|get); delivery does not need that right"
        ))];
    };
    let is = |name: &str, value: &str| settings.get(name).is_some_and(|found| found == value);
    let mut found = Vec::new();
    if !is("appendonly", "yes") {
        found.push(warn(format!(
            "{server} has appendonly no: what was delivered since its last snapshot is gone when it stops; set appendonly yes"
        )));
    } else if !is("appendfsync", "always") {
        found.push(warn(format!(
            "{server} acknowledges before it syncs (appendfsync {}): a power cut can take delivered events; set appendfsync always",
            settings.get("appendfsync").map_or("?", String::as_str)
        )));
    } else if is("no-appendfsync-on-rewrite", "yes") {
        found.push(warn(format!(
            "{server} does not sync while it rewrites its file (no-appendfsync-on-rewrite yes): a power cut can take delivered events"
        )));
    }
    let policy = settings.get("maxmemory-policy").map_or("noeviction", String::as_str);
    if !is("maxmemory", "0") && policy.starts_with("allkeys") {
        found.push(warn(format!(
            "{server} evicts keys when its memory is full (maxmemory-policy {policy}): whole streams can go; set noeviction, and events wait instead"
        )));
    }
    if found.is_empty() {
        let text =
            format!("{server} syncs its append-only file before it acknowledges, and evicts no streams");
        found.push(finding("durability", Level::Ok, text));
    }
    found
}

/// The findings about several servers: sentinels, or a cluster.
fn shape(config: &RedisConfig, servers: &Servers) -> Vec<Finding> {
    let text =
        "replicas get an entry after it was acknowledged: an automatic failover can lose delivered events";
    let failover = finding("durability", Level::Warn, text);
    match servers {
        Servers::One(_) if config.sentinel_master.is_some() => vec![failover],
        Servers::One(_) => Vec::new(),
        Servers::Many(cluster) => match cluster.unserved() {
            0 => vec![failover, finding("cluster", Level::Ok, "every slot is served")],
            slots => {
                let text = format!("{slots} slots are served by nobody: events for their streams wait");
                vec![failover, finding("cluster", Level::Fail, text)]
            }
        },
    }
}

fn trimming(config: &RedisConfig) -> Finding {
    match config.maxlen {
        None => finding("retention", Level::Ok, "nothing is trimmed; streams grow until somebody does"),
        Some(most) => {
            let text = format!(
                "streams are trimmed to {most} entries: what consumers have not read by then is lost to them"
            );
            finding("retention", Level::Warn, text)
        }
    }
}

async fn destination(servers: &Servers, stream: &str) -> Finding {
    let fail = |text: String| finding("destination", Level::Fail, text);
    if stream.is_empty() {
        return fail("the name of a stream is empty: its events are rejected".to_owned());
    }
    let session: Arc<Session> = match servers.session(stream, CONNECT_WAIT).await {
        Ok(session) => session,
        Err(failure) => return fail(failure.message),
    };
    let mut questions = Pipeline::new();
    questions.cmd("TYPE").arg(stream).cmd("XADD").arg(stream).arg("0-0").arg("id").arg("");
    let asked = timeout(ANSWER_TIMEOUT, session.ask(&questions)).await;
    let Ok(Ok(replies)) = asked else { return fail(format!("{} does not answer", session.server)) };
    let [kind, added] = replies.as_slice() else {
        return fail(format!("{} answers strangely", session.server));
    };
    if let Some(refused) = refused(added, stream, &session) {
        return fail(refused);
    }
    match kind {
        Value::SimpleString(kind) if kind == "stream" => {
            finding("destination", Level::Ok, format!("stream {stream:?} is there and can be written to"))
        }
        Value::SimpleString(kind) if kind == "none" => {
            let text = format!("stream {stream:?} can be written to; its first event makes it");
            finding("destination", Level::Ok, text)
        }
        Value::SimpleString(kind) => fail(format!(
            "the key {stream:?} is a {kind} and no stream: its events wait until it is one, or is gone"
        )),
        _ => {
            let text = format!(
                "stream {stream:?} can be written to; whether it is one cannot be seen (TYPE is denied), and delivery does not need that right"
            );
            finding("destination", Level::Warn, text)
        }
    }
}

/// Why an entry with a proper id would be refused.
fn refused(added: &Value, stream: &str, session: &Session) -> Option<String> {
    let Value::ServerError(error) = added else { return None };
    let refusal = ErrorReply::of(error);
    if refusal.code == "ERR" && refusal.words.contains("greater than 0-0") || refusal.code == "WRONGTYPE" {
        return None;
    }
    let (server, identity) = (session.server.as_str(), session.identity.as_str());
    match refusal.verdict(Meeting { stream, server, identity, reach: session.reach }) {
        Verdict::Retry(failure) | Verdict::Rejected(failure) => Some(failure.message),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durable_is_only_what_is_synced_before_the_answer_and_never_evicted() {
        let levels = |pairs: &[(&str, &str)]| {
            let mut settings: BTreeMap<String, String> = [
                ("appendonly", "yes"),
                ("appendfsync", "always"),
                ("no-appendfsync-on-rewrite", "no"),
                ("maxmemory", "0"),
                ("maxmemory-policy", "noeviction"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
            settings.extend(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
            durability("s", Some(&settings)).iter().map(|found| found.level).collect::<Vec<_>>()
        };
        let (ok, warn) = (vec![Level::Ok], vec![Level::Warn]);
        assert_eq!(levels(&[]), ok);
        assert_eq!(levels(&[("maxmemory", "9"), ("maxmemory-policy", "volatile-lru")]), ok);
        assert_eq!(levels(&[("maxmemory-policy", "allkeys-lru")]), ok, "there is no limit to evict at");
        assert_eq!(levels(&[("appendonly", "no")]), warn);
        assert_eq!(levels(&[("appendfsync", "everysec")]), warn);
        assert_eq!(levels(&[("no-appendfsync-on-rewrite", "yes")]), warn);
        assert_eq!(levels(&[("maxmemory", "9"), ("maxmemory-policy", "allkeys-lru")]), warn);
        assert_eq!(durability("s", None)[0].level, Level::Warn);
    }

    #[test]
    fn versions() {
        let level = |text: &str| version(&format!("# Server\r\nredis_version:{text}\r\n")).level;
        assert_eq!(
            [level("4.0.9"), level("5.0.1"), level("6.0.16")],
            [Level::Fail, Level::Warn, Level::Warn]
        );
        assert_eq!([level("6.2.0"), level("7.0.15"), level("8.2.1")], [Level::Ok; 3]);
    }
}
