//! Routes: which events go to which sink, under which address, in which form, with which policy.
//!
//! Every sink reads the log by itself, so a route table is read from the sink's side: *of the routes
//! that name this sink, the first that matches the topic applies*. Events that match no route at all
//! belong to the built-in sink [`UNROUTED`], whose verdict is "rejected: no route".

mod pattern;
mod template;

pub use crate::envelope::Envelope;
pub use pattern::Pattern;
pub use template::Template;

use crate::envelope;
use crate::event::{Defect, EventError, Limits, StoredEvent};
use crate::retry::RetryPolicy;
use crate::schema::{self, Checked, SharedValidator};
use crate::sink::{Failure, Message};
use bytes::Bytes;
use std::sync::Arc;

/// The built-in sink of events that no route matches.
pub const UNROUTED: &str = "unrouted";

/// A check of the payload before it is published. Relays of one outbox may differ in it: it decides what
/// becomes of an event, and not who reads it.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Validate {
    /// None.
    #[default]
    None,
    /// It must be one JSON value.
    Json,
    /// It must keep a schema. The validator is one that never waits for anything: who is away when an event
    /// arrives would be its death.
    Schema(SharedValidator),
}

/// Order of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// First deliveries of a key keep append order; a failing event holds back its own key only.
    #[default]
    Key,
    /// Nothing waits for anything.
    None,
}

/// What the death of an event means for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnDead {
    /// Later events of the key go on.
    #[default]
    Continue,
    /// Later events of the key wait until it is replayed, in its place, or discarded.
    Hold,
}

/// One route.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Its name: for pause, metrics and messages.
    pub name: Arc<str>,
    /// Topics it takes.
    pub topics: Vec<Pattern>,
    /// Sinks it feeds.
    pub sinks: Vec<String>,
    /// Address at the broker.
    pub destination: Template,
    /// What decides about the broker's partition, instead of the key. An event that lacks it is refused:
    /// spreading it at random would break the order that was asked for.
    pub partition_key: Option<Template>,
    /// What goes around the payload.
    pub envelope: Envelope,
    /// Payload check.
    pub validate: Validate,
    /// Reject events without a key.
    pub require_key: bool,
    /// Order of events.
    pub order: Order,
    /// What a dead event means for its key.
    pub on_dead: OnDead,
    /// When to try again.
    pub retry: RetryPolicy,
}

impl Route {
    /// A route of everything to one sink, with every default.
    #[must_use]
    pub fn everything_to(sink: &str) -> Self {
        Self {
            name: sink.into(),
            topics: vec![Pattern::new("*")],
            sinks: vec![sink.to_owned()],
            destination: Template::default(),
            partition_key: None,
            envelope: Envelope::None,
            validate: Validate::None,
            require_key: false,
            order: Order::Key,
            on_dead: OnDead::Continue,
            retry: RetryPolicy::default(),
        }
    }

    fn matches(&self, topic: &str) -> bool {
        self.topics.iter().any(|pattern| pattern.matches(topic))
    }

    /// Makes the message, or says why this event can never be one.
    pub fn encode(
        &self,
        stored: StoredEvent,
        source: &Arc<str>,
        limits: &Limits,
    ) -> Result<Message, Box<Refused>> {
        match self.dress(&stored, source, limits) {
            Ok(Dress { destination, partition_key, payload }) => Ok(Message {
                stored,
                destination,
                partition_key,
                payload,
                ordered: self.order == Order::Key,
                source: Arc::clone(source),
                envelope: self.envelope,
            }),
            Err(failure) => Err(Box::new(Refused { stored, failure })),
        }
    }

    fn dress(&self, stored: &StoredEvent, source: &str, limits: &Limits) -> Result<Dress, Failure> {
        let above = |error: &EventError| Failure::of_event("event.limits", error.to_string());
        match &stored.defect {
            Some(Defect::Row(why)) => return Err(Failure::of_event("event.defect", why.clone())),
            Some(Defect::Limit(error)) => return Err(above(error)),
            None => limits.check(&stored.event).map_err(|error| above(&error))?,
        }
        if self.require_key && stored.event.key.is_none() {
            return Err(Failure::of_event(
                "route.key_missing",
                "the route requires a key and the event has none",
            ));
        }
        let destination =
            self.destination.fill(stored).map_err(|why| Failure::of_event("route.destination", why))?;
        let partition_key = self.partition_key.as_ref().map(|template| fill_partition_key(template, stored));
        let partition_key = partition_key.transpose()?;
        let Some(bytes) = stored.event.payload.clone() else {
            return Ok(Dress { destination, partition_key, payload: None });
        };
        match &self.validate {
            Validate::None => {}
            // A message id goes into an object only, which is checked there.
            Validate::Json if self.envelope == Envelope::MessageId => {}
            Validate::Json => envelope::check_json(&bytes)?,
            Validate::Schema(validator) => check_schema(validator, &bytes)?,
        }
        let payload = Some(envelope::body(self.envelope, bytes, stored, source)?);
        Ok(Dress { destination, partition_key, payload })
    }
}

