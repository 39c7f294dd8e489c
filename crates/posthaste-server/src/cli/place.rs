//! Places in a topic on the command line: a position, a time, or an end.

use super::time;
use posthaste::source::SeekTo;

/// What [`seek_to`] reads, for people.
pub(crate) const PLACES: &str = "earliest, latest, position:NUMBER or time:RFC3339";

/// A place in a partition. A number alone is a position. What looks like a time is one, also `2h`: that is
/// two hours ago.
pub(crate) fn seek_to(text: &str) -> Result<SeekTo, String> {
    let wrong = || format!("must be {PLACES}");
    let position = |number: &str| number.parse().ok().filter(|position| *position >= 0);
    match text.split_once(':') {
        None if text == "earliest" => Ok(SeekTo::Earliest),
        None if text == "latest" => Ok(SeekTo::Latest),
        Some(("position", number)) => position(number)
            .map(SeekTo::Position)
            .ok_or_else(|| "position:NUMBER needs a number, 0 or above".to_owned()),
        Some(("time", instant)) => time::later(instant).map(SeekTo::Time),
        _ => match position(text) {
            Some(position) => Ok(SeekTo::Position(position)),
            None => time::earlier(text).map(SeekTo::Time).map_err(|_| wrong()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::Timestamp;

    #[test]
    fn places_are_ends_positions_and_times() {
        assert_eq!(seek_to("earliest"), Ok(SeekTo::Earliest));
        assert_eq!(seek_to("latest"), Ok(SeekTo::Latest));
        assert_eq!((seek_to("position:7"), seek_to("7")), (Ok(SeekTo::Position(7)), Ok(SeekTo::Position(7))));
        let time = Ok(SeekTo::Time(Timestamp(1_700_000_000_000_000)));
        assert_eq!(
            (seek_to("time:2023-11-14T22:13:20Z"), seek_to("2023-11-14T22:13:20Z")),
            (time.clone(), time)
        );
        assert!(matches!(seek_to("2h"), Ok(SeekTo::Time(_))));
        for bad in ["", "now", "position:", "position:-1", "-1", "time:", "time:5", "first"] {
            assert!(seek_to(bad).is_err(), "{bad}");
        }
    }
}
