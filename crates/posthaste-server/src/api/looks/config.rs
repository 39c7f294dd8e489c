//! The configuration in force, as people see it: what its parts are, for whoever reads the API's document.
//!
//! The keys within a part are those of the file, and docs/configuration.md has them. They are not said again
//! here: which sinks and sources there are depends on what a build has, and the document does not.

use crate::api::call::ApiCall;
use crate::api::spec::NoQuery;
use crate::http::ApiProblem;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The configuration in force, secrets masked.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct ShownConfig(#[schemars(with = "ConfigParts")] Value);

/// A table of the file, with its keys as docs/configuration.md has them.
type Table = Map<String, Value>;

/// The configuration in force, secrets masked: what the file says, and what holds without it.
#[derive(JsonSchema)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[cfg_attr(test, serde(deny_unknown_fields))]
#[expect(dead_code, reason = "it is there for its schema, and for a test")]
struct ConfigParts {
    /// Label `service` of the metrics and `source` header of every message; `null`: the outbox's name.
    service: Option<String>,
    /// Whether every link without TLS is refused.
    require_tls: bool,
    /// The engine, shared by all outboxes.
    relay: Table,
    /// Metrics and health.
    http: Table,
    /// The administration's API.
    admin: Table,
    /// Log lines.
    log: Table,
    /// Where the audit goes.
    audit: Table,
    /// One for each database.
    outbox: Vec<Table>,
    /// Where events go, by name.
    sinks: BTreeMap<String, Table>,
    /// Where messages of consumers come from, by name.
    sources: BTreeMap<String, Table>,
    /// Who handles messages, by name.
    consumers: BTreeMap<String, Table>,
    /// Where tenants hand in events, if they can.
    gateway: Option<Table>,
    /// Which topics go to which sinks, with the names that were given by default.
    route: Vec<Table>,
}

pub(crate) async fn config(call: ApiCall, _: NoQuery) -> Result<ShownConfig, ApiProblem> {
    Ok(ShownConfig(call.api.config.shown()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_parts_are_those_of_the_file() {
        let example = include_str!("../../config/example.toml");
        let gateway = "outbox.url = \"postgres://h/d\"\n[sinks.out]\ntype = \"null\"\n\
                       [[route]]\ntopic = \"*\"\nsink = \"out\"\n[[gateway.topic]]\ntopic = \"t\"\n";
        for file in ["outbox.url = \"postgres://h/d\"", gateway, example] {
            let config = Config::parse(std::path::Path::new("t"), file);
            let shown = config.map_err(|error| error.to_string()).expect("a configuration").shown();
            let parts = serde_json::from_value::<ConfigParts>(shown).expect("every part is known");
            assert!(!parts.outbox.is_empty() && parts.relay.contains_key("poll_max_ms"));
        }
    }
}
