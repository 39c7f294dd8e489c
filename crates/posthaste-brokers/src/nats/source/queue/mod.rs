//! A stream as a queue (`order = "none"`): a durable pull consumer, which all members of the group share.
//!
//! `durable` finds or makes it and says why it is not trusted. `pulling` reads one over a session: it asks
//! for messages, tells JetStream that those in hand are worked on, and acknowledges. `crate::queue` has what
//! is in hand, and begins again whenever a reading ends. `examine` looks at it for `posthaste doctor`.
//!
//! # Who has a message
//!
//! JetStream delivers a message again when nobody has said a word about it for `ack_wait`. So everything in
//! hand gets a sign of progress at a third of that, as long as the consumer calls. A member that dies says
//! nothing, and others get its messages when the time is over. A member that leaves, or whose consumer hangs,
//! gives back what it has at once. No message is taken away from its queue for coming too often
//! (`max_deliver` is -1): attempts are counted in the database.
//!
//! A message that comes again while it is in hand here is not handed out twice. Its newer acknowledgement
//! subject takes the place of the older one. One that comes again in any other way meets its mark.
//!
//! A late acknowledgement counts for whoever has the message now. That is harmless: it was sent after a
//! commit, so the mark is there.
//!
//! # Acknowledgements
//!
//! After the commit, each answered by the server ("double ack"), many at once. A ticket of an earlier session
//! is `Revoked`.
//!
//! # Positions
//!
//! A queue has none: what comes again comes behind newer messages. A message without an id is known by its
//! place in the stream, in the words that a log would use.
//!
//! Refused: the client's own stream of pulls. It goes on asking until it is dropped, and what the server sent
//! meanwhile is lost for the time of `ack_wait`. Here the subscription is drained, and what came by then is
//! given back. The client's own double ack: a subscription for each message.

mod durable;
mod examine;
mod pulling;

pub(super) use examine::examine_queue;

use self::durable::DurablePlan;
use self::pulling::PullReading;
use super::log::{check_name, info, transient};
use crate::nats::NatsConfig;
use crate::nats::client::link::{self, NatsLink};
use crate::queue::{QueueKeepers, QueueMember, QueueSource, QueueWay, ReadQueues};
use crate::{BuildError, GroupMember};
use async_trait::async_trait;
use posthaste::source::{SourceError, StartFrom};
use std::sync::Arc;
use std::time::Duration;

/// How long a try waits for a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// A member that reads streams as queues.
pub type NatsQueue = QueueSource<NatsQueues>;

/// What reads the streams of a member, over one connection.
#[derive(Debug)]
pub struct NatsQueues {
    link: Arc<NatsLink>,
    keepers: QueueKeepers,
}

impl NatsQueue {
    /// Checks the configuration, and begins to read. A server that is down is no error, nor is a stream that
    /// does not exist yet. Needs a runtime to be called in.
    pub fn start(config: &NatsConfig, plan: &GroupMember) -> Result<Self, BuildError> {
        let servers = config.check()?;
        plan.check()?;
        plan.topics.iter().try_for_each(|topic| check_name(topic))?;
        durable::check_group(&plan.group)?;
        let member = Arc::new(QueueMember::new(plan));
        let link = Arc::new(link::start(config.clone(), servers, &plan.group));
        let keepers = QueueKeepers::start(&member, |index| StreamWay {
            member: Arc::clone(&member),
            index,
            link: Arc::clone(&link),
            ack_wait: Duration::from_millis(config.ack_wait_ms),
        });
        Ok(Self::new(member, NatsQueues { link, keepers }))
    }
}

#[async_trait]
impl ReadQueues for NatsQueues {
    async fn leave(&self) {
        self.keepers.leave().await;
        self.link.close().await;
    }

    async fn cut(&self) {
        self.keepers.cut().await;
        self.link.close().await;
    }
}

/// The way to one stream.
struct StreamWay {
    member: Arc<QueueMember>,
    index: usize,
    link: Arc<NatsLink>,
    ack_wait: Duration,
}

#[async_trait]
impl QueueWay for StreamWay {
    type Reading = PullReading;

    /// Connects, finds the stream and its durable consumer, and subscribes.
    async fn open(&self, start_from: StartFrom) -> Result<Option<PullReading>, SourceError> {
        let found = self.link.session_if_any(CONNECT_WAIT).await;
        let session = found.map_err(|failure| transient(&failure))?;
        let (group, stream) = (&self.member.plan.group, &self.member.plan.topics[self.index]);
        let Some(found) = info(&session, stream).await? else { return Ok(None) };
        let plan = DurablePlan { group, start_from, ack_wait: self.ack_wait };
        let durable = durable::ensure(&session, &found.config, plan).await?;
        if let Some(why) = durable::refusal(stream, &durable.config) {
            return Err(SourceError::Fatal(why));
        }
        PullReading::open(Arc::clone(&self.member), self.index, session, &found, durable).await.map(Some)
    }
}
