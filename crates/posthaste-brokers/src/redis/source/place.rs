//! Positions of entries: `ms << 20 | seq`. Pure.
//!
//! The order of positions is the order of ids, so a position can be read from although no entry has it.
//! Twenty bits are a million entries of one millisecond, and the rest is enough until the year 2248. An id
//! that does not fit was made by hand, and is refused: two entries must not have one position.

const SEQ_BITS: u32 = 20;
const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
const MS_MAX: u64 = (1 << (63 - SEQ_BITS)) - 1;

/// The position of an id, if it fits.
pub(super) fn position(id: &str) -> Option<i64> {
    let (ms, seq) = id.split_once('-')?;
    let (ms, seq): (u64, u64) = (ms.parse().ok()?, seq.parse().ok()?);
    (ms <= MS_MAX && seq <= SEQ_MAX).then(|| i64::try_from(ms << SEQ_BITS | seq).ok())?
}

/// The id that a reading from this position on begins behind.
pub(super) fn behind(position: i64) -> String {
    id(position.max(1) - 1)
}

/// The id of a position.
pub(super) fn id(position: i64) -> String {
    let position = position.max(0).unsigned_abs();
    format!("{}-{}", position >> SEQ_BITS, position & SEQ_MAX)
}

/// The first position of a millisecond.
pub(super) fn of_millis(ms: i64) -> i64 {
    i64::try_from(u64::try_from(ms).unwrap_or(0).min(MS_MAX) << SEQ_BITS).unwrap_or(i64::MAX)
}

/// The millisecond of a position.
pub(super) fn millis(position: i64) -> i64 {
    position >> SEQ_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_the_order_of_ids_and_what_does_not_fit_is_refused() {
        let ids = ["0-0", "0-1", "0-1048575", "1-0", "1763280000123-7", "8796093022207-1048575"];
        let positions: Vec<i64> = ids.iter().map(|id| position(id).expect("it fits")).collect();
        assert!(positions.is_sorted() && positions[1] == 1);
        assert_eq!(positions.iter().map(|at| id(*at)).collect::<Vec<_>>(), ids);
        for strange in
            ["0-1048576", "8796093022208-0", "18446744073709551615-0", "", "7", "a-b", "-1-0", "1-"]
        {
            assert_eq!(position(strange), None, "{strange}");
        }
        assert_eq!((behind(0), behind(1), behind(1 << 20)), ("0-0".into(), "0-0".into(), "0-1048575".into()));
        assert_eq!((of_millis(5), millis(of_millis(5) + 9), of_millis(-1)), (5 << 20, 5, 0));
    }
}
