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

/// A start waits no longer. A broker that answers does so in much less.
const PATIENCE: Duration = Duration::from_secs(10);
/// In the background nobody waits, and a broker that is busy answers late.
const BACKGROUND_PATIENCE: Duration = Duration::from_secs(120);

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
        let (mut findings, mut is_silent) = (Vec::new(), false);
        for destination in known {
            let found = look(&*sink, &[destination], PATIENCE).await;
            is_silent |= found.is_none();
            findings.extend(found.unwrap_or_default());
        }
        if findings.is_empty() && !is_silent {
            let found = look(&*sink, &[], PATIENCE).await;
            is_silent = found.is_none();
            findings = found.unwrap_or_default();
        }
        if let Some(bad) = risky(&findings).next() {
            bail!(
                "sink `{name}` has durability = \"durable\", and a destination that can lose acknowledged events: {}. \
                 Mend it, or write durability = \"relaxed\" to accept that; nothing was sent",
                bad.text
            );
        }
        let down = findings.iter().find(|finding| finding.level == Level::Fail);
        let silence = is_silent.then(|| format!("no answer within {} s", PATIENCE.as_secs()));
        if let Some(why) = down.map(|finding| finding.text.clone()).or(silence) {
            tracing::warn!(sink = %name, "durability is looked at when the broker answers: {why}");
        }
    }
    Ok(warnings)
}

async fn warn(name: &str, sink: &dyn Sink, known: &[String]) {
    for text in warnings(look(sink, known, BACKGROUND_PATIENCE).await.as_deref()) {
        tracing::warn!(sink = name, "durability = \"relaxed\": {text}");
    }
}

/// What is said of a look. `None`: nobody answered, and that is no good news either.
fn warnings(found: Option<&[Finding]>) -> Vec<String> {
    match found {
        Some(findings) => risky(findings).map(|finding| finding.text.clone()).collect(),
        None => vec![format!(
            "no answer within {} s, so nobody knows whether this sink can lose acknowledged events. Events are sent \
             all the same; `posthaste doctor` looks again",
            BACKGROUND_PATIENCE.as_secs()
        )],
    }
}

/// `None`: no answer in this time.
async fn look(sink: &dyn Sink, known: &[String], patience: Duration) -> Option<Vec<Finding>> {
    tokio::time::timeout(patience, sink.examine(known)).await.ok()
}

fn risky(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(|finding| finding.check == DURABILITY && finding.level != Level::Ok)
}

/// Addresses that are known without an event: fixed ones, and topics without a wildcard.
pub(crate) fn destinations<'a>(outboxes: impl Iterator<Item = &'a Outbox>, sink: &str) -> Vec<String> {
    gather(outboxes, sink, known_of)
}

/// One address for each pattern whose events go where their topic says.
pub(crate) fn example_destinations<'a>(
    outboxes: impl Iterator<Item = &'a Outbox>,
    sink: &str,
) -> Vec<String> {
    gather(outboxes, sink, examples_of)
}

/// A topic that this pattern takes. One that takes everything has none that tells anything.
pub(crate) fn example(pattern: &str) -> Option<String> {
    pattern.chars().any(|c| c != '*').then(|| pattern.replace('*', "example"))
}

fn gather<'a>(
    outboxes: impl Iterator<Item = &'a Outbox>,
    sink: &str,
    of: fn(&Route) -> Vec<String>,
) -> Vec<String> {
    let feeds = |route: &&Arc<Route>| route.sinks.iter().any(|name| name == sink);
    let routes = outboxes.flat_map(|outbox| outbox.routes.routes()).filter(feeds);
    let mut found: Vec<String> = routes.flat_map(|route| of(route)).collect();
    found.sort();
    found.dedup();
    found
}

fn examples_of(route: &Route) -> Vec<String> {
    let patterns = route.topics.iter().map(Pattern::as_str).filter(|pattern| pattern.contains('*'));
    if route.destination.is_topic() { patterns.filter_map(example).collect() } else { Vec::new() }
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
    use async_trait::async_trait;
    use posthaste::route::Template;
    use posthaste::sink::{Capabilities, Message, Verdict};

    /// Says after so many seconds that events can be lost.
    struct Slow(u64);

    #[async_trait]
    impl Sink for Slow {
        fn capabilities(&self) -> Capabilities {
            unimplemented!("nobody asks")
        }

        async fn publish(&self, _: &[Message]) -> Vec<Verdict> {
            Vec::new()
        }

        async fn examine(&self, _: &[String]) -> Vec<Finding> {
            tokio::time::sleep(Duration::from_secs(self.0)).await; // pace
            let finding = |level, text: &str| Finding { check: DURABILITY.into(), level, text: text.into() };
            vec![finding(Level::Ok, "two replicas"), finding(Level::Warn, "one replica")]
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_in_the_background_is_waited_for_and_a_silence_is_said() {
        let said = async |seconds| warnings(look(&Slow(seconds), &[], BACKGROUND_PATIENCE).await.as_deref());
        assert_eq!(said(60).await, ["one replica"]);
        let [silence] = said(600).await.try_into().expect("a word");
        for words in ["no answer", "can lose acknowledged events", "posthaste doctor"] {
            assert!(silence.contains(words), "{silence}");
        }
        assert!(look(&Slow(60), &[], PATIENCE).await.is_none(), "a start does not wait for it");
    }

    #[test]
    fn only_addresses_that_are_certain_are_examined() {
        let mut route = Route::everything_to("s");
        route.topics = vec![Pattern::new("a.b"), Pattern::new("c.*")];
        assert_eq!(known_of(&route), ["a.b"]);
        assert_eq!(examples_of(&route), ["c.example"]);
        route.destination = Template::parse("fixed").expect("valid");
        assert_eq!(known_of(&route), ["fixed"]);
        assert_eq!(examples_of(&route), [""; 0]);
        route.destination = Template::parse("{key}").expect("valid");
        assert!(known_of(&route).is_empty());
    }
}
