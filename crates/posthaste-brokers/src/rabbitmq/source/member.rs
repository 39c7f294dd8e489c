//! The source: the queues of a member, each read over a connection of its own.

use super::subscription::QueueDialler;
use crate::link::Link;
use crate::queue::{QueueMember, QueueSource, ReadQueues};
use crate::rabbitmq::RabbitmqConfig;
use crate::rabbitmq::client::SHORT_MAX;
use crate::{BuildError, GroupMember};
use async_trait::async_trait;
use posthaste::sink::Scope;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A member that reads queues of RabbitMQ.
pub type RabbitmqSource = QueueSource<RabbitmqQueues>;

/// The connections of a member.
#[derive(Debug)]
pub struct RabbitmqQueues {
    member: Arc<QueueMember>,
    links: Vec<Link<()>>,
    cancelling: Arc<Cancelling>,
}

/// The defect that a test shows to be one, and how many queues have it behind them.
#[derive(Debug, Default)]
pub(super) struct Cancelling {
    is_wanted: AtomicBool,
    done: AtomicUsize,
}

impl Cancelling {
    /// Whether subscriptions are to be cancelled now.
    pub(super) fn is_due(&self, member: &QueueMember) -> bool {
        self.is_wanted.load(Ordering::SeqCst) && member.shelves().is_closing
    }

    pub(super) fn done(&self, member: &QueueMember) {
        self.done.fetch_add(1, Ordering::SeqCst);
        member.stir();
    }

    /// Whether everything is cancelled that a test wanted to be.
    fn is_over(&self, member: &QueueMember) -> bool {
        let queues = member.shelves().views().len();
        !self.is_due(member) || self.done.load(Ordering::SeqCst) >= queues
    }
}

impl RabbitmqSource {
    /// Checks the configuration and begins to subscribe. A broker that is down is no error, nor is a queue
    /// that does not exist yet. Needs a runtime to be called in.
    pub fn start(config: &RabbitmqConfig, plan: &GroupMember) -> Result<Self, BuildError> {
        let servers = config.check()?;
        plan.check()?;
        if plan.topics.iter().any(|topic| topic.is_empty() || topic.len() > SHORT_MAX) {
            return Err(BuildError::option("topics", "a queue's name has 1 to 255 bytes"));
        }
        let (member, cancelling) = (Arc::new(QueueMember::new(plan)), Arc::<Cancelling>::default());
        let link = |index: usize| {
            let (member, cancelling) = (Arc::clone(&member), Arc::clone(&cancelling));
            let (config, servers) = (config.clone(), servers.clone());
            let dialler = QueueDialler { member, index, config, servers, cancelling };
            Link::start("rabbitmq", Scope::Sink, name_of(plan).into(), dialler)
        };
        let links = (0..plan.topics.len()).map(link).collect();
        Ok(Self::new(Arc::clone(&member), RabbitmqQueues { member, links, cancelling }))
    }

    /// Says `basic.cancel` at the beginning of a drain, as consumers are used to. It breaks the order of
    /// keys, and a test shows that. For that test.
    #[doc(hidden)]
    pub fn cancel_at_drain(&self) {
        self.readers().cancelling.is_wanted.store(true, Ordering::SeqCst);
    }
}

#[async_trait]
impl ReadQueues for RabbitmqQueues {
    /// Nothing is cancelled: see `wire`.
    async fn leave(&self) {
        while !self.cancelling.is_over(&self.member) {
            self.member.stirred().await;
        }
        self.cut().await;
    }

    async fn cut(&self) {
        for link in &self.links {
            link.close().await;
        }
    }
}

/// What the broker shows of this member.
pub(super) fn name_of(plan: &GroupMember) -> String {
    let GroupMember { group, member, .. } = plan;
    let name = member.as_ref().map_or_else(|| group.clone(), |member| format!("{group} {member}"));
    // Each connection has one subscription, so the name need not be the only one of its kind.
    name.chars().take(SHORT_MAX / 4).collect()
}
