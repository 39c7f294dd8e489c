//! Who handles a consumer's messages: functions of its database, or receivers that answer requests.

use crate::config::{ConsumerOwn, ConsumerSetting, Review, member};
use posthaste::consumer::Filter;
use posthaste::inbox::remote::MarkedBy;
use posthaste_brokers::HandlerConfig;
use posthaste_postgres::consumer::InboxTables;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[[consumers.NAME.handle]]`. An empty list takes everything.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HandleSection {
    /// Types of messages, exact or with a last `*`.
    pub(crate) types: Vec<String>,
    /// Topics, in the same way.
    pub(crate) topics: Vec<String>,
    /// Addresses (subjects, routing keys), in the same way.
    pub(crate) addresses: Vec<String>,
    /// A function of the database, `schema.function`, that takes a `posthaste.message`.
    pub(crate) sql: Option<String>,
    /// A receiver that each message is posted to: its URL, or a table with `url` and the keys of an HTTP
    /// sink.
    pub(crate) http: Option<HandlerConfig>,
    /// Who marks what such a receiver has handled: we do, after its answer, or the application does, in its
    /// own transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) marks: Option<MarkedBy>,
}

impl ConsumerOwn {
    pub(crate) fn is_marked_by_app(&self) -> bool {
        self.handle.iter().any(|handle| handle.marks == Some(MarkedBy::App))
    }
}

/// Who handles messages.
#[derive(Clone, Copy)]
pub(crate) enum HandledBy<'a> {
    /// A function of the database.
    Function(&'a str),
    /// Somebody who answers requests.
    Receiver(&'a HandlerConfig),
}

impl ConsumerSetting {
    /// The handlers: what each takes, and who it is.
    pub(crate) fn handlers(&self) -> impl Iterator<Item = (Filter, HandledBy<'_>)> {
        self.own.handle.iter().filter_map(|handle| {
            let (topics, addresses) = (handle.topics.clone(), handle.addresses.clone());
            let by = match (&handle.sql, &handle.http) {
                (Some(function), _) => HandledBy::Function(function),
                (None, Some(receiver)) => HandledBy::Receiver(receiver),
                (None, None) => return None,
            };
            Some((Filter { topics, addresses, types: handle.types.clone() }, by))
        })
    }
}

/// What can be said of a consumer's handlers without its database.
pub(crate) fn check_handlers(review: &mut Review<'_>, path: &str, own: &ConsumerOwn) {
    if own.handle.is_empty() {
        review.problem(
            path,
            format!(
                "[{path}] has no handler: write [[{path}.handle]] with an `sql` function, or with `http`"
            ),
        );
    }
    for (index, handle) in own.handle.iter().enumerate() {
        let path = format!("{path}.handle[{index}]");
        check_patterns(review, &path, handle, &own.topics);
        match (handle.sql.as_ref().filter(|sql| !sql.is_empty()), &handle.http) {
            (None, None) => review.problem(
                &path,
                "a handler needs `sql`, for example sql = \"billing.on_event\", or `http`, for example http = \
                 \"http://127.0.0.1:8080/events\"",
            ),
            (Some(_), Some(_)) => {
                review.problem(&path, "a handler has `sql` or `http`, not both: write two handlers");
            }
            (Some(_), None) if handle.marks.is_some() => {
                let why = "`marks` is for handlers with `http`: a function in SQL runs in the transaction of its mark";
                review.problem(&member(&path, "marks"), why);
            }
            (Some(_), None) => {}
            (None, Some(http)) => {
                if let Err(error) = http.check() {
                    review.problem(&member(&path, "http"), format!("{path}.http: {error}"));
                }
            }
        }
    }
    if own.is_marked_by_app() {
        if own.handle.iter().any(|handle| handle.marks != Some(MarkedBy::App)) {
            let why = "marks = \"app\" must be said of all handlers of a consumer, or of none: what waits and what is dead is kept \
                       in one way. Make two consumers";
            review.problem(&member(path, "handle"), why);
        }
        if own.tables != InboxTables::default() {
            let why =
                "with marks = \"app\" the application keeps its marks where it likes: leave `tables` out";
            review.problem(&member(path, "tables"), why);
        }
    }
}

/// A handler that can never get a message would let all of them pass, unseen.
fn check_patterns(review: &mut Review<'_>, path: &str, handle: &HandleSection, topics: &[String]) {
    let lists = [("topics", &handle.topics), ("addresses", &handle.addresses), ("types", &handle.types)];
    for (key, patterns) in lists {
        for pattern in patterns {
            let start = pattern.strip_suffix('*').unwrap_or(pattern);
            if start.contains('*') || pattern.ends_with('>') {
                let why = "would match nothing: only a last `*` stands for the rest of a name";
                review.problem(&member(path, key), format!("`{pattern}` {why}"));
            }
        }
    }
    let takes = |topic: &String| {
        Filter { topics: handle.topics.clone(), ..Filter::default() }.takes(topic, None, None)
    };
    if !handle.topics.is_empty() && !topics.is_empty() && !topics.iter().any(takes) {
        let named = handle.topics.join("`, `");
        let why = "is none of the consumer's `topics`: this handler would get nothing";
        review.problem(&member(path, "topics"), format!("`{named}` {why}"));
    }
}

/// Subjects and routing keys are there only where the broker has them.
pub(crate) fn check_addresses(review: &mut Review<'_>, path: &str, own: &ConsumerOwn) {
    for (index, _) in own.handle.iter().enumerate().filter(|(_, handle)| !handle.addresses.is_empty()) {
        let place = format!("{path}.handle[{index}].addresses");
        review.problem(&place, "messages of this broker have no addresses: this handler would get nothing");
    }
}
