//! The outboxes of a configuration: connection, retention, roles, and the routes that apply to each.

use super::Outbox;
use super::adopt::{Adopted, adopted};
use super::resolve::{NAME_BYTES_MAX, Review, check_name};
use super::section::{File, OutboxSection, RetentionSection, Tls};
use super::tree::member;
use crate::access::acting;
use crate::database::Database;
use posthaste::Limits;
use posthaste::route::{Route, RouteTable};
use posthaste_postgres::migrate::Roles;
use posthaste_postgres::{PostgresConfig, Retention, TlsMode};
#[cfg(feature = "sqlite")]
use posthaste_sqlite::SqliteConfig;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tokio_postgres::config::Host;

/// The outboxes, each with the routes that apply to it.
pub(super) fn outboxes(review: &mut Review<'_>, file: &File, routes: &[(Route, Vec<String>)]) -> Vec<Outbox> {
    if file.outbox.is_empty() {
        let text = "no outbox is configured. Write `[outbox]` with a `url` into posthaste.toml, \
                    set POSTHASTE_OUTBOX__URL, or pass --url postgres://user@host/database";
        review.problems.push(match review.has_file() {
            true => text.to_owned(),
            false => format!("{text}. There is no ./posthaste.toml here; --config FILE names one elsewhere"),
        });
    }
    let mut names = BTreeSet::new();
    let mut outboxes = Vec::new();
    for (index, section) in file.outbox.iter().enumerate() {
        let path = format!("outbox[{index}]");
        check_name(review, &path, &section.name, NAME_BYTES_MAX);
        if !names.insert(&section.name) {
            review.problem(
                &path,
                format!("two outboxes are named `{}`: each needs a `name` of its own", section.name),
            );
        }
        let adopted =
            section.adopt.as_ref().and_then(|adopt| adopted(review, &member(&path, "adopt"), adopt));
        let own = match section.relay {
            true => own_routes(review, &path, &section.name, routes, adopted.as_ref()),
            false => not_relayed(review, &path, section, routes),
        };
        let service = section.service.as_ref().or(file.service.as_ref()).unwrap_or(&section.name);
        let mut database = database(review, &path, section);
        if let Some(adopted) = adopted {
            database = adopting(review, &path, database, adopted, &own);
        }
        if let Some(config) = database.server().filter(|_| file.require_tls) {
            refuse_plain(review, &path, &format!("outbox `{}`", section.name), config);
        }
        outboxes.push(Outbox {
            name: section.name.as_str().into(),
            service: service.as_str().into(),
            acting: acting(review, &path, (&section.admin_url, &section.admin_url_file), &database),
            database,
            lanes: section.lanes,
            relays: section.relay,
            routes: RouteTable::new(own),
        });
    }
    outboxes
}

/// The routes that apply to an outbox. Those of an adopted table take what they do not say from its layout.
fn own_routes(
    review: &mut Review<'_>,
    path: &str,
    name: &String,
    routes: &[(Route, Vec<String>)],
    adopted: Option<&Adopted>,
) -> Vec<Route> {
    let applies = |names: &[String]| names.is_empty() || names.contains(name);
    let own = routes.iter().enumerate().filter(|(_, (_, names))| applies(names));
    let Some(adopted) = adopted else { return own.map(|(_, (route, _))| route.clone()).collect() };
    let mut fitted = Vec::new();
    for (index, (route, _)) in own {
        let given = review.given_route(index);
        fitted.push(adopted.route(review, &format!("route[{index}]"), &given, route.clone()));
    }
    adopted.check_sinks(review, &member(path, "adopt"), &fitted);
    fitted
}

/// An outbox that is not relayed here has no routes. What asks for the contrary is refused.
fn not_relayed(
    review: &mut Review<'_>,
    path: &str,
    section: &OutboxSection,
    routes: &[(Route, Vec<String>)],
) -> Vec<Route> {
    let place = member(path, "relay");
    if section.adopt.is_some() {
        review.problem(&place, "relay = false contradicts `adopt`: an adopted table is here to be relayed");
    }
    for (route, _) in routes.iter().filter(|(_, names)| names.contains(&section.name)) {
        let why = format!("relay = false contradicts the route `{}`, which names this outbox", route.name);
        review.problem(&place, why);
    }
    Vec::new()
}

/// The database of an adopted table.
fn adopting(
    review: &mut Review<'_>,
    path: &str,
    database: Database,
    mut adopted: Adopted,
    routes: &[Route],
) -> Database {
    // What a crash may have spent of a row is compared with the most that any route allows.
    let attempts = routes.iter().map(|route| route.retry.max_attempts).max();
    adopted.layout.retry.max_attempts = attempts.unwrap_or(adopted.layout.retry.max_attempts);
    let sink = routes.iter().flat_map(|route| &route.sinks).next();
    if database.server().is_some_and(|config| config.pooled) {
        review.problem(
            &member(path, "pooled"),
            "an adopted table needs connections of its own: behind a pooler in transaction mode settings and row locks are lost",
        );
    }
    match database {
        Database::Postgres { config, .. } => Database::Adopted {
            config,
            layout: Box::new(adopted.layout),
            sink: sink.map_or_else(|| "none".into(), |sink| sink.as_str().into()),
        },
        #[cfg(feature = "sqlite")]
        other => {
            review.problem(&member(path, "adopt"), "only a table in PostgreSQL can be adopted");
            other
        }
        #[cfg(not(feature = "sqlite"))]
        other => {
            let _ = (review, path);
            other
        }
    }
}

