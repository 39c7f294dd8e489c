//! A database as it is found: what a tool asks before there is an outbox in it. Nothing is changed.

pub(crate) mod propose;

use crate::config::PostgresConfig;
use crate::connect::connect;
use crate::error::store_error;
use posthaste::store::StoreError;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// The connected role, and what it may do towards an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// The version of the server that it is connected to.
    pub server_version: String,
    /// Whether it may make a schema in this database.
    pub makes_schemas: bool,
    /// Whether it may make roles.
    pub makes_roles: bool,
    /// Whether this is a standby, which nobody can write to.
    pub is_standby: bool,
}

/// The role behind a connection.
pub async fn role(client: &Client) -> Result<Role, StoreError> {
    let row = client.query_one(include_str!("../../sql/survey/role.sql"), &[]).await.map_err(store_error)?;
    Ok(Role {
        name: row.get("role"),
        server_version: row.get("version"),
        makes_schemas: row.get("makes_schemas"),
        makes_roles: row.get("makes_roles"),
        is_standby: row.get("is_standby"),
    })
}

/// Tables outside of `schema` that look like an outbox, with their columns, for people. At most `max`.
pub async fn tables_alike(client: &Client, schema: &str, max: i64) -> Result<Vec<String>, StoreError> {
    let sql = include_str!("../../sql/survey/tables_alike.sql");
    let rows = client.query_typed(sql, &[(&schema, Type::TEXT), (&max, Type::INT8)]).await;
    Ok(rows.map_err(store_error)?.iter().map(|row| row.get(0)).collect())
}

/// A name for the database behind an address: two addresses may mean the same one.
pub async fn identity(config: &PostgresConfig) -> Result<String, StoreError> {
    let sql = "select extract(epoch from pg_postmaster_start_time())::text || ' ' || current_database()";
    let row = connect(config).await?.query_one(sql, &[]).await.map_err(store_error)?;
    Ok(row.get(0))
}
