//! The SQL of the migrations, and the script for a DBA.
//!
//! Files are written for the schema `posthaste`; the configured name is put in as a quoted identifier.
//! It ends up in plain statements, in literals like `'posthaste.outbox_seq'`, in function bodies and in
//! format strings; instead of a quoting rule for each place, the few characters that mean something in
//! one of them are refused.

use super::Roles;
use crate::config::PostgresConfig;
use crate::error::store_error;
use crate::rights::APPEND_BY_UUID;
use crate::session::{Session, Sessions, quote};
use posthaste::Limits;
use posthaste::store::{StoreCode, StoreError};

/// A version of the schema.
pub(super) struct Migration {
    pub(super) version: i32,
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    /// The lowest version whose binaries can live with this one; written down from version 3 on.
    pub(super) oldest: Option<i32>,
}

/// All versions, oldest first. A text that was released is never changed: what it made would no longer
/// be what it says, and `up` refuses it.
pub(super) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "outbox",
        text: include_str!("../../migrations/001_outbox.sql"),
        oldest: None,
    },
    Migration {
        version: 2,
        name: "inbox",
        text: include_str!("../../migrations/002_inbox.sql"),
        oldest: None,
    },
    Migration {
        version: 3,
        name: "consumer",
        text: include_str!("../../migrations/003_consumer.sql"),
        oldest: Some(2),
    },
    Migration {
        version: 4,
        name: "operations",
        text: include_str!("../../migrations/004_operations.sql"),
        oldest: Some(3),
    },
    Migration {
        version: 5,
        name: "gateway",
        text: include_str!("../../migrations/005_gateway.sql"),
        oldest: Some(4),
    },
];

/// The forms of `append` for keys that are no text. They only call the function of version 1, so they are no
/// version of their own: `up` adds them where they are missing.
const APPEND_KEYS: &str = include_str!("../../migrations/append_keys.sql");

/// The table of versions.
pub(super) const BOOKKEEPING: &str = include_str!("../../migrations/bookkeeping.sql");

/// Longest schema name: a NOTIFY channel is named after it and has 63 bytes.
const SCHEMA_BYTES_MAX: usize = 63 - "_wakeup".len();

impl Migration {
    /// FNV-1a of the text. It tells an edited file from the one that was applied; nobody defends against
    /// forgery with it.
    pub(super) fn checksum(&self) -> String {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let bytes = self.text.bytes().filter(|byte| *byte != b'\r');
        format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
    }

    /// The statement that writes down that it is applied. The column `oldest` is as old as version 3.
    pub(super) fn record(&self) -> String {
        let (column, oldest) =
            self.oldest.map_or_else(Default::default, |oldest| (", oldest", format!(", {oldest}")));
        format!(
            "insert into posthaste.migrations (version, name, checksum{column}) values ({}, '{}', '{}'{oldest})",
            self.version,
            self.name,
            self.checksum()
        )
    }
}

/// Refuses a schema name that would not survive in every place where it is put.
pub(super) fn check_schema_name(schema: &str) -> Result<(), StoreError> {
    let illegal = |c: &char| c.is_control() || matches!(c, '"' | '\'' | '\\' | '$' | '%');
    let why = if schema.is_empty() {
        "it is empty".to_owned()
    } else if schema.len() > SCHEMA_BYTES_MAX {
        format!("it has {} bytes, at most {SCHEMA_BYTES_MAX} are allowed", schema.len())
    } else if let Some(c) = schema.chars().find(illegal) {
        format!("it holds {c:?}")
    } else {
        return Ok(());
    };
    let why = format!("{schema:?} cannot be the outbox's schema: {why}. Choose another `schema`");
    Err(StoreError::fatal(StoreCode::SchemaName, why))
}

/// Everything as one script, for somebody who applies it with psql to a database without an outbox.
pub fn sql(schema: &str, roles: &Roles, limits: &Limits) -> Result<String, StoreError> {
    check_schema_name(schema)?;
    check_limits(limits)?;
    let sessions = Sessions::new(PostgresConfig { schema: schema.to_owned(), ..PostgresConfig::new("") });
    let mut parts = vec![
        format!(
            "-- The outbox of Posthaste in schema {}, version {}. Apply it once, as the owner of the outbox.",
            quote(schema),
            super::SCHEMA_VERSION
        ),
        "begin;".to_owned(),
        format!("create schema {};", quote(schema)),
        sessions.sql(BOOKKEEPING),
    ];
    for migration in MIGRATIONS {
        parts.push(format!("-- Version {}: {}.", migration.version, migration.name));
        parts.push(sessions.sql(migration.text));
        parts.push(format!("{};", sessions.sql(&migration.record())));
    }
    parts.push(format!("{};", sessions.sql(APPEND_KEYS.trim_end())));
    parts.extend(LIMITS.iter().map(|limit| format!("{};", sessions.sql(&limit.statement(limits)))));
    parts.push(format!(
        "-- Roles. Make your logins members of them, or grant the same to your own.\n{}",
        roles.script()
    ));
    parts.extend(roles.grants(&sessions).iter().map(|grant| format!("{grant};")));
    parts.push("commit;\n".to_owned());
    Ok(parts.join("\n"))
}

/// A limit that an append checks, as the database keeps it.
struct LimitFunction {
    name: &'static str,
    value: fn(&Limits) -> usize,
}

