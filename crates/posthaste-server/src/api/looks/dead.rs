//! Dead letters: newest first, by cause, and one event's.

use super::events::check_seen;
use super::fingerprint;
use crate::api::call::{ApiCall, limit, next, value};
use crate::api::spec::NoQuery;
use crate::http::ApiProblem;
use crate::output::base16;
use axum::http::StatusCode;
use posthaste::Timestamp;
use posthaste::admin::{DeadCauses, DeadFilter, DeadLetter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A query for dead letters: what they have in common, and what is special to one list of them. What a list
/// does not know is refused, so none lists a member that it would ignore.
macro_rules! letters_query {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $member:ident,)* }) => {
        $(#[$about])*
        #[derive(Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$doc])* pub(crate) $member: Option<String>,)*
            /// Topic pattern, `*` for any run.
            topic: Option<String>,
            /// Of this key.
            key: Option<String>,
            /// With this error code.
            code: Option<String>,
            /// Of this class of errors.
            class: Option<String>,
            /// With this text somewhere in the error. Needs the right to see errors.
            error: Option<String>,
            /// Of this cause.
            fingerprint: Option<String>,
            /// With this header.
            header: Option<String>,
            /// With this value of `header`, or of any. Needs the right to see headers.
            header_value: Option<String>,
            /// Whether later ones of the key wait for it.
            holds_key: Option<bool>,
            /// Whether it was replayed before.
            replayed: Option<bool>,
            /// Died at or after.
            since: Option<Timestamp>,
            /// Died before.
            until: Option<Timestamp>,
            /// At most so many, up to 1000; 50 by default.
            limit: Option<i64>,
        }

        impl $name {
            /// Of all sinks.
            pub(crate) fn filter(&self, call: &ApiCall) -> Result<DeadFilter, ApiProblem> {
                let filter = DeadFilter {
                    topic: self.topic.clone(),
                    key: self.key.clone(),
                    code: self.code.clone(),
                    class: self.class.clone(),
                    error: self.error.clone(),
                    fingerprint: fingerprint(self.fingerprint.as_deref())?,
                    header: self.header.clone(),
                    header_value: self.header_value.clone(),
                    holds_key: self.holds_key,
                    replayed: self.replayed,
                    since: self.since,
                    until: self.until,
                    ..DeadFilter::default()
                };
                check_seen(call, &value(&filter))?;
                Ok(filter)
            }

            pub(crate) fn limit(&self) -> Result<i64, ApiProblem> {
                limit(self.limit)
            }
        }
    };
}

letters_query! {
    /// Which letters.
    DeadQuery {
        /// Of this sink.
        sink,
        /// By this route.
        route,
        /// Go on here.
        cursor,
    }
}

letters_query! {
    /// Causes of which letters.
    DeadCausesQuery {
        /// Of this sink.
        sink,
        /// By this route.
        route,
    }
}

letters_query! {
    /// Which letters of a consumer.
    LettersQuery {
        /// Go on here.
        cursor,
    }
}

letters_query! {
    /// Causes of which letters of a consumer.
    LetterCausesQuery {}
}

/// A page of letters.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Dead {
    /// Newest first.
    dead: Vec<DeadLetter>,
    /// The cursor of the next page.
    next: Option<String>,
}

pub(crate) async fn dead_list(call: ApiCall, query: DeadQuery) -> Result<Dead, ApiProblem> {
    let (desk, limit) = (call.desk()?, query.limit()?);
    let before: Option<String> = call.place("dead", desk.name(), query.cursor.as_deref())?;
    let filter = DeadFilter { sink: query.sink.clone(), route: query.route.clone(), ..query.filter(&call)? };
    let dead =
        desk.look(|admin| async move { admin.dead_newest(&filter, before.as_deref(), limit).await }).await?;
    let next = next("dead", desk.name(), &dead, limit, |letter| letter.cursor.as_str().into());
    Ok(Dead { dead, next })
}

pub(crate) async fn dead_causes(call: ApiCall, query: DeadCausesQuery) -> Result<DeadCauses, ApiProblem> {
    let (desk, limit) = (call.desk()?, query.limit()?);
    let filter = DeadFilter { sink: query.sink.clone(), route: query.route.clone(), ..query.filter(&call)? };
    desk.look(|admin| async move { admin.dead_causes(&filter, limit).await }).await
}

/// One event's letters.
#[derive(Serialize, JsonSchema)]
pub(crate) struct EventLetters {
    /// One for each sink.
    dead: Vec<ShownLetter<DeadLetter>>,
}

pub(crate) async fn dead_show(call: ApiCall, _: NoQuery) -> Result<EventLetters, ApiProblem> {
    let desk = call.desk()?;
    let id: Uuid = call.part("event").parse().map_err(|_| {
        ApiProblem::bad("api.bad_path", "an event's id is a UUID", "Take it from the list of dead letters.")
    })?;
    let letters = desk.look(|admin| async move { admin.dead_show(id).await }).await?;
    if letters.is_empty() {
        let why = format!("no dead letter of event {id} is here");
        let advice = "It was replayed or discarded, or never died: look at the event.";
        return Err(ApiProblem::new(StatusCode::NOT_FOUND, "admin.unknown_event", why, advice));
    }
    call.note_payload(desk.name(), &id.to_string());
    Ok(EventLetters { dead: letters.into_iter().map(shown_letter).collect() })
}

fn shown_letter(mut letter: DeadLetter) -> ShownLetter<DeadLetter> {
    let payload = letter.payload.take();
    ShownLetter::new(letter, payload)
}

/// A letter with its payload.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownLetter<L> {
    #[serde(flatten)]
    letter: L,
    /// The payload, where it is text; `null` for a tombstone.
    payload: Option<String>,
    /// The payload in base 16, where it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base16: Option<String>,
}

impl<L> ShownLetter<L> {
    pub(crate) fn new(letter: L, payload: Option<Vec<u8>>) -> Self {
        let (payload, payload_base16) = match payload.map(String::from_utf8) {
            None => (None, None),
            Some(Ok(text)) => (Some(text), None),
            Some(Err(error)) => (None, Some(base16(error.as_bytes()))),
        };
        Self { letter, payload, payload_base16 }
    }
}
