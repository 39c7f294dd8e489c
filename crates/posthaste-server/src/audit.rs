//! `[audit]`: the audit as a topic. A trigger in the database appends the events; here is what the file says,
//! and what is asked of every topic whose events we append ourselves.

use crate::config::{Outbox, Review};
use posthaste::Event;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[audit]`: where the audit goes beside its table.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuditSection {
    /// Each line is an event of this topic, with its trace as the key. `migrate up` writes it into every
    /// database with our own schema.
    pub(crate) topic: Option<String>,
}

impl AuditSection {
    /// Gives each outbox of our own the audit's topic. An adopted table has its owners' audit, without a
    /// trigger of ours.
    pub(crate) fn resolve(&self, review: &mut Review<'_>, outboxes: &mut [Outbox]) {
        const PATH: &str = "audit.topic";
        let Some(topic) = &self.topic else { return };
        if topic.is_empty() || topic.contains('*') {
            return review.problem(
                PATH,
                "audit.topic must be the exact name of a topic, for example \"sys.audit.v1\"",
            );
        }
        let (adopted, ours): (Vec<_>, Vec<_>) =
            outboxes.iter_mut().partition(|outbox| outbox.database.layout().is_some());
        if ours.is_empty() && !adopted.is_empty() {
            let why = "every outbox is an adopted table, whose acts are in the audit of its owners";
            return review.problem(PATH, format!("audit.topic has no effect: {why}"));
        }
        for outbox in ours {
            // An append would refuse it, and the trigger drop every line: that must not undo an act.
            if let Err(why) = outbox.database.limits().check(&Event::new(topic.as_str(), "")) {
                let what = format!("outbox `{}` takes no such event: {why}", outbox.name);
                return review.problem(PATH, format!("audit.topic cannot be sent to; {what}"));
            }
            check_routed(review, PATH, topic, outbox);
            outbox.database.set_audit_topic(topic);
        }
    }
}

/// Refuses a topic of events that we append ourselves if no route takes it: they would only make dead letters
/// in the outbox. Where another process relays the outbox, nobody here knows its routes.
pub(crate) fn check_routed(review: &mut Review<'_>, path: &str, topic: &str, outbox: &Outbox) {
    let mut routes = outbox.routes.routes().iter();
    if outbox.relays && !routes.any(|route| route.topics.iter().any(|pattern| pattern.matches(topic))) {
        let why = format!("no route of outbox `{}` takes the topic `{topic}`", outbox.name);
        review.problem(path, format!("{why}: its events would go nowhere. Add a [[route]] for it"));
    }
}
