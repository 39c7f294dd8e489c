//! Times on the command line: an instant, or a distance from now.

use posthaste::Timestamp;
use posthaste::clock::{Clock, SystemClock};
use std::time::Duration;

/// RFC 3339, or `+10s` for later.
pub(crate) fn later(text: &str) -> Result<Timestamp, String> {
    match text.strip_prefix('+') {
        Some(distance) => shift(distance, 1),
        None => instant(text),
    }
}

/// RFC 3339, or `-2h` (or just `2h`) for earlier.
pub(crate) fn earlier(text: &str) -> Result<Timestamp, String> {
    if text.contains(':') || text.contains('T') {
        return instant(text);
    }
    let either = |why| format!("{why}, and no time like 2026-11-15T17:00:00Z (RFC 3339)");
    shift(text.strip_prefix('-').unwrap_or(text), -1).map_err(either)
}

fn instant(text: &str) -> Result<Timestamp, String> {
    let parsed: jiff::Timestamp =
        text.parse().map_err(|_| format!("{text:?} is no time like 2026-11-15T17:00:00Z"))?;
    Ok(Timestamp(parsed.as_microsecond()))
}

fn shift(text: &str, sign: i64) -> Result<Timestamp, String> {
    let distance =
        i64::try_from(distance(text)?.as_micros()).map_err(|_| format!("{text:?} is too far away"))?;
    Ok(SystemClock.now().plus_micros(sign * distance))
}

/// `500ms`, `10s`, `5m`, `2h`, `3d`.
pub(crate) fn distance(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no length of time like 500ms, 10s, 5m, 2h or 3d");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_a_time_or_refused(text in "[+-]?[0-9.e]{1,24}(ms|s|m|h|d)|[0-9T:Z+.-]{0,30}|\\PC{0,12}") {
            let _ = (later(&text), earlier(&text));
        }

        #[test]
        fn any_instant_is_read_as_it_is_printed(second in 0..4_000_000_000_i64) {
            let at = Timestamp(second * 1_000_000);
            prop_assert_eq!(later(&at.rfc3339()), Ok(at));
        }
    }

    #[test]
    fn instants_and_distances() {
        assert_eq!(later("2023-11-14T22:13:20Z"), Ok(Timestamp(1_700_000_000_000_000)));
        assert_eq!(earlier("2023-11-14T23:13:20+01:00"), Ok(Timestamp(1_700_000_000_000_000)));
        assert_eq!(distance("1.5h"), Ok(Duration::from_secs(5400)));
        let now = SystemClock.now();
        let soon = later("+10s").expect("a distance");
        assert!((9.9..11.0).contains(&soon.seconds_since(now)));
        assert!(earlier("2h").expect("a distance") < now);
        for bad in ["", "tomorrow", "+10", "10 parsecs", "-5s"] {
            assert!(later(bad).is_err(), "{bad}");
        }
    }
}
