//! `[consumers.NAME]`: who consumes what, and in which database its effects happen.
//!
//! The table belongs to two readers. [`ConsumerOwn`] says what a consumer is, for as long as the process
//! runs. The engine's [`ConsumerSettings`] say how it goes about it, and apply again on reload.

use super::Outbox;
use super::problem::{self, ConfigError};
use super::resolve::{Review, check_name, check_retry, known_names};
use super::section::File;
use super::source::{SourceSetting, Sources, UNREADABLE};
use super::tree::member;
use crate::audit::check_routed;
use crate::handlers::{HandleSection, check_addresses, check_handlers};
use crate::login::{OwnLogin, login, outbox_of};
use crate::schemas::{self, SchemaSection};
use posthaste::consumer::{
    ConsumerSettings, DeadLetterTopic, Identity, IdentityFrom, IdentityScope, Order, Unmatched,
};
use posthaste::inbox::CONSUMER_BYTES_MAX;
use posthaste::schema::SchemaChecks;
use posthaste::source::StartFrom;
use posthaste_postgres::PostgresConfig;
use posthaste_postgres::consumer::InboxTables;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

/// What a consumer is.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ConsumerOwn {
    /// Where its messages come from: a `[sources.NAME]`, or a `[sinks.NAME]` that can be read.
    pub(crate) source: Option<String>,
    /// Topics, by their exact names.
    pub(crate) topics: Vec<String>,
    /// Its group at the broker; its own name by default.
    pub(crate) group: Option<String>,
    /// The outbox whose database has the inbox, and takes what handlers append. The only one by default.
    pub(crate) outbox: Option<String>,
    /// The service's own login to that database; the outbox's by default.
    pub(crate) url: Option<String>,
    /// A file that holds the URL, instead of `url`.
    pub(crate) url_file: Option<PathBuf>,
    /// A file that holds the password, read again at each connect.
    pub(crate) password_file: Option<PathBuf>,
    /// Where it begins if it has no position anywhere.
    pub(crate) start_from: StartFrom,
    /// What is kept in order.
    pub(crate) order: Order,
    /// What a message is known by: the first of `id`, `header:NAME`, `json:/pointer`, `position` and `sha256`
    /// that is there.
    #[serde(default = "identity")]
    #[schemars(with = "Vec<String>")]
    pub(crate) identity: Vec<IdentityFrom>,
    /// Whether one event that comes over two topics is one message (`consumer`) or two (`topic`). It must be
    /// said with more than one topic.
    pub(crate) identity_scope: Option<IdentityScope>,
    /// Where dead letters are told of.
    pub(crate) dead_letters: Option<DeadLetterTopic>,
    /// Whose tables are written.
    pub(crate) tables: posthaste_postgres::consumer::InboxTables,
    /// What becomes of a message that no handler takes.
    pub(crate) unmatched: Unmatched,
    /// Schemas that messages must keep before a handler gets them. Of these, the first that takes a message
    /// applies.
    pub(crate) schema: Vec<SchemaSection>,
    /// Its handlers. The first that takes a message gets it.
    pub(crate) handle: Vec<HandleSection>,
}

fn identity() -> Vec<IdentityFrom> {
    Identity::default().from
}

/// One consumer.
#[derive(Clone)]
pub(crate) struct ConsumerSetting {
    pub(crate) name: Arc<str>,
    pub(crate) own: ConsumerOwn,
    /// Name of the outbox.
    pub(crate) outbox: Arc<str>,
    /// The label of its metrics.
    pub(crate) service: Arc<str>,
    pub(crate) source: SourceSetting,
    pub(crate) settings: ConsumerSettings,
    /// Where its inbox is, with its own login.
    pub(crate) database: PostgresConfig,
    /// Its schemas, compiled.
    pub(crate) checks: Arc<SchemaChecks>,
}

impl ConsumerSetting {
    /// Its group at the broker.
    pub(crate) fn group(&self) -> &str {
        self.own.group.as_deref().unwrap_or(&self.name)
    }

