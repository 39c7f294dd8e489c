//! `posthaste status`: how far every sink is, on one screen of 80 columns.

use super::{Context, admin, explain_act};
use crate::config::{Config, Outbox};
use crate::output::{bytes, count, escape, plural, seconds, table, time};
use clap::Args;
use posthaste::admin::{Admin, LaneStatus, OutboxStatus, SinkStatus};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// Pause between two pictures of `--watch`.
const WATCH: Duration = Duration::from_secs(1);

/// Takes the former picture away.
const CLEAR: &[u8] = b"\x1b[H\x1b[J";

const EXAMPLES: &str = "\
Examples:
  posthaste status                      every outbox of the configuration
  posthaste status --watch              redraw every second
  posthaste status --json --outbox orders | jq '.outboxes[0].sinks[].backlog'

backlog   events in the log that the sink has not handled; ~ is an estimate
deferred  events that wait for a retry, their time, or an earlier one of their key
dead      events given up: see `posthaste dead list`

In JSON, times are texts in RFC 3339, and every other name of a quantity ends
with its unit: oldest_age_seconds, lease_ms, bytes.";

/// Show backlog, ages, rates, lanes, leases and segments
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// Redraw every second until Ctrl-C
    #[arg(long)]
    watch: bool,
}

#[derive(Serialize)]
struct Picture {
    outboxes: Vec<Named>,
}

#[derive(Serialize)]
struct Named {
    outbox: String,
    service: String,
    /// The table, where it is an adopted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    adopted: Option<String>,
    #[serde(flatten)]
    status: OutboxStatus,
}

pub(crate) async fn run(context: &Context, args: StatusArgs) -> anyhow::Result<ExitCode> {
    let config: Config = context.config()?;
    let mut admins = Vec::new();
    for outbox in context.outboxes(&config)? {
        admins.push((outbox, admin(outbox).await?));
    }
    loop {
        let picture = take(&admins).await?;
        if args.watch && !context.out().json {
            context.out().bytes(CLEAR)?;
        }
        context.out().data(&picture, || draw(&picture))?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            () = tokio::time::sleep(WATCH) => {}
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        }
    }
}

async fn take(admins: &[(&Outbox, Box<dyn Admin>)]) -> anyhow::Result<Picture> {
    let mut outboxes = Vec::new();
    for (outbox, admin) in admins {
        let status = admin.status().await.map_err(|error| explain_act(outbox, error))?;
        outboxes.push(Named {
            outbox: outbox.name.to_string(),
            service: outbox.service.to_string(),
            adopted: outbox.database.layout().map(|(_, layout)| layout.table.to_string()),
            status,
        });
    }
    Ok(Picture { outboxes })
}

fn draw(picture: &Picture) -> String {
    picture.outboxes.iter().map(draw_outbox).collect::<Vec<_>>().join("\n\n")
}