/// `require_tls` at the top of the file. A socket in the file system is no link.
pub(crate) fn refuse_plain(review: &mut Review<'_>, path: &str, what: &str, config: &PostgresConfig) {
    let hosts = config.url.parse::<tokio_postgres::Config>();
    let is_local = hosts.is_ok_and(|config| {
        let is_socket = |host: &Host| matches!(host, Host::Unix(_));
        !config.get_hosts().is_empty() && config.get_hosts().iter().all(is_socket)
    });
    if config.tls == TlsMode::Disable && !is_local {
        review.problem(
            &member(path, "tls"),
            format!(
                "{what} is reached without TLS, and `require_tls = true` refuses that: write tls = \"verify-full\" with a ca_file"
            ),
        );
    }
}

/// Which database, by its address.
fn database(review: &mut Review<'_>, path: &str, section: &OutboxSection) -> Database {
    let (url, url_file) = (section.url.as_ref(), section.url_file.as_ref());
    if url.is_none() && url_file.is_none() {
        review.problem(path, format!("outbox `{}` has no `url`", section.name));
    }
    let url = url_of(review, path, "an outbox", url, url_file).unwrap_or_default();
    if section.lanes == Some(0) {
        review.problem(&member(path, "lanes"), "lanes must be at least 1");
    }
    if url.starts_with("sqlite:") {
        #[cfg(feature = "sqlite")]
        return Database::Sqlite(sqlite(review, path, section, &url));
        #[cfg(not(feature = "sqlite"))]
        review.problem(&member(path, "url"), "this binary was built without SQLite (the feature `sqlite`)");
    }
    let roles = Roles {
        app: section.roles.app.clone(),
        consumer: section.roles.consumer.clone(),
        relay: section.roles.relay.clone(),
        admin: section.roles.admin.clone(),
        gateway: section.roles.gateway.clone(),
        create: section.roles.create,
    };
    Database::Postgres { config: Box::new(postgres(review, path, section, url)), roles }
}

/// A file. What belongs to a server is refused: whoever wrote it expects something that does not happen.
#[cfg(feature = "sqlite")]
fn sqlite(review: &mut Review<'_>, path: &str, section: &OutboxSection, url: &str) -> SqliteConfig {
    let place = member(path, if section.url.is_some() { "url" } else { "url_file" });
    let mut config = SqliteConfig::from_url(url).unwrap_or_else(|error| {
        review.problem(&place, error.to_string());
        SqliteConfig::new("")
    });
    let files = [
        ("password_file", section.password_file.is_some()),
        ("ca_file", section.ca_file.is_some()),
        ("cert_file", section.cert_file.is_some()),
        ("key_file", section.key_file.is_some()),
        ("tls", section.tls == Tls::VerifyFull),
        ("pooled", section.pooled),
        ("flush_before_publish", section.flush_before_publish),
    ];
    for (key, _) in files.iter().filter(|(_, set)| *set) {
        review.problem(&member(path, key), format!("`{key}` has no effect on a SQLite file"));
    }
    config.limits = limits(section);
    let retention = retention(review, &member(path, "retention"), &section.retention);
    config.retention.events = retention.events;
    config.retention.idempotency_keys = retention.idempotency_keys;
    config.retention.dead_letters = retention.dead_letters;
    config
}

fn limits(section: &OutboxSection) -> Limits {
    Limits {
        topic_bytes_max: section.limits.topic_bytes_max,
        key_bytes_max: section.limits.key_bytes_max,
        payload_bytes_max: section.limits.payload_bytes_max,
        header_bytes_max: section.limits.header_bytes_max,
    }
}

fn postgres(review: &mut Review<'_>, path: &str, section: &OutboxSection, url: String) -> PostgresConfig {
    check_url(review, &member(path, if section.url.is_some() { "url" } else { "url_file" }), &url);
    let mut config = PostgresConfig::new(url);
    check_connection(review, path, section);
    config.password_file.clone_from(&section.password_file);
    config.tls = if section.tls == Tls::VerifyFull { TlsMode::VerifyFull } else { TlsMode::Disable };
    config.ca_file.clone_from(&section.ca_file);
    config.cert_file.clone_from(&section.cert_file);
    config.key_file.clone_from(&section.key_file);
    config.schema.clone_from(&section.schema);
    config.pooled = section.pooled;
    config.wakeups = section.wakeups;
    config.connections_max = section.connections_max;
    config.connect_timeout = Duration::from_millis(section.connect_timeout_ms);
    config.flush_before_publish = section.flush_before_publish;
    config.limits = limits(section);
    config.retention = retention(review, &member(path, "retention"), &section.retention);
    config
}

