//! What the program prints: figures on standard output, everything else on standard error.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::io::Write;
use std::process::ExitCode;

const MASK: &str = "***";

/// Wrong use of a command: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// A remark on standard error. Nobody can be told if that fails.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints an error and says which exit code it means.
pub(crate) fn complain(error: &anyhow::Error) -> ExitCode {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    remark(&format!("error: {}", scrub(&causes.join("\n  because: "))));
    ExitCode::from(if error.chain().any(|cause| cause.is::<Usage>()) { 2 } else { 1 })
}

/// A table that fits into 80 columns. Columns marked `>` are right-aligned.
pub(crate) fn table(headers: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(columns().max(80));
    table.set_header(headers.iter().map(|header| header.trim_start_matches('>')));
    table.add_rows(rows);
    for (column, header) in table.column_iter_mut().zip(headers) {
        column.set_padding((0, 2));
        if header.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// The width of the terminal that the table is printed on; 0 where there is none.
fn columns() -> u16 {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_col)
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

/// `350ms`, `12.3s`, `5m12s`.
pub(crate) fn seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0 => format!("{:.0}ms", seconds * 1e3),
        1..60 => format!("{seconds:.1}s"),
        _ => format!("{}m{:02}s", whole / 60, whole % 60),
    }
}

/// A text without the passwords of addresses and connection strings in it: of each word that holds an
/// address, nothing between the first colon of its login and the last `@` is shown; of a word `password=…`,
/// nothing behind the sign.
pub(crate) fn scrub(text: &str) -> String {
    text.split_inclusive(|c: char| c.is_whitespace() || matches!(c, '"' | '`')).map(scrub_word).collect()
}

fn scrub_word(word: &str) -> String {
    let end = word.find(|c: char| c.is_whitespace() || matches!(c, '"' | '`')).unwrap_or(word.len());
    let (body, tail) = word.split_at(end);
    if let Some((scheme, rest)) = body.split_once("://")
        && let Some((login, host)) = rest.rsplit_once('@')
    {
        // A login without a colon is a name for PostgreSQL, and a token for some brokers.
        let user = match login.split_once(':') {
            Some((user, _)) => format!("{user}:{MASK}"),
            None if scheme.ends_with("postgres") || scheme.ends_with("postgresql") => login.to_owned(),
            None => MASK.to_owned(),
        };
        return format!("{scheme}://{user}@{}{tail}", scrub_assignment(host));
    }
    format!("{}{tail}", scrub_assignment(body))
}

fn scrub_assignment(word: &str) -> String {
    match word.to_ascii_lowercase().find("password=") {
        Some(at) => {
            let (name, value) = word.split_at(at + "password=".len());
            let rest = value.find('&').map_or("", |end| &value[end..]);
            format!("{name}{MASK}{rest}")
        }
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_vanish_and_the_rest_stays() {
        let table = [
            ("url = \"postgres://app:hunter2@db:5432/o\"\n", "url = \"postgres://app:***@db:5432/o\"\n"),
            ("postgres://app@db/orders", "postgres://app@db/orders"),
            ("postgres://db/o?user=a&password=hunter2&x=1", "postgres://db/o?user=a&password=***&x=1"),
            ("host=db user=app password=hunter2 dbname=o", "host=db user=app password=*** dbname=o"),
            ("nats://t0ken@broker:4222", "nats://***@broker:4222"),
            ("password authentication failed", "password authentication failed"),
        ];
        for (text, expected) in table {
            assert_eq!(scrub(text), expected);
        }
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.35, 12.34, 312.0].map(seconds), ["350ms", "12.3s", "5m12s"]);
    }
}
