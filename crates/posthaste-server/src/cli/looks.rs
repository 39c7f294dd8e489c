//! Looks at several databases at once, each within a bound.
//!
//! One that is away or slow is shown with the reason, and the others as ever: an operator looks when
//! something is down.

use crate::config::{Outbox, scrub};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longest look at one database. Longer than a connection may take by default: its own error says more.
const PATIENCE: Duration = Duration::from_secs(8);

/// Makes all of them at once. The answers are in their order.
pub(super) async fn at_once<T, F>(looks: impl IntoIterator<Item = F>) -> Vec<Result<T, String>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, String>> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut found = Vec::new();
    for (place, look) in looks.into_iter().enumerate() {
        // A look that panics says so itself.
        found.push(Err("the look at it failed".to_owned()));
        running.spawn(async move { (place, look.await) });
    }
    while let Some(looked) = running.join_next().await {
        if let Ok((place, looked)) = looked {
            found[place] = looked;
        }
    }
    found
}

/// One look, within the bound; or why there is nothing to show.
pub(super) async fn within<T>(
    outbox: &Outbox,
    look: impl Future<Output = anyhow::Result<T>>,
) -> Result<T, String> {
    match timeout(PATIENCE, look).await {
        Ok(looked) => looked.map_err(|error| scrub(&error.to_string())),
        Err(_) => Err(format!(
            "outbox `{}`: no answer within {} s. Events stay in the database. Look at its load and at what holds locks there",
            outbox.name,
            PATIENCE.as_secs()
        )),
    }
}
