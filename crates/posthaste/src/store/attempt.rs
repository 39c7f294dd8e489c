//! A failed attempt as a store keeps it: for the history of a deferred event or a dead letter, and its cause.

use super::{Death, Deferral, ErrorClass, Reason};
use crate::admin::fingerprint;
use crate::admin::history::attempt_json;

impl Deferral {
    /// The attempt it waits after, as [`attempt_json`]; none if it waits for another reason.
    #[must_use]
    pub fn as_attempt(&self) -> Option<String> {
        let error = self.error.as_deref()?;
        let code = self.code.as_deref().unwrap_or_default();
        let text = error.strip_prefix(code).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(error);
        Some(attempt_json(self.class.map_or("", ErrorClass::as_str), code, text))
    }

    /// Whether this is one attempt more: that an outage goes on is no news.
    #[must_use]
    pub fn is_news_after(&self, last_code: Option<&str>) -> bool {
        self.error.is_some() && !(self.reason == Reason::Outage && last_code == self.code.as_deref())
    }
}

impl Death {
    /// The last attempt, as [`attempt_json`].
    #[must_use]
    pub fn as_attempt(&self) -> String {
        attempt_json(self.class.as_str(), &self.code, &self.error)
    }

    /// The number of its cause, at this sink.
    #[must_use]
    pub fn fingerprint(&self, sink: &str) -> i64 {
        fingerprint(sink, self.class.as_str(), &self.code, &self.error)
    }
}