/// What a route makes of an event.
struct Dress {
    destination: String,
    partition_key: Option<String>,
    payload: Option<Bytes>,
}

fn fill_partition_key(template: &Template, stored: &StoredEvent) -> Result<String, Failure> {
    let bad = |why: String| Failure::of_event("route.partition_key", why);
    let key = template.fill(stored).map_err(|why| bad(format!("the partition key: {why}")))?;
    if key.is_empty() { Err(bad("the partition key is empty".to_owned())) } else { Ok(key) }
}

/// The payload as it was appended, before an envelope goes around it.
fn check_schema(validator: &SharedValidator, payload: &[u8]) -> Result<(), Failure> {
    match validator.0.check(payload) {
        Checked::Fine => Ok(()),
        Checked::Poison(violation) => Err(Failure::of_event(violation.code, violation.message)),
        Checked::Unavailable(away) => Err(Failure::of_event(schema::UNAVAILABLE, away.why)),
    }
}

/// An event that can never be published, and why.
#[derive(Debug)]
pub struct Refused {
    /// The event.
    pub stored: StoredEvent,
    /// Why.
    pub failure: Failure,
}

/// Which events a sink reads: the filter that a store applies before it loads anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Every event.
    Everything,
    /// Events whose topic matches one of these.
    Any(Vec<Pattern>),
    /// Events whose topic matches none of these.
    NoneOf(Vec<Pattern>),
}

impl Filter {
    /// Whether a topic passes.
    #[must_use]
    pub fn admits(&self, topic: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Any(patterns) => patterns.iter().any(|p| p.matches(topic)),
            Self::NoneOf(patterns) => !patterns.iter().any(|p| p.matches(topic)),
        }
    }
}

/// All routes of an outbox.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteTable {
    routes: Vec<Arc<Route>>,
}

impl RouteTable {
    /// A table of these routes, in order of precedence.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Self {
        Self { routes: routes.into_iter().map(Arc::new).collect() }
    }

    /// The routes.
    #[must_use]
    pub fn routes(&self) -> &[Arc<Route>] {
        &self.routes
    }

    /// The route of a topic to a sink.
    #[must_use]
    pub fn find(&self, sink: &str, topic: &str) -> Option<&Arc<Route>> {
        self.routes.iter().find(|route| route.sinks.iter().any(|s| s == sink) && route.matches(topic))
    }

    /// What this sink reads. For [`UNROUTED`]: whatever no route takes.
    #[must_use]
    pub fn filter(&self, sink: &str) -> Filter {
        let feeds = |route: &&Arc<Route>| sink == UNROUTED || route.sinks.iter().any(|s| s == sink);
        let patterns: Vec<Pattern> =
            self.routes.iter().filter(feeds).flat_map(|r| r.topics.clone()).collect();
        let everything = patterns.iter().any(Pattern::is_everything);
        match (sink == UNROUTED, everything) {
            (true, _) => Filter::NoneOf(patterns),
            (false, true) => Filter::Everything,
            (false, false) => Filter::Any(patterns),
        }
    }

    /// Whether some topic could be left without a route.
    #[must_use]
    pub fn is_total(&self) -> bool {
        self.routes.iter().flat_map(|r| &r.topics).any(Pattern::is_everything)
    }

    /// A canonical text: two relays with the same text read the same events for the same sinks.
    #[must_use]
    pub fn fingerprint(&self, sinks: &[String]) -> String {
        let mut sinks = sinks.to_vec();
        sinks.sort();
        let filters = sinks.iter().map(|sink| (sink.clone(), describe(&self.filter(sink)).into()));
        serde_json::Value::Object(filters.collect()).to_string()
    }
}

