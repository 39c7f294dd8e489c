//! Tenants and their keys.
//!
//! Every change is one transaction that holds the change and its line in the audit. The version of the roster
//! is raised by triggers: whoever changes a row with psql is noticed too.

use crate::admin::{PostgresAdmin, finish};
use crate::config::PostgresConfig;
use crate::error::store_error;
use crate::session::{Param, Session, params};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::admin::{Actor, AdminError};
use posthaste::intake::{Roster, Tenant, TenantChange, TenantError, TenantKey, TenantStore};
use posthaste::store::{StoreCode, StoreError};
use std::sync::Arc;
use tokio_postgres::Row;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/intake/", $name, ".sql"))
    };
}

/// Tenants and their keys, in the tables of an outbox.
pub struct PostgresTenants {
    admin: PostgresAdmin,
}

impl PostgresTenants {
    /// Connects at the first use.
    #[must_use]
    pub fn new(config: PostgresConfig) -> Self {
        let longest = config.connect_timeout * 2;
        let admin = PostgresAdmin::new(config);
        // A look that hangs would leave a revoked key good for as long.
        admin.sessions.answer_within(longest);
        Self { admin }
    }

    /// Runs one statement of a change. Whether it met a row.
    async fn meets(
        &self,
        session: &mut Session,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<bool, TenantError> {
        let rows = self.admin.query(session, sql, params).await.map_err(of_admin)?;
        Ok(!rows.is_empty())
    }

    async fn make(&self, session: &mut Session, change: &TenantChange) -> Result<(), TenantError> {
        match change {
            TenantChange::Add { tenant, rate_per_s, burst, note } => {
                let burst = burst.map(u32::cast_signed);
                let params = params![TEXT &**tenant, FLOAT8 *rate_per_s, INT4 burst, TEXT *note];
                let made = self.meets(session, sql!("tenant_add"), params).await?;
                if made { Ok(()) } else { Err(TenantError::Exists(Arc::clone(tenant))) }
            }
            TenantChange::Set { tenant, rate_per_s, burst, note } => {
                let (rate, burst_now) = (rate_per_s.flatten(), burst.flatten().map(u32::cast_signed));
                let params = params![
                    TEXT &**tenant, BOOL rate_per_s.is_some(), FLOAT8 rate, BOOL burst.is_some(), INT4 burst_now,
                    TEXT *note,
                ];
                self.of_tenant(session, sql!("tenant_set"), tenant, params).await
            }
            TenantChange::Pause { tenant, paused } => {
                let params = params![TEXT & **tenant, BOOL * paused];
                self.of_tenant(session, sql!("tenant_pause"), tenant, params).await
            }
            TenantChange::Remove { tenant } => {
                self.of_tenant(session, sql!("tenant_remove"), tenant, params![TEXT & **tenant]).await
            }
            TenantChange::NewKey(key) => self.new_key(session, key).await,
            TenantChange::Revoke { id } => {
                let met = self.meets(session, sql!("key_revoke"), params![TEXT & **id]).await?;
                if met { Ok(()) } else { Err(TenantError::NoKey(Arc::clone(id))) }
            }
        }
    }

    async fn of_tenant(
        &self,
        session: &mut Session,
        sql: &str,
        tenant: &Arc<str>,
        params: &[Param<'_>],
    ) -> Result<(), TenantError> {
        let met = self.meets(session, sql, params).await?;
        if met { Ok(()) } else { Err(TenantError::NoTenant(Arc::clone(tenant))) }
    }

    async fn new_key(&self, session: &mut Session, key: &TenantKey) -> Result<(), TenantError> {
        let none = params![TEXT &*key.tenant, FLOAT8 None::<f64>, INT4 None::<i32>, TEXT None::<&str>];
        self.meets(session, sql!("tenant_add"), none).await?;
        let (expires, revoked) = (key.expires_at.map(|at| at.0), key.revoked_at.map(|at| at.0));
        let params = params![
            TEXT &*key.id, TEXT &*key.tenant, BYTEA &key.hash[..], TEXT_ARRAY key.topics, TEXT key.note,
            INT8 expires, INT8 revoked,
        ];
        if self.meets(session, sql!("key_new"), params).await? {
            return Ok(());
        }
        Err(TenantError::Invalid(format!(
            "there is a key `{}` already: ids are random, make another",
            key.id
        )))
    }
}

/// What an act failed of, in words of this seam.
fn of_admin(error: AdminError) -> TenantError {
    match error {
        AdminError::Store(error) => TenantError::Store(error),
        other => TenantError::Invalid(other.to_string()),
    }
}

#[async_trait]
impl TenantStore for PostgresTenants {
    async fn version(&self) -> Result<(i64, Timestamp), StoreError> {
        let mut session = self.admin.sessions.session().await?;
        version(&self.admin, &mut session).await
    }

    async fn roster(&self) -> Result<Roster, StoreError> {
        let mut session = self.admin.sessions.session().await?;
        session.begin().await.map_err(store_error)?;
        let read = async {
            // All of it as it was at one moment.
            session
                .batch("set transaction isolation level repeatable read, read only")
                .await
                .map_err(store_error)?;
            let (version, _) = version(&self.admin, &mut session).await?;
            let query = |text: &str| self.admin.sessions.sql(text);
            let tenants = session.query_alone(&query(sql!("tenants")), &[]).await.map_err(store_error)?;
            let keys = session.query_alone(&query(sql!("keys")), &[]).await.map_err(store_error)?;
            let (tenants, keys) = (tenants.iter().map(tenant).collect(), keys.iter().map(key).collect());
            Ok(Roster { version, tenants, keys })
        };
        let read = read.await;
        session.rollback().await;
        read
    }

    async fn change(&self, actor: &Actor, change: &TenantChange) -> Result<(), TenantError> {
        actor.check().map_err(of_admin)?;
        change.check()?;
        let mut session = self.admin.begin().await.map_err(of_admin)?;
        let made = async {
            self.make(&mut session, change).await?;
            self.admin.audit(&mut session, actor, change.action(), &change.detail()).await.map_err(of_admin)
        };
        match made.await {
            Ok(()) => finish(&mut session, Ok(())).await.map_err(of_admin),
            Err(error) => {
                session.rollback().await;
                Err(error)
            }
        }
    }
}

async fn version(admin: &PostgresAdmin, session: &mut Session) -> Result<(i64, Timestamp), StoreError> {
    let rows = session.query_alone(&admin.sessions.sql(sql!("version")), &[]).await.map_err(store_error)?;
    let missing = || StoreError::fatal(StoreCode::SchemaOld, NO_VERSION);
    rows.first().map(|row| (row.get("version"), Timestamp(row.get("now")))).ok_or_else(missing)
}

const NO_VERSION: &str = "the outbox knows nothing of tenants yet; run `posthaste migrate up`";

fn tenant(row: &Row) -> Tenant {
    Tenant {
        tenant: row.get::<_, &str>("tenant").into(),
        rate_per_s: row.get("rate_per_s"),
        burst: row.get::<_, Option<i32>>("burst").map(i32::cast_unsigned),
        paused: row.get("paused"),
        note: row.get("note"),
        changed_at: Timestamp(row.get("changed_at")),
    }
}

fn key(row: &Row) -> TenantKey {
    let time = |name: &str| row.get::<_, Option<i64>>(name).map(Timestamp);
    // Invariant: a constraint of the table holds a hash to 32 bytes.
    let hash = row.get::<_, &[u8]>("hash").try_into().unwrap_or_default();
    TenantKey {
        id: row.get::<_, &str>("id").into(),
        tenant: row.get::<_, &str>("tenant").into(),
        hash,
        topics: row.get("topics"),
        note: row.get("note"),
        created_at: Timestamp(row.get("created_at")),
        expires_at: time("expires_at"),
        revoked_at: time("revoked_at"),
    }
}
