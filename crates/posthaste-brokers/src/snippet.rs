//! A receiver's words, fit for a log and for the dead letters. They are short, without control characters,
//! and without our secrets, which receivers like to quote.

/// Characters that are kept for the operator.
const CHARS: usize = 200;
/// The shortest beginning of a secret that tells something of it.
const CUT: usize = 4;
const MASK: &str = "***";

/// The beginning of a body. `hidden` are our secrets, the longest first.
pub(crate) fn snippet(body: &[u8], hidden: &[String]) -> String {
    let text: String = masked(body, hidden).chars().take(CHARS).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A body without our secrets and without control characters.
pub(crate) fn masked(body: &[u8], hidden: &[String]) -> String {
    let text = String::from_utf8_lossy(body);
    // The body may have been cut in the middle of a letter, or of a secret.
    let mut text = text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned();
    for secret in hidden {
        let cuts = secret.char_indices().map(|(at, _)| &secret[..at]).rev();
        if let Some(part) = cuts.filter(|part| part.len() >= CUT).find(|part| text.ends_with(part)) {
            text.replace_range(text.len() - part.len().., MASK);
        }
    }
    for secret in hidden.iter().filter(|secret| !secret.is_empty()) {
        text = text.replace(secret.as_str(), MASK);
    }
    let plain = |c: char| if c.is_control() || c == char::REPLACEMENT_CHARACTER { ' ' } else { c };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(body: &[u8]) -> String {
        snippet(body, &["hunter2-and-more".to_owned(), "hunter2".to_owned(), "schlüssel".to_owned()])
    }

    proptest! {
        #[test]
        fn any_body_makes_a_clean_snippet(
            body in prop::collection::vec(
                prop_oneof![any::<Vec<u8>>(), Just(b"hunter2".to_vec()), Just("schlüssel".into())],
                0..8,
            ),
            cut in 0..400_usize,
        ) {
            let body = body.concat();
            let text = of(&body[..cut.min(body.len())]);
            prop_assert!(text.chars().count() <= CHARS && !text.contains(char::is_control));
            prop_assert!(!text.contains("hunter2") && !text.contains("schlüssel"), "{}", text);
        }
    }

    #[test]
    fn a_snippet_is_short_clean_and_without_secrets() {
        assert_eq!(of(b"no\r\n\x1b[31m\0 way\xff"), "no [31m way");
        assert_eq!(of(b"you sent hunter2, hunter2-and-more!"), "you sent ***, ***!");
        assert_eq!(of("ü".repeat(5_000).as_bytes()).chars().count(), CHARS);
        assert_eq!(of(b""), "");
    }

    #[test]
    fn a_secret_that_is_cut_in_two_is_masked() {
        assert_eq!(of(b"Bearer hunter2-an"), "Bearer ***");
        assert_eq!(of(b"Bearer hunte"), "Bearer ***");
        assert_eq!(of("Bearer schlü".as_bytes()), "Bearer ***");
        assert_eq!(of(&"Bearer schlüssel".as_bytes()[..12]), "Bearer ***", "in the middle of a letter");
        let edge = format!("{}hunter2", "x".repeat(CHARS - 3));
        assert!(of(edge.as_bytes()).ends_with("x***"));
    }
}