/// The address that a table says, or names a file for. `None`: neither is there, or the problem is told.
pub(crate) fn url_of(
    review: &mut Review<'_>,
    path: &str,
    whose: &str,
    url: Option<&String>,
    file: Option<&PathBuf>,
) -> Option<String> {
    match (url, file) {
        (Some(_), Some(_)) => {
            let why = format!("{whose} has `url` or `url_file`, not both");
            review.problem(&review.blamed(path, &why), why);
        }
        (Some(url), None) => return Some(url.clone()),
        (None, Some(file)) => match std::fs::read_to_string(file) {
            Ok(text) => return Some(text.trim().to_owned()),
            Err(error) => {
                review.problem(&member(path, "url_file"), format!("cannot read {}: {error}", file.display()));
            }
        },
        (None, None) => {}
    }
    None
}

/// Whether it is a database's address at all. A text that could not be had is a problem already.
pub(crate) fn check_url(review: &mut Review<'_>, path: &str, url: &str) {
    const LIKE: &str = "postgres://user@host:5432/database";
    if url.is_empty() {
        return;
    }
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    let shown = review.shown(path);
    match scheme {
        None | Some("postgres" | "postgresql") => {}
        // Not a key-value string whose password holds `://`.
        Some(scheme) if scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')) => {
            let text = format!(
                "`{shown}` begins with {scheme}://, an outbox lives in PostgreSQL or in a SQLite file: write {LIKE} or sqlite:path/to/file.db"
            );
            return review.problem(path, text);
        }
        Some(_) => {}
    }
    let why = match url.parse::<tokio_postgres::Config>() {
        Ok(config) if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() => {
            "no host".to_owned()
        }
        Ok(_) => return,
        Err(error) => {
            std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
        }
    };
    review.problem(path, format!("`{shown}` is not a database's address ({why}): write {LIKE}"));
}

fn check_connection(review: &mut Review<'_>, path: &str, section: &OutboxSection) {
    let certificates =
        [("ca_file", &section.ca_file), ("cert_file", &section.cert_file), ("key_file", &section.key_file)];
    if section.tls == Tls::Disable
        && let Some((key, _)) = certificates.iter().find(|(_, file)| file.is_some())
    {
        review.problem(&member(path, key), format!("`{key}` has no effect without tls = \"verify-full\""));
    }
    if section.tls == Tls::VerifyFull && section.ca_file.is_none() {
        review.problem(&member(path, "tls"), "tls = \"verify-full\" needs a `ca_file` to verify with");
    }
    if section.cert_file.is_some() != section.key_file.is_some() {
        let why = "`cert_file` and `key_file` belong together";
        review.problem(&review.blamed(path, why), why);
    }
    if section.connections_max == 0 {
        review.problem(&member(path, "connections_max"), "connections_max must be at least 1");
    }
    if section.schema.is_empty() {
        review.problem(&member(path, "schema"), "schema must not be empty");
    }
}

fn retention(review: &mut Review<'_>, path: &str, section: &RetentionSection) -> Retention {
    let turn_after_hours = section.turn_after_hours.unwrap_or(section.events_hours / 4.0);
    let numbers = [
        ("events_hours", section.events_hours),
        ("turn_after_hours", turn_after_hours),
        ("idempotency_hours", section.idempotency_hours),
    ];
    for (key, _) in numbers.iter().filter(|(_, hours)| !is_span(*hours) || *hours == 0.0) {
        review.problem(&member(path, key), format!("retention.{key} must be above 0"));
    }
    if !is_span(section.dead_letter_days) {
        review.problem(
            &member(path, "dead_letter_days"),
            "retention.dead_letter_days must be 0 (for ever) or above",
        );
    }
    if section.turn_mib == 0 || section.turn_mib > (i64::MAX >> 20) as u64 {
        review.problem(&member(path, "turn_mib"), "retention.turn_mib must be at least 1");
    }
    let dead_letters = hours(section.dead_letter_days * 24.0);
    Retention {
        events: hours(section.events_hours),
        turn_after: hours(turn_after_hours),
        turn_bytes: i64::try_from(section.turn_mib << 20).unwrap_or(i64::MAX),
        idempotency_keys: hours(section.idempotency_hours),
        dead_letters: (!dead_letters.is_zero()).then_some(dead_letters),
    }
}

/// Whether a number of hours is a length of time that a database can add to now: up to a thousand years.
fn is_span(hours: f64) -> bool {
    (0.0..8_766_000.0).contains(&hours)
}

fn hours(hours: f64) -> Duration {
    if is_span(hours) { Duration::from_secs_f64(hours * 3600.0) } else { Duration::ZERO }
}
