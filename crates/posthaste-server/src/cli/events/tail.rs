//! New events as they come: the log is looked at again and again, read-only.

use super::{FilterArgs, draw};
use crate::cli::{Context, explain_act, time};
use crate::config::Outbox;
use crate::output::remark;
use clap::Args;
use posthaste::admin::{Admin, AdminError, LogEvent};
use posthaste::store::StoreError;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::sleep;

#[derive(Debug, Args)]
pub(super) struct TailArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// How often to look
    #[arg(long, default_value = "500ms", value_name = "TIME", value_parser = time::distance)]
    interval: Duration,
    /// End after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

pub(super) async fn run(
    context: &Context,
    outbox: &Outbox,
    admin: &dyn Admin,
    args: TailArgs,
) -> anyhow::Result<ExitCode> {
    // Shorter would be a load and show nothing more.
    let interval = args.interval.max(Duration::from_millis(20));
    let (filter, limit) = (args.filter.filter(), args.limit);
    let ended = tokio::signal::ctrl_c();
    tokio::pin!(ended);
    let (_, mut place) =
        admin.events_since(&filter, None).await.map_err(|error| explain_act(outbox, error))?;
    remark("following the log; Ctrl-C ends");
    let (mut shown, mut lost) = (0, false);
    loop {
        let looked = tokio::select! {
            biased;
            _ = &mut ended => return Ok(ExitCode::SUCCESS),
            looked = admin.events_since(&filter, Some(&place)) => looked,
        };
        let moved = match looked {
            Ok((events, next)) => {
                if lost {
                    remark("the database answers again");
                }
                lost = false;
                for event in &events {
                    show(context, event)?;
                    shown += 1;
                    if Some(shown) == limit {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                let moved = next.seq > place.seq;
                place = next;
                moved
            }
            // Where it stood is known: nothing is skipped by waiting.
            Err(AdminError::Store(StoreError::Transient { message, .. })) => {
                if !lost {
                    remark(&format!("the database does not answer ({message}); trying again"));
                }
                lost = true;
                false
            }
            Err(error) => return Err(explain_act(outbox, error)),
        };
        if !moved {
            tokio::select! {
                _ = &mut ended => return Ok(ExitCode::SUCCESS),
                () = sleep(interval) => {}
            }
        }
    }
}

/// One event a line in JSON, so that a program can read along.
fn show(context: &Context, event: &LogEvent) -> anyhow::Result<()> {
    context.out().data(event, || draw(event))
}
