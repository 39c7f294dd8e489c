//! The audit of all outboxes that a token is for, newest first; and the same for a spreadsheet.
//!
//! Each outbox has its own audit in its own database. A page takes from all of them and puts them in order;
//! its cursor remembers how far each one is. One that cannot be reached is named instead of hiding the
//! others.

use super::call::{ApiCall, limit, value};
use super::cursor;
use crate::access::{Grant, masked};
use crate::desk::OutboxDesk;
use crate::http::ApiProblem;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use posthaste::Timestamp;
use posthaste::admin::{AuditFilter, AuditLine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Which lines.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// Of this outbox.
    outbox: Option<String>,
    /// Of this person or program.
    actor: Option<String>,
    /// With this action.
    action: Option<String>,
    /// Of this trace.
    trace_id: Option<String>,
    /// At or after.
    since: Option<Timestamp>,
    /// Before.
    until: Option<Timestamp>,
    /// At most so many, up to 1000; 50 by default.
    limit: Option<i64>,
    /// Go on here.
    cursor: Option<String>,
}

/// A line, and where it is.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TrailLine {
    /// The outbox.
    outbox: String,
    #[serde(flatten)]
    line: AuditLine,
}

/// A page of the audit.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Trail {
    /// Newest first.
    audit: Vec<TrailLine>,
    /// Outboxes whose audit could not be read, with the reason.
    unreachable: BTreeMap<String, String>,
    /// The cursor of the next page.
    next: Option<String>,
}

pub(crate) async fn audit(call: ApiCall, query: AuditQuery) -> Result<Trail, ApiProblem> {
    let limit = limit(query.limit)?;
    let desks = match &query.outbox {
        Some(name) => vec![call.desk_named(name)?],
        None => call.desks(),
    };
    let of = query.outbox.as_deref().unwrap_or("*");
    let mut places: BTreeMap<String, i64> =
        call.place("audit", of, query.cursor.as_deref())?.unwrap_or_default();
    let AuditQuery { actor, action, trace_id, since, until, .. } = query;
    let filter = AuditFilter { actor, action, trace_id, since, until };
    let mut unreachable = BTreeMap::new();
    let mut trails = Vec::new();
    for (desk, found) in lines_of(&desks, &filter, &places, limit).await {
        match found {
            Ok(lines) => trails.push((desk, lines.into_iter())),
            Err(problem) => {
                unreachable.insert(desk, problem.detail);
            }
        }
    }
    let mut all = Vec::new();
    // Each trail stays in its own order, in which its cursor counts, whatever its clock did.
    while (all.len() as i64) < limit {
        let newest = trails.iter_mut().max_by_key(|(_, lines)| lines.as_slice().first().map(|line| line.at));
        let Some((outbox, line)) = newest.and_then(|(outbox, lines)| Some((outbox, lines.next()?))) else {
            break;
        };
        places.insert(outbox.clone(), line.id);
        all.push(TrailLine { outbox: outbox.clone(), line });
    }
    let next = (all.len() as i64 >= limit).then(|| cursor::write("audit", of, &places));
    all.retain(|line| is_in_scope(&call.grant, &line.line.detail));
    Ok(Trail { audit: all, unreachable, next })
}

/// Whether a line is about no consumer that the token is not for.
fn is_in_scope(grant: &Grant, detail: &Value) -> bool {
    let named = [&detail["consumer"], &detail["plan"]["consumer"]];
    named.into_iter().filter_map(Value::as_str).all(|consumer| grant.has_consumer(consumer))
}

/// All at once.
async fn lines_of(
    desks: &[std::sync::Arc<OutboxDesk>],
    filter: &AuditFilter,
    places: &BTreeMap<String, i64>,
    limit: i64,
) -> Vec<(String, Result<Vec<AuditLine>, ApiProblem>)> {
    let mut looks = tokio::task::JoinSet::new();
    for desk in desks {
        let (desk, filter) = (std::sync::Arc::clone(desk), filter.clone());
        let before = places.get(desk.name()).copied();
        looks.spawn(async move {
            let look = desk.look(|admin| async move { admin.audit_lines(&filter, before, limit).await });
            (desk.name().to_owned(), look.await)
        });
    }
    looks.join_all().await
}

