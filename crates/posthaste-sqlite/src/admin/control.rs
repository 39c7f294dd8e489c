//! Pause, resume, rate limit, tuning. Relays read them with every heartbeat.

use super::{audit, check_sink, failed};
use crate::clock::now;
use posthaste::Timestamp;
use posthaste::admin::{Actor, AdminError, Beside, Ends, SetBy, Setting, TuneAct, Tuned};
use posthaste::store::ControlRow;
use rusqlite::{Connection, Row, Transaction, params};

/// What an operator set for something, and who it was.
pub(super) struct ControlSet {
    pub(super) name: String,
    pub(super) beside: Beside,
    pub(super) value: serde_json::Value,
    pub(super) set_by: Option<SetBy>,
}

/// What operators set for a kind of thing.
pub(super) fn of_kind(tx: &Connection, kind: &str) -> rusqlite::Result<Vec<ControlSet>> {
    let read = |row: &Row<'_>| {
        let (until, paused) = (row.get::<_, Option<i64>>("until")?.map(Timestamp), row.get("paused")?);
        Ok(ControlSet {
            name: row.get("name")?,
            beside: Beside { paused, rate: row.get("rate_limit")?, until },
            value: value(row)?.unwrap_or_default(),
            set_by: set_by(row)?,
        })
    };
    let mut statement = tx.prepare_cached(include_str!("../../sql/admin/controls.sql"))?;
    statement.query_map(params![kind, now()], read)?.collect()
}

/// The value of a setting.
pub(crate) fn value(row: &Row<'_>) -> rusqlite::Result<Option<serde_json::Value>> {
    let text: Option<String> = row.get("settings")?;
    Ok(text.map(ControlRow::value))
}

/// Who set a control; `None` if an older version did.
pub(crate) fn set_by(row: &Row<'_>) -> rusqlite::Result<Option<SetBy>> {
    let (actor, at): (Option<String>, Option<i64>) = (row.get("actor")?, row.get("set_at")?);
    let reason = row.get::<_, Option<String>>("reason")?.unwrap_or_default();
    let until = row.get::<_, Option<i64>>("until")?.map(Timestamp);
    Ok(actor.zip(at).map(|(actor, at)| SetBy { actor, reason, at: Timestamp(at), until }))
}

pub(super) fn set(
    tx: &Transaction<'_>,
    setting: &Setting,
    ends: Option<Ends>,
    actor: &Actor,
) -> Result<(), AdminError> {
    if let Some(sink) = setting.sink() {
        check_sink(tx, sink)?;
    }
    let Setting { kind, name, paused, rate, action } = setting;
    let known = of_kind(tx, kind).map_err(failed)?;
    let beside = known.iter().find(|one| one.name == *name).map(|one| one.beside).unwrap_or_default();
    let now = now();
    let until = setting.until(ends, Timestamp(now), beside)?;
    let sql = include_str!("../../sql/admin/control.sql");
    let (who, why, end) = (&actor.name, &actor.reason, until.map(|until| until.0));
    let params = params![kind, name, paused, rate.is_some(), rate.flatten(), who, why, now, end];
    tx.execute(sql, params).map_err(failed)?;
    audit(tx, actor, action, &setting.detail(until))
}

pub(super) fn tuned(tx: &Connection) -> rusqlite::Result<Vec<Tuned>> {
    let tuned = |one: ControlSet| Tuned { setting: one.name, value: one.value, set_by: one.set_by };
    Ok(of_kind(tx, "outbox")?.into_iter().map(tuned).collect())
}

pub(super) fn tune(
    tx: &Transaction<'_>,
    act: &TuneAct,
    actor: &Actor,
) -> Result<Option<Timestamp>, AdminError> {
    act.check(&tuned(tx).map_err(failed)?)?;
    let until = match act {
        TuneAct::Set { values, ends, .. } => {
            let now = now();
            let until = ends.at(Timestamp(now))?;
            for (setting, value) in values {
                let (name, value) = (setting.name(), value.to_string());
                let params = params![name, value, actor.name, actor.reason, now, until.0];
                tx.execute(include_str!("../../sql/admin/tune.sql"), params).map_err(failed)?;
            }
            Some(until)
        }
        TuneAct::Clear(settings) => {
            let names: Vec<&str> = settings.iter().map(|setting| setting.name()).collect();
            let names = serde_json::json!(names).to_string();
            tx.execute(include_str!("../../sql/admin/untune.sql"), [names]).map_err(failed)?;
            None
        }
    };
    audit(tx, actor, act.action(), &act.detail(until))?;
    Ok(until)
}
