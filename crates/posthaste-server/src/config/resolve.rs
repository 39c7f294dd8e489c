//! From sections to what the engine takes, with the checks that need more than one key.
//!
//! All problems of this kind are told at once: whoever mends a file wants the whole list.

use super::consumer::consumers;
use super::outbox::outboxes;
use super::problem::{self, ConfigError, nearest};
use super::section::{Durability, File, RouteSection, SINK_OWN, SinkOwn};
use super::sink::SinkConfig;
use super::source::sources;
use super::tree::{Tree, member};
use super::{Config, SinkSetting, timeout};
use crate::access::{admin, listen};
use crate::gateway::gateway;
use posthaste::retry::RetryPolicy;
use posthaste::route::{Pattern, Route, Template, UNROUTED};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Problems and warnings so far, with the tree they are about.
pub(crate) struct Review<'a> {
    pub(super) tree: &'a Tree,
    pub(super) problems: Vec<String>,
    warnings: Vec<String>,
}

impl Review<'_> {
    pub(crate) fn problem(&mut self, path: &str, text: impl std::fmt::Display) {
        self.problems.push(format!("{}: {text}", self.tree.place(path)));
    }

    /// A route as it was written, without defaults.
    pub(super) fn given_route(&self, index: usize) -> Value {
        self.tree.value["route"].get(index).cloned().unwrap_or_default()
    }

    /// Whether somebody wrote this key of a table.
    pub(crate) fn is_given(&self, table: &str, key: &str) -> bool {
        self.tree.value.get(table).is_some_and(|table| table.get(key).is_some())
    }

    /// Whether somebody wrote this table.
    pub(crate) fn has_section(&self, table: &str) -> bool {
        self.tree.value.get(table).is_some()
    }

    /// Whether a file was read.
    pub(super) fn has_file(&self) -> bool {
        self.tree.file().is_some()
    }

    /// Of the keys of a table that a text names, the one to blame.
    pub(super) fn blamed(&self, table: &str, text: &str) -> String {
        self.tree.blamed(table, text)
    }

    /// Whether a value goes over the file's.
    pub(super) fn is_over_file(&self, path: &str) -> bool {
        self.tree.is_over_file(path)
    }

    /// A path the way its author wrote it.
    pub(super) fn shown(&self, path: &str) -> String {
        self.tree.shown(path)
    }
}

/// Reads the sections and checks them.
pub(super) fn resolve(tree: Tree) -> Result<Config, ConfigError> {
    let mut review = Review { tree: &tree, problems: Vec::new(), warnings: Vec::new() };
    let mut file: File = problem::read_whole(&tree, &mut review.problems)?;
    timeout::follow_sinks(&review, &mut file);
    let sinks = sinks(&mut review, &file);
    for setting in &sinks {
        if let Some(sink) = file.sinks.get_mut(&*setting.name) {
            timeout::note(sink, setting.delivery_timeout_ms);
        }
    }
    let routes = routes(&mut review, &file, &sinks);
    let mut outboxes = outboxes(&mut review, &file, &routes);
    file.audit.resolve(&mut review, &mut outboxes);
    let sources = sources(&mut review, &file, &sinks);
    let consumers = consumers(&mut review, &mut file, &sources, &outboxes);
    let gateway = gateway(&mut review, &file.gateway, file.require_tls, &outboxes);
    if let Err(why) = file.relay.check() {
        review.problem(&tree.blamed("relay", &why), format!("[relay]: {why}"));
    }
    let (listen, admin) =
        (listen(&mut review, "http.listen", &file.http.listen), admin(&mut review, &file.admin));
    unused_sinks(&mut review, &file);
    let own_table = |(name, source): (String, Option<_>)| Some((name, source?));
    let sources = sources.into_iter().filter(|(name, _)| file.sources.contains_key(name));
    let Review { problems, warnings, .. } = review;
    if !problems.is_empty() {
        return Err(ConfigError::new(problems.join("\n")));
    }
    Ok(Config {
        file: tree.file().map(ToOwned::to_owned),
        relay: file.relay.clone(),
        listen,
        admin,
        log_format: file.log.format,
        log_level: file.log.level.clone(),
        outboxes,
        sinks,
        consumers,
        gateway,
        sources: sources.filter_map(own_table).collect(),
        warnings,
        effective: effective(&file, &routes)?,
        tree,
    })
}

