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

impl Timestamp {
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
        (self.0 - earlier.0) as f64 / 1e6
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_print_as_rfc3339() {
        assert_eq!(Timestamp(0).rfc3339(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(Timestamp(1_709_210_096_000_001).rfc3339(), "2024-02-29T12:34:56.000001Z");
        assert_eq!(Timestamp(-1).rfc3339(), "1969-12-31T23:59:59.999999Z");
        assert_eq!(Timestamp(253_402_300_799_999_999).rfc3339(), "9999-12-31T23:59:59.999999Z");
        assert_eq!(Timestamp(253_402_300_800_000_000).rfc3339(), "10000-01-01T00:00:00.000000Z");
    }
}
