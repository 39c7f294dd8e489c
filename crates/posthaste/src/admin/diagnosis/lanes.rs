//! Whether somebody reads: what `doctor` says of relays and lanes, on every store.

use super::{OutboxStatus, SinkStatus, at_least};

/// Lanes and sinks that are named at once.
const SHOWN: usize = 8;

/// Whether every lane has an owner, or nothing waits for one; and a sentence about it.
#[must_use]
pub fn lanes_owned(status: &OutboxStatus) -> (bool, String) {
    let relays = status.relays.len();
    if relays == 0 {
        return no_relay(status);
    }
    let free = |sink: &SinkStatus| {
        let lanes = sink.lanes.iter().filter(|lane| lane.owner.is_none());
        lanes.map(|lane| format!("{}/{}", sink.sink, lane.lane)).collect::<Vec<_>>()
    };
    let free: Vec<String> = status.sinks.iter().filter(|sink| !sink.retired).flat_map(free).collect();
    match (relays, free.len()) {
        (1, 0) => (true, "every lane has an owner, one relay is alive".to_owned()),
        (_, 0) => (true, format!("every lane has an owner, {relays} relays are alive")),
        _ => (
            false,
            format!(
                "relays are alive ({relays}) and nobody owns {}: their events wait. A lane that just lost its owner is \
                 taken within seconds; otherwise look into the relays' logs for why they do not take it",
                list(&free)
            ),
        ),
    }
}

/// Without events that is a quiet outbox; with events it is the first thing to know.
fn no_relay(status: &OutboxStatus) -> (bool, String) {
    if let Some(unread) = &status.unread {
        let text = format!(
            "no relay has run on this outbox yet, and events wait in the log: {}. Nothing is delivered, nothing is lost. \
             Start `posthaste run`",
            at_least(unread.count)
        );
        return (false, text);
    }
    let waits = |sink: &SinkStatus| {
        let count = sink.backlog.count + sink.deferred.count;
        let least = if sink.backlog.exact && sink.deferred.exact { "" } else { "about " };
        (count > 0 && !sink.retired).then(|| format!("{least}{count} for sink {}", sink.sink))
    };
    let waiting: Vec<String> = status.sinks.iter().filter_map(waits).collect();
    if waiting.is_empty() {
        return (true, "no relay is running, and nothing waits for one".to_owned());
    }
    let text = format!(
        "no relay is running, and events wait: {}. Nothing is delivered, nothing is lost. Start `posthaste run`",
        list(&waiting)
    );
    (false, text)
}

fn list(items: &[String]) -> String {
    match items.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", items[..SHOWN].join(", ")),
        _ => items.join(", "),
    }
}
