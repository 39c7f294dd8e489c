//! Tenants and their keys.
//!
//! Every change is one transaction that holds the change and its line in the audit. The version of the roster
//! is raised by triggers: whoever changes a row with another tool is noticed too.

use crate::admin::{SqliteAdmin, audit, failed};
use crate::clock::now;
use crate::config::SqliteConfig;
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::{Actor, AdminError};
use posthaste::intake::{Roster, Tenant, TenantChange, TenantError, TenantKey, TenantStore};
use posthaste::store::{StoreCode, StoreError};
use rusqlite::{OptionalExtension, Params, Row, Transaction, params};
use std::sync::Arc;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/intake/", $name, ".sql"))
    };
}

/// Tenants and their keys, in the tables of an outbox.
pub struct SqliteTenants {
    admin: SqliteAdmin,
}

impl SqliteTenants {
    /// Opens the file at the first use.
    #[must_use]
    pub fn new(config: SqliteConfig) -> Self {
        Self { admin: SqliteAdmin::new(config) }
    }
}

/// What an act failed of, in words of this seam.
fn of_admin(error: AdminError) -> TenantError {
    match error {
        AdminError::Store(error) => TenantError::Store(error),
        other => TenantError::Invalid(other.to_string()),
    }
}

fn of_look(error: AdminError) -> StoreError {
    match error {
        AdminError::Store(error) => error,
        other => StoreError::fatal(StoreCode::Refused, other.to_string()),
    }
}

#[async_trait]
impl TenantStore for SqliteTenants {
    async fn version(&self) -> Result<(i64, Timestamp), StoreError> {
        let look = |tx: &Transaction<'_>| version(tx).map_err(AdminError::Store);
        self.admin.look(look).await.map(|version| (version, Timestamp(now()))).map_err(of_look)
    }

    async fn roster(&self) -> Result<Roster, StoreError> {
        let look = |tx: &Transaction<'_>| {
            let version = version(tx)?;
            let tenants = rows(tx, sql!("tenants"), tenant).map_err(failed)?;
            let keys = rows(tx, sql!("keys"), key).map_err(failed)?;
            Ok(Roster { version, tenants, keys })
        };
        self.admin.look(look).await.map_err(of_look)
    }

    async fn change(&self, actor: &Actor, change: &TenantChange) -> Result<(), TenantError> {
        actor.check().map_err(of_admin)?;
        change.check()?;
        let (actor, change) = (actor.clone(), change.clone());
        let act = move |tx: &Transaction<'_>| {
            let refused = make(tx, &change).map_err(failed)?;
            if refused.is_none() {
                audit(tx, &actor, change.action(), &change.detail())?;
            }
            // What was refused has changed nothing: it may commit.
            Ok(refused)
        };
        match self.admin.act(act).await.map_err(of_admin)? {
            None => Ok(()),
            Some(refused) => Err(refused),
        }
    }
}

/// Makes a change, or says why it cannot be made: then nothing was changed.
fn make(tx: &Transaction<'_>, change: &TenantChange) -> rusqlite::Result<Option<TenantError>> {
    let (met, refused) = match change {
        TenantChange::Add { tenant, rate_per_s, burst, note } => {
            let met = meets(tx, sql!("tenant_add"), params![&**tenant, rate_per_s, burst, note, now()])?;
            (met, TenantError::Exists(Arc::clone(tenant)))
        }
        TenantChange::Set { tenant, rate_per_s, burst, note } => {
            let (rate, burst_now) = (rate_per_s.flatten(), burst.flatten());
            let params =
                params![&**tenant, rate_per_s.is_some(), rate, burst.is_some(), burst_now, note, now()];
            (meets(tx, sql!("tenant_set"), params)?, TenantError::NoTenant(Arc::clone(tenant)))
        }
        TenantChange::Pause { tenant, paused } => {
            let sql = "update posthaste_gateway_tenants set paused = ?2, changed_at = ?3 where tenant = ?1";
            (meets(tx, sql, params![&**tenant, paused, now()])?, TenantError::NoTenant(Arc::clone(tenant)))
        }
        TenantChange::Remove { tenant } => {
            // Not by the cascade alone: a connection checks foreign keys only if it was told to.
            meets(tx, "delete from posthaste_gateway_keys where tenant = ?1", [&**tenant])?;
            let met = meets(tx, "delete from posthaste_gateway_tenants where tenant = ?1", [&**tenant])?;
            (met, TenantError::NoTenant(Arc::clone(tenant)))
        }
        TenantChange::NewKey(key) => return new_key(tx, key),
        TenantChange::Revoke { id } => {
            (meets(tx, sql!("key_revoke"), params![&**id, now()])?, TenantError::NoKey(Arc::clone(id)))
        }
    };
    Ok((!met).then_some(refused))
}

