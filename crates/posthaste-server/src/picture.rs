//! How outboxes are, each with the reason if it cannot be looked at: what `status` and the API show.

use crate::config::Outbox;
use crate::output::{escape, paragraph};
use posthaste::admin::{OutboxStatus, Problem, diagnose};
use schemars::JsonSchema;
use serde::Serialize;

/// All of them.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Picture {
    /// Also those that cannot be reached.
    pub(crate) outboxes: Vec<Named>,
}

/// One outbox.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Named {
    /// Its name.
    pub(crate) outbox: String,
    /// The service that it belongs to.
    pub(crate) service: String,
    /// The table, where it is an adopted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) adopted: Option<String>,
    /// Why it could not be looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unreachable: Option<String>,
    /// What was found where it could.
    #[serde(flatten)]
    pub(crate) seen: Option<OutboxLook>,
}

/// What was found where it could.
#[derive(Serialize, JsonSchema)]
pub(crate) struct OutboxLook {
    /// What keeps events from arriving, the worst first.
    pub(crate) problems: Vec<Problem>,
    #[serde(flatten)]
    pub(crate) status: OutboxStatus,
}

/// One outbox as it was found.
pub(crate) fn named(outbox: &Outbox, found: Result<OutboxStatus, String>) -> Named {
    let (seen, unreachable) = match found {
        Ok(status) => (Some(OutboxLook { problems: diagnose(&status), status }), None),
        Err(why) => (None, Some(why)),
    };
    Named {
        outbox: outbox.name.to_string(),
        service: outbox.service.to_string(),
        adopted: outbox.database.layout().map(|(_, layout)| layout.table.to_string()),
        unreachable,
        seen,
    }
}

/// One that could not be looked at, as text.
pub(crate) fn draw_unreachable(outbox: &str, why: &str) -> String {
    let lines = why.lines().map(|line| paragraph(line.trim(), "  ")).collect::<Vec<_>>();
    format!("outbox {}   cannot be looked at\n\n{}", escape::line(outbox), lines.join("\n"))
}
