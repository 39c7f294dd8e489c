//! Templates: a destination or a partition key made of an event's parts.

use crate::event::StoredEvent;

/// A destination template: text with `{topic}`, `{key}`, `{type}` or `{header:name}` in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Topic,
    Key,
    Type,
    Header(String),
}

impl Default for Template {
    fn default() -> Self {
        Self(vec![Piece::Topic])
    }
}

impl Template {
    /// Reads a template; an unknown placeholder or a stray brace is an error that names it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            if rest.as_bytes()[open] == b'}' {
                return Err(format!("template {text:?} has a '}}' without a '{{'"));
            }
            if open > 0 {
                pieces.push(Piece::Text(rest[..open].to_owned()));
            }
            let Some(close) = rest[open..].find('}') else {
                return Err(format!("template {text:?} has a '{{' that is never closed"));
            };
            let name = &rest[open + 1..open + close];
            pieces.push(match name {
                "topic" => Piece::Topic,
                "key" => Piece::Key,
                "type" => Piece::Type,
                _ => match name.strip_prefix("header:") {
                    Some(header) if !header.is_empty() => Piece::Header(header.to_owned()),
                    _ => {
                        return Err(format!(
                            "template {text:?} has an unknown placeholder {{{name}}}; known are {{topic}}, {{key}}, {{type}} and {{header:NAME}}"
                        ));
                    }
                },
            });
            rest = &rest[open + close + 1..];
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        if pieces.is_empty() {
            return Err("a destination template must not be empty".to_owned());
        }
        Ok(Self(pieces))
    }

    /// What it takes of an event: `topic`, `key`, `type` and `header:NAME`.
    pub fn placeholders(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Text(_) => None,
            Piece::Topic => Some("topic".to_owned()),
            Piece::Key => Some("key".to_owned()),
            Piece::Type => Some("type".to_owned()),
            Piece::Header(name) => Some(format!("header:{name}")),
        })
    }

    /// The destination of an event, or which part of it the event lacks.
    pub fn fill(&self, stored: &StoredEvent) -> Result<String, String> {
        let event = &stored.event;
        if let [Piece::Topic] = self.0.as_slice() {
            return Ok(event.topic.clone());
        }
        let mut out = String::new();
        for piece in &self.0 {
            out.push_str(match piece {
                Piece::Text(text) => text,
                Piece::Topic => &event.topic,
                Piece::Type => event.event_type(),
                Piece::Key => {
                    event.key.as_deref().ok_or("the destination needs a key and the event has none")?
                }
                Piece::Header(name) => event.headers.get(name).ok_or_else(|| {
                    format!("the destination needs the header {name:?} and the event has none")
                })?,
            });
        }
        Ok(out)
    }

    /// The destination, if it is the same for every event.
    #[must_use]
    pub fn fixed(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether the destination is just the topic.
    #[must_use]
    pub fn is_topic(&self) -> bool {
        self.0 == [Piece::Topic]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::event::{Event, Timestamp};

    fn stored(event: Event) -> StoredEvent {
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(0), event, defect: None }
    }

    proptest! {
        #[test]
        fn any_template_is_filled_piece_by_piece(
            pieces in prop::collection::vec(
                prop_oneof![
                    "[^{}]{1,6}".prop_map(|text| (text.clone(), text)),
                    Just(("{topic}".to_owned(), "t".to_owned())),
                    Just(("{key}".to_owned(), "k".to_owned())),
                    Just(("{type}".to_owned(), "t".to_owned())),
                    Just(("{header:region}".to_owned(), "eu".to_owned())),
                ],
                1..6,
            )
        ) {
            let (text, filled): (String, String) = pieces.into_iter().unzip();
            let event = Event::new("t", "x").with_key("k").with_header("region", "eu");
            prop_assert_eq!(Template::parse(&text).and_then(|template| template.fill(&stored(event))), Ok(filled));
        }

        #[test]
        fn any_text_is_a_template_or_refused(text in "([{}:]{1,2}|topic|header|\\PC{1,2}){0,8}") {
            let braces = text.matches(['{', '}']).count();
            prop_assert!(Template::parse(&text).is_err() || braces % 2 == 0);
        }
    }

    #[test]
    fn templates_fill_or_say_what_is_missing() {
        let template = Template::parse("ev.{topic}.{key}.{header:region}").expect("valid");
        let event = Event::new("t", "x").with_key("k").with_header("region", "eu");
        assert_eq!(template.fill(&stored(event)), Ok("ev.t.k.eu".to_owned()));
        assert!(template.fill(&stored(Event::new("t", "x"))).is_err());
        for bad in ["{nope}", "{topic", "topic}", ""] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
