//! Pause, resume, rate limit. Relays read them with every heartbeat; the wakeup makes that soon.

use super::{PostgresAdmin, finish};
use crate::session::{Param, Session};
use posthaste::admin::{Actor, AdminError, Control, ControlTarget, Setting};
use tokio_postgres::types::Type;

impl PostgresAdmin {
    pub(super) async fn set_control(
        &self,
        target: &ControlTarget,
        control: &Control,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        let setting = Setting::new(target, control)?;
        let mut session = self.begin().await?;
        let set = self.set_control_in(&mut session, &setting, actor).await;
        finish(&mut session, set).await
    }

    async fn set_control_in(
        &self,
        session: &mut Session,
        setting: &Setting,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        if let Some(sink) = setting.sink() {
            self.check_sink(session, sink).await?;
        }
        let params: [Param<'_>; 5] = [
            (&setting.kind, Type::TEXT),
            (&setting.name, Type::TEXT),
            (&setting.paused, Type::BOOL),
            (&setting.rate.is_some(), Type::BOOL),
            (&setting.rate.flatten(), Type::FLOAT8),
        ];
        self.query(session, include_str!("../../sql/admin/control.sql"), &params).await?;
        self.audit(session, actor, setting.action, &setting.detail()).await?;
        self.wake(session, "").await
    }
}