/// All keys, with the names that were given by default.
fn effective(file: &File, routes: &[(Route, Vec<String>)]) -> Result<Value, ConfigError> {
    let mut file = file.clone();
    for (section, (route, _)) in file.route.iter_mut().zip(routes) {
        section.name = Some(route.name.to_string());
    }
    serde_json::to_value(file)
        .map_err(|error| ConfigError::new(format!("cannot show the configuration: {error}")))
}

fn sinks(review: &mut Review<'_>, file: &File) -> Vec<SinkSetting> {
    let mut settings = Vec::new();
    for (name, value) in &file.sinks {
        match sink(review, file, name, value) {
            Ok(setting) => settings.push(setting),
            Err(error) => review.problems.push(error.to_string()),
        }
    }
    settings
}

fn sink(review: &mut Review<'_>, file: &File, name: &str, value: &Value) -> Result<SinkSetting, ConfigError> {
    let path = member("sinks", name);
    if name == UNROUTED {
        review.problem(&path, format!("a sink cannot be named `{UNROUTED}`: that one is built in"));
    }
    check_name(review, &path, name, NAME_BYTES_MAX);
    let (own, mut theirs) = split(value);
    let own: SinkOwn = problem::read(review.tree, &path, own, &[])?;
    if own.rate_limit_per_s.is_some_and(|rate| rate <= 0.0) {
        review.problem(
            &member(&path, "rate_limit_per_s"),
            "rate_limit_per_s must be above 0; pause a sink to stop it",
        );
    }
    if file.require_tls {
        demand_tls(review, &path, &mut theirs);
    }
    let mut config = SinkConfig::read(review.tree, &path, theirs, &SINK_OWN)?;
    let delivery_timeout_ms = timeout::check_sink(review, &file.relay, name, value, &mut config);
    Ok(SinkSetting {
        name: name.into(),
        config,
        start_at: own.start_at,
        classes: own.classes,
        rate_limit_per_s: own.rate_limit_per_s,
        delivery_timeout_ms,
        durable: own.durability == Durability::Durable,
    })
}

/// `require_tls` at the top means every sink and source. Those that reach nobody over a network have no such
/// key.
pub(super) fn demand_tls(review: &mut Review<'_>, path: &str, theirs: &mut Value) {
    let Value::Object(table) = theirs else { return };
    if matches!(table.get("type").and_then(Value::as_str), Some("null" | "stdout" | "local") | None) {
        return;
    }
    if table.get("require_tls") == Some(&Value::Bool(false)) {
        review.problem(
            &member(path, "require_tls"),
            "require_tls = false contradicts `require_tls = true` at the top of the file",
        );
    }
    table.insert("require_tls".to_owned(), Value::Bool(true));
}

/// Our keys of a sink's table, and the sink's own.
fn split(value: &Value) -> (Value, Value) {
    let Value::Object(table) = value else { return (Value::Object(serde_json::Map::new()), value.clone()) };
    let (own, theirs) = table.clone().into_iter().partition(|(key, _)| SINK_OWN.contains(&key.as_str()));
    (Value::Object(own), Value::Object(theirs))
}

/// Longest name of an outbox, a sink or a source.
pub(super) const NAME_BYTES_MAX: usize = 63;

/// Names go into tables, metrics and commands.
pub(super) fn check_name(review: &mut Review<'_>, path: &str, name: &str, max: usize) {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > max || !name.chars().all(fits) {
        review.problem(path, format!("the name {name:?} must have 1 to {max} letters, digits, -, _ or ."));
    }
}

/// The routes, each with the outboxes it applies to.
fn routes(review: &mut Review<'_>, file: &File, sinks: &[SinkSetting]) -> Vec<(Route, Vec<String>)> {
    let mut names = BTreeSet::new();
    let mut routes = Vec::new();
    for (index, section) in file.route.iter().enumerate() {
        let path = format!("route[{index}]");
        let route = route(review, file, &path, section);
        check_destination(review, &path, &route, sinks);
        if !names.insert(Arc::clone(&route.name)) {
            review.problem(
                &path,
                format!("two routes are named `{}`: give one a `name` of its own", route.name),
            );
        }
        routes.push((route, section.outboxes.clone()));
    }
    routes
}

