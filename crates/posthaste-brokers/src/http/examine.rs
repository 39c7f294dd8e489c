//! What `posthaste doctor` says about receivers.
//!
//! The examination connects (name, address, TCP, TLS) and says goodbye. No request is made, not even a
//! `HEAD`, because nobody knows what a stranger's handler does with one.

use super::client::dial::DialTarget;
use super::client::endpoint::origin;
use super::client::guard::{Forbidden, Guarded};
use super::sink::HttpSink;
use super::verdict::NoResponse;
use posthaste::sink::{Finding, Level, shown};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::timeout;
use url::Url;

/// The time for the resolver. A connection has the dialler's own bound.
const PATIENCE: Duration = Duration::from_secs(3);

/// Names of all checks. Each finding bears one of them.
pub const CHECKS: &[&str] =
    &["destination", "reachable", "address", "proxy", "transport", "signature", "files", "durability"];

pub(super) async fn examine(sink: &HttpSink, destinations: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Routes by pattern name no destination, but all of them are below the base.
    let base = sink.addresses.base().map(|url| (origin(url), url.clone()));
    let mut origins: BTreeMap<String, Url> = base.into_iter().collect();
    for destination in destinations {
        match sink.addresses.find(destination) {
            Ok(url) => {
                let text = format!("destination {:?} goes to {}", shown(destination), origin(&url));
                findings.push(finding("destination", Level::Ok, text));
                origins.insert(origin(&url), url);
            }
            Err(why) => {
                let text = format!("destination {:?} {why}: its events are rejected", shown(destination));
                findings.push(finding("destination", Level::Fail, text));
            }
        }
    }
    let visits = origins.iter().map(|(origin, url)| visit(sink, origin, url));
    findings.extend(futures_util::future::join_all(visits).await.into_iter().flatten());
    findings.push(signature(sink));
    findings.extend(sink.reload.trouble().map(|why| {
        let text = format!("{why}; what was read before is still used");
        finding("files", Level::Fail, text)
    }));
    findings.push(finding(
        "durability",
        Level::Ok,
        "a 2xx is the receiver's promise to keep the event; nobody can look behind it from here",
    ));
    findings
}

fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

/// Examines one host: its addresses, whether it is there, whether others can listen.
async fn visit(sink: &HttpSink, origin: &str, url: &Url) -> Vec<Finding> {
    let (target, mut findings) = (DialTarget::new(url), Vec::new());
    let Some(current) = sink.reload.current() else {
        return vec![finding("reachable", Level::Fail, format!("{origin}: the sink was closed"))];
    };
    if let Err(forbidden) = sink.guard.check_literal(url) {
        return vec![finding("address", Level::Fail, format!("{origin}: {forbidden}; its events wait"))];
    }
    let proxy = current.client.dialler.proxies.of(&target).map(|proxy| &proxy.address);
    let is_loopback = match proxy {
        Some(proxy) => {
            let text = format!(
                "{origin}: reached through the proxy {proxy}, which looks up the name: what keeps events from private addresses is the proxy's rules, not allow_networks"
            );
            // Where events name the host, strangers choose what the proxy connects to.
            let level = if sink.config.url.is_some() { Level::Ok } else { Level::Warn };
            findings.push(finding("proxy", level, text));
            false
        }
        None => match addresses(&current.client.dialler.resolver, &target).await {
            Ok(addresses) => addresses.iter().all(IpAddr::is_loopback),
            Err(finding) => return vec![finding(origin)],
        },
    };
    findings.push(match current.client.dialler.dial(&target).await {
        Ok(_) => {
            let way = proxy.map(|proxy| format!(" through {proxy}")).unwrap_or_default();
            let trust = if target.tls { ", and its certificate is good" } else { "" };
            finding("reachable", Level::Ok, format!("{origin} answers{way}{trust}"))
        }
        Err(unreached) => {
            let why = NoResponse::unreached(origin, &current.files, &unreached);
            finding("reachable", Level::Fail, format!("{}. Its events wait", why.failure().message))
        }
    });
    findings.push(transport(sink, origin, &target, is_loopback));
    findings
}

/// The addresses of a host, or the finding about it.
async fn addresses(
    resolver: &Guarded,
    target: &DialTarget,
) -> Result<Vec<IpAddr>, impl FnOnce(&str) -> Finding> {
    let asked = resolver.admitted(&target.host, target.address);
    let found = timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err("the resolver does not answer".into()));
    found.map_err(|error| {
        move |origin: &str| match error.is::<Forbidden>() {
            true => finding("address", Level::Fail, format!("{origin}: {error}; its events wait")),
            false => {
                finding("reachable", Level::Fail, format!("{origin}: no address: {error}. Its events wait"))
            }
        }
    })
}

fn transport(sink: &HttpSink, origin: &str, target: &DialTarget, is_loopback: bool) -> Finding {
    if target.tls {
        let text = format!("{origin}: TLS, with the receiver's certificate verified");
        return finding("transport", Level::Ok, text);
    }
    let text = format!("{origin}: not encrypted");
    match (is_loopback, sink.config.sends_secret()) {
        (true, _) => finding("transport", Level::Ok, text),
        (false, false) => {
            finding("transport", Level::Warn, format!("{text}: anybody between can read the events"))
        }
        (false, true) => {
            let more =
                format!("{text}, and a password or token travels over it: use https:// or require_tls");
            finding("transport", Level::Warn, more)
        }
    }
}

fn signature(sink: &HttpSink) -> Finding {
    if !sink.config.signs() {
        let text = "requests are not signed: receivers cannot know that they are ours (secrets_file)";
        return finding("signature", Level::Warn, text);
    }
    if sink.config.url.is_none() {
        let text = "one secret signs for every host that a destination names: each receiver could forge events for the others; a sink for each of them is safer";
        return finding("signature", Level::Warn, text);
    }
    finding("signature", Level::Ok, "requests are signed")
}