/// The same as a file for a spreadsheet.
pub(crate) async fn audit_csv(call: ApiCall, query: AuditQuery) -> Result<Response, ApiProblem> {
    let (right, show_keys) = (call.grant.payloads, call.api.config.admin.show_keys);
    let asked = query.clone();
    let trail = audit(call, AuditQuery { limit: query.limit.or(Some(1_000)), ..query }).await?;
    let mut text = String::from("at,outbox,actor,verified,action,outcome,reason,trace_id,detail\r\n");
    // Nobody takes a part for the whole.
    for (outbox, why) in trail.unreachable {
        let cells = ["", &outbox, "", "", "unreachable", "", &why, "", ""];
        text.push_str(&cells.map(cell).join(","));
        text.push_str("\r\n");
    }
    for line in trail.audit {
        let (outbox, line) = (line.outbox, line.line);
        let detail = masked(value(&line.detail), right, show_keys).to_string();
        let verified = Value::from(line.verified).to_string();
        let trace = line.trace_id.unwrap_or_default();
        let at = line.at.rfc3339();
        let cells = [
            &at,
            &outbox,
            &line.actor,
            &verified,
            &line.action,
            &line.outcome,
            &line.reason,
            &trace,
            &detail,
        ];
        text.push_str(&cells.map(|text| cell(text)).join(","));
        text.push_str("\r\n");
    }
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    let link =
        trail.next.map(|next| HeaderValue::try_from(link(&AuditQuery { cursor: Some(next), ..asked })));
    // What a header could not hold is percent-encoded.
    if let Some(Ok(link)) = link {
        headers.insert(header::LINK, link);
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    headers
        .insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"audit.csv\""));
    Ok(response)
}

/// Where the next part is: what was asked, from there on.
fn link(query: &AuditQuery) -> String {
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let members = value(query).as_object().cloned().unwrap_or_default().into_iter();
    let given = members.filter(|(_, value)| !value.is_null());
    let pairs: Vec<String> = given.map(|(name, value)| format!("{name}={}", encoded(&text(value)))).collect();
    format!("<?{}>; rel=\"next\"", pairs.join("&"))
}

/// A text in a query, with everything percent-encoded that could mean something there.
fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// What begins a formula, the wide forms included that some spreadsheets take for the same.
const FORMULAS: [char; 11] =
    ['=', '+', '-', '@', '\t', '\r', '\n', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}'];

/// A cell that no spreadsheet takes for a formula, on one line.
fn cell(text: &str) -> String {
    let quote = if text.trim_start_matches([' ', '\u{feff}']).starts_with(FORMULAS) { "'" } else { "" };
    let text = text.replace('"', "\"\"").replace('\r', "\\r").replace('\n', "\\n");
    format!("\"{quote}{text}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_each_filter() {
        let query: AuditQuery = serde_json::from_value(serde_json::json!({
            "outbox": "a", "actor": "Bo & co>\u{e4}", "since": "2026-11-18T16:00:00Z", "limit": 7, "cursor": "x-_",
        }))
        .expect("a query");
        assert_eq!(
            link(&query),
            "<?actor=Bo%20%26%20co%3E%C3%A4&cursor=x-_&limit=7&outbox=a&since=2026-11-18T16%3A00%3A00.000000Z>; rel=\"next\""
        );
    }

    #[test]
    fn no_cell_is_a_formula_or_two_lines() {
        assert_eq!(cell("=cmd()"), "\"'=cmd()\"");
        for text in ["+1", "-1", "@x", "\tx", " =1", "\u{feff}=1", "\u{ff1d}1"] {
            assert!(cell(text).starts_with("\"'"), "{text:?}");
        }
        assert_eq!(cell("a \"b\"\r\nc"), "\"a \"\"b\"\"\\r\\nc\"");
        assert_eq!(cell("plain, text"), "\"plain, text\"");
    }
}
