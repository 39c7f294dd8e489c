//! Durations and sizes in words: `7d`, `10GiB`.
//!
//! Brokers count milliseconds, nanoseconds and bytes, and a retention of 604800000 is a riddle. A value
//! without a unit is refused, because nobody can see which one was meant.

/// Milliseconds of each unit.
const DURATIONS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// Bytes of each unit.
const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];
/// What has no end.
const FOREVER: &str = "forever";

/// `7d`, `72h`, `1h30m`, `500ms`, in milliseconds; `forever` is none.
///
/// # Errors
///
/// Says what a duration looks like.
pub fn duration_ms(text: &str) -> Result<Option<u64>, String> {
    let wrong = || format!("`{text}` is no duration: write 7d, 72h, 30m, 10s, 500ms, 1h30m, or forever");
    if text == FOREVER {
        return Ok(None);
    }
    let (mut rest, mut sum) = (text.trim(), 0_u64);
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let letters = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let (number, unit) = (&rest[..digits], &rest[digits..digits + letters]);
        let (_, each) = DURATIONS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*each));
        sum = part.and_then(|part| sum.checked_add(part)).ok_or_else(wrong)?;
        rest = &rest[digits + letters..];
    }
    // Brokers have signed numbers.
    if i64::try_from(sum).is_err() { Err(wrong()) } else { Ok(Some(sum)) }
}

/// `10GiB`, `512kB`, `1MiB`, in bytes; `forever` stands for no bound, and is none.
///
/// # Errors
///
/// Says what a size looks like.
pub fn size_bytes(text: &str) -> Result<Option<u64>, String> {
    let wrong = || format!("`{text}` is no size: write 10GiB, 512MiB, 100kB, 4096B, or forever for no bound");
    if text == FOREVER {
        return Ok(None);
    }
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let (_, each) = SIZES.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*each));
    bytes.filter(|bytes| i64::try_from(*bytes).is_ok()).map(Some).ok_or_else(wrong)
}

/// What a value that counts this unit is in words; itself, where it is no number.
#[must_use]
pub fn in_words(value: &str, unit: Unit) -> String {
    let Ok(number) = value.parse::<i64>() else { return value.to_owned() };
    let Ok(number) = u64::try_from(number) else { return FOREVER.to_owned() };
    let units: &[(&str, u64)] = match unit {
        Unit::Milliseconds => &DURATIONS[1..],
        Unit::Bytes => &SIZES,
        Unit::Nanoseconds if number % 1_000_000 == 0 => {
            return in_words(&(number / 1_000_000).to_string(), Unit::Milliseconds);
        }
        Unit::Nanoseconds => return format!("{number}ns"),
    };
    // The shortest exact way to write it.
    let exact = units.iter().filter(|(_, each)| number > 0 && number % each == 0);
    let words = exact.map(|(name, each)| format!("{}{name}", number / each));
    let zero = units.last().map_or_else(String::new, |(name, _)| format!("{number}{name}"));
    words.min_by_key(String::len).unwrap_or(zero)
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Kafka's times.
    Milliseconds,
    /// JetStream's times.
    Nanoseconds,
    /// Sizes.
    Bytes,
}
