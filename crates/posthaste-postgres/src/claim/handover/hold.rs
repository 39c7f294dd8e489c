//! Holding the log's sinks back while older rows drain, for those who ask for order by key.
//!
//! The log keeps the order of a key, but the rows that wait in the table are outside of it. So a sink is
//! paused before the first row is handed over, and goes on when the table is drained. Then it delivers what
//! is new after what is old.
//!
//! One line in `state` names the sinks that a table wants held. Beside each stands the line of the audit with
//! which a hold paused it, or nothing if somebody else had paused it before. A sink goes on when the last
//! table that wants it held is drained, and only if its pause is still that of a hold. Somebody else's pause
//! is not lifted, whether it came before or in between.

use super::{Handover, HandoverError};
use crate::error::store_error;
use crate::session::Param;
use posthaste::admin::Actor;
use posthaste::store::{StoreCode, StoreError};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_postgres::types::Type;

/// Longest wait for relays to notice, which is several leases.
const NOTICED_MAX: Duration = Duration::from_secs(90);
/// A relay writes its presence down every few seconds.
const LOOK: Duration = Duration::from_millis(100);

/// Sinks that a table wants held, and the line of the audit with which a hold paused each.
type Hold = BTreeMap<String, Option<i64>>;

impl Handover {
    fn state_name(&self) -> String {
        format!("hand_over {}", self.place.table)
    }

    /// The lines of all tables that go to this log.
    async fn hold_lines(&mut self) -> Result<BTreeMap<String, Hold>, StoreError> {
        let sql = format!("select name, value from {}.state where name like 'hand\\_over %'", self.log());
        let rows = self.session.query(&sql, &[]).await.map_err(store_error)?;
        let line = |row: &tokio_postgres::Row| {
            let (name, value): (String, &str) = (row.get(0), row.get(1));
            let unreadable = |error| {
                StoreError::fatal(
                    StoreCode::Unreadable,
                    format!("the line {name:?} in `state` cannot be read: {error}"),
                )
            };
            Ok((name.clone(), serde_json::from_str(value).map_err(unreadable)?))
        };
        rows.iter().map(line).collect()
    }

    /// The line of this table.
    pub(super) async fn hold_line(&mut self) -> Result<Hold, StoreError> {
        let name = self.state_name();
        Ok(self.hold_lines().await?.remove(&name).unwrap_or_default())
    }

    /// Sinks that are held for this table, as far as the pause is a hold's.
    pub(super) async fn held(&mut self) -> Result<Vec<String>, StoreError> {
        let line = self.hold_line().await?;
        Ok(line.into_iter().filter(|(_, since)| since.is_some()).map(|(sink, _)| sink).collect())
    }

    /// Pauses sinks, unless somebody has paused them already.
    pub(super) async fn hold(&mut self, sinks: &[String], actor: &Actor) -> Result<(), HandoverError> {
        self.begin(super::lock::WAIT_MS).await?;
        let result = self.hold_in(sinks, actor).await;
        self.end(result).await
    }

    async fn hold_in(&mut self, sinks: &[String], actor: &Actor) -> Result<(), StoreError> {
        self.one_hold_at_a_time().await?;
        let (lines, log) = (self.hold_lines().await?, self.log());
        let detail = json!({ "table": self.place.table.to_string(), "sinks": sinks });
        self.audit(actor, "adopt.hold", &detail).await?;
        let sql = format!(
            "insert into {log}.controls as c (kind, name, paused) select 'sink', s, true from unnest($1::text[]) as s
                 on conflict (kind, name) do update set paused = true where not c.paused
             returning name, (select max(id) from {log}.audit where action = 'adopt.hold')"
        );
        let rows = self.session.query(&sql, &[(&sinks, Type::TEXT_ARRAY)]).await.map_err(store_error)?;
        let paused: Hold = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        // A pause of another hold is ours, too.
        let theirs = |sink: &String| lines.values().find_map(|line| line.get(sink).copied().flatten());
        let since = |sink: &String| paused.get(sink).copied().flatten().or_else(|| theirs(sink));
        let mut line = lines.get(&self.state_name()).cloned().unwrap_or_default();
        line.extend(sinks.iter().map(|sink| (sink.clone(), since(sink))));
        let name = self.state_name();
        self.put_line(&name, &line).await?;
        self.wake().await
    }

