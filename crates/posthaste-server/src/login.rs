//! Whose database somebody works in, and as whom: a consumer, the gateway.

use crate::config::{Outbox, Review, check_url, known_names, member, refuse_plain, url_of};
use posthaste_postgres::PostgresConfig;
use std::path::PathBuf;

/// The outbox of somebody who needs our own schema in its database: the one that is named, or the only one.
pub(crate) fn outbox_of<'a>(
    review: &mut Review<'_>,
    path: &str,
    [somebody, this_one]: [&str; 2],
    wanted: Option<&str>,
    outboxes: &'a [Outbox],
) -> Option<&'a Outbox> {
    let place = member(path, "outbox");
    let known: Vec<&str> = outboxes.iter().map(|outbox| &*outbox.name).collect();
    let found = match (wanted, outboxes) {
        (Some(wanted), _) => outboxes.iter().find(|outbox| *outbox.name == *wanted),
        (None, [only]) => Some(only),
        (None, []) => return None,
        (None, _) => {
            review.problem(path, format!("{this_one} must say which `outbox`: {}", known.join(", ")));
            return None;
        }
    };
    let Some(outbox) = found else {
        let wanted = wanted.unwrap_or_default();
        review.problem(&place, format!("there is no outbox `{wanted}`{}", known_names(wanted, &known)));
        return None;
    };
    if outbox.database.layout().is_some() {
        review.problem(
            &place,
            format!(
                "outbox `{}` is an adopted table, and {somebody} needs our own schema in its database: add an [[outbox]] \
                 without `adopt` and with relay = false, and run `posthaste migrate up`",
                outbox.name
            ),
        );
        return None;
    }
    Some(outbox)
}

/// A login to an outbox's database that is not the outbox's.
pub(crate) struct OwnLogin<'a> {
    pub(crate) url: Option<&'a String>,
    pub(crate) url_file: Option<&'a PathBuf>,
    pub(crate) password_file: Option<&'a PathBuf>,
}

/// The outbox's database with the login of somebody else.
pub(crate) fn login(
    review: &mut Review<'_>,
    path: &str,
    whose: &str,
    require_tls: bool,
    own: &OwnLogin<'_>,
    outbox: &PostgresConfig,
) -> Option<PostgresConfig> {
    let mut config = outbox.clone();
    if own.url.is_some() || own.url_file.is_some() {
        config.url = url_of(review, path, whose, own.url, own.url_file)?;
        config.password_file = None;
        check_url(review, &member(path, if own.url.is_some() { "url" } else { "url_file" }), &config.url);
        if require_tls {
            refuse_plain(review, path, &format!("the database of {whose}"), &config);
        }
    }
    if let Some(file) = own.password_file {
        config.password_file = Some(file.clone());
    }
    Some(config)
}
