//! An adopted table and the log it moves to: which, and whether events would arrive there as they do now.
//!
//! The event in the log is the one that the claim would have made. What a broker gets of it is decided by the
//! routes, and those of a log have other defaults than those of a preset: so they are compared before
//! anything is changed.

use super::super::super::{Context, admin, explain, explain_act};
use crate::config::{Config, Outbox};
use crate::output::Usage;
use posthaste::route::{Order, Route};
use posthaste_postgres::PostgresConfig;
use posthaste_postgres::claim::Layout;
use posthaste_postgres::survey::identity;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The two.
pub(super) struct Pair<'a> {
    pub(super) adopted: &'a Outbox,
    pub(super) log: &'a Outbox,
    pub(super) layout: &'a Layout,
    pub(super) schema: &'a str,
    /// How to reach the table: as configured, or as its owner.
    pub(super) server: PostgresConfig,
}

impl<'a> Pair<'a> {
    pub(super) async fn find(
        context: &Context,
        config: &'a Config,
        to: Option<&str>,
        owner_url: Option<&str>,
    ) -> anyhow::Result<Self> {
        let adopted = adopted(context, config)?;
        let Some((configured, layout)) = adopted.database.layout() else {
            return Err(Usage(format!(
                "outbox `{}` has no [outbox.adopt]: it is a log already",
                adopted.name
            ))
            .into());
        };
        let here = identity(configured).await.map_err(|error| explain(adopted, error))?;
        let mut server = configured.clone();
        if let Some(url) = owner_url {
            url.clone_into(&mut server.url);
            server.password_file = None;
            let there = identity(&server).await.map_err(|error| explain(adopted, error))?;
            if there != here {
                return Err(Usage("--owner-url is another database than the outbox's".to_owned()).into());
            }
        }
        let log = log(config, adopted, to, &here).await?;
        let schema = log.database.postgres().map_or("posthaste", |(log, _)| log.schema.as_str());
        Ok(Self { adopted, log, layout, schema, server })
    }

    pub(super) fn table(&self) -> String {
        self.layout.table.to_string()
    }

    /// Whether the log keeps an order that the table's last rows would break.
    pub(super) fn overtakes(&self, hold: bool) -> bool {
        !hold && self.log.routes.routes().iter().any(|route| route.order == Order::Key)
    }

    /// Refuses where events of the log would go elsewhere, look different, or wait for nobody. Answers the
    /// log's sinks.
    pub(super) async fn check(&self, config: &Config, topics: &[String]) -> anyhow::Result<Vec<String>> {
        let problems = differences(self.adopted.routes.routes(), self.log.routes.routes(), topics);
        if !problems.is_empty() {
            return Err(Usage(format!(
                "events would not arrive from outbox `{}` as they do from `{}`:\n  - {}\nNothing was changed",
                self.log.name,
                self.adopted.name,
                problems.join("\n  - ")
            ))
            .into());
        }
        let status = admin(self.log).await?.status().await.map_err(|error| explain_act(self.log, error))?;
        let sinks: Vec<String> = self.log.sinks(config).iter().map(|sink| sink.name.to_string()).collect();
        let known: BTreeSet<&str> = status.sinks.iter().map(|sink| sink.sink.as_str()).collect();
        match sinks.iter().find(|sink| !known.contains(sink.as_str())) {
            None => Ok(sinks),
            Some(sink) => anyhow::bail!(
                "outbox `{}`: sink `{sink}` has never read this log, and a sink that begins later may begin behind what was handed \
                 over before. Start `posthaste run` with this configuration first; it relays both outboxes. Nothing was changed",
                self.log.name
            ),
        }
    }
}

/// The adopted outbox: the chosen one, or the only one.
fn adopted<'a>(context: &Context, config: &'a Config) -> anyhow::Result<&'a Outbox> {
    let all = context.outboxes(config)?;
    if let [only] = all.as_slice() {
        return Ok(only);
    }
    let mut adopted = all.iter().filter(|outbox| outbox.database.layout().is_some());
    match (adopted.next(), adopted.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(Usage("no outbox has [outbox.adopt]: there is nothing to move".to_owned()).into()),
        _ => Err(Usage("several adopted tables are configured; choose one with --outbox".to_owned()).into()),
    }
}

