//! The roll: one statement a heartbeat that renews what this relay holds and shows what everybody else does.

use crate::error::store_error;
use crate::log::store::{Inner, single};
use crate::session::Param;
use posthaste::Timestamp;
use posthaste::store::{Controls, JoinPlan, LaneId, LaneView, Roll, StoreCode, StoreError};
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
}

/// What is set for sinks and routes. Consumers ask for theirs themselves.
fn controls(rows: Vec<RollControl>) -> Controls {
    let mut controls = Controls::default();
    for RollControl { kind, name, paused, rate } in rows {
        match kind.as_str() {
            "sink" => {
                controls.rate_limits.extend(rate.map(|rate| (name.clone(), rate)));
                controls.paused_sinks.extend(paused.then_some(name));
            }
            "route" => controls.paused_routes.extend(paused.then_some(name)),
            _ => {}
        }
    }
    controls
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
            controls: controls(row.controls),
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_consumer_pauses_no_route_of_its_name() {
        let row = |kind: &str| RollControl {
            kind: kind.to_owned(),
            name: "billing".to_owned(),
            paused: true,
            rate: None,
        };
        let found = controls(vec![row("consumer")]);
        assert!(found.paused_routes.is_empty() && found.paused_sinks.is_empty());
        let found = controls(vec![row("route"), row("sink")]);
        assert_eq!((found.paused_routes.len(), found.paused_sinks.len()), (1, 1));
    }
}