    /// The tables that it writes. Those of the application are the application's alone.
    pub(crate) fn tables(&self) -> InboxTables {
        if self.own.is_marked_by_app() { InboxTables::MarkedByApp } else { self.own.tables.clone() }
    }

    /// How it names messages.
    pub(crate) fn identity(&self) -> Identity {
        Identity { from: self.own.identity.clone(), scope: self.own.identity_scope.unwrap_or_default() }
    }
}

/// The keys of the engine's part of the table.
pub(crate) fn settings_keys() -> Vec<String> {
    let settings = serde_json::to_value(ConsumerSettings::default()).unwrap_or_default();
    settings.as_object().into_iter().flat_map(|table| table.keys().cloned()).collect()
}

/// Reads every consumer, and writes down what holds for the keys that nobody set.
pub(super) fn consumers(
    review: &mut Review<'_>,
    file: &mut File,
    sources: &Sources,
    outboxes: &[Outbox],
) -> Vec<ConsumerSetting> {
    let mut settings = Vec::new();
    for (name, value) in std::mem::take(&mut file.consumers) {
        match read(review, &member("consumers", &name), value.clone()) {
            Ok((own, tuned)) => {
                let mut whole = serde_json::to_value(&own).unwrap_or_default();
                if let (Value::Object(whole), Ok(Value::Object(tuned))) =
                    (&mut whole, serde_json::to_value(&tuned))
                {
                    whole.extend(tuned);
                }
                file.consumers.insert(name.clone(), whole);
                settings.extend(consumer(review, file, &name, own, tuned, sources, outboxes));
            }
            Err(error) => {
                review.problems.push(error.to_string());
                file.consumers.insert(name, value);
            }
        }
    }
    crate::source::check_groups(review, &settings);
    settings
}

fn read(
    review: &Review<'_>,
    path: &str,
    value: Value,
) -> Result<(ConsumerOwn, ConsumerSettings), ConfigError> {
    let keys = settings_keys();
    let Value::Object(table) = value else {
        return Ok((problem::read(review.tree, path, value, &[])?, ConsumerSettings::default()));
    };
    let (tuned, own) = table.into_iter().partition(|(key, _)| keys.contains(key));
    let siblings: Vec<&str> = keys.iter().map(String::as_str).collect();
    let own = problem::read(review.tree, path, Value::Object(own), &siblings)?;
    Ok((own, problem::read(review.tree, path, Value::Object(tuned), &[])?))
}

fn consumer(
    review: &mut Review<'_>,
    file: &File,
    name: &str,
    own: ConsumerOwn,
    settings: ConsumerSettings,
    sources: &Sources,
    outboxes: &[Outbox],
) -> Option<ConsumerSetting> {
    let path = member("consumers", name);
    check_name(review, &path, name, CONSUMER_BYTES_MAX);
    if let Err(why) = settings.check() {
        review.problem(&review.blamed(&path, &why), format!("{path}.{why}"));
    }
    if let Some(then) = &settings.retry.then {
        check_retry(review, &format!("{path}.retry.then"), then);
    }
    check_topics(review, &path, &own);
    check_handlers(review, &path, &own);
    check_tables(review, &path, name, &own);
    let mut tell = |key: &str, why: String| review.problem(&member(&path, key), why);
    let checks = schemas::checks(&own.schema, &settings, file.require_tls, &mut tell);
    let source = source(review, file, &path, &own, sources);
    if source.as_ref().is_some_and(|source| !source.has_addresses()) {
        check_addresses(review, &path, &own);
    }
    let outbox = outbox(review, &path, name, &own, outboxes)?;
    if let Some(dead_letters) = &own.dead_letters {
        let path = member(&path, "dead_letters");
        if own.topics.contains(&dead_letters.topic) {
            let why = "its own dead letters would come back to it for ever";
            let topic = &dead_letters.topic;
            review.problem(&path, format!("dead_letters.topic `{topic}` is among its `topics`: {why}"));
        }
        check_routed(review, &path, &dead_letters.topic, outbox);
    }
    let (url, url_file, password_file) =
        (own.url.as_ref(), own.url_file.as_ref(), own.password_file.as_ref());
    let own_login = OwnLogin { url, url_file, password_file };
    let server = outbox.database.server()?;
    let database = login(review, &path, "a consumer", file.require_tls, &own_login, server)?;
    let (outbox, service) = (Arc::clone(&outbox.name), Arc::clone(&outbox.service));
    let (name, source, checks) = (name.into(), source?, Arc::new(checks));
    Some(ConsumerSetting { name, own, outbox, service, source, settings, database, checks })
}

