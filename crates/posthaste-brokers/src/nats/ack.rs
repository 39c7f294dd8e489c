//! The acknowledgement that nearly all are: `{"stream":"ORDERS", "seq":7}`, perhaps with a domain, perhaps as a duplicate.
//!
//! JetStream puts it together from the same pieces each time, so it is compared with them, without a parser. What looks
//! any different, an error first of all, is read as JSON: see `verdict`.

/// Whether a stream says that it has the message. `false` says nothing.
pub(super) fn is_plain(payload: &[u8]) -> bool {
    acknowledges(payload).is_some()
}

fn acknowledges(payload: &[u8]) -> Option<()> {
    let rest = name(payload.strip_prefix(b"{\"stream\":\"")?)?;
    let rest = match member(rest, b"\"domain\":\"") {
        Some(rest) => name(rest)?,
        None => rest,
    };
    let rest = positive(member(rest, b"\"seq\":")?)?;
    let rest = match member(rest, b"\"duplicate\":") {
        Some(rest) => rest.trim_ascii_start().strip_prefix(b"true")?,
        None => rest,
    };
    (rest == b"}").then_some(())
}

/// A comma, and the next member.
fn member<'a>(rest: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    rest.strip_prefix(b",")?.trim_ascii_start().strip_prefix(name)
}

/// The rest of a text that is not empty, behind its quote. One with an escape is for the parser.
fn name(rest: &[u8]) -> Option<&[u8]> {
    let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    if end == 0 || rest[end] == b'\\' { None } else { Some(&rest[end + 1..]) }
}

/// What follows a number above zero.
fn positive(rest: &[u8]) -> Option<&[u8]> {
    let rest = rest.trim_ascii_start();
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    // Longer ones are no `u64`.
    if end == 0 || end > 19 || rest[0] == b'0' { None } else { Some(&rest[end..]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_stream() {
        for plain in [
            r#"{"stream":"S","seq":7}"#,
            r#"{"stream":"S", "seq":7}"#,
            r#"{"stream":"S", "seq":18446744073709551}"#,
            r#"{"stream":"S", "seq":7,"duplicate": true}"#,
            r#"{"stream":"S", "domain":"d", "seq":7}"#,
            r#"{"stream":"S","domain":"d","seq":7,"duplicate":true}"#,
        ] {
            assert!(is_plain(plain.as_bytes()), "{plain}");
        }
    }

    #[test]
    fn everything_else_is_for_the_parser() {
        for other in [
            "",
            "{",
            "{}",
            "+OK",
            r#"{"stream":"","seq":1}"#,
            r#"{"stream":"S"}"#,
            r#"{"stream":"S","seq":0}"#,
            r#"{"stream":"S","seq":}"#,
            r#"{"stream":"S","seq":-1}"#,
            r#"{"stream":"S","seq":1.5}"#,
            r#"{"stream":"S","seq":1"#,
            r#"{"stream":"S","seq":1}}"#,
            r#"{"stream":"S","seq":1,"duplicate":false}"#,
            r#"{"stream":"S","seq":1,"error":{"code":503}}"#,
            r#"{"error":{"code":503},"stream":"S","seq":1}"#,
            r#"{"stream":"S\"","seq":1}"#,
            r#"{"stream":"S","seq":99999999999999999999}"#,
        ] {
            assert!(!is_plain(other.as_bytes()), "{other}");
        }
    }

    /// Cut anywhere, it is no acknowledgement.
    #[test]
    fn half_of_one_is_none() {
        let whole = br#"{"stream":"S", "domain":"d", "seq":7,"duplicate": true}"#;
        assert!((0..whole.len()).all(|end| !is_plain(&whole[..end])));
    }
}
