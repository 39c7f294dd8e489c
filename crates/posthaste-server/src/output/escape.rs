//! Text from elsewhere on an operator's terminal.
//!
//! Keys, payloads, topics and errors of brokers are whatever somebody wrote into them. A terminal obeys some
//! characters: it clears the screen, moves the cursor, turns the direction of a line. They are shown instead,
//! and nothing else is changed; for the exact bytes there are `--raw` and `--json`.
//!
//! [`text`] is applied to all that is printed for people, in [`super::Out`] and [`super::remark`] and to log
//! lines, so that no command can forget it. It leaves line ends alone, because it cannot know whose they are.
//! [`line()`] takes them too: it is for a field that has one line, and [`super::table`] does it to every
//! cell.

use std::borrow::Cow;
use std::fmt::Write;

/// Without characters that a terminal obeys, but for line ends and tabs.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    escape(text, |c| acts(c) && !matches!(c, '\n' | '\t'))
}

/// The same in one line.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escape(text, acts)
}

/// Control characters (C0, DEL, C1), separators of lines and paragraphs, and whatever turns the direction of
/// what follows, the marks without a width included.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

fn escape(text: &str, is_shown: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_shown) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Writing to a string cannot fail.
        let _ = match c {
            c if !is_shown(c) => write!(out, "{c}"),
            '\n' => out.write_str("\\n"),
            '\t' => out.write_str("\\t"),
            c if u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c)),
            c => write!(out, "\\u{{{:x}}}", u32::from(c)),
        };
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        let table = [
            ("k\x1b[2J", "k\\x1b[2J"),
            ("a\rb\x07\x08\0", "a\\x0db\\x07\\x08\\x00"),
            ("\x7f\u{80}\u{9b}31m", "\\x7f\\x80\\x9b31m"),
            ("\u{202e}txt\u{2066}\u{2069}\u{2028}", "\\u{202e}txt\\u{2066}\\u{2069}\\u{2028}"),
            ("1\u{200f}2\u{200e}\u{61c}", "1\\u{200f}2\\u{200e}\\u{61c}"),
            ("größer → 日本 🙂 \\x1b", "größer → 日本 🙂 \\x1b"),
        ];
        for (given, shown) in table {
            assert_eq!((text(given).as_ref(), line(given).as_ref()), (shown, shown));
        }
        assert_eq!((text("a\n\tb").as_ref(), line("a\n\tb").as_ref()), ("a\n\tb", "a\\n\\tb"));
    }
}
