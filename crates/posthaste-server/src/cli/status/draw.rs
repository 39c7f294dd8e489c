//! The picture as text.

use super::{Named, Picture};
use crate::output::{bytes, count, escape, paragraph, plural, seconds, table, time};
use crate::picture::draw_unreachable;
use posthaste::Timestamp;
use posthaste::admin::{LaneStatus, OutboxStatus, PausedRoute, Problem, Said, SinkStatus};

pub(super) fn draw(picture: &Picture) -> String {
    picture.outboxes.iter().map(draw_outbox).collect::<Vec<_>>().join("\n\n")
}

fn draw_outbox(named: &Named) -> String {
    let name = escape::line(&named.outbox);
    let Some(seen) = &named.seen else {
        return draw_unreachable(&named.outbox, named.unreachable.as_deref().unwrap_or("not looked at"));
    };
    let status = &seen.status;
    let mut parts = vec![match &named.adopted {
        // Nothing of ours is in such a table: no schema, no relays, no lanes, no segments.
        Some(table) => format!("outbox {name}   adopted table {table}   {}", time(status.now)),
        None => {
            format!("outbox {name}   schema version {}   {}", status.schema_version, time(status.now))
        }
    }];
    parts.push(draw_problems(&seen.problems));
    if named.adopted.is_none() {
        parts.push(draw_relays(status));
    }
    if !status.paused_routes.is_empty() {
        let routes = status.paused_routes.iter().map(|route| paragraph(&paused(status.now, route), ""));
        parts.push(routes.collect::<Vec<_>>().join("\n"));
    }
    parts.push(draw_sinks(status));
    if named.adopted.is_none() {
        parts.push(draw_lanes(status));
        parts.push(draw_segments(status));
    } else {
        parts.push("relays are not written down in an adopted table: ask /readyz of each".to_owned());
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn paused(now: Timestamp, paused: &PausedRoute) -> String {
    let by = paused.set_by.as_ref().map_or_else(String::new, |set| {
        let until = set.until.map_or_else(String::new, |until| format!(", until {}", time(until)));
        let ago = seconds(now.seconds_since(set.at));
        format!(" by {} for {ago}{until}: \"{}\"", set.actor, set.reason)
    });
    format!("route {} is paused{by}", paused.route)
}

/// A sentence each.
fn draw_problems(problems: &[Problem]) -> String {
    problems.iter().map(|problem| paragraph(&problem.sentence, "")).collect::<Vec<_>>().join("\n")
}

fn draw_sinks(status: &OutboxStatus) -> String {
    if status.sinks.is_empty() {
        return "no sink is known yet: a relay makes them known when it first runs".to_owned();
    }
    let headers = ["sink", ">backlog", ">oldest", ">average", ">deferred", ">dead", ">events/s", "state"];
    let rows = status.sinks.iter().map(|sink| sink_row(status, sink));
    let mut lines = vec![table(&headers, rows.collect())];
    if !status.relays.is_empty() {
        lines.push("(events/s: delivered, on average of the last minute)".to_owned());
    }
    lines.extend(status.sinks.iter().filter_map(|sink| note(status.now, sink)));
    lines.join("\n")
}

fn sink_row(status: &OutboxStatus, sink: &SinkStatus) -> Vec<String> {
    // Nobody reads for a sink that left, and nobody delivers without a relay.
    let read = |text: String| if sink.retired { "-".to_owned() } else { text };
    let rate = match status.relays.is_empty() || sink.retired {
        true => "-".to_owned(),
        false => format!("{:.1}", sink.delivered_per_second),
    };
    vec![
        sink.sink.clone(),
        read(count(sink.backlog)),
        read(seconds(sink.oldest_age_seconds)),
        read(seconds(sink.average_age_seconds)),
        count(sink.deferred),
        count(sink.dead),
        rate,
        state(sink),
    ]
}

fn state(sink: &SinkStatus) -> String {
    let owned = sink.lanes.iter().filter(|lane| lane.owner.is_some()).count();
    let mut state = match sink.lanes.len() {
        _ if sink.retired => "retired".to_owned(),
        _ if sink.paused => "paused".to_owned(),
        0 => String::new(),
        lanes => format!("{owned}/{lanes} lanes"),
    };
    if let Some(limit) = sink.rate_limit {
        state.push_str(&format!(", ≤{limit}/s"));
    }
    state
}

/// What the figures do not say: that a sink left, or who limits it. Of a pause there is a sentence above.
fn note(now: Timestamp, sink: &SinkStatus) -> Option<String> {
    let name = &sink.sink;
    if sink.retired {
        let text = format!(
            "sink {name} left the configuration. Left of it: {} deferred, {} dead; see \
             `posthaste dead list --sink {name}`",
            count(sink.deferred),
            count(sink.dead)
        );
        return Some(paragraph(&text, ""));
    }
    let (limit, set) = (sink.rate_limit?, sink.set_by.as_ref()?);
    let ago = seconds(now.seconds_since(set.at));
    let text = format!("sink {name} is limited to {limit}/s by {} for {ago}: \"{}\"", set.actor, set.reason);
    Some(paragraph(&text, ""))
}

/// Live relays, numbered.
pub(crate) fn draw_relays(status: &OutboxStatus) -> String {
    if status.relays.is_empty() {
        return "no relay is running".to_owned();
    }
    let line = |(n, relay): (usize, &String)| {
        let said = status.reports.iter().find(|process| process.relay == *relay);
        let newer = said.is_some_and(|process| process.said == Said::Newer);
        let newer = if newer { "  (newer than this command: its report is not read)" } else { "" };
        paragraph(&format!("relay #{}  {relay}{newer}", n + 1), "")
    };
    status.relays.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// Lanes of sinks that are served, for `status` and `lanes`. Owners go by the numbers of the relays above.
pub(crate) fn draw_lanes(status: &OutboxStatus) -> String {
    let headers = ["sink", ">lane", "owner", ">epoch", ">lease", ">position", ">settled", ""];
    let served = status.sinks.iter().filter(|sink| !sink.retired);
    let rows = served.flat_map(|sink| sink.lanes.iter().map(|lane| lane_row(status, &sink.sink, lane)));
    table(&headers, rows.collect())
}

fn lane_row(status: &OutboxStatus, sink: &str, lane: &LaneStatus) -> Vec<String> {
    let ago =
        lane.settled_seconds_ago.map_or_else(|| "never".to_owned(), |ago| format!("{} ago", seconds(ago)));
    let lease = lane.lease_ms.map_or_else(String::new, |ms| seconds(ms as f64 / 1e3));
    let deaths = (lane.unclean > 0)
        .then(|| format!("{} at this place", plural(lane.unclean.unsigned_abs().into(), "death")));
    let late = lane.catching_up.then(|| "catching up".to_owned());
    vec![
        sink.to_owned(),
        lane.lane.to_string(),
        lane.owner.as_deref().map_or_else(|| "-".to_owned(), |owner| owner_name(status, owner)),
        lane.epoch.to_string(),
        lease,
        lane.position.to_string(),
        ago,
        late.into_iter().chain(deaths).collect::<Vec<_>>().join(", "),
    ]
}

fn owner_name(status: &OutboxStatus, owner: &str) -> String {
    let place = status.relays.iter().position(|relay| relay == owner);
    place.map_or_else(|| owner.to_owned(), |n| format!("#{}", n + 1))
}

fn draw_segments(status: &OutboxStatus) -> String {
    let used = status.segments.iter().filter(|segment| segment.state != "empty");
    let rows = used.map(|segment| {
        vec![
            segment.segment.to_string(),
            segment.state.clone(),
            bytes(segment.bytes),
            segment.opened_at.map(time).unwrap_or_default(),
        ]
    });
    table(&[">segment", "state", ">size", "opened"], rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::OutboxLook;
    use posthaste::admin::{Count, RelayProcess, SegmentStatus, SetBy, diagnose};

    fn exact(count: u64) -> Count {
        Count { count, exact: true }
    }

    fn lane(lane: i16) -> LaneStatus {
        LaneStatus {
            lane,
            owner: Some("relay-7d9c5b-x2x4q:12345:ab12cd".to_owned()),
            epoch: 1_234,
            lease_ms: Some(19_800),
            position: 123_456_789_012,
            catching_up: lane == 1,
            settled_seconds_ago: Some(0.12),
            unclean: lane.into(),
        }
    }

    fn sink(name: &str, backlog: u64) -> SinkStatus {
        SinkStatus {
            sink: name.to_owned(),
            backlog: Count { count: backlog, exact: false },
            oldest_age_seconds: 93_600.0,
            average_age_seconds: 3_000.0,
            deferred: exact(1_000_000),
            dead: exact(12),
            delivered_per_second: 54_321.5,
            paused: false,
            rate_limit: Some(60_000.0),
            set_by: None,
            waiting: Vec::new(),
            retired: false,
            lanes: vec![lane(0), lane(1)],
        }
    }

    fn status(sinks: Vec<SinkStatus>) -> OutboxStatus {
        let segment = SegmentStatus {
            segment: 3,
            state: "current".to_owned(),
            bytes: 5 << 30,
            opened_at: Some(Timestamp(0)),
        };
        OutboxStatus {
            now: Timestamp(1_700_000_000_000_000),
            relays: vec![
                "relay-7d9c5b-x2x4q:12345:ab12cd".to_owned(),
                "relay-7d9c5b-abcde:1:ffffff".to_owned(),
            ],
            reports: Vec::new(),
            schema_version: 1,
            sinks,
            segments: vec![segment],
            paused_routes: vec![PausedRoute { route: "orders".to_owned(), set_by: None }],
            jobs_wait: false,
            unread: None,
        }
    }

    fn named(found: Result<OutboxStatus, &str>) -> Named {
        let unreachable = found.as_ref().err().map(|why| (*why).to_owned());
        let seen = found.ok().map(|status| OutboxLook { problems: diagnose(&status), status });
        Named { outbox: "orders".to_owned(), service: "shop".to_owned(), adopted: None, unreachable, seen }
    }

    fn text(found: Vec<Result<OutboxStatus, &str>>) -> String {
        let text = draw(&Picture { outboxes: found.into_iter().map(named).collect() });
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?}\n{text}");
        text
    }

    #[track_caller]
    fn says(text: &str, parts: &[&str]) {
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts {
            assert!(flat.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn a_busy_outbox_fits_into_80_columns() {
        let text = text(vec![Ok(status(vec![sink("nats", 3_000_000), sink("warehouse", 5)]))]);
        says(&text, &["~3,000,000", "1d02h", "2/2 lanes", "5.0 GiB", "average of the last minute"]);
        // A cell of the table is broken at its words.
        says(&text, &["catching", "1 death", "at this", "place"]);
    }

    #[test]
    fn a_pause_a_limit_and_what_a_retired_sink_left_are_said() {
        let set = |reason: &str| SetBy {
            actor: "bo".to_owned(),
            reason: reason.to_owned(),
            at: Timestamp(1_699_999_760_000_000),
            until: None,
        };
        let (mut paused, mut slow, mut gone) = (sink("nats", 148), sink("slow", 5), sink("old", 0));
        (paused.paused, paused.set_by, paused.rate_limit) = (true, Some(set("upgrade")), None);
        slow.set_by = Some(set("the index is slow"));
        (gone.retired, gone.rate_limit, gone.deferred) = (true, None, exact(2));
        let all = text(vec![Ok(status(vec![paused, slow, gone]))]);
        says(&all, &["sink nats is paused by bo for 4 min: \"upgrade\"; 1000148 events wait"]);
        says(&all, &["sink slow is limited to 60000/s by bo for 4m00s: \"the index is slow\""]);
        says(&all, &["old - - - 2 12 - retired", "Left of it: 2 deferred, 12 dead"]);
        assert!(!all.contains("old      0"), "its lanes are nobody's:\n{all}");
    }

    #[test]
    fn without_a_relay_there_is_no_rate_and_without_sinks_no_table() {
        let mut alone = status(vec![sink("nats", 5)]);
        alone.relays.clear();
        let alone = text(vec![Ok(alone)]);
        says(&alone, &["no relay runs; 1000005 events wait, the oldest for 26 h", " 12 - 2/2 lanes"]);
        assert!(!alone.contains("last minute"), "{alone}");
        let new = text(vec![Ok(status(Vec::new()))]);
        says(&new, &["no sink is known yet"]);
        assert!(!new.contains("backlog") && !new.contains("owner"), "{new}");
    }

    #[test]
    fn one_that_is_away_is_shown_beside_the_others_and_a_newer_relay_as_such() {
        let mut seen = status(vec![sink("nats", 5)]);
        seen.reports = vec![RelayProcess {
            relay: seen.relays[1].clone(),
            version: "9".to_owned(),
            host: "h".to_owned(),
            started_at: seen.now,
            seen_at: seen.now,
            said: Said::Newer,
        }];
        let why = "outbox `orders`: connection refused\n  Appended events stay in the database and are delivered when it can be reached.";
        let text = text(vec![Ok(seen), Err(why)]);
        says(&text, &["cannot be looked at", "connection refused", "~5", "ffffff (newer than"]);
    }
}
