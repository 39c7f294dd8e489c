//! How far a sink is with an event, in words: for `events show` and `trace`.

use super::deferred::due;
use crate::output::{exact_time, plural};
use posthaste::admin::{EventLife, LogEvent, Progress, SinkLife, Waiting};
use posthaste::route::UNROUTED;

/// When the cursor passed it, and what that means: delivered by then, or put aside.
pub(super) fn settled(sink: &SinkLife, event: &LogEvent) -> Option<(&'static str, String)> {
    let passed = sink.passed.as_ref()?;
    let waited = event.deliver_at.is_some_and(|at| at.0 > passed.settled_at.0);
    let word = match sink.progress {
        Progress::Passed if sink.sink != UNROUTED && !waited => "settled",
        Progress::Ahead | Progress::NotRouted | Progress::BeforeStart => return None,
        _ => "put aside",
    };
    let (at, lane, receipt, epoch) =
        (exact_time(passed.settled_at), passed.lane, passed.receipt, passed.epoch);
    Some((word, format!("{at}, lane {lane}, receipt {receipt}, epoch {epoch}")))
}

pub(super) fn headline(sink: &SinkLife, life: &EventLife) -> String {
    match (sink.progress, &sink.waiting) {
        (Progress::Passed, _) if sink.sink == UNROUTED => left_unrouted(life),
        (Progress::Ahead, _) => "not read yet".to_owned(),
        (Progress::Passed, _) => "delivered".to_owned(),
        (Progress::Dead, _) => "dead; see `posthaste dead replay --help`".to_owned(),
        (Progress::NotRouted, _) if sink.sink == UNROUTED => "a route takes its topic".to_owned(),
        (Progress::NotRouted, _) => "no route of this sink takes its topic".to_owned(),
        (Progress::BeforeStart, _) => "not read: the sink began behind it".to_owned(),
        (Progress::Deferred, Some(Waiting { due_at: Some(at), reason, .. })) => {
            format!("waits ({reason}), {}", due(reason, Some(*at)))
        }
        (Progress::Deferred, _) => "waits behind an earlier event of its key".to_owned(),
    }
}

/// Nothing is delivered by the sink of events without a route: this one was a dead letter there, and left it.
fn left_unrouted(life: &EventLife) -> String {
    let takes = |sink: &&SinkLife| {
        sink.sink != UNROUTED && !matches!(sink.progress, Progress::NotRouted | Progress::BeforeStart)
    };
    let others: Vec<&str> = life.sinks.iter().filter(takes).map(|sink| sink.sink.as_str()).collect();
    match life.acts.last().map(|act| act.action.as_str()) {
        Some("discard") => "no route took its topic; discarded".to_owned(),
        Some("replay") if !others.is_empty() => {
            format!("no route took its topic; replayed to {}", others.join(", "))
        }
        Some("replay") => "no route took its topic; replayed".to_owned(),
        _ => "no route took its topic; its dead letter is gone".to_owned(),
    }
}

pub(super) fn why_it_waits(waiting: &Waiting) -> Vec<(&'static str, String)> {
    let before = match waiting.replays {
        0 => String::new(),
        replays => {
            format!(
                ", {} before; replayed {}",
                waiting.earlier_attempts,
                plural(replays.unsigned_abs().into(), "time")
            )
        }
    };
    let mut lines = vec![("attempts", format!("{}{before}", waiting.attempts))];
    if let Some(error) = &waiting.last_error {
        let class = waiting.error_class.as_deref().unwrap_or("unknown");
        let at = waiting.last_error_at.map_or_else(String::new, |at| format!(" at {}", exact_time(at)));
        lines.push(("error", format!("({class}{at}) {error}")));
    }
    lines
}