fn check_topics(review: &mut Review<'_>, path: &str, own: &ConsumerOwn) {
    let topics = member(path, "topics");
    if own.topics.is_empty() || own.topics.iter().any(String::is_empty) {
        let why = "a consumer needs `topics`, by their exact names, for example topics = [\"orders.placed\"]";
        review.problem(&topics, why);
    }
    if own.topics.len() > 1 && own.identity_scope.is_none() {
        review.problem(
            &topics,
            "with more than one topic `identity_scope` must be said: \"consumer\" if an event that comes over two topics is \
             handled once, \"topic\" if it is handled once for each",
        );
    }
    if own.identity.is_empty() {
        let why = "identity must name at least one place, for example [\"id\", \"position\"]";
        review.problem(&member(path, "identity"), why);
    }
}

fn check_tables(review: &mut Review<'_>, path: &str, name: &str, own: &ConsumerOwn) {
    const CHARS_MAX: usize = posthaste_postgres::consumer::mapped::NAME_CHARS_MAX;
    if !own.tables.mapping().is_some_and(|mapping| mapping.has_names()) {
        return;
    }
    let group = ("group", own.group.as_deref().unwrap_or(name));
    let names = own.topics.iter().map(|topic| ("topics", topic.as_str())).chain([group]);
    for (key, text) in names.filter(|(_, text)| text.chars().count() > CHARS_MAX) {
        let why = "and the columns of mapped tables hold no more; nothing is ever cut";
        let place = member(path, key);
        review.problem(&place, format!("`{text}` is longer than {CHARS_MAX} characters, {why}"));
    }
}

fn source(
    review: &mut Review<'_>,
    file: &File,
    path: &str,
    own: &ConsumerOwn,
    sources: &Sources,
) -> Option<SourceSetting> {
    let place = member(path, "source");
    let Some(name) = &own.source else {
        review.problem(path, format!("`{place}` is missing: name a [sources.NAME] or a [sinks.NAME]"));
        return None;
    };
    match sources.get(name) {
        Some(Some(source)) => return Some(source.clone()),
        Some(None) => review.problem(&place, format!("`{name}` is no source: {UNREADABLE}")),
        // What is wrong with it is told already.
        None if file.sources.contains_key(name) || file.sinks.contains_key(name) => {}
        None => {
            let known: Vec<&str> = sources.keys().map(String::as_str).collect();
            review.problem(&place, format!("there is no source `{name}`{}", known_names(name, &known)));
        }
    }
    None
}

fn outbox<'a>(
    review: &mut Review<'_>,
    path: &str,
    name: &str,
    own: &ConsumerOwn,
    outboxes: &'a [Outbox],
) -> Option<&'a Outbox> {
    let who = ["a consumer", &format!("consumer `{name}`")];
    let outbox = outbox_of(review, path, who, own.outbox.as_deref(), outboxes)?;
    if outbox.database.server().is_none() {
        review.problem(
            &member(path, "outbox"),
            format!(
                "outbox `{}` is a SQLite file, which has no SQL functions to be handlers: they need PostgreSQL. On SQLite a \
                 consumer is code, in your service",
                outbox.name
            ),
        );
        return None;
    }
    Some(outbox)
}
