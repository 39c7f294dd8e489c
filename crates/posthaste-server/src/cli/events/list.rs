//! Lists by topic, key, time and number.
//!
//! A store looks at a bounded part of the log and says how far it came; here the parts are put together until
//! there is a page of events, the log ends, or somebody has seen enough.

use super::{FilterArgs, draw};
use crate::cli::{Context, explain_act};
use crate::config::Outbox;
use clap::Args;
use posthaste::admin::{Admin, AdminError, EventFilter, EventPage};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Most events to print
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,
    /// Go on behind this number
    #[arg(long, default_value_t = 0, value_name = "SEQ")]
    after: i64,
}

pub(super) async fn run(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    args: ListArgs,
) -> anyhow::Result<ExitCode> {
    let filter = args.filter.filter();
    let page = gather(admin, &filter, args.after, args.limit).await;
    let page = page.map_err(|error| explain_act(outbox, error))?;
    context.out().data(&json!({ "events": page.events, "next": page.next }), || {
        let mut text = page.events.iter().map(draw).collect::<Vec<_>>().join("\n");
        if page.events.is_empty() {
            text.push_str("no events");
        }
        if let Some(seq) = page.next {
            text.push_str(&format!("\nthere may be more: --after {seq}"));
        }
        text
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn gather(
    admin: &dyn Admin,
    filter: &EventFilter,
    after: i64,
    limit: i64,
) -> Result<EventPage, AdminError> {
    let enough = tokio::signal::ctrl_c();
    tokio::pin!(enough);
    let mut all = EventPage { events: Vec::new(), next: Some(after) };
    while let Some(after) = all.next {
        let room = limit - all.events.len() as i64;
        if room == 0 {
            break;
        }
        tokio::select! {
            biased;
            _ = &mut enough => break,
            page = admin.events(filter, after, room) => {
                let page = page?;
                all.events.extend(page.events);
                all.next = page.next;
            }
        }
    }
    Ok(all)
}
