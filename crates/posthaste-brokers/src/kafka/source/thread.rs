//! The thread that polls the client: its life, its loop, and what is read.

use super::assignment::{READY_BYTES_MAX, READY_MAX};
use super::client::{self, GroupEars, KafkaClient, LogBounds};
use super::commit;
use super::keys::GroupProtocol;
use super::member::{ANSWER, SourceMember};
use super::rebalance::COMMIT_GRACE;
use crate::lock::locked;
use posthaste::source::{Partition, StartFrom};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a poll waits: what is asked of the thread meanwhile waits as long.
const POLL: Duration = Duration::from_millis(20);
/// Messages that are read under one lock.
const BURST: usize = 256;
/// How long a full member does not poll. Longer, and all partitions are paused.
const FULL_PATIENCE: Duration = Duration::from_secs(1);
/// Between two tries of what the brokers refused.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// After the client was refused for another one with its name, which two twins would do in turns. And after
/// one that the brokers refuse altogether.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// Where the other one keeps the name: it is let go of by its session's end, and nobody is disturbed.
const UNRELEASED_PAUSE: Duration = Duration::from_secs(5);
/// For tests: the time between two polls at most, and one that is longer.
const STALL: (&str, Duration) = ("1000", Duration::from_secs(3));
/// For a commit that is under way at the end, and for questions. Later, whoever has the client last ends it.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Why a client is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    /// The member leaves.
    Left,
    /// Another one takes its place, after a pause, in which the member says this.
    Replaced(Duration, Option<String>),
}

/// The life of the thread: one client after the other.
pub(super) fn run(member: &Arc<SourceMember>) {
    let _ending = Ending(member);
    let mut known = None;
    loop {
        let end = match connect(member) {
            Ok(connection) => {
                let mut poller = Poller::new(member, connection, &mut known);
                let end = poller.serve();
                poller.end();
                end
            }
            Err(why) => End::Replaced(PAUSE, Some(why)),
        };
        let End::Replaced(pause, why) = end else { break };
        let until = Instant::now() + pause;
        while Instant::now() < until && !over(member) {
            if let Some(why) = &why {
                member.fail(why.clone());
            }
            std::thread::park_timeout(PAUSE.min(until - Instant::now()));
        }
        if over(member) {
            break;
        }
    }
}

/// Says that the thread has ended, also when it panicked (F68).
struct Ending<'a>(&'a SourceMember);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closed = true;
        state.client = None;
        state.partitions.clear();
        drop(state);
        self.0.stir();
    }
}

fn over(member: &SourceMember) -> bool {
    member.stopped.load(Ordering::SeqCst) || member.state().closing.is_some()
}

/// A client, with the thread that commits over it.
pub(super) struct Connection {
    pub(super) client: Arc<KafkaClient>,
    committer: Thread,
    ended: Arc<AtomicBool>,
}

fn connect(member: &Arc<SourceMember>) -> Result<Connection, String> {
    member.renews.store(false, Ordering::SeqCst);
    let plan = &member.plan;
    let name = plan.member.as_ref().unwrap_or(&plan.group);
    let mut config = member.source.member(&plan.group, name).map_err(|error| error.to_string())?;
    if member.stalls.load(Ordering::SeqCst) {
        config.set("max.poll.interval.ms", STALL.0);
    }
    member.clients.fetch_add(1, Ordering::SeqCst);
    let ears = GroupEars::new(plan, Arc::clone(&member.causes));
    let client = KafkaClient::from_config_and_context(&config, ears).map_err(|error| error.to_string())?;
    let (client, ended) = (Arc::new(client), Arc::new(AtomicBool::new(false)));
    let (theirs, over, of) = (Arc::clone(&client), Arc::clone(&ended), Arc::clone(member));
    let committing = std::thread::Builder::new().name("kafka-commit".to_owned());
    let committing = committing.spawn(move || commit::run(&of, &theirs, &over));
    let committer = committing.map_err(|error| format!("no thread: {error}"))?.thread().clone();
    locked(&member.threads)[1] = Some(committer.clone());
    member.state().client = Some(Arc::clone(&client));
    Ok(Connection { client, committer, ended })
}

/// How many partitions each topic had when the group began to wait.
pub(super) type Known = BTreeMap<Arc<str>, i32>;

pub(super) struct Poller<'a> {
    pub(super) member: &'a Arc<SourceMember>,
    pub(super) connection: Connection,
    pub(super) known: &'a mut Option<Known>,
    pub(super) subscribed: bool,
    /// New partitions whose positions were not asked for yet, and partitions that are given up. The client
    /// waits for our answer, and has one of them at a time.
    pub(super) coming: Option<Vec<Partition>>,
    pub(super) going: Option<Vec<Partition>>,
    /// Partitions that the client has and does not read: nobody knows yet where they begin.
    pub(super) unplaced: BTreeSet<Partition>,
    /// The bounds of their logs, once their leaders have answered.
    pub(super) asked: Option<Receiver<LogBounds>>,
    /// Before this time their leaders are not asked again.
    pub(super) next_question: Instant,
    /// Some partition's position is not there.
    pub(super) is_misplaced: bool,
    /// A log lost its end, and may have grown again since.
    pub(super) is_truncated: bool,
    full_since: Option<Instant>,
    /// Whether all partitions are paused because there is no room.
    pub(super) is_full: bool,
    end: Option<End>,
    /// Before this time nothing is asked that was refused.
    pub(super) patience: Instant,
    next_complaint: Instant,
}

