//! How much a rewind sends again. It is counted before the act: afterwards the sink has passed nothing behind
//! that place.

use super::error::AdminError;
use super::job::LookBound;
use super::{Admin, Count, EventFilter, RewindTo};
use std::time::Instant;

/// Counts what a sink has passed behind a place: exactly as far as a look goes, and about from there on.
/// Where the rewind would be refused, so is this.
pub async fn count_again(admin: &dyn Admin, sink: &str, to: RewindTo) -> Result<Count, AdminError> {
    count_again_within(admin, sink, to, LookBound::default()).await
}

/// The same, with a bound for the look at the log.
pub async fn count_again_within(
    admin: &dyn Admin,
    sink: &str,
    to: RewindTo,
    bound: LookBound,
) -> Result<Count, AdminError> {
    to.check()?;
    let (mut reached, since) = match to {
        RewindTo::Earliest => (0, None),
        RewindTo::Seq(seq) => (seq, None),
        RewindTo::Time(instant) => (0, Some(instant)),
    };
    let filter = EventFilter { since, from_seq: Some(reached.saturating_add(1)), ..EventFilter::default() };
    let (begun, mut windows, mut count) = (Instant::now(), 1, 0);
    let mut chunk = admin.events_replay(sink, &filter, reached, bound.rows, None).await?;
    check_place(admin, sink, to).await?;
    let first = chunk.samples.first().map(|event| event.seq);
    loop {
        count += chunk.events + chunk.left_alone;
        reached = chunk.reached;
        if chunk.done {
            return Ok(Count { count, exact: true });
        }
        if windows >= bound.windows || begun.elapsed() >= bound.time {
            let rest = (chunk.to_seq - reached).max(0).unsigned_abs();
            return Ok(Count { count: count + about(count, first, reached, rest), exact: false });
        }
        windows += 1;
        chunk = admin.events_replay(sink, &filter, reached, bound.rows, None).await?;
    }
}

/// How many of so many more numbers are events that the sink reads: as many as of those that were looked at.
/// Where nobody knows where these began, all of them.
fn about(count: u64, first: Option<i64>, reached: i64, rest: u64) -> u64 {
    let looked = first.map_or(0, |first| (reached - first + 1).max(0).unsigned_abs());
    if count == 0 || looked < count {
        return rest;
    }
    let part = u128::from(rest) * u128::from(count) / u128::from(looked);
    u64::try_from(part).unwrap_or(rest)
}

/// Refuses a place in front of a sink, and an instant behind the log.
async fn check_place(admin: &dyn Admin, sink: &str, to: RewindTo) -> Result<(), AdminError> {
    let target = match to {
        RewindTo::Earliest => return Ok(()),
        RewindTo::Seq(seq) => seq,
        RewindTo::Time(instant) => {
            let filter = EventFilter { since: Some(instant), ..EventFilter::default() };
            let page = admin.events(&filter, 0, 1).await?;
            match (page.events.first(), page.next) {
                (Some(first), _) => first.seq - 1,
                (None, None) => return Err(AdminError::nothing_since(instant)),
                // The place is far, and what was counted says enough.
                (None, Some(_)) => return Ok(()),
            }
        }
    };
    let status = admin.status().await?;
    let lanes = status.sinks.iter().filter(|known| known.sink == sink).flat_map(|known| &known.lanes);
    AdminError::check_rewind(sink, lanes.map(|lane| lane.position).max().unwrap_or(0), target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_taken_to_be_like_what_was_seen() {
        assert_eq!(about(100, Some(1), 100, 900), 900, "every number is one of its events");
        assert_eq!(about(10, Some(901), 1_000, 9_000), 900, "one of ten is");
        assert_eq!(about(0, None, 1_000, 9_000), 9_000, "nothing was seen that tells");
        assert_eq!(about(10, None, 1_000, 9_000), 9_000, "nor where it began");
        assert_eq!(about(u64::MAX, Some(1), i64::MAX, u64::MAX), u64::MAX);
    }
}