    /// Holds of several tables may name the same sinks.
    async fn one_hold_at_a_time(&mut self) -> Result<(), StoreError> {
        let class = crate::log::store::LOCK_CLASS + 3;
        let name = format!("{} holds", self.place.log);
        let sql = "select pg_advisory_xact_lock($1, hashtext($2))";
        let params: [Param<'_>; 2] = [(&class, Type::INT4), (&name, Type::TEXT)];
        self.session.query(sql, &params).await.map(drop).map_err(store_error)
    }

    async fn put_line(&mut self, name: &str, line: &Hold) -> Result<(), StoreError> {
        let sql = format!(
            "insert into {}.state (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value",
            self.log()
        );
        let value = json!(line).to_string();
        let params: [Param<'_>; 2] = [(&name, Type::TEXT), (&value, Type::TEXT)];
        self.session.query(&sql, &params).await.map(drop).map_err(store_error)
    }

    /// Lets go what was held, within the open transaction. Answers which sinks go on.
    pub(super) async fn let_go_in(&mut self) -> Result<Vec<String>, StoreError> {
        self.one_hold_at_a_time().await?;
        let (mut lines, name) = (self.hold_lines().await?, self.state_name());
        let Some(line) = lines.remove(&name) else { return Ok(Vec::new()) };
        let mut free = Hold::new();
        for (sink, since) in line {
            let mut wanted = false;
            for other in lines.values_mut().filter_map(|line| line.get_mut(&sink)) {
                // The last table lifts the pause, so the latest hold counts.
                *other = (*other).max(since);
                wanted = true;
            }
            if !wanted {
                free.insert(sink, since);
            }
        }
        for (name, line) in &lines {
            self.put_line(name, line).await?;
        }
        let sql = format!("delete from {}.state where name = $1", self.log());
        self.session.query(&sql, &[(&name, Type::TEXT)]).await.map_err(store_error)?;
        let resumed = self.resume(&free).await?;
        self.wake().await?;
        Ok(resumed)
    }

    /// Lifts pauses that are still those of a hold. An operator who pauses by hand leaves a line in the
    /// audit.
    async fn resume(&mut self, sinks: &Hold) -> Result<Vec<String>, StoreError> {
        let own = sinks.iter().filter_map(|(sink, since)| since.map(|since| (sink.clone(), since)));
        let (names, since): (Vec<String>, Vec<i64>) = own.unzip();
        let log = self.log();
        // The lock comes first, so that what an operator is doing now is written down when we look.
        let lock = format!("select from {log}.controls where kind = 'sink' and name = any ($1) for update");
        self.session.query(&lock, &[(&names, Type::TEXT_ARRAY)]).await.map_err(store_error)?;
        let sql = format!(
            "update {log}.controls as c set paused = false from unnest($1::text[], $2::int8[]) as h (sink, since)
              where c.kind = 'sink' and c.name = h.sink and c.paused and not exists (
                select from {log}.audit as a where a.id > h.since and a.action = 'pause' and a.detail ->> 'sink' = h.sink)
             returning c.name"
        );
        let params: [Param<'_>; 2] = [(&names, Type::TEXT_ARRAY), (&since, Type::INT8_ARRAY)];
        let rows = self.session.query(&sql, &params).await.map_err(store_error)?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
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
        self.session.query(sql, &[(&channel, Type::TEXT)]).await.map(drop).map_err(store_error)
    }

    /// Waits until every relay of the log has beaten twice since the pause was committed. The second beat
    /// began after the commit, and a beat reads what is paused.
    pub(super) async fn noticed(&mut self) -> Result<(), HandoverError> {
        let sql = format!(
            "select relay, expires_at::text from {}.relays where expires_at > clock_timestamp()",
            self.log()
        );
        let (since, mut beats) = (Instant::now(), HashMap::<String, (String, u32)>::new());
        loop {
            let rows = self.session.query(&sql, &[]).await.map_err(store_error)?;
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
