//! Pause, resume, rate limit. Relays read them with every heartbeat.

use super::{audit, check_sink, failed};
use posthaste::admin::{Actor, AdminError, Control, ControlTarget};
use rusqlite::{Transaction, params};
use serde_json::json;

pub(super) fn set(
    tx: &Transaction<'_>,
    target: &ControlTarget,
    control: &Control,
    actor: &Actor,
) -> Result<(), AdminError> {
    check(target, control)?;
    let (kind, name) = match target {
        ControlTarget::Sink(name) => {
            check_sink(tx, name)?;
            ("sink", name)
        }
        // Routes live in the configuration of the relays: any name may be one.
        ControlTarget::Route(name) => ("route", name),
    };
    let (action, paused, limit) = match control {
        Control::Pause => ("pause", Some(true), None),
        Control::Resume => ("resume", Some(false), None),
        Control::RateLimit(limit) => ("rate", None, Some(*limit)),
    };
    let sql = include_str!("../../sql/admin/control.sql");
    tx.execute(sql, params![kind, name, paused, limit.is_some(), limit.flatten()]).map_err(failed)?;
    let mut detail = json!({ kind: name });
    if let Some(limit) = limit {
        detail["events_per_second"] = limit.into();
    }
    audit(tx, actor, action, &detail)
}

fn check(target: &ControlTarget, control: &Control) -> Result<(), AdminError> {
    match (target, control) {
        (ControlTarget::Route(name), Control::RateLimit(_)) => {
            Err(AdminError::Invalid(format!("a rate limit is set for a sink; {name} is a route")))
        }
        (_, Control::RateLimit(Some(limit))) if !(limit.is_finite() && *limit > 0.0) => {
            Err(AdminError::Invalid(format!("{limit} events a second is no limit; to stop a sink, pause it")))
        }
        _ => Ok(()),
    }
}
