//! Rights: that the relay has what it needs, and that applications have no more than that.

use super::{CheckResult, Exam, fail, list, ok};
use crate::rights::{self, Right};
use tokio_postgres::Error;

/// What an application must not be able to do.
struct Forbidden {
    check: &'static str,
    rights: fn() -> Vec<Right>,
    danger: &'static str,
}

const FORBIDDEN: [Forbidden; 3] = [
    Forbidden {
        check: "app_table_rights",
        rights: rights::forbidden_on_tables,
        danger: "the log is written once: a row that is changed or removed is an event that is lost or sent wrongly",
    },
    Forbidden {
        check: "app_column_rights",
        rights: rights::forbidden_on_columns,
        danger: "a number, xid or segment that does not come from its default makes cursors skip events, or lets a row \
                 slip into a segment that is being truncated",
    },
    Forbidden {
        check: "app_sequence_rights",
        rights: rights::forbidden_on_sequences,
        danger: "setting outbox_seq back makes cursors skip events, turning outbox_segment lets rows slip into a segment \
                 that is being truncated",
    },
];

pub(super) async fn examine(exam: &mut Exam) {
    let relay = lacking(exam, "relay", &rights::relay(), "events wait in the log").await;
    exam.note_result("relay_rights", relay);
    let roles = app_roles(exam).await;
    for Forbidden { check, rights, danger } in FORBIDDEN {
        let verdict = match &roles {
            Ok(roles) => excess(exam, roles, &rights(), danger).await,
            Err(error) => Ok(fail(format!("could not be checked: {}", crate::error::describe(error)))),
        };
        exam.note_result(check, verdict);
    }
}

/// What the connected role lacks of what it needs as a relay, or as a consumer.
pub(super) async fn lacking(
    exam: &mut Exam,
    who: &str,
    needed: &[Right],
    then: &str,
) -> Result<CheckResult, Error> {
    let missing = rights::missing(&exam.sessions, &mut exam.session, None, needed).await?;
    if missing.is_empty() {
        return Ok(ok(format!("the connected role has all that a {who} needs")));
    }
    let missing: Vec<String> = missing.iter().map(Right::to_string).collect();
    Ok(fail(format!(
        "the connected role lacks {}: a {who} would stop where it needs it, and {then}. Make it a member of the {who}'s \
         role, or grant it; `posthaste migrate sql` prints the statements",
        list(&missing)
    )))
}

async fn app_roles(exam: &mut Exam) -> Result<Vec<String>, Error> {
    let rows = exam.query(include_str!("../../sql/doctor/app_roles.sql"), &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn excess(
    exam: &mut Exam,
    roles: &[String],
    forbidden: &[Right],
    danger: &str,
) -> Result<CheckResult, Error> {
    let mut found = Vec::new();
    for role in roles {
        let missing = rights::missing(&exam.sessions, &mut exam.session, Some(role), forbidden).await?;
        let held = forbidden.iter().filter(|right| !missing.contains(right));
        found.extend(held.map(|right| format!("{role}: {right}")));
    }
    if found.is_empty() {
        return Ok(ok(match roles.len() {
            1 => "one role may append, and no more than that".to_owned(),
            more => format!("{more} roles may append, and no more than that"),
        }));
    }
    Ok(fail(format!("an application's role has too many rights ({}): {danger}. Revoke them", list(&found))))
}
