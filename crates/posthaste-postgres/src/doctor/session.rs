//! The way to the server: whether a session is one, and whether notifications arrive.

use super::{CheckResult, Exam, fail, ok, warn};
use crate::config::PostgresConfig;
use crate::connect::open;
use crate::error::store_error;
use crate::pooler::is_pooled;
use crate::session::quote;
use posthaste::store::StoreError;
use std::sync::Arc;
use tokio::sync::Notify;

pub(super) async fn examine(exam: &mut Exam) {
    let config = exam.sessions.config().clone();
    let unknown = |error: StoreError| fail(format!("could not be checked: {error}"));
    let pooler = is_pooled(&config).await.map_or_else(unknown, |pooled| judge_pooler(pooled, config.pooled));
    exam.note("pooler", pooler);
    if config.pooled || !config.wakeups {
        exam.note("notify", ok("not used with this configuration"));
        return;
    }
    let arrives = notification_arrives(&config, exam.bounds.notify).await;
    exam.note(
        "notify",
        arrives.map_or_else(|error| fail(format!("could not be checked: {error}")), judge_notify),
    );
}

fn judge_pooler(found: bool, configured: bool) -> CheckResult {
    match (found, configured) {
        (false, false) => ok("a session is a session"),
        (false, true) => {
            ok("pooled = true and no pooler was seen; without that setting hand-over would be quicker")
        }
        (true, true) => warn(
            "a pooler in transaction mode, as configured: there is no session to hold, so a relay that died is noticed when its \
             lease expires and not at once, and nobody is woken. For quick hand-over connect relays to the server itself",
        ),
        (true, false) => fail(
            "a pooler in transaction mode lies between, and pooled = false: session locks and LISTEN get lost, so leases are \
             taken from living relays, and named statements fail. Set pooled = true, or connect relays to the server itself",
        ),
    }
}

/// Sends a notification to itself, on a channel that nobody else listens to.
async fn notification_arrives(
    config: &PostgresConfig,
    at_most: std::time::Duration,
) -> Result<bool, StoreError> {
    let arrived = Arc::new(Notify::new());
    let arrives = Arc::clone(&arrived);
    let listener = open(config, Some(Box::new(move |_: &str| arrives.notify_one()))).await?;
    let channel = quote(&format!("posthaste_doctor_{}", uuid::Uuid::new_v4().simple()));
    listener.client.batch_execute(&format!("listen {channel}")).await.map_err(store_error)?;
    let sender = open(config, None).await?;
    sender.client.batch_execute(&format!("notify {channel}")).await.map_err(store_error)?;
    Ok(tokio::time::timeout(at_most, arrived.notified()).await.is_ok())
}

fn judge_notify(arrived: bool) -> CheckResult {
    if arrived {
        return ok("a notification arrives");
    }
    warn(
        "a notification did not arrive: nobody wakes a sleeping relay, and an event after a quiet time waits for the next poll. \
         Is there a pooler in between? Connect relays to the server itself, or set wakeups = false",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::sink::Level;

    #[test]
    fn a_pooler_is_only_wrong_where_it_is_not_expected() {
        let level = |found, configured| judge_pooler(found, configured).0;
        assert_eq!((level(false, false), level(false, true)), (Level::Ok, Level::Ok));
        assert_eq!((level(true, true), level(true, false)), (Level::Warn, Level::Fail));
    }

    #[test]
    fn a_notification_that_does_not_come_is_a_warning() {
        assert_eq!((judge_notify(true).0, judge_notify(false).0), (Level::Ok, Level::Warn));
    }
}
