//! A member of a group, at work on one stream.

use super::{RETURNED, ask, denied};
use crate::queue::{Acks, HeldMessages, LeavingSign, QueueMember, QueueReading, ReadingEnd, of};
use crate::redis::client::{OwnConnection, Session};
use crate::redis::source::record::{delivery, text};
use crate::redis::source::tail::entries;
use ::redis::{Pipeline, Value};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use posthaste::source::{Delivery, Partition, SourceError};
use posthaste::task::spawn;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval_at, timeout};

/// How long the server waits for an entry, and how much longer we wait for the server. A member that leaves
/// waits for it too.
const BLOCK: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(4);
/// Entries of one answer.
const PAGE: usize = 256;
/// Bytes of one answer, by the average of what came. One entry may exceed it.
const PAGE_BYTES: usize = 4 << 20;
/// Entries that one command names.
const CHUNK: usize = 500;
/// More than there are entries in hand.
const ROUNDS_MAX: usize = 20;
/// Between two looks whether the consumer still calls.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two looks for what is idle, at most.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
/// What is given back has been idle for longer than anybody waits.
const DAY_MS: u64 = 86_400_000;

type Read = BoxFuture<'static, Result<Vec<Value>, SourceError>>;
type AcksWritten = BoxFuture<'static, Result<Vec<Acks>, SourceError>>;
type Claimed = BoxFuture<'static, Result<ClaimedEntries, SourceError>>;

/// What was claimed.
struct ClaimedEntries {
    /// Where the next look goes on.
    cursor: String,
    entries: Vec<Value>,
    /// How often each of them was handed out, by its id.
    counts: HashMap<String, u32>,
}

pub(in crate::redis::source) struct GroupReading {
    member: Arc<QueueMember>,
    index: usize,
    /// Our name in the group.
    name: Arc<str>,
    session: Arc<Session>,
    own: Arc<OwnConnection>,
    claim_after: Duration,
    held: HeldMessages<i64, String>,
    reading: Option<Read>,
    claiming: Option<Claimed>,
    cursor: String,
    has_stopped: bool,
    began: Instant,
    /// An entry of those that came last, on average.
    average_bytes: usize,
    /// Entries that the last sign of progress was for.
    asked: Vec<String>,
    /// Entries in hand that are gone from the stream, and were said to be.
    trimmed: HashSet<String>,
}

fn lost(stream: &str, why: &dyn std::fmt::Display) -> SourceError {
    SourceError::Transient(format!("the reading of stream {stream:?} ended: {why}"))
}

/// The first error among replies.
fn check(stream: &str, replies: Vec<Value>) -> Result<Vec<Value>, SourceError> {
    match replies
        .iter()
        .find_map(|reply| if let Value::ServerError(error) = reply { Some(error) } else { None })
    {
        Some(error) if error.code() == "NOGROUP" => Err(lost(stream, &"somebody deleted its group")),
        Some(error) => Err(denied(stream, error)),
        None => Ok(replies),
    }
}

fn ended(error: SourceError) -> ReadingEnd {
    match error {
        SourceError::Transient(why) => ReadingEnd::Lost(why),
        other => ReadingEnd::Refused(other),
    }
}

#[async_trait]
impl QueueReading for GroupReading {
    async fn serve(&mut self, leaving: &mut LeavingSign) -> ReadingEnd {
        let end = self.work(leaving).await.unwrap_or_else(ended);
        if matches!(end, ReadingEnd::Lost(_))
            && let Some(claiming) = self.claiming.take()
        {
            // Nothing is given back. What it hears of losses is heard once, and then it ends.
            spawn("claim", claiming).detach();
        }
        end
    }

    async fn give_back(&mut self, end: &ReadingEnd) {
        self.has_stopped = true;
        // A question that is still open at the server may take entries after our last look, and they would go
        // with our name. So may one of an earlier connection.
        let is_answered = match self.reading.take() {
            // What it brings is pending, as all the rest is.
            Some(reading) => matches!(timeout(BLOCK + SLACK, reading).await, Ok(Ok(_))),
            None => true,
        };
        // What it claims is pending, too. What it hears of losses is heard once.
        if let Some(claiming) = self.claiming.take() {
            let _ = timeout(BLOCK + SLACK, claiming).await;
        }
        let is_alone = is_answered && self.began.elapsed() > BLOCK;
        self.held.take_all();
        let is_empty = self.give_all().await.unwrap_or(false);
        if is_empty && is_alone && matches!(end, ReadingEnd::Leaving) {
            let _ = self.delete_name().await;
        }
    }
}

