//! Pause, resume, rate limit. Relays read them with every heartbeat.

use super::{audit, check_sink, failed};
use posthaste::admin::{Actor, AdminError, Setting};
use rusqlite::{Transaction, params};

pub(super) fn set(tx: &Transaction<'_>, setting: &Setting, actor: &Actor) -> Result<(), AdminError> {
    if let Some(sink) = setting.sink() {
        check_sink(tx, sink)?;
    }
    let Setting { kind, name, paused, rate, action } = setting;
    let sql = include_str!("../../sql/admin/control.sql");
    tx.execute(sql, params![kind, name, paused, rate.is_some(), rate.flatten()]).map_err(failed)?;
    audit(tx, actor, action, &setting.detail())
}
