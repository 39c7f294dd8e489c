//! The last attempts of an event or message: one shape for the relay and the consumer.
//!
//! It is a column of deferred rows and dead letters, in JSON, and people read it there. So it is bounded
//! whatever is written into it, and nothing in it can be refused by a database: PostgreSQL's `jsonb` takes
//! no zero byte, and a message whose failure cannot be written down would be stuck (F71).

use crate::event::Timestamp;
use serde::{Deserialize, Serialize};

/// Attempts that are kept: the newest.
pub const ATTEMPTS_MAX: usize = 10;
/// Bytes that are kept of each text of an attempt.
pub const TEXT_BYTES_MAX: usize = 500;

/// An attempt that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attempt {
    /// When it failed.
    pub at: Timestamp,
    /// Class of the error.
    pub class: String,
    /// Code of the error.
    pub code: String,
    /// The error.
    pub error: String,
}

/// The last attempts, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Attempt>")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct History(Vec<Attempt>);

impl History {
    /// Notes one more attempt that failed.
    pub fn push(&mut self, at: Timestamp, class: &str, code: &str, error: &str) {
        let (class, code, error) = (class.to_owned(), code.to_owned(), error.to_owned());
        self.add(Attempt { at, class, code, error });
    }

    /// Adds the newest attempt. The oldest one goes when there are too many.
    pub fn add(&mut self, mut attempt: Attempt) {
        for text in [&mut attempt.class, &mut attempt.code, &mut attempt.error] {
            cut(text);
        }
        if self.0.len() == ATTEMPTS_MAX {
            self.0.remove(0);
        }
        self.0.push(attempt);
    }

    /// Adds an attempt of [`attempt_json`].
    pub fn add_json(&mut self, at: Timestamp, attempt: &str) {
        let read: serde_json::Value = serde_json::from_str(attempt).unwrap_or_default();
        let text = |name: &str| read[name].as_str().unwrap_or_default();
        self.push(at, text("class"), text("code"), text("error"));
    }

    /// The attempts, oldest first.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.0
    }

    /// The same, one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Attempt> {
        self.0.iter()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As it is stored: `[{"at": "2026-11-16T19:09:11.000000Z", "class": …, "code": …, "error": …}, …]`.
    /// `None` if there are no attempts.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        // Texts in a list cannot fail to be JSON.
        if self.0.is_empty() { None } else { serde_json::to_string(self).ok() }
    }

    /// From what is stored. Members that another version added are left out; what is no history is none: a
    /// person's edit must not stop anybody.
    #[must_use]
    pub fn from_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// One attempt without its time, as JSON, for a store whose own clock writes that.
#[must_use]
pub fn attempt_json(class: &str, code: &str, error: &str) -> String {
    let [class, code, error] = [class, code, error].map(|text| {
        let mut text = text.to_owned();
        cut(&mut text);
        text
    });
    serde_json::json!({ "class": class, "code": code, "error": error }).to_string()
}

impl From<Vec<Attempt>> for History {
    fn from(attempts: Vec<Attempt>) -> Self {
        let mut history = Self::default();
        attempts.into_iter().for_each(|attempt| history.add(attempt));
        history
    }
}

fn cut(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_stored_like_this() {
        let attempt = Attempt {
            at: Timestamp(1_709_210_096_000_001),
            class: "transient".to_owned(),
            code: "08006".to_owned(),
            error: "the \"line\"\nbroke\0".to_owned(),
        };
        let history = History::from(vec![attempt]);
        let json = r#"[{"at":"2024-02-29T12:34:56.000001Z","class":"transient","code":"08006","error":"the \"line\"\nbroke�"}]"#;
        assert_eq!(history.to_json().as_deref(), Some(json));
        assert_eq!(History::from_json(json), history);
        let newer = json.replace("\"class\"", "\"host\":\"b\",\"class\"");
        assert_eq!(History::from_json(&newer), history, "with a member more");
        assert_eq!(History::default().to_json(), None);
        for wrong in ["", "null", "{}", "[1]", r#"[{"at":"yesterday","class":"","code":"","error":""}]"#] {
            assert!(History::from_json(wrong).is_empty(), "{wrong}");
        }
    }

    fn attempt() -> impl Strategy<Value = Attempt> {
        // The years 0 to 9999, which RFC 3339 can write.
        let at = -62_167_219_200_000_000_i64..253_402_300_800_000_000;
        // Around the bound, and with characters of every length.
        let error =
            (any::<String>(), 0_usize..30).prop_map(|(text, times)| format!("{text}\0").repeat(times));
        (at, any::<String>(), "[a-z.]{0,20}", error).prop_map(|(at, class, code, error)| Attempt {
            at: Timestamp(at),
            class,
            code,
            error,
        })
    }

    proptest! {
        #[test]
        fn the_newest_ten_are_kept_and_read_back(attempts in prop::collection::vec(attempt(), 0..25)) {
            let history = History::from(attempts.clone());
            let newest = &attempts[attempts.len().saturating_sub(ATTEMPTS_MAX)..];
            prop_assert_eq!(history.attempts().len(), newest.len());
            for (kept, given) in history.attempts().iter().zip(newest) {
                prop_assert_eq!(kept.at, given.at);
                prop_assert!(!kept.error.contains('\0') && !kept.class.contains('\0'), "jsonb refuses it");
                let given = given.error.replace('\0', "\u{fffd}");
                prop_assert!(given.starts_with(&kept.error) && kept.error.len() <= TEXT_BYTES_MAX);
                // No more was taken than the last character that did not fit.
                prop_assert!(kept.error == given || kept.error.len() > TEXT_BYTES_MAX - 4);
            }
            let json = history.to_json().unwrap_or_default();
            prop_assert_eq!(History::from_json(&json), history);
        }

    }
}
