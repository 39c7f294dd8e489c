//! What becomes of a message, and what the broker's own words say of it.

use std::sync::Arc;

/// The broker's codes that are told apart.
pub(crate) const CONTENT_TOO_LARGE: u16 = 311;
pub(crate) const ACCESS_REFUSED: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const PRECONDITION_FAILED: u16 = 406;
pub(crate) const NOT_ALLOWED: u16 = 530;

/// Why a broker closes a channel or the connection, or gives a message back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Close {
    pub(crate) code: u16,
    pub(crate) text: String,
}

impl Close {
    /// Whether every message for that exchange would be refused in the same way.
    pub(super) fn concerns_exchange(&self) -> bool {
        self.code == NOT_FOUND || (self.code == ACCESS_REFUSED && !self.text.contains("access to topic"))
    }

    /// Whether its words name this exchange.
    pub(crate) fn names(&self, exchange: &str) -> bool {
        self.text.contains(&format!("'{exchange}'"))
    }

    /// The largest body that the broker takes, if that is what it says.
    pub(crate) fn bytes_max(&self) -> Option<usize> {
        // "is larger than configured max size 1000", or without "configured" where the limit is the broker's
        // own.
        let (_, tail) = self.text.split_once("larger than ")?.1.split_once("max size ")?;
        let digits: String = tail.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }
}

/// What became of one message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PublishOutcome {
    /// Confirmed: every queue that it was routed to has it.
    Stored,
    /// No queue takes it.
    Returned(Close),
    /// A queue refused it, or could not store it.
    Nacked,
    /// Its channel was closed, because of itself (`culprit`) or of another message on it.
    Closed { close: Close, culprit: bool },
    /// The connection ended. `left` is whether all of the message may have been written.
    Lost { left: bool, why: Arc<str> },
}

/// What a call hears.
#[derive(Debug)]
pub(crate) enum Note {
    /// What became of its message of this index.
    Outcome(usize, PublishOutcome),
    /// The connection is gone: there will be no more answers.
    Ended(Arc<str>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_stands_in_the_words() {
        let close = |text: &str| Close { code: PRECONDITION_FAILED, text: text.to_owned() };
        let words = "PRECONDITION_FAILED - message size 2000 is larger than configured max size 1000";
        assert_eq!(close(words).bytes_max(), Some(1_000));
        assert_eq!(close(&words.replace("configured ", "")).bytes_max(), Some(1_000));
        assert_eq!(close("PRECONDITION_FAILED - other").bytes_max(), None);
    }
}