/// They live in the database as functions, so that a plain `select posthaste.append(…)` knows them.
const LIMITS: [LimitFunction; 4] = [
    LimitFunction { name: "payload_bytes_max", value: |limits| limits.payload_bytes_max },
    LimitFunction { name: "topic_bytes_max", value: |limits| limits.topic_bytes_max },
    LimitFunction { name: "key_bytes_max", value: |limits| limits.key_bytes_max },
    LimitFunction { name: "header_bytes_max", value: |limits| limits.header_bytes_max },
];

impl LimitFunction {
    /// A value cannot have more than a gigabyte in the database anyway.
    fn of(&self, limits: &Limits) -> i32 {
        i32::try_from((self.value)(limits)).unwrap_or(i32::MAX)
    }

    fn statement(&self, limits: &Limits) -> String {
        format!(
            "create or replace function posthaste.{}() returns integer language sql immutable parallel safe as 'select {}'",
            self.name,
            self.of(limits)
        )
    }
}

/// Adds the forms of `append` that are missing; where the schema belongs to somebody else, hands the
/// statement back.
pub(super) async fn add_append_keys(
    sessions: &Sessions,
    session: &mut Session,
) -> Result<Option<String>, StoreError> {
    let sql = sessions.sql(&format!("select to_regprocedure('posthaste.{APPEND_BY_UUID}') is not null"));
    let there: bool = crate::log::store::single(session.query_alone(&sql, &[]).await.map_err(store_error)?)?;
    let statement = sessions.sql(APPEND_KEYS.trim_end());
    let done = there || super::attempt(session, &statement).await?;
    Ok((!done).then_some(statement))
}

/// Brings the limits in the database up to date. Where a function belongs to somebody else, the statement
/// is handed back.
pub(super) async fn set_limits(
    sessions: &Sessions,
    session: &mut Session,
) -> Result<Vec<String>, StoreError> {
    let limits = &sessions.config().limits;
    let mut by_hand = Vec::new();
    for limit in &LIMITS {
        let sql = sessions.sql(&format!("select posthaste.{}()", limit.name));
        let now: i32 = crate::log::store::single(session.query_alone(&sql, &[]).await.map_err(store_error)?)?;
        if now == limit.of(limits) {
            continue;
        }
        let statement = sessions.sql(&limit.statement(limits));
        if !super::attempt(session, &statement).await? {
            by_hand.push(statement);
        }
    }
    Ok(by_hand)
}

/// The payload limit as the database keeps it.
pub(crate) fn bytes_max(limits: &Limits) -> i32 {
    LIMITS[0].of(limits)
}

/// Longest topic and key that fit an index: order by key and idempotency rest on one.
const TOPIC_BYTES_MOST: usize = 2_048;
const KEY_BYTES_MOST: usize = 1_024;

/// Refuses limits that the tables cannot keep.
pub(crate) fn check_limits(limits: &Limits) -> Result<(), StoreError> {
    let refuse = |name: &str, now: usize, most: usize, why: &str| {
        let why = format!(
            "limits.{name} is {now}, and PostgreSQL's indexes take {most} at most: {why}. Set it to {most} or less"
        );
        Err(StoreError::fatal(StoreCode::Limits, why))
    };
    if limits.key_bytes_max > KEY_BYTES_MOST {
        let why = "events of a longer key could not hold it, and would lose their order";
        return refuse("key_bytes_max", limits.key_bytes_max, KEY_BYTES_MOST, why);
    }
    if limits.topic_bytes_max > TOPIC_BYTES_MOST {
        let why = "an event of a longer topic could not have an idempotency key";
        return refuse("topic_bytes_max", limits.topic_bytes_max, TOPIC_BYTES_MOST, why);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_consecutive_from_one() {
        for (index, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version, index as i32 + 1, "{}", migration.name);
        }
    }

    #[test]
    fn the_reserved_headers_are_those_of_the_library() {
        let rule = "lower(name) in (";
        let newest = MIGRATIONS.iter().rev().find_map(|migration| migration.text.split_once(rule));
        let (list, _) = newest.and_then(|(_, rest)| rest.split_once(')')).expect("a migration has the rule");
        let here: Vec<&str> = list.split(", ").map(|name| name.trim_matches('\'')).collect();
        assert_eq!(here, posthaste::event::RESERVED_HEADERS.map(str::to_ascii_lowercase));
    }

    #[test]
    fn a_checksum_sees_the_text_and_not_the_line_ends() {
        let one = |text| Migration { version: 1, name: "x", text, oldest: None }.checksum();
        assert_eq!(one("select 1;\n"), one("select 1;\r\n"));
        assert_ne!(one("select 1;\n"), one("select 2;\n"));
        // The reference value of the algorithm, so that it never drifts.
        assert_eq!(one("a"), "af63dc4c8601ec8c");
    }

    #[test]
    fn schema_names_that_break_quoting_are_refused() {
        for good in ["posthaste", "My Outbox", "Ümlaut-1", "a.b", &"x".repeat(56)] {
            assert!(check_schema_name(good).is_ok(), "{good}");
        }
        for bad in ["", "it's", "a\"b", "100%", "a$$b", "a\\b", "a\nb", &"x".repeat(57)] {
            assert!(check_schema_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_script_names_the_schema_everywhere() {
        let script = sql("My Outbox", &Roles::default(), &Limits::default()).expect("valid");
        assert!(script.contains("create schema \"My Outbox\";"));
        assert!(script.contains("nextval('\"My Outbox\".outbox_seq')"));
        assert!(!script.contains("posthaste.") && !script.contains("schema posthaste"), "a place was missed");
        assert!(!script.contains(":app") && script.contains("\"posthaste_app\""));
    }
}
