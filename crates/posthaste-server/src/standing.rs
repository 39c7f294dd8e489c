//! How the gateway of this process is. The gateway says it, the API shows it, and neither names the other.

use posthaste::gcra::Rate;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;

/// Where the gateway says how it is. `None`: no gateway runs in this process.
pub(crate) type Standing = watch::Receiver<Option<GatewayStanding>>;

/// How a gateway is that runs in this process.
#[derive(Clone, Serialize, JsonSchema)]
pub(crate) struct GatewayStanding {
    /// Where it listens.
    pub(crate) url: String,
    /// Whether it takes events.
    pub(crate) ready: bool,
    /// In words.
    pub(crate) why: String,
    /// Who counts events: `shared`, `local`, `open` or `closed`.
    pub(crate) limiter: String,
    /// Why it is not `shared`, if it should be.
    pub(crate) limiter_lost: Option<String>,
    /// Events that wait for a commit, or are in one.
    pub(crate) queued_events: u64,
    /// Requests that were answered since it began.
    pub(crate) requests: u64,
    /// Those of them that were refused.
    pub(crate) refused: u64,
    /// Of a tenant without one of its own, by the file as it was read last.
    #[serde(skip)]
    pub(crate) rate: Rate,
}
