//! Which headers a message keeps when people let it be handled again. Pure.
//!
//! A header may be what a message died of: a trace context that another tool cannot read, a token that has
//! expired. Some are not for leaving out: what the message is known by, its type, by which a handler is
//! chosen, the media type of its payload, and what belongs to its saga. Without the type no handler might
//! take it, and it would be passed over in silence; without its saga's headers nobody would hear of its
//! answer. Those are kept whatever a list says, and a list that names one of them to be dropped is refused:
//! whoever wrote it expects something that must not happen.

use super::filter::is_match;
use super::headers;
use super::message::SAGA_PREFIX;
use super::store::Work;
use crate::event::{MESSAGE_ID_HEADER, TYPE_HEADER};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;

const CONTENT_TYPE_HEADER: &str = "content-type";

/// Headers that are kept: all, unless a list says otherwise. Names are compared without regard to case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptHeaders {
    list: HeaderList,
    /// What the consumer knows messages by, beside what is never dropped.
    identity: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
enum HeaderList {
    #[default]
    All,
    Only(Vec<String>),
    But(Vec<String>),
}

impl KeptHeaders {
    /// Only these, exact or with a last `*`, and those that are never dropped. `identity` names the headers
    /// that the consumer knows messages by.
    pub fn only(patterns: &[String], identity: &[String]) -> Result<Self, String> {
        Ok(Self { list: HeaderList::Only(checked(patterns)?), identity: lower(identity) })
    }

    /// All but these, exact or with a last `*`. One that is never dropped is refused if it is named; a
    /// pattern of many passes it over.
    pub fn but(patterns: &[String], identity: &[String]) -> Result<Self, String> {
        let kept = Self { list: HeaderList::But(checked(patterns)?), identity: lower(identity) };
        let HeaderList::But(patterns) = &kept.list else { return Ok(kept) };
        let refused = patterns.iter().find_map(|pattern| {
            let is_exact = !pattern.ends_with('*') || pattern.starts_with(SAGA_PREFIX);
            Some((pattern, kept.why_always(pattern.trim_end_matches('*')).filter(|_| is_exact)?))
        });
        match refused {
            Some((pattern, why)) => Err(format!("the header `{pattern}` cannot be dropped: {why}")),
            None => Ok(kept),
        }
    }

    /// Whether every header is kept.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.list == HeaderList::All
    }

    /// Whether this one is.
    #[must_use]
    pub fn keeps(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let is_in = |patterns: &[String]| patterns.iter().any(|pattern| is_match(pattern, &name));
        match &self.list {
            HeaderList::All => true,
            HeaderList::Only(patterns) => is_in(patterns) || self.why_always(&name).is_some(),
            HeaderList::But(patterns) => !is_in(patterns) || self.why_always(&name).is_some(),
        }
    }

    /// Messages with what they keep.
    #[must_use]
    pub fn works<'a>(&self, works: &'a [Work]) -> Cow<'a, [Work]> {
        if self.is_all() {
            return Cow::Borrowed(works);
        }
        let mut works = works.to_vec();
        for work in &mut works {
            self.retain(&mut Arc::make_mut(&mut work.delivery).message.headers);
        }
        Cow::Owned(works)
    }

    /// Headers as a table keeps them, with what is kept.
    #[must_use]
    pub fn stored(&self, text: &str) -> String {
        let mut headers = headers::from_json(text);
        self.retain(&mut headers);
        headers::to_json(&headers)
    }

    /// For the audit. `None`: there is nothing to be said.
    #[must_use]
    pub fn audited(&self) -> Option<Value> {
        match &self.list {
            HeaderList::All => None,
            HeaderList::Only(patterns) => Some(json!({ "keep": patterns })),
            HeaderList::But(patterns) => Some(json!({ "drop": patterns })),
        }
    }

    fn retain(&self, headers: &mut Vec<(String, Bytes)>) {
        headers.retain(|(name, _)| self.keeps(name));
    }

    /// Why a header is kept whatever a list says. The name is in lower case.
    fn why_always(&self, name: &str) -> Option<&'static str> {
        if name.eq_ignore_ascii_case(MESSAGE_ID_HEADER) || self.identity.iter().any(|known| known == name) {
            return Some("the message is known by it, and would be taken for another one");
        }
        match name {
            TYPE_HEADER => Some("handlers are chosen by it, and the message could be passed over"),
            CONTENT_TYPE_HEADER => Some("it says how the payload is read"),
            _ if name.starts_with(SAGA_PREFIX) => Some("its saga would wait for an answer that never comes"),
            _ => None,
        }
    }
}

fn lower(names: &[String]) -> Vec<String> {
    names.iter().map(|name| name.trim().to_ascii_lowercase()).collect()
}

fn checked(patterns: &[String]) -> Result<Vec<String>, String> {
    let patterns = lower(patterns);
    match patterns.iter().find(|pattern| pattern.is_empty() || pattern.trim_end_matches('*').contains('*')) {
        None => Ok(patterns),
        Some(odd) => {
            Err(format!("`{odd}` names no header: write a name, or the start of names and a last `*`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    fn left(kept: &KeptHeaders) -> Vec<&'static str> {
        let all = ["Message-ID", "Type", "Content-Type", "SAGA-id", "order", "x-a", "X-B", "traceparent"];
        all.into_iter().filter(|name| kept.keeps(name)).collect()
    }

    #[test]
    fn a_list_keeps_or_drops_and_some_headers_stay() {
        let always = ["Message-ID", "Type", "Content-Type", "SAGA-id"];
        let with = |more: &[&'static str]| [&always[..], more].concat();
        assert_eq!(left(&KeptHeaders::default()), with(&["order", "x-a", "X-B", "traceparent"]));
        let only = |list| KeptHeaders::only(&names(list), &[]).expect("a list");
        assert_eq!(left(&only("x-*")), with(&["x-a", "X-B"]));
        assert_eq!(left(&only("X-b, TRACEPARENT")), with(&["X-B", "traceparent"]));
        let but = |list| KeptHeaders::but(&names(list), &[]).expect("a list");
        assert_eq!(left(&but("x-a,trace*")), with(&["order", "X-B"]));
        assert_eq!(left(&but("*")), always, "a pattern passes them over");
        let known_by = KeptHeaders::but(&names("*"), &names("Order")).expect("a list");
        assert_eq!(left(&known_by), with(&["order"]));
    }

    #[test]
    fn what_must_not_be_dropped_is_refused_if_it_is_named() {
        for named in ["type", "Message-ID", "content-type", "saga-id", "saga-*", "x,order-id"] {
            let refused = KeptHeaders::but(&names(named), &names("Order-ID")).expect_err(named);
            assert!(refused.contains("cannot be dropped: "), "{refused}");
        }
        for odd in ["", "a*b", "*a", "a,,b"] {
            assert!(KeptHeaders::only(&names(odd), &[]).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn stored_headers_lose_what_is_not_kept_and_nothing_else() {
        let stored = headers::to_json(&[
            ("a".to_owned(), Bytes::from_static(b"1")),
            ("raw".to_owned(), Bytes::from_static(b"\xff")),
            ("A".to_owned(), Bytes::from_static(b"2")),
        ]);
        let kept = KeptHeaders::but(&names("a"), &[]).expect("a list");
        let expected = [("raw".to_owned(), Bytes::from_static(b"\xff"))];
        assert_eq!(headers::from_json(&kept.stored(&stored)), expected);
        assert_eq!(kept.audited(), Some(json!({ "drop": ["a"] })));
        assert_eq!(KeptHeaders::default().audited(), None);
    }
}
