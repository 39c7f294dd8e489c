//! Pause, resume, rate limit. Relays read them with every heartbeat; the wakeup makes that soon.

use super::{PostgresAdmin, finish};
use crate::session::{Param, Session};
use posthaste::admin::{Actor, AdminError, Control, ControlTarget};
use serde_json::json;
use tokio_postgres::types::Type;

impl PostgresAdmin {
    pub(super) async fn set_control(
        &self,
        target: &ControlTarget,
        control: &Control,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        check(target, control)?;
        let mut session = self.begin().await?;
        let set = self.set_control_in(&mut session, target, control, actor).await;
        finish(&mut session, set).await
    }

    async fn set_control_in(
        &self,
        session: &mut Session,
        target: &ControlTarget,
        control: &Control,
        actor: &Actor,
    ) -> Result<(), AdminError> {
        let (kind, name) = match target {
            ControlTarget::Sink(name) => {
                self.check_sink(session, name).await?;
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
        let params: [Param<'_>; 5] = [
            (&kind, Type::TEXT),
            (name, Type::TEXT),
            (&paused, Type::BOOL),
            (&limit.is_some(), Type::BOOL),
            (&limit.flatten(), Type::FLOAT8),
        ];
        self.query(session, include_str!("../../sql/admin/control.sql"), &params).await?;
        let mut detail = json!({ kind: name });
        if let Some(limit) = limit {
            detail["events_per_second"] = limit.into();
        }
        self.audit(session, actor, action, &detail).await?;
        self.wake(session, "").await
    }
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
