//! What the commands print: tables and sentences for people, JSON for programs, complaints for both.
//!
//! Data goes to standard output, everything else to standard error, so that a pipe holds only data. A reader
//! that closes the pipe early (`| head`) ends the command quietly. What people read goes through [`escape`];
//! JSON and [`Out::bytes`] are exact.

pub(crate) mod escape;

use crate::config::{ConfigError, scrub};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use posthaste::Timestamp;
use posthaste::admin::{Actor, Count};
use serde::Serialize;
use serde_json::Value;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

/// Wrong use of a command: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// The reader of our output has gone.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
struct Closed;

/// Standard output, in one of two languages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out {
    pub(crate) json: bool,
}

impl Out {
    /// Data: one JSON document, or the text that `human` makes.
    pub(crate) fn data<T: Serialize>(self, value: &T, human: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json { self.exact(&serde_json::to_string(value)?) } else { self.text(&human()) }
    }

    /// The answer to an act, with its trace: by that its lines in the audit are found. Without an actor it
    /// was a look.
    pub(crate) fn acted(
        self,
        mut answer: Value,
        actor: Option<&Actor>,
        human: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        let Some(Actor { trace_id, .. }) = actor else { return self.data(&answer, human) };
        answer["trace_id"] = trace_id.as_str().into();
        self.data(&answer, || format!("{}\ntrace {trace_id}", human()))
    }

    /// A text for people, and a line end.
    pub(crate) fn text(self, text: &str) -> anyhow::Result<()> {
        self.exact(&escape::text(text))
    }

    /// A text that is not touched, and a line end: what a program reads.
    pub(crate) fn exact(self, text: &str) -> anyhow::Result<()> {
        let line_end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        self.bytes(format!("{text}{line_end}").as_bytes())
    }

    /// Bytes as they are.
    pub(crate) fn bytes(self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Closed.into()),
            written => Ok(written?),
        }
    }
}

/// A remark on standard error. Nobody can be told if that fails.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", escape::text(text));
}

/// Prints an error and says which exit code it means.
pub(crate) fn complain(error: &anyhow::Error) -> ExitCode {
    if error.is::<Closed>() {
        return ExitCode::SUCCESS;
    }
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    remark(&format!("error: {}", scrub(&causes.join("\n  because: "))));
    let is_usage = error.chain().any(|cause| cause.is::<Usage>() || cause.is::<ConfigError>());
    ExitCode::from(if is_usage { 2 } else { 1 })
}

/// Whether somebody can be asked.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Whether colours are seen on standard output. `NO_COLOR` says that nobody wants them.
pub(crate) fn is_colourful() -> bool {
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !is_refused
}

