//! A sink's filter in its stored form and as SQL.
//!
//! Stored in `posthaste_lanes.filter`, for people too: `''` is everything, `+` a list of GLOB patterns, `-` a
//! list of patterns that must not match; one a line. GLOB, because SQLite's LIKE takes `a` and `A` for the
//! same.

use crate::connect::SLOTS;
use posthaste::route::{Filter, Pattern};

pub(crate) fn stored_filter(filter: &Filter) -> String {
    let lines = |sign: char, patterns: &[Pattern]| {
        let list: Vec<String> = patterns.iter().map(|pattern| glob(pattern.as_str())).collect();
        format!("{sign}{}", list.join("\n"))
    };
    match filter {
        Filter::Everything => String::new(),
        Filter::Any(patterns) => lines('+', patterns),
        Filter::NoneOf(patterns) => lines('-', patterns),
    }
}

/// A pattern for GLOB: `*` means the same there, `?` and `[` do not.
pub(crate) fn glob(pattern: &str) -> String {
    pattern.replace('[', "[[]").replace('?', "[?]")
}

/// The condition of a stored filter on `topic`, as SQL text with the patterns as literals: a lane's
/// statements are prepared once. Empty for everything.
pub(crate) fn condition(stored: &str) -> String {
    let Some(sign) = stored.chars().next() else { return String::new() };
    if sign == '-' && stored.len() == 1 {
        // No pattern at all: nothing matches, so everything passes.
        return String::new();
    }
    let list: Vec<String> =
        stored[1..].split('\n').map(|glob| format!("topic glob '{}'", glob.replace('\'', "''"))).collect();
    let any = list.join(" or ");
    if sign == '-' { format!(" and not ({any})") } else { format!(" and ({any})") }
}

/// The condition of a filter that replaced another: up to `until` what the former one took is read too, so
/// that a change of routes skips nothing that was waiting.
pub(crate) fn condition_since(stored: &str, before: Option<&str>, until: i64) -> String {
    let (now, Some(before)) = (condition(stored), before) else { return condition(stored) };
    let former = condition(before);
    if now.is_empty() {
        return now;
    }
    let bare = |text: &str| {
        if text.is_empty() { "true".to_owned() } else { text.trim_start_matches(" and ").to_owned() }
    };
    format!(" and (({}) or (seq <= {until} and ({})))", bare(&now), bare(&former))
}

/// The condition of a range of slots; empty when it is all of them.
pub(crate) fn slots((from, to): (i16, i16)) -> String {
    if from == 0 && i32::from(to) == SLOTS - 1 {
        return String::new();
    }
    format!(" and posthaste_slot(key, seq) between {from} and {to}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_sql_and_quotes_cannot_break_out() {
        assert_eq!(condition(&stored_filter(&Filter::Everything)), "");
        let any = Filter::Any(vec![Pattern::new("a[b?.*"), Pattern::new("it's")]);
        assert_eq!(condition(&stored_filter(&any)), " and (topic glob 'a[[]b[?].*' or topic glob 'it''s')");
        let none = Filter::NoneOf(vec![Pattern::new("x.*")]);
        assert_eq!(condition(&stored_filter(&none)), " and not (topic glob 'x.*')");
        assert_eq!(condition(&stored_filter(&Filter::NoneOf(Vec::new()))), "");
        assert_eq!(slots((0, 1023)), "");
        assert_eq!(slots((0, 511)), " and posthaste_slot(key, seq) between 0 and 511");
    }

    /// What a pattern matches in the router it must match in SQL, and nothing else.
    #[test]
    fn a_pattern_means_the_same_here_and_in_the_router() {
        let connection = rusqlite::Connection::open_in_memory().expect("a database");
        let topics = ["orders.placed", "Orders.placed", "a[b]", "a?b", "axb", "", "*", "x.y.z", "a]b", "a-z"];
        for pattern in ["*", "orders.*", "a[b]", "a?b", "*.y.*", "", "a]b", "a[^x]b", "**", "a-z"] {
            for topic in topics {
                let ours: bool = connection
                    .query_row("select ?1 glob ?2", [topic, &glob(pattern)], |row| row.get(0))
                    .expect("a query");
                assert_eq!(ours, Pattern::new(pattern).matches(topic), "{pattern} on {topic}");
            }
        }
    }
}
