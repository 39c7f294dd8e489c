//! The roll: one statement a heartbeat that renews what this relay holds and shows what everybody else does.

use crate::error::store_error;
use crate::log::store::{Inner, single};
use crate::session::Param;
use posthaste::Timestamp;
use posthaste::admin::SetBy;
use posthaste::store::{
    ControlRow, Controls, HandAct, JoinPlan, LaneId, LaneView, Roll, StoreCode, StoreError,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

#[derive(serde::Deserialize)]
struct RollRow {
    now: i64,
    known: bool,
    relays: usize,
    lanes: Vec<RollLane>,
    controls: Vec<RollControl>,
    routes: Option<String>,
    closing: Option<i16>,
}

#[derive(serde::Deserialize)]
struct RollLane {
    sink: String,
    lane: i16,
    epoch: i64,
    owner: Option<String>,
    free: bool,
}

#[derive(serde::Deserialize)]
struct RollControl {
    kind: String,
    name: String,
    paused: bool,
    rate: Option<f64>,
    settings: Option<String>,
    actor: Option<String>,
    reason: Option<String>,
    set_at: Option<i64>,
    until: Option<i64>,
}

impl From<RollControl> for ControlRow {
    fn from(row: RollControl) -> Self {
        let RollControl { kind, name, paused, rate, settings, actor, reason, set_at, until } = row;
        let set_by = actor.zip(set_at).map(|(actor, at)| SetBy {
            actor,
            reason: reason.unwrap_or_default(),
            at: Timestamp(at),
            until: until.map(Timestamp),
        });
        Self { kind, name, paused, rate, settings: settings.map(ControlRow::value), set_by }
    }
}

impl Inner {
    pub(crate) async fn roll(&self, held: &[(LaneId, i64)]) -> Result<Roll, StoreError> {
        let plan = self.plan()?;
        let heart = self.heart.lock().await;
        let gone = || StoreError::Transient {
            message: "the heart's connection is gone".to_owned(),
            outcome_known: true,
        };
        let heart = heart.as_ref().ok_or_else(gone)?;
        let sinks: Vec<&str> = held.iter().map(|(id, _)| &*id.sink).collect();
        let lanes: Vec<i16> = held.iter().map(|(id, _)| id.lane).collect();
        let epochs: Vec<i64> = held.iter().map(|(_, epoch)| *epoch).collect();
        let served: Vec<&str> = plan.sinks.iter().map(|sink| &*sink.name).collect();
        let sql = self.sessions.sql(include_str!("../../sql/log/roll.sql"));
        let (me, seconds) = (plan.relay.as_ref(), plan.lease_ttl.as_secs_f64());
        let params: [Param<'_>; 7] = [
            (&me, Type::TEXT),
            (&seconds, Type::FLOAT8),
            (&heart.number, Type::INT4),
            (&sinks, Type::TEXT_ARRAY),
            (&lanes, Type::INT2_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&served, Type::TEXT_ARRAY),
        ];
        let asked = tokio::time::Instant::now();
        // An answer that is older than the lease is worth nothing.
        let call = heart.connection.client.query_typed(&sql, &params);
        let rows = heart.connection.within(Some(plan.lease_ttl), call).await.map_err(store_error)?;
        let text: String = single(rows)?;
        let row: RollRow = serde_json::from_str(&text)
            .map_err(|error| StoreError::broken(StoreCode::NoAnswer, error.to_string()))?;
        self.set_closing(row.closing, asked);
        if !row.known {
            return Err(StoreError::Transient {
                message: "this relay is not known any more; joining again".to_owned(),
                outcome_known: true,
            });
        }
        Ok(Roll {
            refused: refused(&row, &plan),
            lanes: row
                .lanes
                .into_iter()
                .map(|lane| LaneView {
                    id: LaneId { sink: lane.sink.into(), lane: lane.lane },
                    owner: lane.owner.map(Into::into),
                    epoch: lane.epoch,
                    is_free: lane.free,
                })
                .collect(),
            relays: row.relays,
            now: Timestamp(row.now),
            controls: Controls::of(row.controls.into_iter().map(ControlRow::from)),
        })
    }
}

impl Inner {
    /// On the heart's connection, like the heartbeat that found the lease lost.
    pub(crate) async fn taken_by_hand(
        &self,
        lane: &LaneId,
        epoch: i64,
    ) -> Result<Option<HandAct>, StoreError> {
        let heart = self.heart.lock().await;
        let Some(heart) = heart.as_ref() else { return Ok(None) };
        let sql = self.sessions.sql(include_str!("../../sql/log/by_hand.sql"));
        let params: [Param<'_>; 2] = [(&&*lane.sink, Type::TEXT), (&epoch, Type::INT8)];
        let call = heart.connection.client.query_typed(&sql, &params);
        let rows = heart.connection.within(Some(self.plan()?.lease_ttl), call).await.map_err(store_error)?;
        let act = |row: &Row| HandAct { action: row.get(0), actor: row.get(1), reason: row.get(2) };
        Ok(rows.first().map(act))
    }
}

/// Why a relay that joined before must stop or join again.
fn refused(row: &RollRow, plan: &JoinPlan) -> Option<String> {
    if row.routes.as_deref() != Some(plan.routes.as_str()) {
        return Some(
            "another relay joined with other routes or sinks; this one stops so that nothing is skipped"
                .to_owned(),
        );
    }
    None
}
