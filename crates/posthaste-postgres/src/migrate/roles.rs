//! Five roles, least privilege: to append, to consume, to relay, to look and act, to take in for tenants.
//!
//! They are groups without a login: people make their own logins members of them. Making roles and
//! granting are often somebody else's job, so whatever the connected role may not do is handed back as
//! statements. What is in place already is left alone: a second `up` changes nothing.

use super::attempt;
use crate::columns;
use crate::error::store_error;
use crate::rights;
use crate::session::{Session, Sessions, quote};
use posthaste::store::StoreError;
use tokio_postgres::types::Type;

const GRANTS: &str = include_str!("../../migrations/roles.sql");

/// Names of the roles, and whether `up` makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles {
    /// Appends, and can do nothing else.
    pub app: String,
    /// Consumes: appends, marks, and keeps what waits and what is dead.
    pub consumer: String,
    /// Reads, settles and truncates old segments.
    pub relay: String,
    /// Looks at everything; acts on dead letters, lanes and controls.
    pub admin: String,
    /// Appends for tenants, and remembers their requests.
    pub gateway: String,
    /// Make those that are missing, without a login.
    pub create: bool,
}

impl Default for Roles {
    fn default() -> Self {
        Self {
            app: "posthaste_app".to_owned(),
            consumer: "posthaste_consumer".to_owned(),
            relay: "posthaste_relay".to_owned(),
            admin: "posthaste_admin".to_owned(),
            gateway: "posthaste_gateway".to_owned(),
            create: true,
        }
    }
}

impl Roles {
    fn names(&self) -> [&str; 5] {
        [&self.app, &self.consumer, &self.relay, &self.admin, &self.gateway]
    }

    /// The statements that make the roles, for a script. A role belongs to the whole server, so another
    /// database's outbox may have made it already.
    pub(super) fn script(&self) -> String {
        if !self.create {
            return format!("-- These exist already: {}.", self.names().join(", "));
        }
        let make = |name: &str| {
            let literal = name.replace('\'', "''");
            format!(
                "do $make$ begin if not exists (select from pg_roles where rolname = '{literal}') then create role {} nologin; end if; end $make$;",
                quote(name)
            )
        };
        self.names().map(make).join("\n")
    }

    /// The grants, one statement each, without a final semicolon.
    pub(super) fn grants(&self, sessions: &Sessions) -> Vec<String> {
        let text: Vec<&str> = GRANTS.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        let text = sessions.sql(&text.join("\n"));
        let schema = format!("schema {} ", quote(&sessions.config().schema));
        let named = text
            .replace("schema posthaste ", &schema)
            .replace(":columns", &columns::names())
            .replace(":app", &quote(&self.app))
            .replace(":consumer", &quote(&self.consumer))
            .replace(":relay", &quote(&self.relay))
            .replace(":admin", &quote(&self.admin))
            .replace(":gateway", &quote(&self.gateway));
        named.split(';').map(str::trim).filter(|statement| !statement.is_empty()).map(str::to_owned).collect()
    }
}

/// Makes the roles and grants them their rights, as far as the connected role may. Answers with the
/// statements that remain.
pub(super) async fn apply(
    sessions: &Sessions,
    session: &mut Session,
    roles: &Roles,
) -> Result<Vec<String>, StoreError> {
    let mut left = Vec::new();
    for name in missing(session, roles).await? {
        let statement = format!("create role {} nologin", quote(&name));
        if !roles.create || !attempt(session, &statement).await? {
            left.push(statement);
        }
    }
    if !left.is_empty() {
        // A grant to a role that is not there fails: all of them come after it.
        left.extend(roles.grants(sessions));
        return Ok(left);
    }
    if are_granted(sessions, session, roles).await? {
        return Ok(left);
    }
    if !is_owner(sessions, session).await? {
        // Somebody else's GRANT without the option to grant is a warning, not an error.
        return Ok(roles.grants(sessions));
    }
    for grant in roles.grants(sessions) {
        if !attempt(session, &grant).await? {
            left.push(grant);
        }
    }
    Ok(left)
}

async fn missing(session: &mut Session, roles: &Roles) -> Result<Vec<String>, StoreError> {
    let names: Vec<&str> = roles.names().to_vec();
    let sql = "select distinct n from unnest($1::text[]) n where not exists (select from pg_roles where rolname = n)";
    let rows = session.query_alone(sql, &[(&names, Type::TEXT_ARRAY)]).await.map_err(store_error)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Whether each role has all that it needs.
async fn are_granted(sessions: &Sessions, session: &mut Session, roles: &Roles) -> Result<bool, StoreError> {
    for (role, needed) in [
        (&roles.app, rights::app()),
        (&roles.consumer, rights::consumer()),
        (&roles.relay, rights::relay()),
        (&roles.admin, rights::admin()),
        (&roles.gateway, rights::gateway()),
    ] {
        let missing = rights::missing(sessions, session, Some(role), &needed).await.map_err(store_error)?;
        if !missing.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn is_owner(sessions: &Sessions, session: &mut Session) -> Result<bool, StoreError> {
    let table = sessions.sql("posthaste.outbox");
    let sql = "select pg_has_role(c.relowner, 'usage') from pg_class c where c.oid = to_regclass($1)";
    crate::log::store::single(session.query_alone(sql, &[(&table, Type::TEXT)]).await.map_err(store_error)?)
}
