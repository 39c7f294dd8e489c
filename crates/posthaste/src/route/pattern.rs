//! Patterns: which topics a route takes.

/// A topic pattern: `*` stands for any run of characters, everything else for itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether a text is a pattern that some topic can match. If not: why, and what to write instead.
    pub fn check(text: &str) -> Result<(), String> {
        let is_blank = |c: char| c.is_whitespace() || c.is_control();
        // What others write for "any part".
        let foreign = |part: &&str| matches!(*part, ">" | "#" | "+" | "%");
        let why = if text.contains(is_blank) {
            "holds white space or a control character, which no topic has".to_owned()
        } else if let Some(part) = text.split('.').find(foreign) {
            format!("holds `{part}`, which means nothing here: `*` stands for any run of characters")
        } else {
            return Ok(());
        };
        let plain: String = text.chars().filter(|c| !is_blank(*c)).collect();
        let parts: Vec<&str> = plain.split('.').map(|part| if foreign(&part) { "*" } else { part }).collect();
        Err(format!("the pattern {text:?} {why}. Write {:?}", parts.join(".")))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches every topic.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        !self.0.is_empty() && self.0.bytes().all(|b| b == b'*')
    }

    /// Whether it matches this topic.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(first) = parts.next() else { return false };
        let Some(mut rest) = topic.strip_prefix(first) else { return false };
        let mut last = None;
        for part in parts {
            if let Some(middle) = last.replace(part) {
                match rest.find(middle) {
                    Some(at) => rest = &rest[at + middle.len()..],
                    None => return false,
                }
            }
        }
        last.map_or(rest.is_empty(), |tail| rest.ends_with(tail))
    }

    /// The same pattern for SQL's `LIKE`.
    #[must_use]
    pub fn to_like(&self) -> String {
        let mut like = String::with_capacity(self.0.len() + 4);
        for c in self.0.chars() {
            match c {
                '*' => like.push('%'),
                '%' | '_' | '\\' => like.extend(['\\', c]),
                _ => like.push(c),
            }
        }
        like
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a pattern means, one character after the other and without haste.
    fn means(pattern: &[u8], topic: &[u8]) -> bool {
        match (pattern, topic) {
            ([], _) => topic.is_empty(),
            ([b'*', rest @ ..], _) => (0..=topic.len()).any(|at| means(rest, &topic[at..])),
            ([first, rest @ ..], [head, tail @ ..]) => first == head && means(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn any_pattern_matches_what_it_means(pattern in "[ab*]{0,8}", topic in "[ab]{0,10}") {
            let expected = means(pattern.as_bytes(), topic.as_bytes());
            prop_assert_eq!(Pattern::new(pattern.as_str()).matches(&topic), expected);
        }

        #[test]
        fn any_text_is_a_pattern(pattern in "\\PC{0,12}", topic in "\\PC{0,12}") {
            let pattern = Pattern::new(pattern);
            prop_assert!(pattern.matches(&pattern.as_str().replace('*', &topic)));
        }
    }

    #[test]
    fn patterns_match_as_documented() {
        let table = [
            ("*", "a.b", true),
            ("orders.*", "orders.placed", true),
            ("orders.*", "orders", false),
            ("orders*", "orders", true),
            ("*.v1", "core.events.v1", true),
            ("*.v1", "core.events.v2", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("plain", "plain", true),
            ("plain", "plainer", false),
            ("", "x", false),
        ];
        for (pattern, topic, expected) in table {
            assert_eq!(Pattern::new(pattern).matches(topic), expected, "{pattern} ~ {topic}");
        }
        assert_eq!(Pattern::new("a_b%*").to_like(), "a\\_b\\%%");
    }

    #[test]
    fn what_no_topic_can_match_is_refused_with_what_to_write() {
        for (pattern, instead) in [
            ("orders.>", "orders.*"),
            ("orders .*", "orders.*"),
            (" orders", "orders"),
            ("orders.#", "orders.*"),
            ("*.+.paid", "*.*.paid"),
            ("a\tb.>", "ab.*"),
        ] {
            let why = Pattern::check(pattern).expect_err(pattern);
            assert!(why.ends_with(&format!(". Write {instead:?}")), "{why}");
            assert_eq!(Pattern::check(instead), Ok(()));
        }
        for good in ["*", "orders.*", "a>b", "c#", "50%", "a*b*c"] {
            assert_eq!(Pattern::check(good), Ok(()));
        }
    }
}