fn draw_outbox(named: &Named) -> String {
    let status = &named.status;
    let mut parts = vec![match &named.adopted {
        // Nothing of ours is in such a table: no schema, no relays, no lanes, no segments.
        Some(table) => format!("outbox {}   adopted table {table}   {}", named.outbox, time(status.now)),
        None => format!(
            "outbox {}   schema version {}   {}\n\n{}",
            named.outbox,
            status.schema_version,
            time(status.now),
            draw_relays(status)
        ),
    }];
    if !status.paused_routes.is_empty() {
        parts.push(format!("paused routes: {}", escape::line(&status.paused_routes.join(", "))));
    }
    parts.push(draw_sinks(&status.sinks));
    if named.adopted.is_none() {
        parts.push(draw_lanes(status));
        parts.push(draw_segments(status));
    } else {
        parts.push("relays are not written down in an adopted table: ask /readyz of each".to_owned());
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn draw_sinks(sinks: &[SinkStatus]) -> String {
    let headers = ["sink", ">backlog", ">oldest", ">average", ">deferred", ">dead", ">events/s", "state"];
    let rows = sinks.iter().map(|sink| {
        vec![
            sink.sink.clone(),
            count(sink.backlog),
            seconds(sink.oldest_age_seconds),
            seconds(sink.average_age_seconds),
            count(sink.deferred),
            count(sink.dead),
            format!("{:.1}", sink.settled_per_second),
            state(sink),
        ]
    });
    table(&headers, rows.collect())
}

fn state(sink: &SinkStatus) -> String {
    let owned = sink.lanes.iter().filter(|lane| lane.owner.is_some()).count();
    let mut state = match sink.lanes.len() {
        _ if sink.paused => "paused".to_owned(),
        0 => String::new(),
        lanes => format!("{owned}/{lanes} lanes"),
    };
    if let Some(limit) = sink.rate_limit {
        state.push_str(&format!(", ≤{limit}/s"));
    }
    state
}

/// Live relays, numbered.
pub(crate) fn draw_relays(status: &OutboxStatus) -> String {
    if status.relays.is_empty() {
        return "no relay is running".to_owned();
    }
    let line = |(n, relay): (usize, &String)| format!("relay #{}  {}", n + 1, escape::line(relay));
    status.relays.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// Lanes of all sinks, for `status` and `lanes`. Owners go by the numbers of the relays above.
pub(crate) fn draw_lanes(status: &OutboxStatus) -> String {
    let headers = ["sink", ">lane", "owner", ">epoch", ">lease", ">position", ">settled", ""];
    let rows =
        status.sinks.iter().flat_map(|sink| sink.lanes.iter().map(|lane| lane_row(status, &sink.sink, lane)));
    table(&headers, rows.collect())
}

fn lane_row(status: &OutboxStatus, sink: &str, lane: &LaneStatus) -> Vec<String> {
    let ago =
        lane.settled_seconds_ago.map_or_else(|| "never".to_owned(), |ago| format!("{} ago", seconds(ago)));
    let lease = lane.lease_ms.map_or_else(String::new, |ms| seconds(ms as f64 / 1e3));
    let deaths = (lane.unclean > 0).then(|| plural(lane.unclean.unsigned_abs().into(), "death"));
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
    use posthaste::Timestamp;
    use posthaste::admin::{Count, SegmentStatus};

    #[test]
    fn a_busy_outbox_fits_into_80_columns() {
        let lane = |lane| LaneStatus {
            lane,
            owner: Some("relay-7d9c5b-x2x4q:12345:ab12cd".to_owned()),
            epoch: 1_234,
            lease_ms: Some(19_800),
            position: 123_456_789_012,
            catching_up: lane == 1,
            settled_seconds_ago: Some(0.12),
            unclean: 2,
        };
        let sink = |name: &str, count| SinkStatus {
            sink: name.to_owned(),
            backlog: Count { count, exact: false },
            oldest_age_seconds: 93_600.0,
            average_age_seconds: 3_000.0,
            deferred: Count { count: 1_000_000, exact: true },
            dead: Count { count: 12, exact: true },
            settled_per_second: 54_321.5,
            paused: false,
            rate_limit: Some(60_000.0),
            lanes: vec![lane(0), lane(1)],
        };
        let segment = SegmentStatus {
            segment: 3,
            state: "current".to_owned(),
            bytes: 5 << 30,
            opened_at: Some(Timestamp(0)),
        };
        let status = OutboxStatus {
            now: Timestamp(1_700_000_000_000_000),
            relays: vec![
                "relay-7d9c5b-x2x4q:12345:ab12cd".to_owned(),
                "relay-7d9c5b-abcde:1:ffffff".to_owned(),
            ],
            schema_version: 1,
            sinks: vec![sink("nats", 3_000_000), sink("warehouse", 5)],
            segments: vec![segment],
            paused_routes: vec!["orders".to_owned()],
        };
        let named = Named { outbox: "orders".to_owned(), service: "shop".to_owned(), adopted: None, status };
        let text = draw(&Picture { outboxes: vec![named] });
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?}\n{text}");
        for part in ["~3,000,000", "1d02h", "2/2 lanes", "catching up", "5.0 GiB"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }
}
