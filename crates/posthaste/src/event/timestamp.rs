//! The one way a time is written down.

/// Microseconds since the Unix epoch, UTC. The only time type in stored and public data.
///
/// Serialized it is a text, RFC 3339: a bare number would not say its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&self.rfc3339())
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time", "description": "A time, RFC 3339." })
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(input)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("a time is a text in RFC 3339"))
    }
}

impl Timestamp {
    /// The first and the last time that a stranger's clock can show: year 1, and year 4000. All stores keep
    /// every millisecond between them. PostgreSQL multiplies in floating point, which has gaps soon after.
    pub const FIRST: Self = Self(-62_135_596_800_000_000);
    /// See [`Timestamp::FIRST`].
    pub const LAST: Self = Self(64_060_588_800_000_000);

    /// From a stranger's milliseconds. Nanoseconds that were taken for them are the last time.
    #[must_use]
    pub fn of_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000)).clamp(Self::FIRST, Self::LAST)
    }

    /// From RFC 3339 text, whoever wrote it: with any offset, and what is below a microsecond cut off.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (date, clock) = text.split_at_checked(10)?;
        let (year, month, day) = (number(date, 0, 4)?, number(date, 5, 2)?, number(date, 8, 2)?);
        let days = days(year, month, day);
        let (hour, minute, second) = (number(clock, 1, 2)?, number(clock, 4, 2)?, number(clock, 7, 2)?);
        let signs = [date.as_bytes()[4], date.as_bytes()[7], clock.as_bytes()[3], clock.as_bytes()[6]];
        let real = civil(days) == (year, month, day) && hour < 24 && minute < 60 && second <= 60;
        if !real || signs != *b"--::" || !matches!(clock.as_bytes()[0], b'T' | b't' | b' ') {
            return None;
        }
        let mut rest = &clock[9..];
        let mut micros = 0;
        if let Some(fraction) = rest.strip_prefix('.') {
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            micros = number(&format!("{:0<6.6}", &fraction[..digits]), 0, 6).filter(|_| digits > 0)?;
            rest = &fraction[digits..];
        }
        let offset = match rest.as_bytes() {
            [b'Z' | b'z'] => 0,
            [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
                let (hours, minutes) = (number(rest, 1, 2)?, number(rest, 4, 2)?);
                (if *sign == b'-' { -60 } else { 60 }) * (hours * 60 + minutes)
            }
            _ => return None,
        };
        Some(Self((days * 86_400 + hour * 3600 + minute * 60 + second - offset) * 1_000_000 + micros))
    }

    /// This instant plus a number of microseconds, saturating.
    #[must_use]
    pub fn plus_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// RFC 3339 text in UTC with microseconds, as headers carry it.
    #[must_use]
    pub fn rfc3339(self) -> String {
        let (days, micros) = (self.0.div_euclid(86_400_000_000), self.0.rem_euclid(86_400_000_000));
        let (year, month, day) = civil(days);
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        if !(0..=9999).contains(&year) {
            return format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z");
        }
        // By hand, two digits at a time: every message carries one, and the formatting machinery costs
        // several times as much.
        let pairs = [year / 100, year % 100, month, day, hour, minute, second];
        let fraction = [fraction / 10_000, fraction / 100 % 100, fraction % 100];
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        for (number, place) in pairs.into_iter().chain(fraction).zip([0, 2, 5, 8, 11, 14, 17, 20, 22, 24]) {
            text[place] += (number / 10) as u8;
            text[place + 1] += (number % 10) as u8;
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Seconds from `earlier` to `self`; negative when `earlier` is later.
    #[must_use]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 / 1e6
    }
}

/// Year, month and day of a number of days since 1970-01-01, in the proleptic Gregorian calendar: years
/// are counted from March, so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The other way round.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, shifted) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_era =
        year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * shifted + 2) / 5 + day - 1;
    era * 146_097 + day_of_era - 719_468
}

/// A number of exactly so many digits.
fn number(text: &str, from: usize, digits: usize) -> Option<i64> {
    let text = text.get(from..from + digits)?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn milliseconds_of_a_stranger_are_a_time_of_some_calendar() {
        assert_eq!(Timestamp::of_millis(1_700_000_000_123), Timestamp(1_700_000_000_123_000));
        for (millis, text) in [
            (i64::MIN, "0001-01-01T00:00:00.000000Z"),
            (-62_135_596_800_000, "0001-01-01T00:00:00.000000Z"),
            (64_060_588_799_999, "3999-12-31T23:59:59.999000Z"),
            (1_700_000_000_000_000_000, "4000-01-01T00:00:00.000000Z"),
            (i64::MAX, "4000-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(Timestamp::of_millis(millis).rfc3339(), text, "{millis}");
        }
    }

    #[test]
    fn rfc3339_is_read_whoever_wrote_it() {
        let instant = Timestamp(1_709_210_096_000_000);
        for text in ["2024-02-29T12:34:56Z", "2024-02-29t12:34:56.0z", "2024-02-29 13:34:56+01:00"] {
            assert_eq!(Timestamp::parse(text), Some(instant), "{text}");
        }
        assert_eq!(
            Timestamp::parse("2024-02-29T00:00:00.1234567-12:34").map(|at| at.0 % 1_000_000),
            Some(123_456)
        );
        assert_eq!(Timestamp::parse("2016-12-31T23:59:60Z"), Timestamp::parse("2017-01-01T00:00:00Z"));
        for wrong in [
            "",
            "2024",
            "2023-02-29T12:34:56Z",
            "2024-13-01T12:34:56Z",
            "2024-02-29T24:00:00Z",
            "2024-02-29T12:60:00Z",
            "2024-02-29T12:34:56",
            "2024-02-29T12:34:56.Z",
            "2024-02-29T12:34:56Zx",
            "2024-02-29T12:34:56+0100",
            "2024-02-29T12:34:56+aa:00",
            "2024/02/29T12:34:56Z",
            "2024-02-29T12-34-56Z",
            "+024-02-29T12:34:56Z",
            "2024-02-2äT12:34:56Z",
        ] {
            assert_eq!(Timestamp::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(micros in -62_167_219_200_000_000_i64..253_402_300_800_000_000) {
            prop_assert_eq!(Timestamp::parse(&Timestamp(micros).rfc3339()), Some(Timestamp(micros)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in any::<String>(), near in "[0-9]{4}-[0-9ä]{2}-[0-9]{2}[T ].{0,20}") {
            let _ = (Timestamp::parse(&text), Timestamp::parse(&near));
        }
    }

    #[test]
    fn timestamps_print_as_rfc3339() {
        assert_eq!(Timestamp(0).rfc3339(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(Timestamp(1_709_210_096_000_001).rfc3339(), "2024-02-29T12:34:56.000001Z");
        assert_eq!(Timestamp(-1).rfc3339(), "1969-12-31T23:59:59.999999Z");
        assert_eq!(Timestamp(253_402_300_799_999_999).rfc3339(), "9999-12-31T23:59:59.999999Z");
        assert_eq!(Timestamp(253_402_300_800_000_000).rfc3339(), "10000-01-01T00:00:00.000000Z");
    }
}
