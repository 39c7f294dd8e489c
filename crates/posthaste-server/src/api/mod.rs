//! The API for people who look and act: `/api/v1` on the listener of `[admin]`.
//!
//! ```text
//! request ─▶ door ─▶ a route of the table ─▶ desk of an outbox ─▶ posthaste::admin
//!            Host, token, role, scope        4 looks at once, acts by admin_url
//! answer ◀── masked by what the token may see
//! ```
//!
//! One table (`routes.rs`) says what there is: method, path, who may, what goes in and out, a sentence. The
//! router, the check of roles, the OpenAPI document and docs/api.md are made from it, so none of them can say
//! something else. Words, filters and units are those of the command line's `--json`.
//!
//! Nobody without a token sees anything, not even which paths there are. Who acts is what the token says, and
//! never what a body says.

mod at_once;
mod call;
mod consumers;
mod control;
mod cursor;
mod denied;
mod door;
mod jobs;
mod live;
mod looks;
mod openapi;
#[cfg(test)]
mod reference;
mod routes;
mod shared;
mod spec;
mod trail;
mod tuning;

pub(crate) use door::router;
pub(crate) use live::SeriesBook;

use crate::access::{Sessions, Tokens};
use crate::config::Config;
use crate::desk::OutboxDesk;
use crate::standing::Standing;
use denied::Denials;
use live::Live;
use posthaste::relay::RelaySettings;
use shared::SharedLooks;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// Wrong tokens that are answered at a time, each after a second.
const WRONG_AT_ONCE: usize = 16;

/// Everything that requests share.
pub(crate) struct Api {
    config: Config,
    /// `[relay]` as the file says it now: what is tuned is judged by it.
    relay: watch::Receiver<RelaySettings>,
    /// How the gateway of this process is.
    standing: Standing,
    desks: Vec<Arc<OutboxDesk>>,
    tokens: Tokens,
    sessions: Sessions,
    denials: Denials,
    shared: SharedLooks,
    live: Arc<Live>,
    wrong: Semaphore,
    /// Names that `Host` may have.
    hosts: Vec<String>,
}

impl Api {
    /// Reads the tokens. Databases are reached when somebody asks.
    pub(crate) fn new(
        config: &Config,
        relay: watch::Receiver<RelaySettings>,
        standing: Standing,
        address: SocketAddr,
    ) -> anyhow::Result<Self> {
        let setting = &config.admin;
        let mut hosts = vec!["localhost".to_owned(), address.ip().to_string(), format!("[{}]", address.ip())];
        hosts.extend(setting.hosts.iter().map(|host| host.to_ascii_lowercase()));
        Ok(Self {
            desks: config.outboxes.iter().map(|outbox| Arc::new(OutboxDesk::new(outbox, config))).collect(),
            tokens: Tokens::open(setting.tokens_file.as_deref())?,
            sessions: Sessions::default(),
            denials: Denials::default(),
            shared: SharedLooks::default(),
            live: Arc::default(),
            wrong: Semaphore::new(WRONG_AT_ONCE),
            hosts,
            relay,
            standing,
            config: config.clone(),
        })
    }

    /// The outboxes that can be acted on from here.
    pub(crate) fn acting(&self) -> impl Iterator<Item = &Arc<OutboxDesk>> {
        self.desks.iter().filter(|desk| desk.outbox.acting.is_some())
    }

    /// Reads the tokens again. What cannot be read changes nothing, and is told.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        self.tokens.reload()
    }

    /// Why the file of tokens could not be read the last time.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.tokens.trouble()
    }

    /// The last hour of each sink, for whoever looks anyway.
    pub(crate) fn series(&self) -> Arc<SeriesBook> {
        Arc::clone(&self.live.series)
    }

    /// A code that opens one session, once, within five minutes.
    pub(crate) fn one_time_code(&self) -> anyhow::Result<String> {
        self.sessions.one_time_code()
    }
}