fn new_key(tx: &Transaction<'_>, key: &TenantKey) -> rusqlite::Result<Option<TenantError>> {
    let known: Option<i64> = tx
        .query_row("select 1 from posthaste_gateway_keys where id = ?1", [&*key.id], |row| row.get(0))
        .optional()?;
    if known.is_some() {
        let why = format!("there is a key `{}` already: ids are random, make another", key.id);
        return Ok(Some(TenantError::Invalid(why)));
    }
    let none = params![&*key.tenant, None::<f64>, None::<u32>, None::<String>, now()];
    meets(tx, sql!("tenant_add"), none)?;
    let topics = key.topics.as_ref().map(|topics| serde_json::json!(topics).to_string());
    let times = (key.expires_at.map(|at| at.0), key.revoked_at.map(|at| at.0));
    let row = params![&*key.id, &*key.tenant, key.hash, topics, key.note, now(), times.0, times.1];
    meets(tx, sql!("key_new"), row)?;
    Ok(None)
}

fn meets(tx: &Transaction<'_>, sql: &str, params: impl Params) -> rusqlite::Result<bool> {
    Ok(tx.execute(sql, params)? > 0)
}

fn version(tx: &Transaction<'_>) -> Result<i64, StoreError> {
    let sql = "select cast(value as integer) from posthaste_state where name = 'gateway_version'";
    let version = tx.query_row(sql, [], |row| row.get(0)).optional().map_err(crate::error::store_error)?;
    version.ok_or_else(|| {
        let why = "the outbox knows nothing of tenants yet; run `posthaste migrate up`";
        StoreError::fatal(StoreCode::SchemaOld, why)
    })
}

fn rows<T>(
    tx: &Transaction<'_>,
    sql: &str,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    tx.prepare(sql)?.query_map([], |row| read(row))?.collect()
}

fn tenant(row: &Row<'_>) -> rusqlite::Result<Tenant> {
    Ok(Tenant {
        tenant: row.get::<_, String>("tenant")?.into(),
        rate_per_s: row.get("rate_per_s")?,
        burst: row.get("burst")?,
        paused: row.get("paused")?,
        note: row.get("note")?,
        changed_at: Timestamp(row.get("changed_at")?),
    })
}

fn key(row: &Row<'_>) -> rusqlite::Result<TenantKey> {
    let time = |name: &str| row.get::<_, Option<i64>>(name).map(|at| at.map(Timestamp));
    let topics: Option<String> = row.get("topics")?;
    Ok(TenantKey {
        id: row.get::<_, String>("id")?.into(),
        tenant: row.get::<_, String>("tenant")?.into(),
        hash: row.get("hash")?,
        // What somebody wrote by hand and is no list opens nothing.
        topics: topics.map(|topics| serde_json::from_str(&topics).unwrap_or_default()),
        note: row.get("note")?,
        created_at: Timestamp(row.get("created_at")?),
        expires_at: time("expires_at")?,
        revoked_at: time("revoked_at")?,
    })
}
