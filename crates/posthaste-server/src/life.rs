//! One event's life as programs see it: `events show --json` and the API say the same.
//!
//! The store knows how far each sink is. Beside it stand the way that the event takes, by the routes of this
//! configuration, and the attempts of one that waits.

use crate::config::Outbox;
use posthaste::admin::{
    Admin, AdminError, DeadLetter, DeferredFilter, EventLife, History, LogEvent, PassedAt, Progress,
    SinkLife, Waiting,
};
use posthaste::event::StoredEvent;
use posthaste::{Event, Headers};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The last attempts of an event that waits, by sink.
pub(crate) type Tried = BTreeMap<String, History>;

/// What was tried for the sinks that it waits for. Those that it is dead for say so themselves.
pub(crate) async fn tried(admin: &dyn Admin, life: &EventLife) -> Result<Tried, AdminError> {
    if life.sinks.iter().all(|sink| sink.waiting.is_none()) {
        return Ok(Tried::new());
    }
    let filter = DeferredFilter { ids: vec![life.event.id], ..DeferredFilter::default() };
    let waiting = admin.deferred_list(&filter, None, 1_000).await?;
    Ok(waiting.into_iter().map(|event| (event.sink, event.history)).collect())
}

/// Where an event goes.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Way {
    /// The route.
    pub(crate) route: String,
    /// The address at the broker.
    pub(crate) destination: String,
}

/// As it is written with an event that waits, else by the routes configured here.
pub(crate) fn way(outbox: &Outbox, sink: &SinkLife, event: &LogEvent) -> Option<Way> {
    let written = sink.waiting.as_ref().filter(|waiting| !waiting.destination.is_empty());
    if let Some(Waiting { route, destination, .. }) = written {
        return Some(Way { route: route.clone(), destination: destination.clone() });
    }
    let route = outbox.routes.find(&sink.sink, &event.topic)?;
    let destination = route.destination.fill(&stored(event)).unwrap_or_else(|why| format!("none: {why}"));
    Some(Way { route: route.name.to_string(), destination })
}

fn stored(event: &LogEvent) -> StoredEvent {
    let headers =
        event.headers.as_ref().and_then(|value| Headers::from_json(value.to_string().as_bytes()).ok());
    let mut made = Event::tombstone(event.topic.as_str()).with_id(event.id);
    made.key.clone_from(&event.key);
    made.headers = headers.unwrap_or_default();
    StoredEvent { seq: event.seq, slot: 0, appended_at: event.appended_at, event: made, defect: None }
}

/// An event that waits.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Waiting")]
pub(crate) struct ShownWaiting {
    #[serde(flatten)]
    waiting: Waiting,
    /// The last attempts, the oldest first.
    history: History,
}

/// An event's life with one sink.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SinkLife")]
pub(crate) struct ShownSinkLife {
    /// The sink.
    sink: String,
    /// Whether it left the configuration.
    retired: bool,
    /// How far it is.
    progress: Progress,
    /// Highest number its lane has handled.
    position: i64,
    /// The receipt that passed it, while it is kept.
    passed: Option<PassedAt>,
    /// How it waits.
    waiting: Option<ShownWaiting>,
    /// How it died.
    dead: Option<DeadLetter>,
    /// The number of the earlier event of its key that it waits for.
    behind: Option<i64>,
    /// Later events of its key that wait for it, up to a bound.
    holds_back: u64,
    /// Where it goes; `null` where no route of the sink takes its topic.
    way: Option<Way>,
}

/// Its life with each sink. `event` is what the way is said for: what of it may not be seen is not in it.
pub(crate) fn shown_sinks(
    outbox: &Outbox,
    sinks: &[SinkLife],
    event: &LogEvent,
    tried: &Tried,
) -> Vec<ShownSinkLife> {
    let shown = |sink: &SinkLife| {
        let waiting = sink.waiting.clone();
        let history = tried.get(&sink.sink).cloned().unwrap_or_default();
        ShownSinkLife {
            sink: sink.sink.clone(),
            retired: sink.retired,
            progress: sink.progress,
            position: sink.position,
            passed: sink.passed.clone(),
            waiting: waiting.map(|waiting| ShownWaiting { waiting, history }),
            dead: sink.dead.clone(),
            behind: sink.behind,
            holds_back: sink.holds_back,
            way: way(outbox, sink, event),
        }
    };
    sinks.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::Timestamp;
    use serde_json::json;

    #[test]
    fn an_event_that_waits_is_shown_with_its_attempts_and_its_way() {
        let config =
            crate::config::Config::parse(std::path::Path::new("t"), "outbox.url = \"postgres://h/d\"");
        let config = config.map_err(|error| error.to_string()).expect("an outbox");
        let waiting = Waiting {
            reason: "retry".to_owned(),
            attempts: 1,
            earlier_attempts: 0,
            replays: 0,
            due_at: None,
            route: "all".to_owned(),
            destination: "mail.sent".to_owned(),
            error_class: None,
            last_error: None,
            last_error_at: None,
        };
        let sink = SinkLife {
            sink: "out".to_owned(),
            retired: false,
            progress: Progress::Deferred,
            position: 9,
            passed: None,
            waiting: Some(waiting),
            dead: None,
            behind: None,
            holds_back: 0,
        };
        let event = LogEvent {
            seq: 7,
            id: uuid::Uuid::nil(),
            topic: "orders.placed".to_owned(),
            key: None,
            headers: None,
            content_type: None,
            payload_bytes: None,
            payload: None,
            deliver_at: None,
            appended_at: Timestamp(0),
        };
        let mut history = History::default();
        history.push(Timestamp(0), "transient", "smtp.full", "the mailbox is full");
        let tried = Tried::from([("out".to_owned(), history)]);
        let shown = serde_json::to_value(shown_sinks(&config.outboxes[0], &[sink], &event, &tried));
        let shown = shown.expect("JSON");
        assert_eq!(shown[0]["way"], json!({ "route": "all", "destination": "mail.sent" }));
        assert_eq!(shown[0]["waiting"]["history"][0]["code"], "smtp.full", "{shown}");
        assert_eq!(shown[0]["waiting"]["reason"], "retry");
    }
}
