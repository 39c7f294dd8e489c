//! The life of one consumer in the daemon: open its inbox, join its group, consume, and again after a
//! failure.
//!
//! A database or a broker that is away is waited for. What no waiting mends (a missing table, a wrong
//! password, a function that is not there) is put on the board; the others go on, and this one is tried again
//! now and then, because somebody may have mended it meanwhile.

use super::board::Board;
use super::outbox::{CONNECT_PAUSE, FAILURE_PAUSE, REPORT, Unreached};
use crate::config::{ConsumerSetting, SourceSetting, scrub};
use crate::database;
use posthaste::clock::SystemClock;
use posthaste::consumer::{
    self, ConsumerEnd, ConsumerHandle, ConsumerHealth, ConsumerPlan, ConsumerSettings, InboxStore,
};
use posthaste::relay::DrainOutcome;
use posthaste::source::leased::Leases;
use posthaste::source::{Source, SourceError};
use posthaste_brokers::GroupMember;
#[cfg(feature = "sqlite")]
use posthaste_sqlite::broker::{Broker, SourceConfig};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Everything one consumer needs.
pub(super) struct ConsumerLife {
    pub(super) setting: ConsumerSetting,
    /// This process, unique among all.
    pub(super) process: Arc<str>,
    pub(super) settings: watch::Receiver<ConsumerSettings>,
    pub(super) stop: watch::Receiver<bool>,
    pub(super) board: Arc<Board>,
    pub(super) seat: usize,
}

/// Why there is no consumer now.
enum NotStarted {
    /// It passes.
    Away(String),
    /// Somebody has to help.
    Broken(String),
}

impl ConsumerLife {
    /// Runs until it is told to stop.
    pub(super) async fn run(mut self) -> DrainOutcome {
        loop {
            let end = match self.begin().await {
                None => return DrainOutcome::Clean,
                // No message was taken yet that it could quote.
                Some(Err(why)) => ConsumerEnd::Failed(why),
                Some(Ok(mut handle)) => match self.attend(&mut handle).await {
                    None => {
                        self.tell("draining");
                        return handle.drain().await;
                    }
                    // Its source fell silent, and everything was given back: another one joins at once.
                    Some(ConsumerEnd::Stalled(why)) => {
                        self.tell(&why);
                        continue;
                    }
                    Some(end) => end,
                },
            };
            let (name, why) = (&self.setting.name, end.why());
            let failure =
                scrub(&format!("consumer `{name}`: {why}\n  No message is lost: the broker keeps them."));
            if self.board.is_shared() {
                let seconds = FAILURE_PAUSE.as_secs();
                tracing::error!("{failure}\n  The others go on; this one is tried again in {seconds} s.");
            }
            match end {
                ConsumerEnd::Refused(_) => self.board.fail_in_silence(self.seat, &failure),
                _ => self.board.fail(self.seat, &failure),
            }
            if self.stopped_within(FAILURE_PAUSE).await {
                return DrainOutcome::Clean;
            }
        }
    }

    /// Starts it, however long that takes. `None`: told to stop first.
    async fn begin(&mut self) -> Option<Result<ConsumerHandle, String>> {
        let (mut pause, longest) = CONNECT_PAUSE;
        let mut outage = Unreached::default();
        loop {
            let mut stop = self.stop.clone();
            let begun = tokio::select! {
                begun = self.try_begin() => begun,
                _ = stop.wait_for(|stop| *stop) => return None,
            };
            let why = match begun {
                Ok(handle) => return Some(Ok(handle)),
                Err(NotStarted::Broken(why)) => return Some(Err(why)),
                Err(NotStarted::Away(why)) => scrub(&why),
            };
            if let Some(long) = outage.failed(Instant::now()) {
                let (consumer, seconds) = (&self.setting.name, long.as_secs());
                tracing::warn!(%consumer, seconds, error = why, "the consumer cannot start yet; messages wait at the broker");
            }
            self.tell("waiting for the database or the broker");
            if self.stopped_within(pause).await {
                return None;
            }
            pause = (pause * 2).min(longest);
        }
    }

    /// The inbox comes first: whoever cannot write it takes no message.
    async fn try_begin(&self) -> Result<ConsumerHandle, NotStarted> {
        let settings = self.settings.borrow().clone();
        let (store, leases) = database::inbox(&self.setting, &settings).await.map_err(|error| {
            let why = error.to_string();
            if error.is_transient() { NotStarted::Away(why) } else { NotStarted::Broken(why) }
        })?;
        // One process may have several consumers, and each is a member of its own.
        let member: Arc<str> = format!("{}:{}", self.process, self.setting.name).into();
        let source = join(&self.setting, &settings, &member, leases).map_err(|error| {
            let why = error.to_string();
            if error.is_transient() { NotStarted::Away(why) } else { NotStarted::Broken(why) }
        })?;
        Ok(self.start(member, source, store))
    }

    fn start(&self, member: Arc<str>, source: Arc<dyn Source>, store: Arc<dyn InboxStore>) -> ConsumerHandle {
        let ConsumerSetting { name, own, service, .. } = &self.setting;
        let plan = ConsumerPlan {
            service: Arc::clone(service),
            member,
            host: crate::output::host().into(),
            identity: self.setting.identity(),
            order: own.order,
            unmatched: own.unmatched,
            start_from: own.start_from,
            ..ConsumerPlan::new(Arc::clone(name), source, store)
        };
        consumer::start(plan, self.settings.clone(), Arc::new(SystemClock))
    }

    /// Reports health until it is stopped, or ends by itself.
    async fn attend(&mut self, handle: &mut ConsumerHandle) -> Option<ConsumerEnd> {
        loop {
            self.board.tell(self.seat, handle.health());
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return None,
                end = handle.ended() => return Some(end),
                () = tokio::time::sleep(REPORT) => {}
            }
        }
    }

    fn tell(&self, why: &str) {
        self.board.tell(self.seat, ConsumerHealth { why: why.to_owned(), ..ConsumerHealth::default() });
    }

    async fn stopped_within(&mut self, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.stop.wait_for(|stop| *stop)).await.is_ok()
    }
}

/// Joins the consumer's group at its broker.
fn join(
    setting: &ConsumerSetting,
    settings: &ConsumerSettings,
    member: &str,
    leases: Arc<dyn Leases>,
) -> Result<Arc<dyn Source>, SourceError> {
    let group = GroupMember {
        member: Some(member.to_owned()),
        order: setting.own.order,
        start_from: setting.own.start_from,
        in_hand_max: settings.in_hand_max,
        handover_wait: Duration::from_millis(settings.handover_wait_ms),
        ..GroupMember::new(setting.group(), &setting.own.topics)
    };
    match &setting.source {
        SourceSetting::Broker(source) => {
            source.build(&group, leases).map_err(|error| SourceError::Fatal(error.to_string()))
        }
        #[cfg(feature = "sqlite")]
        SourceSetting::Local(config) => {
            let broker = config.broker().map_err(|(key, why)| SourceError::Fatal(format!("{key}: {why}")))?;
            let source = Broker::lazy(broker).source(SourceConfig {
                member: group.member,
                start_from: group.start_from,
                stall_limit: group.stall_limit,
                in_hand_max: group.in_hand_max,
                handover_wait: group.handover_wait,
                ..SourceConfig::new(group.group, group.topics)
            })?;
            Ok(Arc::new(source))
        }
    }
}