impl GroupReading {
    pub(super) fn new(
        member: Arc<QueueMember>,
        index: usize,
        name: Arc<str>,
        session: Arc<Session>,
        own: OwnConnection,
        claim_after: Duration,
    ) -> Self {
        Self {
            member,
            index,
            name,
            session,
            own: Arc::new(own),
            claim_after,
            held: HeldMessages::default(),
            reading: None,
            claiming: None,
            cursor: "0-0".to_owned(),
            has_stopped: false,
            began: Instant::now(),
            average_bytes: 0,
            asked: Vec::new(),
            trimmed: HashSet::new(),
        }
    }

    fn stream(&self) -> &str {
        &self.member.plan.topics[self.index]
    }

    fn group(&self) -> &str {
        &self.member.plan.group
    }

    fn room(&self) -> usize {
        let by_bytes = (PAGE_BYTES / self.average_bytes.max(1)).max(1);
        let ahead = self.member.ahead_max().min(by_bytes.saturating_mul(4));
        if self.has_stopped { 0 } else { ahead.saturating_sub(self.held.len()).min(PAGE).min(by_bytes) }
    }

    async fn work(&mut self, leaving: &mut LeavingSign) -> Result<ReadingEnd, SourceError> {
        let (member, index) = (Arc::clone(&self.member), self.index);
        let third = self.claim_after / 3;
        let mut progress = interval_at(Instant::now() + third, third);
        let mut claim = tokio::time::interval(third.min(CLAIM_EVERY));
        let mut look = tokio::time::interval(LOOK_EVERY);
        let (mut writing, mut tending): (Option<AcksWritten>, Option<Read>) = (None, None);
        loop {
            if self.reading.is_none() && self.room() > 0 {
                self.reading = Some(self.read(self.room()));
            }
            tokio::select! {
                end = leaving.told() => return Ok(end),
                read = of(&mut self.reading) => {
                    let replies = check(self.stream(), read?)?;
                    if self.has_stopped {
                        self.hand_back(replies).await?;
                    } else {
                        self.take(&replies)?;
                    }
                }
                () = member.acked[index].notified(), if writing.is_none() => writing = Some(self.write()),
                written = of(&mut writing) => {
                    // After a death here the handler's transaction has committed, and the server knows.
                    for acks in written? {
                        let _ = acks.written.send(());
                    }
                    member.shelves().acks_are_written(index);
                    member.stir();
                }
                _ = progress.tick(), if tending.is_none() => {
                    self.asked = self.held.replies().cloned().collect();
                    tending = Some(self.tell(self.claim_of(&self.name, None, &self.asked)));
                }
                told = of(&mut tending) => {
                    let kept = check(self.stream(), told?)?;
                    self.note_trimmed(&kept);
                }
                _ = claim.tick(), if self.claiming.is_none() && self.room() > 0 => self.claiming = Some(self.claim()),
                claimed = of(&mut self.claiming) => self.take_claimed(claimed?).await?,
                _ = look.tick() => {
                    if member.is_stalled() {
                        return Ok(ReadingEnd::Stalled);
                    }
                    if member.shelves().is_closing {
                        self.stop().await?;
                    }
                }
            }
        }
    }

    /// Asks for entries that nobody has, and waits for them at the server.
    fn read(&self, count: usize) -> Read {
        let mut commands = Pipeline::new();
        let command = commands.cmd("XREADGROUP").arg("GROUP").arg(self.group()).arg(&*self.name);
        let block = u64::try_from(BLOCK.as_millis()).unwrap_or(1);
        command.arg("COUNT").arg(count).arg("BLOCK").arg(block).arg("STREAMS").arg(self.stream()).arg(">");
        let (own, stream) = (Arc::clone(&self.own), self.stream().to_owned());
        Box::pin(async move {
            let asked = timeout(BLOCK + SLACK, own.ask(&commands)).await;
            let asked = asked.map_err(|_| lost(&stream, &"the server is silent"))?;
            asked.map_err(|error| lost(&stream, &error))
        })
    }

    /// Says something, for an answer to each command.
    fn tell(&self, commands: Pipeline) -> Read {
        let session = Arc::clone(&self.session);
        Box::pin(async move {
            // An empty pipeline is no question.
            if commands.is_empty() { Ok(Vec::new()) } else { ask(&session, &commands).await }
        })
    }

    fn take(&mut self, replies: &[Value]) -> Result<(), SourceError> {
        if let Some(Value::Array(streams)) = replies.first() {
            for entry in entries(streams) {
                self.put(entry, 0)?;
            }
            self.member.stir();
        }
        Ok(())
    }