fn route(review: &mut Review<'_>, file: &File, path: &str, section: &RouteSection) -> Route {
    let topics: Vec<&String> = section.topics.iter().chain(&section.topic).collect();
    if topics.is_empty() || topics.iter().any(|topic| topic.is_empty()) {
        review.problem(path, "a route needs `topics`, for example topics = [\"orders.*\"]");
    }
    let many = (0..).map(|index| format!("topics[{index}]")).zip(&section.topics);
    for (key, topic) in many.chain(section.topic.iter().map(|topic| ("topic".to_owned(), topic))) {
        if let Err(why) = Pattern::check(topic) {
            review.problem(&member(path, &key), format!("{key}: {why}"));
        }
    }
    let sinks: Vec<String> = section.sinks.iter().chain(&section.sink).cloned().collect();
    if sinks.is_empty() {
        review.problem(path, "a route needs `sinks`, for example sinks = [\"NAME\"]");
    }
    let known: Vec<&str> = file.sinks.keys().map(String::as_str).collect();
    for sink in sinks.iter().filter(|sink| !known.contains(&sink.as_str())) {
        review.problem(
            &member(path, "sinks"),
            format!("there is no sink `{sink}`{}", known_names(sink, &known)),
        );
    }
    let known: Vec<&str> = file.outbox.iter().map(|outbox| outbox.name.as_str()).collect();
    for name in section.outboxes.iter().filter(|name| !known.contains(&name.as_str())) {
        review.problem(
            &member(path, "outboxes"),
            format!("there is no outbox `{name}`{}", known_names(name, &known)),
        );
    }
    let destination = Template::parse(&section.destination).unwrap_or_else(|why| {
        review.problem(&member(path, "destination"), why);
        Template::default()
    });
    let partition_key = section.partition_key.as_ref().and_then(|text| {
        Template::parse(text).map_err(|why| review.problem(&member(path, "partition_key"), why)).ok()
    });
    check_retry(review, &member(path, "retry"), &section.retry);
    let validate = section.validate.resolve(&mut |key, why| review.problem(&member(path, key), why));
    let joined = topics.iter().map(|topic| topic.as_str()).collect::<Vec<_>>().join(",");
    Route {
        name: section.name.clone().unwrap_or(joined).into(),
        topics: topics.into_iter().map(Pattern::new).collect(),
        sinks,
        destination,
        partition_key,
        envelope: section.envelope,
        validate,
        require_key: section.require_key,
        order: section.order,
        on_dead: section.on_dead,
        retry: section.retry,
    }
}

/// What can never be an address at the broker would only make dead letters. It is not repeated: a webhook's
/// path may be a secret.
fn check_destination(review: &mut Review<'_>, path: &str, route: &Route, sinks: &[SinkSetting]) {
    let Some(fixed) = route.destination.fixed() else { return };
    for sink in sinks.iter().filter(|sink| route.sinks.iter().any(|name| **name == *sink.name)) {
        if let Err(why) = sink.config.check_destination(fixed) {
            let text = format!("`destination` is none for sink `{}`: it {why}", sink.name);
            review.problem(&member(path, "destination"), text);
        }
    }
}

pub(crate) fn known_names(wrong: &str, known: &[&str]) -> String {
    match nearest(wrong, known) {
        Some(near) => format!(", did you mean `{near}`?"),
        None if known.is_empty() => "; none is configured".to_owned(),
        None => format!("; known are: {}", known.join(", ")),
    }
}

pub(super) fn check_retry(review: &mut Review<'_>, path: &str, retry: &RetryPolicy) {
    let key = path.rsplit_once("retry").map_or_else(String::new, |(_, key)| format!("retry{key}"));
    if retry.max_attempts == 0 {
        review.problem(&member(path, "max_attempts"), format!("{key}.max_attempts must be at least 1"));
    }
    if !(0.0..=1.0).contains(&retry.jitter) {
        review
            .problem(&member(path, "jitter"), format!("{key}.jitter must be between 0 and 1 (0.2 is 20 %)"));
    }
}

fn unused_sinks(review: &mut Review<'_>, file: &File) {
    let named = |sink: &str| {
        file.route.iter().any(|r| r.sinks.iter().chain(&r.sink).any(|name| name == sink))
            || file.consumers.values().any(|consumer| consumer["source"] == sink)
    };
    for sink in file.sinks.keys().filter(|sink| !named(sink)) {
        review.warnings.push(format!(
            "sink `{sink}` is named by no route: nothing is delivered to it. Name it in the `sinks` of a [[route]], or take \
             it out"
        ));
    }
}