/// The log in the same database.
async fn log<'a>(
    config: &'a Config,
    adopted: &Outbox,
    to: Option<&str>,
    here: &str,
) -> anyhow::Result<&'a Outbox> {
    let mut found = Vec::new();
    for outbox in config.outboxes.iter().filter(|outbox| to.is_none_or(|name| *outbox.name == *name)) {
        let Some((server, _)) = outbox.database.postgres() else { continue };
        let there = identity(server).await.map_err(|error| explain(outbox, error))?;
        if there == here {
            found.push(outbox);
        }
    }
    match (found.as_slice(), to) {
        ([one], _) => Ok(one),
        ([], Some(name)) => Err(Usage(format!(
            "`{name}` is no log in the database of outbox `{}`: a row and its event are written by one transaction",
            adopted.name
        ))
        .into()),
        ([], None) => Err(Usage(no_log(adopted)).into()),
        _ => Err(Usage("several logs are configured in this database; choose one with --to".to_owned()).into()),
    }
}

fn no_log(adopted: &Outbox) -> String {
    let name = &adopted.name;
    format!(
        "no log is configured beside outbox `{name}`. A row and its event are written by one transaction, so it lives in the \
         same database. Add it, set it up with `posthaste migrate up --outbox log`, and start `posthaste run`, which relays \
         both:\n\n  [[outbox]]                  # [outbox] of now, with a name\n  name = \"{name}\"\n  …\n\n  [[outbox]]\n  name = \"log\"\n  \
         url = \"{}\"",
        adopted.database.address()
    )
}

/// What would be different, for the topics that the table has and those that its routes name.
fn differences(adopted: &[Arc<Route>], log: &[Arc<Route>], topics: &[String]) -> Vec<String> {
    let named = adopted.iter().flat_map(|route| &route.topics).map(|pattern| pattern.as_str());
    let topics: BTreeSet<&str> = topics.iter().map(String::as_str).chain(named).collect();
    let mut problems = BTreeSet::new();
    for topic in topics {
        let takes = |route: &&Arc<Route>| route.topics.iter().any(|pattern| pattern.matches(topic));
        let Some(now) = adopted.iter().find(takes) else { continue };
        let sink = now.sinks.first();
        let then = log.iter().find(|route| takes(route) && route.sinks.iter().any(|name| Some(name) == sink));
        match then {
            None => problems.insert(format!(
                "no route of the log takes {topic:?} to sink {}",
                sink.map_or("-", String::as_str)
            )),
            Some(then) if then.envelope != now.envelope => {
                let word = serde_json::to_value(now.envelope).unwrap_or_default();
                problems.insert(format!(
                    "route {} puts another envelope around {topic:?}: write envelope = {word} into it",
                    then.name
                ))
            }
            Some(then) if then.destination != now.destination || then.partition_key != now.partition_key => {
                problems.insert(format!("route {} sends {topic:?} to another destination", then.name))
            }
            Some(_) => false,
        };
    }
    problems.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::route::{Envelope, Pattern};

    fn route(topic: &str, sink: &str, envelope: Envelope) -> Arc<Route> {
        Arc::new(Route { topics: vec![Pattern::new(topic)], envelope, ..Route::everything_to(sink) })
    }

    #[test]
    fn routes_of_the_log_must_do_the_same() {
        let now = [route("*", "kafka", Envelope::MessageId)];
        let topics = ["orders.placed".to_owned()];
        let told = |log: &[Arc<Route>]| differences(&now, log, &topics).join("; ");
        assert_eq!(told(&[route("*", "kafka", Envelope::MessageId)]), "");
        assert!(told(&[route("*", "kafka", Envelope::None)]).contains("write envelope = \"message-id\""));
        assert!(told(&[route("*", "nats", Envelope::MessageId)]).contains("no route of the log takes"));
        let told = told(&[route("users.*", "kafka", Envelope::MessageId)]);
        assert!(told.contains("takes \"orders.placed\" to sink kafka"), "{told}");
    }
}
