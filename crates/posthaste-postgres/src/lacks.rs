//! What an adopted table has no place for. Its owners made it for their own ends, and it is left as it is:
//! what cannot be done there is refused with these sentences, and the API tells them before anybody asks.

use posthaste::admin::{DeadFilter, Lack};

/// What such a table has no place for, by what is asked of it.
pub(crate) const LACKS: [Lack; 13] = [
    lack("cause", NO_CAUSE),
    lack("filter", NO_FILTER),
    lack("deferred", "what waits are rows of its own; look at them, and set their time, in SQL"),
    lack("events", "there is no log to look into; ask it in SQL"),
    lack("tail", "there is no log to follow"),
    lack("replay", "only dead rows are replayed; set others back in SQL"),
    lack("audit", "its audit is the table posthaste_audit; ask it in SQL"),
    lack(
        "control",
        "it has no place for a pause or a rate; stop the relay, or set rate_limit_per_s of the sink",
    ),
    lack(
        "tuning",
        "it has no place for a tuning; set `adopt.batch`, `adopt.poll_min_ms` and `adopt.poll_max_ms` in the file and send \
         SIGHUP to each process that relays it",
    ),
    lack("lanes", "it has no lanes: relays share its rows"),
    lack("rewind", "it has no cursor to move"),
    lack("repair", "it has no cursor to repair"),
    lack("jobs", "it has no place for jobs; act on its dead rows at the command line"),
];

/// What it would need for a filter.
pub(crate) fn missing_for(filter: &DeadFilter) -> Option<&'static str> {
    if filter.fingerprint.is_some() {
        return Some("cause");
    }
    let DeadFilter { route, class, error, header, header_value, holds_key, replayed, .. } = filter;
    let texts = [route, class, error, header, header_value];
    let is_more = texts.iter().any(|part| part.is_some()) || holds_key.or(*replayed).is_some();
    is_more.then_some("filter")
}

const fn lack(of: &'static str, why: &'static str) -> Lack {
    Lack { of, why }
}

/// What is said of the other conditions: its columns are not ours, and most tables have none for these.
const NO_FILTER: &str = "its dead rows are chosen by `code`, `topic`, `key`, `since`, `until` or the rows' ids; for a text of \
                         the error, a header or anything else, look for the ids in SQL. Nothing was done";

/// What is said of a cause's number as a filter: no column has it, and SQL cannot make it.
const NO_CAUSE: &str = "the causes of its dead rows are made out at reading, and nothing can be chosen by their numbers; \
                        choose by `code`, `topic`, `since`, `until` or the rows' ids instead. Nothing was done";
