//! The text itself: what an owner would read before letting us at the table.

use super::*;
use crate::claim::{Access, Columns, PRESETS, preset};
use posthaste::route::Pattern;

fn statements(name: &str, types: &[(&str, &str)], dead: &[&str]) -> Statements {
    let types = types.iter().map(|(column, kind)| ((*column).to_owned(), (*kind).to_owned())).collect();
    let dead = dead.iter().map(|column| ((*column).to_owned(), "text".to_owned())).collect();
    Statements::new(preset(name).expect("a preset").layout, types, dead)
}

/// One line, one space.
fn flat(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_claim_of_a_locked_table_is_its_owners_own_select() {
    let sql = statements("outbox-events", &[("id", "uuid"), ("payload", "jsonb")], &[]);
    let claim = flat(&sql.claim(50, &Filter::Everything));
    assert!(claim.contains("from \"outbox_events\" as t where t.\"status\" in ('PENDING') and t.\"next_attempt_at\" <= now() and"), "{claim}");
    assert!(
        claim.ends_with("order by t.\"next_attempt_at\" limit 50 for update of t skip locked"),
        "{claim}"
    );
    assert_eq!(sql.given_back(), None);
    assert_eq!(sql.taken_over(&Filter::Everything), None);
    let failed = flat(&sql.failed().expect("it has columns for it"));
    assert!(failed.starts_with("update \"outbox_events\" as t set \"status\" = 'PENDING', \"next_attempt_at\" = clock_timestamp() + u.delay * interval '1 second', \"retry_count\" = u.attempts, \"last_error\" = u.error from"), "{failed}");
}

/// What the table of roles says about writing is what the statements do.
#[test]
fn a_column_is_written_if_its_role_says_so() {
    let mut layout = preset("talkie").expect("a preset").layout;
    for (role, column) in layout.column.roles_mut() {
        *column = Some(format!("its {}", role.name));
    }
    let sql = Statements::new(layout, Types::new(), Vec::new());
    // Conditions and values name a column by its table; an assignment does not.
    let all: String = sql.all().iter().map(|(_, sql)| sql.replace("t.\"", "")).collect();
    for role in Columns::ROLES {
        let is_set = all.contains(&format!("\"its {}\" = ", role.name));
        assert_eq!(is_set, role.access == Access::Written, "{}", role.name);
    }
}

#[test]
fn a_marked_table_is_fenced_by_status_and_mark() {
    let types = [
        ("id", "bigint"),
        ("status", "outbox_status"),
        ("last_attempt_at", "timestamp(3) without time zone"),
        ("last_error", "character varying(255)"),
    ];
    let sql = statements("talkie", &types, &[]);
    let fence = "where t.\"id\" = u.id::bigint and t.\"status\" = 'publishing' and t.\"last_attempt_at\" = u.mark::timestamp(3) without time zone";
    for sql in [
        Some(sql.delivered()),
        sql.failed(),
        Some(sql.dead()),
        sql.given_back(),
        sql.renewed(),
        sql.cleared(),
    ] {
        let sql = flat(&sql.expect("a marked table has all of them"));
        assert!(sql.contains(fence), "{sql}");
    }
    assert!(sql.dead().contains("\"last_error\" = left(u.error, 255)"), "no longer than the column");
    assert!(sql.given_back().is_some_and(|sql| sql.contains("\"status\" = u.was::outbox_status")));
    assert!(
        sql.claim(5, &Filter::Everything).contains("sha256(pg_catalog.convert_to('outbox:' ||"),
        "an id that is no UUID makes one"
    );
}

#[test]
fn identifiers_are_quoted_and_words_are_literals() {
    let mut layout = preset("prisma-outbox").expect("a preset").layout;
    layout.table = TableName::parse("app.\"Out\"").expect("a name");
    layout.id = "i\"d".to_owned();
    if let Some(status) = &mut layout.status {
        status.published = "it's done".to_owned();
    }
    let sql = Statements::new(layout, Types::new(), Vec::new());
    let delivered = flat(&sql.delivered());
    assert!(
        delivered.starts_with("update \"app\".\"Out\" as t set \"status\" = 'it''s done', \"processedAt\" ="),
        "{delivered}"
    );
    assert!(delivered.contains("t.\"i\"\"d\" = u.id::text"), "{delivered}");
}

#[test]
fn the_dead_are_moved_with_what_is_known_of_them() {
    let types =
        [("id", "uuid"), ("payload", "jsonb"), ("retry_count", "integer"), ("updated_at", "timestamptz")];
    let dead = ["id", "payload", "retry_count", "last_error", "error_class", "dead_at", "somebodys_own"];
    let sql = flat(&statements("outbox-events-adr", &types, &dead).dead());
    assert!(sql.contains("insert into \"outbox_events_dlq\" (\"id\", \"payload\", \"retry_count\", \"last_error\", \"error_class\", \"dead_at\") select gone.\"id\", gone.\"payload\", gone.dead_attempts, gone.dead_error, gone.dead_class, clock_timestamp() from gone"), "{sql}");
}

#[test]
fn a_sink_that_takes_some_topics_claims_no_others() {
    let sql = statements("talkie", &[], &[]);
    let some = Filter::Any(vec![Pattern::new("a_b.*")]);
    assert!(
        sql.claim(1, &some).contains("coalesce(t.\"topic\"::text, '') like any (array['a\\_b.%']::text[])")
    );
    assert!(PRESETS.iter().all(|name| !statements(name, &[], &[]).all().is_empty()));
}
