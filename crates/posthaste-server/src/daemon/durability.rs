//! What an acknowledgement is worth, looked at when a relay starts.
//!
//! A sink with `durability = "durable"` and a destination that can lose an acknowledged event ends the start:
//! a person is watching. One whose broker is down does not: it may come up later, and then each destination
//! is looked at before its first event ([`posthaste::sink::Vetted`]). Every other sink is warned about, in
//! the background: nobody waits for it.

use super::Sinks;
use crate::config::{Config, Outbox};
use anyhow::bail;
use posthaste::route::{Pattern, Route};
use posthaste::sink::{DURABILITY, Finding, Level, Sink};
use posthaste::task::{Task, spawn};
use std::sync::Arc;
use std::time::Duration;

/// A broker that answers does so in much less.
const PATIENCE: Duration = Duration::from_secs(10);

/// Refuses to start, or warns. The tasks end by themselves.
pub(super) async fn check(config: &Config, sinks: &Sinks) -> anyhow::Result<Vec<Task<()>>> {
    let mut warnings = Vec::new();
    for setting in &config.sinks {
        let Some(sink) = sinks.share(&setting.name) else { continue };
        let (name, known) = (Arc::clone(&setting.name), destinations(config.outboxes.iter(), &setting.name));
        if !setting.durable {
            warnings.push(spawn("durability", async move { warn(&name, &*sink, &known).await }));
            continue;
        }
        // One by one: so each is known before its first event.
        let mut findings = Vec::new();
        for destination in known {
            findings.extend(look(&*sink, &[destination]).await);
        }
        if findings.is_empty() {
            findings = look(&*sink, &[]).await;
        }
        if let Some(bad) = risky(&findings).next() {
            bail!(
                "sink `{name}` has durability = \"durable\", and a destination that can lose acknowledged events: {}. \
                 Mend it, or write durability = \"relaxed\" to accept that; nothing was sent",
                bad.text
            );
        }
        if let Some(down) = findings.iter().find(|finding| finding.level == Level::Fail) {
            tracing::warn!(sink = %name, "durability is looked at when the broker answers: {}", down.text);
        }
    }
    Ok(warnings)
}

async fn warn(name: &str, sink: &dyn Sink, known: &[String]) {
    for finding in risky(&look(sink, known).await) {
        tracing::warn!(sink = name, "durability = \"relaxed\": {}", finding.text);
    }
}

async fn look(sink: &dyn Sink, known: &[String]) -> Vec<Finding> {
    tokio::time::timeout(PATIENCE, sink.examine(known)).await.unwrap_or_default()
}

fn risky(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(|finding| finding.check == DURABILITY && finding.level != Level::Ok)
}

/// Addresses that are known without an event: fixed ones, and topics without a wildcard.
pub(crate) fn destinations<'a>(outboxes: impl Iterator<Item = &'a Outbox>, sink: &str) -> Vec<String> {
    let feeds = |route: &&Arc<Route>| route.sinks.iter().any(|name| name == sink);
    let routes = outboxes.flat_map(|outbox| outbox.routes.routes()).filter(feeds);
    let mut known: Vec<String> = routes.flat_map(|route| known_of(route)).collect();
    known.sort();
    known.dedup();
    known
}

fn known_of(route: &Route) -> Vec<String> {
    if let Some(fixed) = route.destination.fixed() {
        return vec![fixed.to_owned()];
    }
    let exact = |pattern: &&Pattern| !pattern.as_str().contains('*');
    let topics = route.topics.iter().filter(exact).map(|pattern| pattern.as_str().to_owned());
    if route.destination.is_topic() { topics.collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::route::Template;

    #[test]
    fn only_addresses_that_are_certain_are_examined() {
        let mut route = Route::everything_to("s");
        route.topics = vec![Pattern::new("a.b"), Pattern::new("c.*")];
        assert_eq!(known_of(&route), ["a.b"]);
        route.destination = Template::parse("fixed").expect("valid");
        assert_eq!(known_of(&route), ["fixed"]);
        route.destination = Template::parse("{key}").expect("valid");
        assert!(known_of(&route).is_empty());
    }
}
