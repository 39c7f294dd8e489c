//! Dead letters as text: those of sinks and those of consumers, within 80 columns.

use crate::output::{escape, fields, paragraph, payload_field, plural, thousands, time};
use posthaste::admin::{DeadCause, DeadLetter, History, LOOKED_MAX, fingerprint_text};
use posthaste::consumer::admin::{ConsumerLetter, LetterCause};
use serde_json::Value;

/// Characters of an error that a list shows. `show` has all of it.
const ERROR_SHOWN: usize = 300;

/// Code, class and text of an error, as far as they are known: an adopted table has no place for some.
pub(in crate::cli) fn error(code: &str, class: &str, text: &str) -> String {
    match (code, class) {
        ("", "") => text.to_owned(),
        ("", class) => format!("({class}) {text}"),
        (code, "") => format!("{code}: {text}"),
        (code, class) => format!("{code} ({class}): {text}"),
    }
}

/// The beginning of an error.
pub(in crate::cli) fn short(text: &str) -> String {
    match text.char_indices().nth(ERROR_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Each attempt that is remembered.
pub(in crate::cli) fn attempts(history: &History) -> impl Iterator<Item = (&'static str, String)> {
    history.iter().map(|attempt| {
        let what = error(&attempt.code, &attempt.class, &attempt.error);
        ("tried", format!("{}  {what}", crate::output::exact_time(attempt.at)))
    })
}

fn key(key: Option<&String>) -> String {
    key.map_or_else(String::new, |key| format!("  key {}", escape::line(key)))
}

/// What a letter or a cause is, when it was, and why.
fn three_lines(head: &str, when: &str, code: &str, why: &str) -> String {
    let why = error(code, "", &short(why));
    [paragraph(head.trim_end(), ""), paragraph(when, "  "), paragraph(&why, "  ")].join("\n")
}

/// Three lines a letter: what it is, when it died, and why.
pub(in crate::cli) fn letter(letter: &DeadLetter) -> String {
    let holds = if letter.holds_key { "; later events of its key wait for it" } else { "" };
    let head = format!("{}  {}  {}{}", letter.id, letter.sink, letter.topic, key(letter.key.as_ref()));
    let tries = plural(letter.attempts.unsigned_abs().into(), "attempt");
    let when = format!("{} after {tries}{holds}", time(letter.dead_at));
    three_lines(&head, &when, &letter.error_code, &letter.error)
}

/// The same of a consumer's letter.
pub(super) fn of_consumer(letter: &ConsumerLetter) -> String {
    let holds = if letter.holds_key { "; later messages of its key wait for it" } else { "" };
    let head = format!("{}  {}  {}{}", letter.letter, letter.id, letter.topic, key(letter.key.as_ref()));
    let tries = plural(letter.attempts.unsigned_abs().into(), "attempt");
    let when = format!("{} {} after {tries}{holds}", time(letter.dead_at), letter.disposition);
    three_lines(&head, &when, &letter.error_code, &letter.error)
}

fn none() -> String {
    "none".to_owned()
}

/// How it failed: attempts, the last error, its cause, and each attempt that is remembered.
fn failure(
    (attempts_made, replays): (i32, i32),
    last: String,
    fingerprint: Option<i64>,
    history: &History,
) -> Vec<(&'static str, String)> {
    let replayed = plural(replays.unsigned_abs().into(), "time");
    let mut lines = vec![("attempts", format!("{attempts_made}, replayed {replayed}")), ("error", last)];
    lines.extend(fingerprint.map(|number| ("cause", fingerprint_text(number))));
    lines.extend(attempts(history));
    lines
}

fn holds_key(holds: bool, what: &str) -> (&'static str, String) {
    ("holds key", if holds { format!("yes: later {what} of its key wait") } else { "no".to_owned() })
}

fn with_payload(lines: &[(&str, String)], payload: Option<&[u8]>, bytes: Option<i64>) -> String {
    format!("{}\n{}", fields(lines, ""), payload_field(payload, bytes))
}

/// All of a letter.
pub(in crate::cli) fn whole(letter: &DeadLetter) -> String {
    let mut lines = vec![
        ("event", letter.id.to_string()),
        ("sink", letter.sink.clone()),
        ("topic", letter.topic.clone()),
        ("key", letter.key.clone().unwrap_or_else(none)),
    ];
    // A row of an adopted table has no number.
    if letter.seq > 0 {
        lines.push(("seq", letter.seq.to_string()));
    }
    lines.extend([("appended", time(letter.appended_at)), ("died", time(letter.dead_at))]);
    let last = error(&letter.error_code, &letter.error_class, &letter.error);
    lines.extend(failure((letter.attempts, letter.replays), last, letter.fingerprint, &letter.history));
    lines.extend([
        holds_key(letter.holds_key, "events"),
        ("content type", letter.content_type.clone().unwrap_or_else(none)),
        ("headers", letter.headers.as_ref().map_or_else(none, Value::to_string)),
    ]);
    with_payload(&lines, letter.payload.as_deref(), letter.payload_bytes)
}

/// All of a consumer's letter.
pub(super) fn whole_of_consumer(letter: &ConsumerLetter) -> String {
    let position = letter.position.map_or_else(String::new, |position| format!("@{position}"));
    let mut lines = vec![
        ("letter", letter.letter.to_string()),
        ("message", letter.id.clone()),
        ("consumer", letter.consumer.clone()),
        ("place", format!("{}/{}{position}", letter.topic, letter.partition)),
        ("key", letter.key.clone().unwrap_or_else(none)),
        ("published", letter.published_at.map_or_else(none, time)),
        ("died", format!("{}, {}", time(letter.dead_at), letter.disposition)),
    ];
    let last = error(&letter.error_code, &letter.error_class, &letter.error);
    let tries = (letter.attempts, letter.replays);
    lines.extend(failure(tries, last, Some(letter.fingerprint), &letter.history));
    lines.extend([holds_key(letter.holds_key, "messages"), ("headers", letter.headers.to_string())]);
    lines.extend(letter.stack.clone().map(|stack| ("stack", stack)));
    with_payload(&lines, letter.payload.as_deref(), letter.payload_bytes)
}

/// Three lines a cause: how many, since when, and what it is.
pub(in crate::cli) fn cause(cause: &DeadCause) -> String {
    let letters = plural(cause.count.unsigned_abs(), "dead letter");
    let number = cause.fingerprint.map_or_else(|| "written by an older relay".to_owned(), fingerprint_text);
    let holding = match cause.holding {
        0 => String::new(),
        holding => format!("; {} hold their key", thousands(holding.unsigned_abs())),
    };
    let topics = cause.topics.join(", ");
    let head = format!("{letters}  {number}  {}  {topics}", cause.sink);
    let when = format!("{} to {}{holding}", time(cause.first_at), time(cause.last_at));
    three_lines(&head, &when, &cause.error_code, &cause.error)
}

/// The same of a consumer's letters.
pub(super) fn cause_of_consumer(cause: &LetterCause) -> String {
    let letters = plural(cause.count.unsigned_abs(), "dead letter");
    let number = fingerprint_text(cause.fingerprint);
    let head = format!("{letters}  {number}  {}", cause.disposition);
    let when = format!("{} to {}", time(cause.first_at), time(cause.last_at));
    three_lines(&head, &when, &cause.error_code, &cause.error)
}

/// What causes were made out of.
pub(in crate::cli) fn looked(rows: u64) -> String {
    let most = thousands(LOOKED_MAX.unsigned_abs());
    format!("of {}, the newest; no more than {most} are looked at", plural(rows, "dead row"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::Timestamp;

    fn adopted() -> DeadLetter {
        DeadLetter {
            cursor: "1".to_owned(),
            sink: "kafka".to_owned(),
            seq: 0,
            id: uuid::Uuid::nil(),
            topic: "orders.placed".to_owned(),
            key: Some("order-7".to_owned()),
            headers: None,
            content_type: None,
            payload_bytes: Some(300),
            payload: Some("x".repeat(300).into_bytes()),
            appended_at: Timestamp(0),
            dead_at: Timestamp(1_700_000_000_000_000),
            attempts: 3,
            replays: 0,
            error_class: String::new(),
            error_code: "kafka.too_large".to_owned(),
            error: "the message is larger than the broker takes; ".repeat(20),
            holds_key: true,
            fingerprint: None,
            history: History::default(),
        }
    }

    #[test]
    fn a_letter_fits_into_80_columns_and_says_only_what_is_known() {
        let mut one = adopted();
        one.history.push(Timestamp(1_700_000_000_123_456), "transient", "kafka.timeout", "no answer");
        for text in [letter(&one), whole(&one)] {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(text.contains("kafka.too_large: the message") && !text.contains("()"), "{text}");
        }
        let text = whole(&one);
        assert!(!text.contains("seq") && !text.contains("cause"), "{text}");
        assert!(
            text.contains("tried         2023-11-14 22:13:20.123Z  kafka.timeout (transient): no answer")
        );
        one.error_code.clear();
        assert!(whole(&one).contains("error         the message"), "no empty code");
    }

    #[test]
    fn a_consumers_letter_and_its_cause_have_the_number_and_the_attempts() {
        let mut one = ConsumerLetter {
            letter: uuid::Uuid::nil(),
            consumer: "billing".to_owned(),
            id: "order-7-placed".repeat(9),
            topic: "orders.placed".to_owned(),
            partition: 3,
            position: Some(120),
            address: None,
            key: None,
            headers: serde_json::json!([["type", "order"]]),
            payload_bytes: Some(2),
            payload: Some(b"{}".to_vec()),
            published_at: None,
            dead_at: Timestamp(1_700_000_000_000_000),
            attempts: 2,
            replays: 0,
            disposition: "exhausted".to_owned(),
            error_class: "transient".to_owned(),
            error_code: "http.503".to_owned(),
            error: "the receiver is overloaded; ".repeat(20),
            stack: Some("billing.on_order line 3".to_owned()),
            history: History::default(),
            fingerprint: 0x4f1d_22c0_9ab3_e671,
            holds_key: true,
            repeat: false,
        };
        one.history.push(Timestamp(1_700_000_000_123_456), "transient", "http.503", "busy");
        let cause = LetterCause {
            fingerprint: one.fingerprint,
            count: 9_812,
            disposition: one.disposition.clone(),
            error_code: one.error_code.clone(),
            error: one.error.clone(),
            first_at: Timestamp(1_699_999_000_000_000),
            last_at: one.dead_at,
            letter: one.letter,
        };
        let texts = [of_consumer(&one), whole_of_consumer(&one), cause_of_consumer(&cause)];
        for text in &texts {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
        let [_, whole, cause] = texts;
        for part in [
            "\ncause         4f1d22c09ab3e671\n",
            "\ntried         2023-11-14 22:13:20.123Z  http.503 (transient): busy\n",
            "\nholds key     yes: later messages of its key wait\n",
            "\nattempts      2, replayed 0 times\n",
        ] {
            assert!(whole.contains(part), "{part}:\n{whole}");
        }
        assert!(cause.starts_with("9,812 dead letters  4f1d22c09ab3e671  exhausted\n"), "{cause}");
        assert!(
            cause.contains("\n  2023-11-14 21:56:40Z to 2023-11-14 22:13:20Z\n  http.503: the"),
            "{cause}"
        );
    }
}
