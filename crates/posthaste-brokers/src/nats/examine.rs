//! What `posthaste doctor` says about a NATS server and the streams behind the destinations.
//!
//! The examination reads, and publishes nothing but a ping to our own inbox. The rules come from what
//! JetStream's acknowledgement is worth (F38, F39). A client cannot see whether a server syncs before it
//! acknowledges, so that remark is made wherever replicas do not cover it.

use super::NatsConfig;
use super::client::link::NatsLink;
use super::client::session::Session;
use super::client::streams::{StreamConfig, Unseen, stream_by_subject};
use super::verdict::check_subject;
use crate::findings::no_session;
use async_nats::ServerInfo;
use posthaste::sink::{Finding, Level};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The time for a first try at every server. A diagnosis is not in a hurry.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// The largest payload that an append accepts by default.
const PAYLOAD_BYTES: usize = 1 << 20;

/// Names of all checks. Each finding bears one of them.
pub const CHECKS: &[&str] = &[
    "reachable",
    "authenticated",
    "transport",
    "version",
    "payload",
    "destination",
    "durability",
    "acknowledgement",
    "retention",
];

pub(super) async fn examine(config: &NatsConfig, link: &NatsLink, destinations: &[String]) -> Vec<Finding> {
    let session = match link.session_if_any(CONNECT_WAIT).await {
        Ok(session) => session,
        Err(failure) => return no_session(&failure, &["nats.auth", "nats.denied"]),
    };
    let info = &session.info;
    let mut findings = vec![
        reachable(info),
        finding("authenticated", Level::Ok, format!("connected as {}", session.identity)),
        transport(config, info),
        version(&info.version),
        payload(info.max_payload),
    ];
    findings.extend(streams(&session, destinations).await);
    findings
}

fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

fn reachable(info: &ServerInfo) -> Finding {
    if info.jetstream {
        let text = format!("server {:?}, version {}", info.server_name, info.version);
        return finding("reachable", Level::Ok, text);
    }
    let text = format!(
        "server {:?} has no JetStream of its own; unless another one of its cluster has, nothing can be delivered",
        info.server_name
    );
    finding("reachable", Level::Warn, text)
}

/// The server's own wish for TLS comes in the clear, and whoever is in between can take it away. So where a
/// secret is sent, only TLS that the configuration asks for counts.
fn transport(config: &NatsConfig, info: &ServerInfo) -> Finding {
    let servers = config.addresses().unwrap_or_default();
    let is_asked_for = config.wants_tls() || servers.iter().all(|server| server.tls);
    let open_to_others = servers.iter().any(|server| !server.tls && !server.is_loopback());
    // A server that sees us come from elsewhere is behind a tunnel.
    let comes_from_afar = info.client_ip.parse().is_ok_and(|ip: std::net::IpAddr| !ip.is_loopback());
    let is_seen = open_to_others || (comes_from_afar && !info.tls_required);
    let is_exposed = config.sends_secret() && !is_asked_for && is_seen;
    let (level, text) = match (is_asked_for || info.tls_required, is_exposed) {
        (true, false) => (Level::Ok, "TLS, with the server's certificate verified"),
        (false, false) => (Level::Ok, "not encrypted"),
        (true, true) => (
            Level::Warn,
            "TLS, but only because the server asks for it: somebody in between can hide that, and then reads the password or token; use tls:// or require_tls",
        ),
        (false, true) => {
            (Level::Warn, "not encrypted, and a password or token travels over it: use tls:// or require_tls")
        }
    };
    finding("transport", level, text)
}

fn version(text: &str) -> Finding {
    let mut numbers = text.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let found = (next(), next(), next());
    let remark = if found < (2, 10, 0) {
        "is older than 2.10, which is the oldest that Posthaste is meant for: upgrade"
    } else if ((2, 10, 20)..=(2, 10, 22)).contains(&found) {
        "can lose whole streams when a server is killed (2.10.20 to 2.10.22): upgrade"
    } else if found < (2, 12, 3) {
        "lacks fixes for losses after a crash or a power cut that came until 2.12.3: upgrade"
    } else {
        return finding("version", Level::Ok, format!("version {text}"));
    };
    finding("version", Level::Warn, format!("version {text} {remark}"))
}

fn payload(max: usize) -> Finding {
    let text = format!("payload and headers together have at most {max} bytes (max_payload)");
    if max >= PAYLOAD_BYTES {
        return finding("payload", Level::Ok, text);
    }
    let more = format!(
        "{text}; an append accepts {PAYLOAD_BYTES}, and what is larger than this ends as a dead letter"
    );
    finding("payload", Level::Warn, more)
}

