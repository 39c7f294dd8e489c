//! The dashboard of the demo: served by this process, so that it outlives the relay that is killed.

use super::view::View;
use crate::config::{Config, Flags};
use crate::daemon::{AdminServer, no_gateway};
use crate::demo::stage::Stage;
use anyhow::Context as _;
use posthaste::admin::{Actor, Admin, Control, ControlTarget};
use posthaste::relay::RelaySettings;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Where the dashboard is by default.
const PORT: u16 = 7679;

pub(super) struct DemoPage {
    config: Config,
    server: AdminServer,
    link: String,
    /// The dashboard asks for the relay's settings, which the demo leaves as they are.
    _settings: watch::Sender<RelaySettings>,
}

impl DemoPage {
    /// Serves shop and billing, at the usual port if that is free.
    pub(super) async fn open(stage: &Stage) -> anyhow::Result<Self> {
        let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let port = if TcpListener::bind(usual).await.is_ok() { PORT } else { 0 };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let path = stage.page_config(&address.to_string())?;
        let config = Config::load(&Flags { config: Some(path), ..Flags::default() })?;
        let settings = watch::Sender::new(config.relay.clone());
        let server = AdminServer::start(&config, settings.subscribe(), no_gateway(), address, false).await?;
        let link = server.link()?;
        Ok(Self { config, server, link, _settings: settings })
    }

    /// Says where it is, and what to look for.
    pub(super) fn tell(&self, view: &View, minutes: Option<u64>) -> anyhow::Result<()> {
        let end = match minutes {
            None => "Ctrl-C ends them, and then the ledger is counted.".to_owned(),
            Some(minutes) => format!("They end after {minutes} min, and then the ledger is counted."),
        };
        view.say(
            "",
            &format!(
                "The story is over, and orders go on: 50 a second. One event in twenty seconds is poison, the broker goes \
                 away for six seconds once a minute. {end}"
            ),
        )?;
        view.say("", "The dashboard (the link opens it once, within five minutes):")?;
        view.link(&self.link)
    }

    /// Takes back what somebody paused or slowed down, so that everything arrives, and serves no more.
    pub(super) async fn close(mut self) -> anyhow::Result<()> {
        self.server.stop().await;
        for outbox in &self.config.outboxes {
            let admin = Box::pin(outbox.database.admin()).await?;
            let status = admin.status().await?;
            for sink in status.sinks.iter().filter(|sink| sink.paused || sink.rate_limit.is_some()) {
                free(&*admin, &ControlTarget::Sink(sink.sink.clone())).await?;
            }
            for paused in &status.paused_routes {
                free(&*admin, &ControlTarget::Route(paused.route.clone())).await?;
            }
            let consumers = Box::pin(outbox.database.consumer_admin(None, &[])).await?;
            let consumers = consumers.context("the demo's files have consumers")?.consumers(None).await?;
            for consumer in
                consumers.iter().filter(|consumer| consumer.paused || consumer.rate_limit.is_some())
            {
                free(&*admin, &ControlTarget::Consumer(consumer.consumer.clone())).await?;
            }
        }
        Ok(())
    }
}

async fn free(admin: &dyn Admin, target: &ControlTarget) -> anyhow::Result<()> {
    let actor = Actor::new("demo".to_owned(), "the ledger waits for everything");
    admin.control(target, &Control::Resume, &actor).await?;
    // A route has no rate.
    if !matches!(target, ControlTarget::Route(_)) {
        admin.control(target, &Control::RateLimit(None), &actor).await?;
    }
    Ok(())
}
