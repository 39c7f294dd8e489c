//! What a relay writes down about itself with its heartbeat.
//!
//! Written when it changed, and figures alone now and then while events flow. A relay with nothing to do
//! writes nothing (F83).

use super::progress::Progress;
use super::pulse::Latencies;
use crate::admin::{DESTINATIONS_NAMED, DestinationReport, OutOfReach, RelayReport, SinkReport};
use crate::store::LaneId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Figures are written at most this often.
const FIGURES_EVERY: Duration = Duration::from_secs(10);

/// What was written last.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    last: Option<(Instant, RelayReport)>,
}

impl Reported {
    /// Whether this is worth writing.
    pub(crate) fn is_news(&self, report: &RelayReport, now: Instant) -> bool {
        let Some((at, last)) = &self.last else { return true };
        if report.without_figures() != last.without_figures() {
            return true;
        }
        report != last && now.duration_since(*at) >= FIGURES_EVERY
    }

    pub(crate) fn written(&mut self, report: RelayReport, now: Instant) {
        self.last = Some((now, report));
    }

    /// The database may not have it any more.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }
}

/// The report of lanes at work, with why they make no progress.
pub(crate) fn report<'a>(
    lanes: impl Iterator<Item = (&'a LaneId, &'a Arc<Progress>)>,
    stalled: Option<String>,
    now: Instant,
) -> RelayReport {
    let mut sinks: BTreeMap<&str, (SinkReport, BTreeMap<String, OutOfReach>, Latencies)> = BTreeMap::new();
    for (id, progress) in lanes {
        let (sink, away, latencies) = sinks.entry(&id.sink).or_default();
        sink.lanes += 1;
        progress.pulse.add_to(latencies, now);
        let seen = progress.away();
        if let Some(one) = &seen.sink {
            sink.out_of_reach = Some(longer(sink.out_of_reach.take(), one));
        }
        for (destination, one) in &seen.destinations {
            let before = away.remove(destination);
            away.insert(destination.clone(), longer(before, one));
        }
    }
    let told = |(name, (mut sink, away, latencies)): (&str, (SinkReport, BTreeMap<_, _>, Latencies))| {
        let mut away: Vec<(String, OutOfReach)> = away.into_iter().collect();
        away.sort_by_key(|(_, one)| one.since.0);
        sink.sink = name.to_owned();
        sink.more_destinations = away.len().saturating_sub(DESTINATIONS_NAMED);
        let named = away.into_iter().take(DESTINATIONS_NAMED);
        let named = named.map(|(destination, out_of_reach)| DestinationReport { destination, out_of_reach });
        sink.destinations = named.collect();
        sink.pulse = latencies.pulse();
        sink
    };
    RelayReport::new(sinks.into_iter().map(told).collect(), stalled)
}

/// Of two lanes that cannot reach one thing, the one that cannot for longer.
fn longer(before: Option<OutOfReach>, one: &OutOfReach) -> OutOfReach {
    before.filter(|before| before.since.0 <= one.since.0).unwrap_or_else(|| one.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Timestamp;

    fn lane(sink: &str, lane: i16) -> LaneId {
        LaneId { sink: sink.into(), lane }
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_of_a_sink_are_told_together_the_longest_outage_first() {
        let (one, two) = (Arc::new(Progress::new()), Arc::new(Progress::new()));
        let (now, ids) = (Instant::now(), [lane("nats", 0), lane("nats", 1)]);
        let away = |since| OutOfReach::new(Timestamp(since), "nats.no_stream", "no stream");
        one.away().destinations.extend((0..15).map(|n| (format!("d{n}"), away(100 + n))));
        two.away().destinations.extend((10..25).map(|n| (format!("d{n}"), away(90))));
        one.sink_failed("nats.down", "refused", Timestamp(7));
        one.sink_failed("nats.gone", "refused again", Timestamp(9));
        one.pulse.delivered([1_000; 60].into_iter(), now);
        two.pulse.delivered([2_000; 60].into_iter(), now);
        let said = report(ids.iter().zip([&one, &two]), None, now + Duration::from_secs(10));
        let [sink] = &said.sinks[..] else { panic!("{said:?}") };
        assert_eq!((sink.lanes, sink.destinations.len(), sink.more_destinations), (2, 20, 5));
        assert_eq!(sink.destinations[0].out_of_reach.since, Timestamp(90), "the longest first");
        let all = sink.out_of_reach.as_ref().expect("out of reach");
        assert_eq!(
            (all.since, all.code.as_str()),
            (Timestamp(7), "nats.gone"),
            "since the first, with the last"
        );
        assert_eq!(sink.pulse.map(|pulse| pulse.delivered_per_s), Some(12.0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_relay_writes_nothing_and_figures_are_written_now_and_then() {
        let (progress, id, start) = (Arc::new(Progress::new()), lane("nats", 0), Instant::now());
        let (mut reported, at) = (Reported::default(), |seconds| start + Duration::from_secs(seconds));
        let said = |now| report([(&id, &progress)].into_iter(), None, now);
        assert!(reported.is_news(&said(start), start), "the first");
        reported.written(said(start), start);
        assert!(!reported.is_news(&said(at(3_600)), at(3_600)), "F83: an hour of nothing");
        progress.pulse.delivered([1_000].into_iter(), at(3_601));
        let busy = said(at(3_602));
        assert!(reported.is_news(&busy, at(3_602)));
        reported.written(busy, at(3_602));
        progress.pulse.delivered([1_000].into_iter(), at(3_603));
        assert!(!reported.is_news(&said(at(3_604)), at(3_604)), "figures wait");
        progress.sink_failed("nats.down", "refused", Timestamp(1));
        assert!(reported.is_news(&said(at(3_605)), at(3_605)), "an outage does not");
    }
}