impl<'a> Poller<'a> {
    fn new(member: &'a Arc<SourceMember>, connection: Connection, known: &'a mut Option<Known>) -> Self {
        let now = Instant::now();
        Self {
            member,
            connection,
            known,
            subscribed: false,
            coming: None,
            going: None,
            unplaced: BTreeSet::new(),
            asked: None,
            next_question: now,
            is_misplaced: false,
            is_truncated: false,
            full_since: None,
            is_full: false,
            end: None,
            patience: now,
            next_complaint: now,
        }
    }

    pub(super) fn client(&self) -> &KafkaClient {
        &self.connection.client
    }

    fn serve(&mut self) -> End {
        loop {
            self.subscribe();
            self.follow_group();
            self.take_new();
            self.place_new();
            self.find_misplaced();
            self.move_client();
            self.silence();
            self.give_up();
            self.complain();
            if let Some(end) = self.ended() {
                return end;
            }
            self.read();
        }
    }

    /// Joins the group; leaves it while the consumer is silent for too long (F67).
    fn subscribe(&mut self) {
        let stalled = self.member.state().last_call.elapsed() > self.member.plan.stall_limit;
        if stalled && self.subscribed {
            tracing::warn!(group = %self.member.plan.group, "the consumer has not asked for messages for too long; its partitions go to others");
            self.subscribed = false;
            self.client().unsubscribe();
            let mut state = self.member.state();
            let all: Vec<Partition> = state.partitions.keys().cloned().collect();
            all.iter().for_each(|partition| drop(state.lose(partition)));
        }
        if stalled || self.subscribed || Instant::now() < self.patience {
            return;
        }
        let topics: Vec<&str> = self.member.topics.iter().map(|topic| &**topic).collect();
        match self.look_around().and_then(|()| self.client().subscribe(&topics)) {
            Ok(()) => self.subscribed = true,
            Err(error) => self.refused(&error),
        }
    }

    /// "From now on" means: of the partitions that are there now. A group that has a position somewhere in
    /// the topic is not new to it: there, a partition without one was added.
    fn look_around(&mut self) -> KafkaResult<()> {
        if self.known.is_some() || self.member.plan.start_from == StartFrom::Earliest {
            return Ok(());
        }
        let mut known = Known::new();
        for topic in &self.member.topics {
            let metadata = self.client().fetch_metadata(Some(topic), ANSWER)?;
            let count = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            let all: Vec<_> = (0..count).map(|number| Partition::new(Arc::clone(topic), number)).collect();
            let is_new = client::committed(self.client(), &all, ANSWER)?.values().all(Option::is_none);
            known.insert(Arc::clone(topic), if is_new { count } else { 0 });
        }
        *self.known = Some(known);
        Ok(())
    }

    pub(super) fn refused(&mut self, error: &KafkaError) {
        self.patience = Instant::now() + PAUSE;
        tracing::debug!(group = %self.member.plan.group, %error, "the brokers do not answer; asked again");
    }

    /// Says why nothing comes, if the client has complained and no broker answers.
    fn complain(&mut self) {
        if Instant::now() < self.next_complaint {
            return;
        }
        self.next_complaint = Instant::now() + PAUSE;
        let Some(failure) = self.member.causes.current(&self.member.config) else { return };
        let topic = self.member.topics.first().map(|topic| &**topic);
        if self.client().fetch_metadata(topic, PAUSE).is_ok() {
            self.member.causes.forget();
        } else {
            self.member.fail(failure.message.to_string());
        }
    }

    fn ended(&mut self) -> Option<End> {
        if self.member.stopped.load(Ordering::SeqCst) {
            return Some(End::Left);
        }
        let renews = self.member.renews.load(Ordering::SeqCst);
        let mut state = self.member.state();
        if renews || state.closing.is_some() {
            let (now, wait) = (Instant::now(), self.member.plan.handover_wait);
            for owned in state.partitions.values_mut() {
                owned.leaving.get_or_insert(now + wait);
            }
            if state.partitions.values().all(|owned| owned.may_go(now, COMMIT_GRACE)) {
                let end =
                    if state.closing.is_some() { End::Left } else { End::Replaced(Duration::ZERO, None) };
                return Some(end);
            }
        }
        self.end.clone()
    }