    fn put(&mut self, entry: &Value, before: u32) -> Result<(), SourceError> {
        let partition = Partition::new(self.stream(), 0);
        let Some(mut delivery) = delivery(&partition, entry)? else { return Ok(()) };
        let Some((place, id)) = delivery.position.zip(id_of(entry)) else { return Ok(()) };
        // The first ones of a stream are not known before: a quarter of each counts.
        self.average_bytes = (3 * self.average_bytes + delivery.message.bytes()) / 4;
        if let Some(number) = self.held.put(place, id) {
            // A queue has no positions, but the entry has a place.
            delivery.message.id = delivery.identity().map(String::from);
            let delivery = |ticket| Delivery { ticket, position: None, redelivery: Some(before), ..delivery };
            self.member.shelves().put(self.index, number, delivery);
        }
        Ok(())
    }

    fn write(&mut self) -> AcksWritten {
        let (acks, _) = self.member.shelves().take_acks(self.index);
        let numbers = acks.iter().flat_map(|acks| &acks.tags);
        let numbers = numbers.filter_map(|number| i64::try_from(*number).ok());
        let ids: Vec<String> = numbers.filter_map(|number| self.held.take(number)).collect();
        let mut commands = Pipeline::new();
        for chunk in ids.chunks(CHUNK) {
            commands.cmd("XACK").arg(self.stream()).arg(self.group()).arg(chunk);
        }
        let (told, stream) = (self.tell(commands), self.stream().to_owned());
        Box::pin(async move { check(&stream, told.await?).map(|_| acks) })
    }

    /// Makes entries somebody's, as idle for so long, or as busy.
    fn claim_of<'a>(
        &self,
        owner: &str,
        idle_ms: Option<u64>,
        ids: impl IntoIterator<Item = &'a String>,
    ) -> Pipeline {
        let ids: Vec<&String> = ids.into_iter().collect();
        let mut commands = Pipeline::new();
        for chunk in ids.chunks(CHUNK) {
            let command = commands.cmd("XCLAIM").arg(self.stream()).arg(self.group()).arg(owner).arg(0);
            for id in chunk {
                command.arg(id.as_str());
            }
            command.arg("IDLE").arg(idle_ms.unwrap_or(0)).arg("JUSTID");
        }
        commands
    }

    /// Claims what others have left idle.
    fn claim(&self) -> Claimed {
        let (session, stream, group) =
            (Arc::clone(&self.session), self.stream().to_owned(), self.group().to_owned());
        let (name, cursor, count) = (Arc::clone(&self.name), self.cursor.clone(), self.room());
        let idle = u64::try_from(self.claim_after.as_millis()).unwrap_or(u64::MAX);
        let (member, index) = (Arc::clone(&self.member), self.index);
        Box::pin(async move {
            let mut commands = Pipeline::new();
            let command = commands.cmd("XAUTOCLAIM").arg(&stream).arg(&group).arg(&*name).arg(idle);
            command.arg(&cursor).arg("COUNT").arg(count);
            let replies = check(&stream, ask(&session, &commands).await?)?;
            let Some(Value::Array(parts)) = replies.into_iter().next() else {
                return Err(lost(&stream, &"a strange answer"));
            };
            let mut parts = parts.into_iter();
            let cursor = parts.next().as_ref().and_then(text).unwrap_or_else(|| "0-0".to_owned());
            let mut list = || if let Some(Value::Array(list)) = parts.next() { list } else { Vec::new() };
            let (entries, gone): (_, Vec<String>) = (list(), list().iter().filter_map(text).collect());
            // The server has struck them off: nobody hears of them again.
            lose(&member, index, &gone);
            let ids: Vec<String> = entries.iter().filter_map(id_of).collect();
            let counts = match (ids.first(), ids.last()) {
                (Some(first), Some(last)) => {
                    counts(&session, &stream, &group, &name, [first.as_str(), last.as_str()]).await?
                }
                _ => HashMap::new(),
            };
            Ok(ClaimedEntries { cursor, entries, counts })
        })
    }

    async fn take_claimed(&mut self, claim: ClaimedEntries) -> Result<(), SourceError> {
        self.cursor = claim.cursor;
        if self.has_stopped {
            let ids: Vec<String> = claim.entries.iter().filter_map(id_of).collect();
            return self.give(ids).await;
        }
        for entry in &claim.entries {
            let count = id_of(entry).and_then(|id| claim.counts.get(&id).copied());
            self.put(entry, count.map_or(1, |count| count.saturating_sub(1)))?;
        }
        self.member.stir();
        Ok(())
    }

    /// Reads nothing more. What nobody has goes to others; what is on its way follows.
    async fn stop(&mut self) -> Result<(), SourceError> {
        if std::mem::replace(&mut self.has_stopped, true) {
            return Ok(());
        }
        let idle = self.member.shelves().let_go(self.index);
        let ids: Vec<String> = idle.into_iter().filter_map(|number| self.held.take(number)).collect();
        self.give(ids).await
    }

    /// Gives back what came too late.
    async fn hand_back(&mut self, replies: Vec<Value>) -> Result<(), SourceError> {
        let Some(Value::Array(streams)) = replies.first() else { return Ok(()) };
        let ids: Vec<String> = entries(streams).iter().filter_map(id_of).collect();
        self.give(ids).await
    }

    async fn give(&mut self, ids: Vec<String>) -> Result<(), SourceError> {
        let replies = self.tell(self.claim_of(RETURNED, Some(DAY_MS), &ids)).await?;
        let kept = ids_of(&check(self.stream(), replies)?);
        // What was trimmed cannot be given to anybody.
        let gone: Vec<String> = ids.into_iter().filter(|id| !kept.contains(id)).collect();
        lose(&self.member, self.index, &gone);
        Ok(())
    }

    /// Entries in hand that the server no longer has are handled here, or by nobody. What was acknowledged
    /// meanwhile is not in hand any more.
    fn note_trimmed(&mut self, replies: &[Value]) {
        let kept = ids_of(replies);
        let is_gone = |id: &&String| !kept.contains(*id) && !self.trimmed.contains(*id);
        let gone: Vec<String> = match replies.is_empty() {
            true => Vec::new(),
            false => self.asked.iter().filter(is_gone).filter(|id| self.held.has(id)).cloned().collect(),
        };
        if !gone.is_empty() {
            tracing::warn!(
                stream = self.stream(),
                ids = gone.join(" "),
                "entries in hand were removed from the stream: they are lost if this process dies before they are handled"
            );
        }
        self.trimmed.extend(gone);
        if self.trimmed.len() > self.member.ahead_max() {
            self.trimmed.clear();
        }
    }

    /// Gives back whatever the group says that we have. Answers whether nothing is left.
    async fn give_all(&mut self) -> Result<bool, SourceError> {
        for _ in 0..ROUNDS_MAX {
            let mut commands = Pipeline::new();
            let pending = commands.cmd("XPENDING").arg(self.stream()).arg(self.group());
            pending.arg("-").arg("+").arg(CHUNK).arg(&*self.name);
            let replies = check(self.stream(), self.tell(commands).await?)?;
            let Some(Value::Array(rows)) = replies.first() else { return Ok(false) };
            if rows.is_empty() {
                return Ok(true);
            }
            self.give(rows.iter().filter_map(id_of).collect()).await?;
        }
        Ok(false)
    }

    /// Takes our name out of the group. It has no entries, which would go with it: nobody else reads under
    /// this name, and we do not any more.
    async fn delete_name(&mut self) -> Result<(), SourceError> {
        let mut commands = Pipeline::new();
        commands.cmd("XGROUP").arg("DELCONSUMER").arg(self.stream()).arg(self.group()).arg(&*self.name);
        if let Some(Value::Int(pending @ 1..)) = self.tell(commands).await?.first() {
            tracing::error!(
                stream = self.stream(),
                pending,
                "entries went with the name of a member that left"
            );
        }
        Ok(())
    }
}