async fn streams(session: &Arc<Session>, destinations: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = BTreeMap::new();
    for subject in destinations {
        match stream_of(session, subject).await {
            Ok(config) => {
                let text = format!("subject {subject:?} goes to stream {:?}", config.name);
                findings.push(finding("destination", Level::Ok, text));
                found.insert(config.name.clone(), config);
            }
            Err(finding) => findings.push(finding),
        }
    }
    for config in found.into_values() {
        findings.push(durability_of(&config));
        findings.extend(peculiar(&config));
    }
    findings
}

/// How long the stream behind a subject remembers ids.
pub(super) async fn dedup_window(link: &NatsLink, subject: &str) -> Option<Duration> {
    let session = link.session_if_any(CONNECT_WAIT).await.ok()?;
    stream_of(&session, subject).await.ok().map(|config| config.duplicate_window())
}

async fn stream_of(session: &Arc<Session>, subject: &str) -> Result<StreamConfig, Finding> {
    let fail = |text: String| finding("destination", Level::Fail, text);
    if let Err(why) = check_subject(subject) {
        return Err(fail(format!("subject {subject:?} {why}: its events are rejected")));
    }
    stream_by_subject(session, subject).await.map_err(|unseen| match unseen {
        Unseen::NoStream => fail(format!(
            "no stream takes the subject {subject:?}: its events wait until one does (nats stream add)"
        )),
        // A user with no more rights than it needs may not ask. Publishing works all the same.
        Unseen::NoAnswer(why) => {
            let text = format!(
                "cannot see which stream takes {subject:?} ({why}); delivery does not need that right"
            );
            finding("destination", Level::Warn, text)
        }
    })
}

/// What a power cut can take of a stream.
pub(super) fn durability_of(config: &StreamConfig) -> Finding {
    let (name, replicas) = (&config.name, config.num_replicas);
    let warn = |text: String| finding("durability", Level::Warn, text);
    if config.storage == "memory" {
        return warn(format!(
            "stream {name:?} is in memory: what was delivered is gone when its servers stop"
        ));
    }
    if config.persist_mode == "async" {
        return warn(format!("stream {name:?} acknowledges before it writes (persist_mode async)"));
    }
    if replicas <= 1 {
        return warn(format!(
            "stream {name:?} has one replica and is acknowledged before it is synced (every 2 minutes by default): a power cut can take delivered events; use 3 replicas, or sync_interval: always"
        ));
    }
    finding(
        "durability",
        Level::Ok,
        format!(
            "stream {name:?} is on files with {replicas} replicas; each syncs by its own sync_interval, so only a power cut of most of them at once can take delivered events"
        ),
    )
}

/// The finding about a stream that is not made for events.
fn peculiar(config: &StreamConfig) -> Option<Finding> {
    let name = &config.name;
    if config.no_ack {
        let text = format!("stream {name:?} never acknowledges (no_ack): nothing can be called delivered");
        return Some(finding("acknowledgement", Level::Fail, text));
    }
    if config.sealed {
        return Some(finding(
            "acknowledgement",
            Level::Fail,
            format!("stream {name:?} is sealed: it takes nothing"),
        ));
    }
    if config.retention == "interest" {
        let text = format!(
            "stream {name:?} keeps messages only for consumers that exist (retention interest): without one, events are acknowledged and dropped"
        );
        return Some(finding("retention", Level::Warn, text));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_needs_our_own_wish_for_tls() {
        let secret = |url: &str| NatsConfig { token: Some(crate::Secret::new("t")), ..NatsConfig::new(url) };
        let level = |config: &NatsConfig, tls_required: bool| {
            transport(config, &ServerInfo { tls_required, ..ServerInfo::default() }).level
        };
        for url in ["nats://n1", "tls://n1, nats://n2", "nats://10.0.0.1", "nats://localhost.example"] {
            let config = secret(url);
            assert_eq!((level(&config, false), level(&config, true)), (Level::Warn, Level::Warn), "{url}");
            let asking = config.with(|options| options.require_tls = true);
            assert_eq!(level(&asking, true), Level::Ok, "{url}");
            assert_eq!(level(&NatsConfig::new(url), false), Level::Ok, "{url}: nothing secret");
        }
        for url in ["tls://n1, tls://n2", "nats://127.0.0.1", "nats://[::1]:1", "nats://localhost"] {
            assert_eq!(
                (level(&secret(url), false), level(&secret(url), true)),
                (Level::Ok, Level::Ok),
                "{url}"
            );
        }
    }

    #[test]
    fn versions_with_known_losses_are_named() {
        let level = |text: &str| version(text).level;
        for bad in ["2.9.25", "2.10.20", "2.10.22", "2.12.1", "2.12.2", "2.11.9", ""] {
            assert_eq!(level(bad), Level::Warn, "{bad}");
        }
        for good in ["2.12.3", "2.15.1", "2.14.0-RC.1", "3.0.0"] {
            assert_eq!(level(good), Level::Ok, "{good}");
        }
        assert!(version("2.10.21").text.contains("lose whole streams"));
    }
}
