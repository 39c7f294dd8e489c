//! Pause, resume, rate limit, tuning. Relays read them with every heartbeat; the wakeup makes that soon.

use super::aside::{maybe, time};
use super::{PostgresAdmin, finish};
use crate::session::{Param, Session};
use posthaste::Timestamp;
use posthaste::admin::{
    Actor, AdminError, Beside, Control, ControlTarget, Ends, SetBy, Setting, TuneAct, Tuned,
};
use posthaste::store::{ControlRow, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

impl PostgresAdmin {
    pub(super) async fn set_control(
        &self,
        target: &ControlTarget,
        control: &Control,
        ends: Option<Ends>,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        let setting = Setting::new(target, control)?;
        let mut session = self.begin().await?;
        let set = self.set_control_in(&mut session, &setting, ends, actor).await;
        finish(&mut session, set).await
    }

    async fn set_control_in(
        &self,
        session: &mut Session,
        setting: &Setting,
        ends: Option<Ends>,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        if let Some(sink) = setting.sink() {
            self.check_sink(session, sink).await?;
        }
        let (now, beside) = self.lock_control(session, setting.kind, &setting.name).await?;
        let until = setting.until(ends, now, beside)?;
        let params: [Param<'_>; 8] = [
            (&setting.kind, Type::TEXT),
            (&setting.name, Type::TEXT),
            (&setting.paused, Type::BOOL),
            (&setting.rate.is_some(), Type::BOOL),
            (&setting.rate.flatten(), Type::FLOAT8),
            (&actor.name, Type::TEXT),
            (&actor.reason, Type::TEXT),
            (&until.map(|until| until.0), Type::INT8),
        ];
        self.query(session, include_str!("../../sql/admin/control.sql"), &params).await?;
        self.audit(session, actor, setting.action, &setting.detail(until)).await?;
        self.wake(session, "").await
    }

    /// The database's clock, and what is set already.
    async fn lock_control(
        &self,
        session: &mut Session,
        kind: &str,
        name: &str,
    ) -> Result<(Timestamp, Beside), AdminError> {
        let params: [Param<'_>; 2] = [(&kind, Type::TEXT), (&name, Type::TEXT)];
        // A statement of its own: what is set is to be seen as it is when the lock is there. A row would not
        // do, for the first act has none.
        let lock =
            "select pg_advisory_xact_lock(hashtextextended('posthaste.controls ' || $1 || ' ' || $2, 0))";
        self.query(session, lock, &params).await?;
        let rows = self.query(session, include_str!("../../sql/admin/control_lock.sql"), &params).await?;
        let row = rows.first().ok_or_else(StoreError::no_answer)?;
        let paused = row.get::<_, Option<bool>>("paused").unwrap_or(false);
        Ok((time(row, "now"), Beside { paused, rate: row.get("rate_limit"), until: maybe(row, "until") }))
    }

    /// What operators set for a kind of thing.
    pub(super) async fn controls_of(
        &self,
        session: &mut Session,
        kind: &str,
    ) -> Result<Vec<Row>, AdminError> {
        let sql = include_str!("../../sql/admin/controls.sql");
        self.query(session, sql, &[(&kind, Type::TEXT)]).await
    }

    pub(super) async fn tuned(&self, session: &mut Session) -> Result<Vec<Tuned>, AdminError> {
        let read = |row: &Row| Tuned {
            setting: row.get("name"),
            value: row.get::<_, Option<_>>("settings").map(ControlRow::value).unwrap_or_default(),
            set_by: set_by(row),
        };
        Ok(self.controls_of(session, "outbox").await?.iter().map(read).collect())
    }

    pub(super) async fn set_tuning(
        &self,
        act: &TuneAct,
        actor: &Actor,
    ) -> Result<Option<Timestamp>, AdminError> {
        let mut session = self.begin().await?;
        let set = self.set_tuning_in(&mut session, act, actor).await;
        finish(&mut session, set).await
    }

    async fn set_tuning_in(
        &self,
        session: &mut Session,
        act: &TuneAct,
        actor: &Actor,
    ) -> Result<Option<Timestamp>, AdminError> {
        // There is no such row: it is the lock and the clock that are asked for.
        let (now, _) = self.lock_control(session, "outbox", "").await?;
        act.check(&self.tuned(session).await?)?;
        let until = match act {
            TuneAct::Set { values, ends, .. } => {
                let until = ends.at(now)?;
                for (setting, value) in values {
                    let value = i64::try_from(*value).unwrap_or(i64::MAX);
                    let params: [Param<'_>; 5] = [
                        (&setting.name(), Type::TEXT),
                        (&value, Type::INT8),
                        (&until.0, Type::INT8),
                        (&actor.name, Type::TEXT),
                        (&actor.reason, Type::TEXT),
                    ];
                    self.query(session, include_str!("../../sql/admin/tune.sql"), &params).await?;
                }
                Some(until)
            }
            TuneAct::Clear(settings) => {
                let names: Vec<&str> = settings.iter().map(|setting| setting.name()).collect();
                let params: [Param<'_>; 1] = [(&names, Type::TEXT_ARRAY)];
                self.query(session, include_str!("../../sql/admin/untune.sql"), &params).await?;
                None
            }
        };
        self.audit(session, actor, act.action(), &act.detail(until)).await?;
        self.wake(session, "").await?;
        Ok(until)
    }
}

/// Who set a control; `None` if an older version did.
pub(crate) fn set_by(row: &Row) -> Option<SetBy> {
    let (actor, at) = (row.get::<_, Option<_>>("actor")?, maybe(row, "set_at")?);
    let reason = row.get::<_, Option<_>>("reason").unwrap_or_default();
    Some(SetBy { actor, reason, at, until: maybe(row, "until") })
}