/// Entries that nobody will handle.
fn lose(member: &QueueMember, index: usize, ids: &[String]) {
    if !ids.is_empty() {
        let (stream, words) = (&member.plan.topics[index], ids.join(" "));
        tracing::error!(
            stream,
            ids = words,
            "entries were removed from the stream while a member had them in hand"
        );
        member.shelves().lose(index, ids.len());
        member.stir();
    }
}

/// The ids that `XCLAIM` with `JUSTID` answered with.
fn ids_of(replies: &[Value]) -> HashSet<String> {
    let lists =
        replies.iter().filter_map(|reply| if let Value::Array(ids) = reply { Some(ids) } else { None });
    lists.flatten().filter_map(text).collect()
}

fn id_of(entry: &Value) -> Option<String> {
    let Value::Array(parts) = entry else { return None };
    parts.first().and_then(text)
}

/// How often entries of ours were handed out.
async fn counts(
    session: &Session,
    stream: &str,
    group: &str,
    name: &str,
    [first, last]: [&str; 2],
) -> Result<HashMap<String, u32>, SourceError> {
    let mut commands = Pipeline::new();
    let command = commands.cmd("XPENDING").arg(stream).arg(group).arg(first).arg(last);
    command.arg(10 * PAGE).arg(name);
    let replies = check(stream, ask(session, &commands).await?)?;
    let Some(Value::Array(rows)) = replies.first() else { return Ok(HashMap::new()) };
    let count = |row: &Value| match row {
        Value::Array(parts) => match parts.get(3) {
            Some(Value::Int(count)) => Some((text(&parts[0])?, u32::try_from(*count).ok()?)),
            _ => None,
        },
        _ => None,
    };
    Ok(rows.iter().filter_map(count).collect())
}
