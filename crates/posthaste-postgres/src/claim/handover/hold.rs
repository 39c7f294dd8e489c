//! Holding the log's sinks back while older rows drain, for those who ask for order by key.
//!
//! The log keeps the order of a key; the rows that wait in the table are outside of it. A sink that is paused before the
//! first row is handed over, and goes on when the table is drained, delivers what is new after what is old.
//!
//! Which sinks were paused by us is one line in `state`: somebody else's pause is not lifted.

use super::{Handover, HandoverError};
use crate::error::store_error;
use crate::session::Param;
use posthaste::admin::Actor;
use posthaste::store::StoreError;
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_postgres::types::Type;

/// Longest wait for relays to notice: several leases.
const NOTICED_MAX: Duration = Duration::from_secs(90);
/// A relay writes its presence down every few seconds.
const LOOK: Duration = Duration::from_millis(100);

impl Handover {
    fn state_name(&self) -> String {
        format!("hand_over {}", self.place.table)
    }

    /// Sinks that are held for this table.
    pub(super) async fn held(&mut self) -> Result<Vec<String>, StoreError> {
        let sql = format!("select value from {}.state where name = $1", self.log());
        let name = self.state_name();
        let rows = self.line.query(&sql, &[(&name, Type::TEXT)]).await.map_err(store_error)?;
        let value = rows.first().map(|row| row.get::<_, String>(0)).unwrap_or_default();
        Ok(serde_json::from_str(&value).unwrap_or_default())
    }

    /// Pauses sinks, unless somebody has paused them already.
    pub(super) async fn hold(&mut self, sinks: &[String], actor: &Actor) -> Result<(), HandoverError> {
        self.begin(super::lock::WAIT_MS).await?;
        let result = self.hold_in(sinks, actor).await;
        self.end(result).await
    }

    async fn hold_in(&mut self, sinks: &[String], actor: &Actor) -> Result<(), StoreError> {
        let mut held = self.held().await?;
        let log = self.log();
        let sql = format!(
            "insert into {log}.controls as c (kind, name, paused) select 'sink', s, true from unnest($1::text[]) as s
                 on conflict (kind, name) do update set paused = true where not c.paused returning name"
        );
        let rows = self.line.query(&sql, &[(&sinks, Type::TEXT_ARRAY)]).await.map_err(store_error)?;
        held.extend(rows.iter().map(|row| row.get(0)));
        let sql = format!(
            "insert into {log}.state (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value"
        );
        let (name, value) = (self.state_name(), json!(held).to_string());
        let params: [Param<'_>; 2] = [(&name, Type::TEXT), (&value, Type::TEXT)];
        self.line.query(&sql, &params).await.map_err(store_error)?;
        let detail = json!({ "table": self.place.table.to_string(), "sinks": held });
        self.audit(actor, "adopt.hold", &detail).await?;
        self.wake().await
    }

    /// Lets go what was held, within the open transaction. Answers which sinks.
    pub(super) async fn let_go_in(&mut self) -> Result<Vec<String>, StoreError> {
        let held = self.held().await?;
        if held.is_empty() {
            return Ok(held);
        }
        let log = self.log();
        let sql = format!("update {log}.controls set paused = false where kind = 'sink' and name = any ($1)");
        self.line.query(&sql, &[(&held, Type::TEXT_ARRAY)]).await.map_err(store_error)?;
        let (sql, name) = (format!("delete from {log}.state where name = $1"), self.state_name());
        self.line.query(&sql, &[(&name, Type::TEXT)]).await.map_err(store_error)?;
        self.wake().await?;
        Ok(held)
    }

    /// The same in a transaction of its own.
    pub(super) async fn let_go(&mut self, actor: &Actor) -> Result<(), HandoverError> {
        self.begin(super::lock::WAIT_MS).await?;
        let result = async {
            let sinks = self.let_go_in().await?;
            let detail = json!({ "table": self.place.table.to_string(), "sinks": sinks });
            self.audit(actor, "adopt.let_go", &detail).await
        };
        let result = result.await;
        self.end(result).await
    }

    async fn wake(&mut self) -> Result<(), StoreError> {
        let channel = format!("{}_wakeup", self.place.log);
        let sql = "select pg_notify($1, '')";
        self.line.query(sql, &[(&channel, Type::TEXT)]).await.map(drop).map_err(store_error)
    }

    /// Waits until every relay of the log has beaten twice since the pause was committed: the second beat began after it,
    /// and a beat reads what is paused.
    pub(super) async fn noticed(&mut self) -> Result<(), HandoverError> {
        let sql = format!(
            "select relay, expires_at::text from {}.relays where expires_at > clock_timestamp()",
            self.log()
        );
        let (since, mut beats) = (Instant::now(), HashMap::<String, (String, u32)>::new());
        loop {
            let rows = self.line.query(&sql, &[]).await.map_err(store_error)?;
            let mut behind = 0;
            for row in &rows {
                let (relay, until): (String, String) = (row.get(0), row.get(1));
                let seen = beats.entry(relay).or_insert_with(|| (until.clone(), 0));
                if seen.0 != until {
                    *seen = (until, seen.1 + 1);
                }
                behind += usize::from(seen.1 < 2);
            }
            if behind == 0 {
                return Ok(());
            }
            if since.elapsed() > NOTICED_MAX {
                return Err(HandoverError::Refused(format!(
                    "{behind} relay(s) of the log did not notice within {} s that their sinks are held. Nothing was changed",
                    NOTICED_MAX.as_secs()
                )));
            }
            sleep(LOOK).await;
        }
    }
}
