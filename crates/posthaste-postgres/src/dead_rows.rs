//! Dead rows of a table that somebody else made: their place in a list, and their cause. Pure.
//!
//! A place is when the row died, and its key. The key is there because times are not unique, and the time
//! because keys may have no order. Both are the table's own. So the text can be copied from a terminal: of
//! the key, what is no letter, digit, `_` or `-` is written as its bytes, `~` and two hex digits each.
//!
//! No column has a cause. It is made of what the row says about its error, whenever somebody looks.

use posthaste::admin::{DeadCause, DeadCauses, DeadLetter, fingerprint};
use std::collections::HashMap;

/// Characters of an error that its cause is made of: enough for any sentence, and a bound for a page of them.
pub(crate) const ERROR_READ: usize = 8_000;
/// Topics of a cause that are named.
const TOPICS_NAMED: usize = 5;

/// Code and text of an error, as they were written into one column.
pub(crate) fn in_two(error: &str) -> (&str, &str) {
    error.split_once(": ").unwrap_or(("", error))
}

/// The number of an error's cause.
pub(crate) fn cause(sink: &str, class: &str, error: &str) -> i64 {
    let read = error.char_indices().nth(ERROR_READ).map_or(error, |(end, _)| &error[..end]);
    let (code, text) = in_two(read);
    fingerprint(sink, class, code, text)
}

/// When it died, in microseconds as the server counts them (`infinity` where nothing tells), and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowPlace {
    pub(crate) at: i64,
    pub(crate) id: String,
}

impl RowPlace {
    pub(crate) fn write(&self) -> String {
        let mut text = format!("{:016x}.", self.at.cast_unsigned());
        for byte in self.id.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => text.push(byte.into()),
                _ => text.push_str(&format!("~{byte:02x}")),
            }
        }
        text
    }

    /// `None`: the text is nothing that was written here.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (at, key) = text.split_once('.')?;
        let at = u64::from_str_radix(at, 16).ok()?.cast_signed();
        let (mut id, mut rest) = (Vec::new(), key.as_bytes());
        while let Some((byte, behind)) = rest.split_first() {
            rest = behind;
            if *byte == b'~' {
                let (digits, behind) = rest.split_at_checked(2)?;
                id.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = behind;
            } else {
                id.push(*byte);
            }
        }
        let place = Self { at, id: String::from_utf8(id).ok()? };
        (place.write() == text).then_some(place)
    }
}

/// Puts letters together by their cause, as they are read: newest first. It holds one letter of each cause.
#[derive(Debug, Default)]
pub(crate) struct CausesAtReading {
    looked: u64,
    causes: Vec<DeadCause>,
    places: HashMap<Option<i64>, usize>,
}

impl CausesAtReading {
    /// One more letter, of one sink.
    pub(crate) fn add(&mut self, letter: DeadLetter) {
        self.looked += 1;
        let place = *self.places.entry(letter.fingerprint).or_insert(self.causes.len());
        match self.causes.get_mut(place) {
            None => self.causes.push(begun_by(letter)),
            Some(cause) => {
                cause.count += 1;
                cause.holding += i64::from(letter.holds_key);
                cause.first_at = cause.first_at.min(letter.dead_at);
                cause.last_at = cause.last_at.max(letter.dead_at);
                if cause.topics.len() < TOPICS_NAMED && !cause.topics.contains(&letter.topic) {
                    cause.topics.push(letter.topic);
                }
            }
        }
    }

    /// So many causes, the most frequent first; of those that are equal, the newest.
    pub(crate) fn most_frequent(self, limit: usize) -> DeadCauses {
        let Self { looked, mut causes, .. } = self;
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.count));
        causes.truncate(limit);
        causes.iter_mut().for_each(|cause| cause.topics.sort());
        DeadCauses { causes, looked: Some(looked) }
    }
}

/// A cause as the newest of its letters tells it.
fn begun_by(letter: DeadLetter) -> DeadCause {
    DeadCause {
        fingerprint: letter.fingerprint,
        sink: letter.sink,
        count: 1,
        error_class: letter.error_class,
        error_code: letter.error_code,
        error: letter.error,
        first_at: letter.dead_at,
        last_at: letter.dead_at,
        holding: i64::from(letter.holds_key),
        topics: vec![letter.topic],
        id: letter.id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::Timestamp;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn letter(n: i64, fingerprint: i64, topic: &str) -> DeadLetter {
        DeadLetter {
            cursor: n.to_string(),
            sink: "s".to_owned(),
            seq: 0,
            id: Uuid::from_u128(n.unsigned_abs().into()),
            topic: topic.to_owned(),
            key: None,
            headers: None,
            content_type: None,
            payload_bytes: None,
            payload: None,
            appended_at: Timestamp(0),
            dead_at: Timestamp(n),
            attempts: 1,
            replays: 0,
            error_class: String::new(),
            error_code: "x.no".to_owned(),
            error: format!("error {n}"),
            holds_key: n == 9,
            fingerprint: Some(fingerprint),
            history: posthaste::admin::History::default(),
        }
    }

    #[test]
    fn causes_are_told_by_their_newest_letter_and_the_most_frequent_comes_first() {
        let mut found = CausesAtReading::default();
        for (n, fingerprint, topic) in
            [(9, 1, "b"), (8, 2, "a"), (7, 2, "a"), (6, 3, "a"), (5, 1, "a"), (4, 2, "c")]
        {
            found.add(letter(n, fingerprint, topic));
        }
        let found = found.most_frequent(2);
        assert_eq!((found.looked, found.causes.len()), (Some(6), 2));
        let told: Vec<_> = found
            .causes
            .iter()
            .map(|cause| {
                (cause.count, cause.last_at.0, cause.first_at.0, cause.error.as_str(), cause.topics.join(" "))
            })
            .collect();
        assert_eq!(told, [(3, 8, 4, "error 8", "a c".to_owned()), (2, 9, 5, "error 9", "a b".to_owned())]);
        assert_eq!((found.causes[1].holding, found.causes[1].id), (1, Uuid::from_u128(9)));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(at in any::<i64>(), id in any::<String>()) {
            let place = RowPlace { at, id };
            let text = place.write();
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-~.".contains(&byte)), "{}", text);
            prop_assert_eq!(RowPlace::read(&text), Some(place));
        }

        #[test]
        fn any_text_is_a_place_or_refused(text in "[0-9a-f]{0,17}[.~x]{0,2}.{0,9}") {
            if let Some(place) = RowPlace::read(&text) {
                prop_assert_eq!(place.write(), text);
            }
        }
    }
}