fn describe(filter: &Filter) -> Vec<String> {
    let texts =
        |sign: &str, patterns: &[Pattern]| patterns.iter().map(|p| format!("{sign}{}", p.as_str())).collect();
    match filter {
        Filter::Everything => vec!["*".to_owned()],
        Filter::Any(patterns) => texts("", patterns),
        Filter::NoneOf(patterns) => texts("!", patterns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Timestamp};

    fn stored(event: Event) -> StoredEvent {
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(0), event, defect: None }
    }

    fn encode(route: &Route, event: Event) -> Result<Message, Failure> {
        route.encode(stored(event), &"svc".into(), &Limits::default()).map_err(|refused| refused.failure)
    }

    #[test]
    fn message_id_is_added_without_touching_the_rest() {
        let route = Route { envelope: Envelope::MessageId, ..Route::everything_to("s") };
        let event = Event::new("t", r#"{ "a":[ ],"b":null }"#);
        let id = event.id;
        let message = encode(&route, event).expect("encodes");
        let expected = format!(r#"{{"messageId":"{id}", "a":[ ],"b":null }}"#);
        assert_eq!(message.payload.as_deref(), Some(expected.as_bytes()));
        let message = encode(&route, Event::new("t", "{}").with_id(id)).expect("encodes");
        assert_eq!(message.payload.as_deref(), Some(format!(r#"{{"messageId":"{id}"}}"#).as_bytes()));
        for bad in ["[1]", "nope", r#"{"messageId":"other"}"#, ""] {
            assert!(encode(&route, Event::new("t", bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn bad_events_are_refused_by_name() {
        let route = Route { validate: Validate::Json, require_key: true, ..Route::everything_to("s") };
        let code = |event| encode(&route, event).map(|_| ()).map_err(|f| f.code.into_owned());
        assert_eq!(code(Event::new("t", "{}")), Err("route.key_missing".to_owned()));
        assert_eq!(code(Event::new("t", "{").with_key("k")), Err("payload.not_json".to_owned()));
        assert_eq!(code(Event::new("", "{}").with_key("k")), Err("event.limits".to_owned()));
        assert_eq!(code(Event::new("t", "{}").with_key("k")), Ok(()));
    }

    /// Takes what begins with "ok".
    #[derive(Debug)]
    struct BeginsOk;

    impl crate::schema::Validator for BeginsOk {
        fn check(&self, payload: &[u8]) -> Checked {
            match payload.starts_with(b"ok") {
                true => Checked::Fine,
                false => Checked::Poison(crate::schema::Violation::new("schema.invalid", "/: not ok")),
            }
        }
    }

    #[test]
    fn a_schema_is_asked_about_the_payload_as_it_was_appended() {
        let validate = Validate::Schema(SharedValidator(Arc::new(BeginsOk)));
        let route = Route { validate, envelope: Envelope::CloudEventsJson, ..Route::everything_to("s") };
        let message = encode(&route, Event::new("t", "ok").with_header("content-type", "text/plain"));
        assert!(message.expect("it is fine").payload.is_some_and(|payload| payload.starts_with(b"{")));
        let failure = encode(&route, Event::new("t", "no")).expect_err("refused");
        assert_eq!((&*failure.code, failure.message.as_str()), ("schema.invalid", "/: not ok"));
        assert_eq!(failure.scope, crate::sink::Scope::Event);
        let empty = encode(&route, Event::new("t", "")).expect_err("no bytes are a payload");
        assert_eq!(empty.code, "schema.invalid");
        let tombstone = Event { payload: None, ..Event::new("t", "") };
        let plain = Route { envelope: Envelope::None, ..route };
        assert!(encode(&plain, tombstone).is_ok(), "a tombstone has nothing to check");
    }

    #[test]
    fn an_event_without_its_partition_key_is_refused() {
        let template = Template::parse("{header:tenant_id}").expect("valid");
        let route = Route { partition_key: Some(template), ..Route::everything_to("s") };
        let message = encode(&route, Event::new("t", "x").with_key("k").with_header("tenant_id", "acme"));
        assert_eq!(message.expect("encodes").partition_key(), Some("acme"));
        for bad in [Event::new("t", "x").with_key("k"), Event::new("t", "x").with_header("tenant_id", "")] {
            assert_eq!(
                encode(&route, bad).map(drop).map_err(|f| f.code.into_owned()),
                Err("route.partition_key".into())
            );
        }
        let message = encode(&Route::everything_to("s"), Event::new("t", "x").with_key("k"));
        assert_eq!(message.expect("encodes").partition_key(), Some("k"));
    }

    #[test]
    fn a_sink_reads_what_its_routes_take_and_the_rest_is_unrouted() {
        let a = Route { topics: vec![Pattern::new("a.*")], ..Route::everything_to("one") };
        let b = Route { topics: vec![Pattern::new("b.*")], ..Route::everything_to("two") };
        let table = RouteTable::new(vec![a, b]);
        assert!(table.filter("one").admits("a.x") && !table.filter("one").admits("b.x"));
        assert!(table.filter(UNROUTED).admits("c.x") && !table.filter(UNROUTED).admits("b.x"));
        assert!(!table.is_total());
        assert!(table.find("one", "b.x").is_none());
    }
}
