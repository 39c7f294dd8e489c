//! A sink's filter in its stored form and as SQL.
//!
//! Stored in `lanes.filter`, for the audit and for people: `''` is everything, `+` a list of LIKE
//! patterns, `-` a list of patterns that must not match; one a line.

use posthaste::route::{Filter, Pattern};

pub(crate) fn stored_filter(filter: &Filter) -> String {
    let lines = |sign: char, patterns: &[Pattern]| {
        let list: Vec<String> = patterns.iter().map(Pattern::to_like).collect();
        format!("{sign}{}", list.join("\n"))
    };
    match filter {
        Filter::Everything => String::new(),
        Filter::Any(patterns) => lines('+', patterns),
        Filter::NoneOf(patterns) => lines('-', patterns),
    }
}

/// The condition of a stored filter on `topic`, as SQL text with the patterns as literals: a lane's
/// statements are prepared once. Empty for everything.
pub(crate) fn condition(stored: &str) -> String {
    let Some(sign) = stored.chars().next() else { return String::new() };
    let list: Vec<String> = stored[1..].split('\n').map(literal).collect();
    let any = format!("topic like any (array[{}]::text[])", list.join(", "));
    if sign == '-' && stored.len() == 1 {
        // No pattern at all: nothing matches, so everything passes.
        return String::new();
    }
    if sign == '-' { format!(" and not ({any})") } else { format!(" and {any}") }
}

/// The condition of a filter that replaced another: up to `until` what the former one took is read too,
/// so that a change of routes skips nothing that was waiting (what no route takes any more ends among
/// the dead letters, where it can be seen and replayed).
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
    if from == 0 && i32::from(to) == crate::log::store::SLOTS - 1 {
        return String::new();
    }
    format!(" and slot between {from} and {to}")
}

fn literal(text: &str) -> String {
    // An escape string: backslashes of LIKE patterns must survive whatever the server's settings are.
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_sql_and_quotes_cannot_break_out() {
        assert_eq!(condition(&stored_filter(&Filter::Everything)), "");
        let any = Filter::Any(vec![Pattern::new("a_b.*"), Pattern::new("it's")]);
        assert_eq!(
            condition(&stored_filter(&any)),
            r" and topic like any (array[E'a\\_b.%', E'it''s']::text[])"
        );
        let none = Filter::NoneOf(vec![Pattern::new("x.*")]);
        assert_eq!(condition(&stored_filter(&none)), " and not (topic like any (array[E'x.%']::text[]))");
        assert_eq!(condition(&stored_filter(&Filter::NoneOf(Vec::new()))), "");
        assert_eq!(slots((0, 1023)), "");
        assert_eq!(slots((0, 511)), " and slot between 0 and 511");
    }
}
