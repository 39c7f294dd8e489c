//! A stream as a queue (`order = "none"`): a group of Redis, which all members share.
//!
//! `reading` is a member at work: it reads over a connection of its own, where `XREADGROUP` waits at the
//! server, and says everything else over the session. `examine` looks at the group for `posthaste doctor`.
//!
//! # Who has an entry
//!
//! Redis writes down who has which entry, and since when (the group's pending entries). It gives none of them
//! to others by itself: members claim what has been idle for `claim_after`. So everything in hand is claimed
//! again by its own member at a third of that time, which makes it busy, as long as the consumer calls. A
//! member that dies claims nothing, and others get its entries when the time is over.
//!
//! Redis cannot be told that an entry is given back. A member that leaves, or whose consumer hangs, hands
//! what it has to a consumer of the group that nobody is (`RETURNED`), as idle for a day: whoever looks next
//! claims it. A member that has nothing left deletes its own name from the group. A name with entries must
//! not be deleted, because they would go with it.
//!
//! An entry that comes again while it is in hand here is not handed out twice. One that comes again in any
//! other way meets its mark. A late acknowledgement is harmless: it was sent after a commit.
//!
//! # What is lost
//!
//! An entry that was trimmed or deleted while somebody had it is told by the server to whoever claims it, and
//! reported as lost. What is trimmed before anybody took it leaves no trace (`doctor` says what was removed).
//!
//! # Positions
//!
//! A queue has none. An entry without an id is known by its place in the stream, in the words of a log.

mod examine;
mod reading;

pub(super) use examine::examine_group;

use self::reading::GroupReading;
use super::log::refused;
use crate::queue::{QueueKeepers, QueueMember, QueueSource, QueueWay, ReadQueues};
use crate::redis::RedisConfig;
use crate::redis::client::{self, Servers, Session};
use crate::{BuildError, GroupMember};
use ::redis::{Pipeline, Value};
use async_trait::async_trait;
use posthaste::source::{SourceError, StartFrom};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const CONNECT_WAIT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(5);
/// The consumer of a group that entries are given back to.
const RETURNED: &str = "posthaste-returned";

/// A member that reads streams as queues.
pub type RedisQueue = QueueSource<RedisQueues>;

/// What reads the streams of a member.
#[derive(Debug)]
pub struct RedisQueues {
    servers: Arc<Servers>,
    keepers: QueueKeepers,
}

impl RedisQueue {
    /// Checks the configuration, and begins to read. A server that is down is no error, nor is a stream that
    /// does not exist yet. Needs a runtime to be called in.
    pub fn start(config: &RedisConfig, plan: &GroupMember) -> Result<Self, BuildError> {
        let topology = config.check()?;
        plan.check()?;
        let (config, member) = (Arc::new(config.clone()), Arc::new(QueueMember::new(plan)));
        let servers = Arc::new(client::connect(&config, topology, "source"));
        let made_up = || format!("{}-{}", plan.group, uuid::Uuid::new_v4().simple());
        let name: Arc<str> = plan.member.clone().unwrap_or_else(made_up).into();
        let keepers = QueueKeepers::start(&member, |index| GroupWay {
            member: Arc::clone(&member),
            index,
            name: Arc::clone(&name),
            config: Arc::clone(&config),
            servers: Arc::clone(&servers),
        });
        Ok(Self::new(member, RedisQueues { servers, keepers }))
    }
}

#[async_trait]
impl ReadQueues for RedisQueues {
    async fn leave(&self) {
        self.keepers.leave().await;
        self.servers.close().await;
    }

    async fn cut(&self) {
        self.keepers.cut().await;
        self.servers.close().await;
    }
}

/// The way to one stream.
struct GroupWay {
    member: Arc<QueueMember>,
    index: usize,
    /// The member's name in the group.
    name: Arc<str>,
    config: Arc<RedisConfig>,
    servers: Arc<Servers>,
}

#[async_trait]
impl QueueWay for GroupWay {
    type Reading = GroupReading;

    async fn open(&self, start_from: StartFrom) -> Result<Option<GroupReading>, SourceError> {
        let (group, stream) = (&self.member.plan.group, &self.member.plan.topics[self.index]);
        let transient = |failure: posthaste::sink::Failure| SourceError::Transient(failure.message);
        let session = self.servers.session(stream, CONNECT_WAIT).await.map_err(transient)?;
        if !make(&session, stream, group, start_from).await? {
            return Ok(None);
        }
        let own = session.another(&self.config, "source").await.map_err(transient)?;
        let claim_after = Duration::from_millis(self.config.claim_after_ms);
        let (member, name) = (Arc::clone(&self.member), Arc::clone(&self.name));
        Ok(Some(GroupReading::new(member, self.index, name, session, own, claim_after)))
    }
}

/// One answer for each command.
async fn ask(session: &Session, commands: &Pipeline) -> Result<Vec<Value>, SourceError> {
    let asked = timeout(ANSWER, session.ask(commands)).await;
    let asked = asked.map_err(|_| SourceError::Transient(format!("{} does not answer", session.server)))?;
    asked.map_err(|error| SourceError::Transient(format!("{}: {error}", session.server)))
}

/// Makes the group, unless it is there. `false`: there is no stream.
async fn make(
    session: &Session,
    stream: &str,
    group: &str,
    start_from: StartFrom,
) -> Result<bool, SourceError> {
    let from = if start_from == StartFrom::Latest { "$" } else { "0" };
    let mut commands = Pipeline::new();
    commands.cmd("XGROUP").arg("CREATE").arg(stream).arg(group).arg(from);
    // After a death here the group is there and nobody reads it: the next member finds it.
    match ask(session, &commands).await?.first() {
        Some(Value::ServerError(error)) if error.code() == "BUSYGROUP" => Ok(true),
        Some(Value::ServerError(error))
            if error.details().is_some_and(|words| words.contains("requires the key to exist")) =>
        {
            Ok(false)
        }
        Some(Value::ServerError(error)) => Err(denied(stream, error)),
        _ => {
            tracing::info!(stream, group, "made a group");
            Ok(true)
        }
    }
}

/// What an error of the server means for a group.
fn denied(stream: &str, error: &::redis::ServerError) -> SourceError {
    match refused(stream, error) {
        SourceError::Transient(words) if error.code() == "NOPERM" => SourceError::Transient(format!(
            "{words}. Without order a group is read: XGROUP, XREADGROUP, XACK, XCLAIM, XAUTOCLAIM and XPENDING"
        )),
        other => other,
    }
}