/// Asks, and waits for an answer.
pub(crate) fn ask(question: &str) -> anyhow::Result<bool> {
    let _ = write!(std::io::stderr(), "{}? [y/N] ", escape::line(question));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// A table that fits into 80 columns; without rows, nothing at all. Columns marked `>` are right-aligned.
pub(crate) fn table(headers: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(columns().max(80));
    table.set_header(headers.iter().map(|header| header.trim_start_matches('>')));
    table.add_rows(rows.iter().map(|row| row.iter().map(|cell| escape::line(cell))));
    for (column, header) in table.column_iter_mut().zip(headers) {
        column.set_padding((0, 2));
        if header.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A word for a shell.
pub(crate) fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Names and their values within 80 columns. What is left of a value stands below it, so that a value cannot
/// pass for another line.
pub(crate) fn fields(lines: &[(&str, String)], indent: &str) -> String {
    let (taken, width) = (indent.chars().count() + 14, columns_left(indent));
    let line = |(name, value): &(&str, String)| {
        let parts = wrap(&escape::line(value), width).into_iter().flat_map(|line| chop(&line, width));
        let value = parts.collect::<Vec<_>>().join(&format!("\n{:taken$}", ""));
        format!("{indent}{name:<13} {value}")
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What a field's name leaves of 80 columns.
fn columns_left(indent: &str) -> usize {
    80 - 14 - indent.chars().count()
}

/// A payload as such a line, or several: its own line ends stay, and what follows them is indented. A long
/// line is cut at the edge; the payload as it is comes with `--raw`.
pub(crate) fn payload_field(payload: Option<&[u8]>, size: Option<i64>) -> String {
    let text = match payload.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => "none: a tombstone".to_owned(),
        Some((_, Ok(text))) => text.to_owned(),
        Some((bytes, Err(_))) => format!("base16 {}", base16(bytes)),
    };
    let size = size.map_or_else(String::new, |size| format!(" ({})", bytes(size)));
    let text = format!("{text}{size}");
    let parts = text.split('\n').flat_map(|line| chop(&escape::text(line), columns_left("")));
    format!("{:<13} {}", "payload", parts.collect::<Vec<_>>().join(&format!("\n{:14}", "")))
}

/// Something as JSON with its payload: as text, or as base16 where it is no UTF-8.
pub(crate) fn with_payload(value: &impl Serialize, payload: Option<&[u8]>) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(value)?;
    match payload.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        Some((_, Ok(text))) => value["payload"] = text.into(),
        Some((bytes, Err(_))) => value["payload_base16"] = base16(bytes).into(),
        None => value["payload"] = Value::Null,
    }
    Ok(value)
}

/// This host's name.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Bytes that are no text.
pub(crate) fn base16(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The width of the terminal that the table is printed on; 0 where there is none.
pub(crate) fn columns() -> u16 {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_col)
}

/// `12,345`, with a `~` when it is an estimate.
pub(crate) fn count(count: Count) -> String {
    let sign = if count.exact { "" } else { "~" };
    format!("{sign}{}", thousands(count.count))
}

/// `12,345`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `350ms`, `12.3s`, `5m12s`, `3h20m`, `2d4h`.
pub(crate) fn seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0 if seconds <= 0.0 => "0s".to_owned(),
        0 => format!("{:.0}ms", seconds * 1e3),
        1..60 => format!("{seconds:.1}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole / 3600 % 24),
    }
}

/// `512 B`, `4.2 MiB`.
pub(crate) fn bytes(bytes: i64) -> String {
    let bytes = bytes.max(0) as f64;
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let Some(power) = (1..=units.len()).rev().find(|power| bytes >= 1024f64.powi(*power as i32)) else {
        return format!("{bytes} B");
    };
    format!("{:.1} {}", bytes / 1024f64.powi(power as i32), units[power - 1])
}

/// `2026-11-15 17:12:03Z`.
pub(crate) fn time(at: Timestamp) -> String {
    let text = at.rfc3339();
    format!("{} {}Z", &text[..10], &text[11..19])
}

/// `2026-11-15 17:12:03.123Z`, where milliseconds tell one thing from another.
pub(crate) fn exact_time(at: Timestamp) -> String {
    let text = at.rfc3339();
    format!("{} {}Z", &text[..10], &text[11..23])
}

/// The plural of a noun, if there is not just one.
pub(crate) fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// Breaks a text at white space, where it can.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let used = lines.last().map_or(0, |line| line.chars().count());
        if used > 0 && used + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        let Some(line) = lines.last_mut() else { continue };
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

/// A sentence within 80 columns. What does not fit into its first line is indented below it.
pub(crate) fn paragraph(text: &str, indent: &str) -> String {
    let width = 78 - indent.chars().count();
    let lines = wrap(&escape::line(text), width).into_iter().flat_map(|line| chop(&line, width));
    let lines: Vec<String> = lines.collect();
    format!("{indent}{}", lines.join(&format!("\n  {indent}")))
}

/// A line in parts of at most this width: for words that are longer.
fn chop(line: &str, width: usize) -> Vec<String> {
    let characters: Vec<char> = line.trim_end().chars().collect();
    match characters.is_empty() {
        true => vec![String::new()],
        false => characters.chunks(width.max(1)).map(|part| part.iter().collect()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        let ages = [0.0, 0.35, 12.34, 312.0, 12_000.0, 187_200.0].map(seconds);
        assert_eq!(ages, ["0s", "350ms", "12.3s", "5m12s", "3h20m", "2d04h"]);
        assert_eq!([0, 512, 1 << 20, 5 << 30].map(bytes), ["0 B", "512 B", "1.0 MiB", "5.0 GiB"]);
        assert_eq!(count(Count { count: 20_000, exact: false }), "~20,000");
        assert_eq!(time(Timestamp(1_700_000_000_123_456)), "2023-11-14 22:13:20Z");
        assert_eq!(exact_time(Timestamp(1_700_000_000_123_456)), "2023-11-14 22:13:20.123Z");
        assert_eq!(plural(1, "event"), "1 event");
    }
    #[test]
    fn a_text_is_broken_at_white_space() {
        assert_eq!(wrap("a bc def", 5), ["a bc", "def"]);
        assert_eq!(wrap("abcdefgh ij", 5), ["abcdefgh", "ij"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn a_paragraph_keeps_to_80_columns_whatever_is_in_it() {
        let text = format!("key {}\n and {}", "x".repeat(300), "word ".repeat(40));
        let shown = paragraph(&text, "  ");
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        assert!(shown.starts_with("  key\n    xxx") && shown.contains("x\\n\n    and"), "{shown}");
        assert_eq!(paragraph("a  b", ""), "a  b");
    }

    #[test]
    fn words_reach_a_shell_as_they_are() {
        assert_eq!(shell_word("/tmp/shop-1/posthaste.toml"), "/tmp/shop-1/posthaste.toml");
        assert_eq!(shell_word("/tmp/it's a shop"), r"'/tmp/it'\''s a shop'");
    }
}