    /// Reads what there is room for.
    fn read(&mut self) {
        let most = self.member.plan.in_hand_max;
        let room = {
            let mut state = self.member.state();
            match state.room(most) {
                0 => {
                    state.forget_held();
                    state.room(most)
                }
                room => room,
            }
        };
        if room == 0 {
            let since = *self.full_since.get_or_insert_with(Instant::now);
            if !self.is_full {
                self.is_full = since.elapsed() >= FULL_PATIENCE;
                return std::thread::park_timeout(POLL);
            }
        } else {
            self.full_since = None;
            self.is_full &= room < most.min(READY_MAX) / 2;
        }
        if self.member.breaks.swap(false, Ordering::SeqCst) {
            return self.hear(&KafkaError::MessageConsumptionFatal(Code::Fatal));
        }
        let may_stall = self.member.stalls.load(Ordering::SeqCst);
        if may_stall && !self.member.state().partitions.is_empty() {
            self.member.stalls.store(false, Ordering::SeqCst);
            std::thread::sleep(STALL.1);
        }
        let (mut found, mut bytes, mut at_end) = (Vec::new(), 0, false);
        let client = Arc::clone(&self.connection.client);
        let mut polled = client.poll(POLL);
        while let Some(event) = polled {
            match event {
                Ok(record) => {
                    let delivery = client::read(&record, &self.member.topics);
                    bytes += delivery.message.bytes();
                    found.push(delivery);
                }
                Err(KafkaError::PartitionEOF(_)) => at_end = true,
                Err(error) => self.hear(&error),
            }
            if found.len() >= room.min(BURST) || bytes >= READY_BYTES_MAX {
                break;
            }
            polled = client.poll(Duration::ZERO);
        }
        if !found.is_empty() || at_end {
            self.member.causes.forget();
            self.member.state().take(found);
            if at_end {
                self.reach_end();
            }
            self.member.stir();
        }
    }

    fn hear(&mut self, error: &KafkaError) {
        let group = &self.member.plan.group;
        let Some(code) = error.rdkafka_error_code() else { return };
        match code {
            Code::AutoOffsetReset => self.is_misplaced = true,
            Code::PollExceeded => drop(self.member.late_polls.fetch_add(1, Ordering::SeqCst)),
            Code::LogTruncation => (self.is_misplaced, self.is_truncated) = (true, true),
            _ => tracing::debug!(%group, %error, "the Kafka client complains"),
        }
        if !matches!(error, KafkaError::MessageConsumptionFatal(_)) {
            return self.reason(code).into_iter().for_each(|(why, _)| self.member.fail(why));
        }
        let fatal = self.client().client().fatal_error();
        let (code, text) = fatal.unwrap_or_else(|| (code, error.to_string()));
        let reason = self.reason(code);
        let why = reason.as_ref().map_or(&text, |(why, _)| why);
        tracing::warn!(%group, "the Kafka client has ended, and another one takes its place: {why}");
        let (why, pause) = reason.unzip();
        self.end = Some(End::Replaced(pause.unwrap_or(PAUSE), why));
    }

    /// What an operator can do about an error, and how long a client waits that takes the place of one which
    /// ended by it.
    fn reason(&self, code: Code) -> Option<(String, Duration)> {
        let (group, source) = (&self.member.plan.group, &self.member.source);
        let instance = source.instance.as_deref().unwrap_or_default();
        Some(match code {
            Code::GroupAuthorizationFailed | Code::TopicAuthorizationFailed => {
                let (who, topics) = (self.member.config.identity(), self.member.topics.join(", "));
                let text =
                    format!("{who} may not read {topics}: allow READ on them and on the group {group:?}");
                (text, PAUSE)
            }
            Code::InconsistentGroupProtocol => {
                let text = format!(
                    "the group {group:?} is in use by another client, which shares partitions in another way. Stop that one, or \
                     give this consumer a `group` of its own"
                );
                (text, PAUSE)
            }
            Code::FencedInstanceId | Code::UnreleasedInstanceId => {
                let pause = if code == Code::FencedInstanceId { REFUSED_PAUSE } else { UNRELEASED_PAUSE };
                let text = format!(
                    "another member of the group {group:?} has the instance {instance:?} of this one, which rests for {} s: give \
                     each process an `instance` of its own",
                    pause.as_secs()
                );
                (text, pause)
            }
            Code::UnsupportedVersion | Code::UnsupportedFeature
                if source.protocol == GroupProtocol::Consumer =>
            {
                let text = format!(
                    "the brokers do not know protocol = \"consumer\" of the group {group:?}, which Kafka has since 4.0: use \"classic\""
                );
                (text, REFUSED_PAUSE)
            }
            _ => return None,
        })
    }

    /// Gives everything back, and leaves the group.
    fn end(mut self) {
        self.client().context().closing.store(true, Ordering::SeqCst);
        let mut state = self.member.state();
        let all: Vec<Partition> = state.partitions.keys().cloned().collect();
        all.iter().for_each(|partition| drop(state.lose(partition)));
        state.client = None;
        drop(state);
        self.follow_group();
        self.take_unread();
        self.let_go();
        self.connection.ended.store(true, Ordering::SeqCst);
        self.connection.committer.unpark();
        // The last owner leaves the group and waits for the client's threads, so it must not be a task.
        let until = Instant::now() + LAST_ANSWERS;
        while Arc::strong_count(&self.connection.client) > 1 && Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}
