//! One look a second at an outbox, for all who watch it.
//!
//! Whoever asks first within a second looks, and the others wait for that look: so twenty pages cost a
//! database what one costs, and none costs nothing. No task stands behind it that somebody would have to
//! end.

use super::series::{OutboxPoint, SeriesBook};
use crate::api::call::value;
use crate::api::looks::shown_outbox;
use crate::consumers::{BrokerView, ShownConsumer};
use crate::desk::OutboxDesk;
use posthaste::admin::job::{JobState, JobStatus};
use posthaste::admin::{EventFilter, LogEvent, OutboxStatus, TailPlace};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For so long a look is told again. A viewer asks once a second, and its clock may be a little fast.
const FRESH: Duration = Duration::from_millis(900);
/// A tail that nobody asked for in so long begins at the end of the log again.
const TAIL_LEFT: Duration = Duration::from_secs(10);
/// New events that are kept for those who ask a moment later.
const TAIL_MAX: usize = 500;
/// Jobs that a page lists.
const JOBS_MAX: i64 = 50;

/// What was seen of one outbox.
#[derive(Default)]
pub(crate) struct Sight {
    /// As `GET /outboxes` has it: also when it cannot be reached.
    pub(crate) named: Value,
    /// As `GET /outboxes/{o}` has it; `null` where that would be a problem.
    pub(crate) outbox: Value,
    /// Newest first.
    pub(crate) jobs: Vec<JobStatus>,
    /// As `GET /consumers` has them.
    pub(crate) consumers: Vec<Value>,
    /// Why its consumers could not be looked at.
    pub(crate) unreachable: Option<String>,
    /// The newest point of its series.
    pub(crate) point: Option<OutboxPoint>,
}

/// What is remembered of one outbox.
#[derive(Default)]
struct OutboxSight {
    sight: tokio::sync::Mutex<Option<(Instant, Arc<Sight>)>>,
    tail: tokio::sync::Mutex<TailSeen>,
}

/// New events, as they came.
#[derive(Default)]
struct TailSeen {
    asked: Option<Instant>,
    place: Option<TailPlace>,
    /// How many came in all: the number of the last one.
    count: u64,
    events: VecDeque<LogEvent>,
}

/// Of all outboxes, by name.
#[derive(Default)]
pub(crate) struct Sights(Mutex<HashMap<String, Arc<OutboxSight>>>);

impl Sights {
    fn of(&self, desk: &OutboxDesk) -> Arc<OutboxSight> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(desk.name().to_owned()).or_default())
    }

    /// What is there now, or was less than a second ago.
    pub(crate) async fn see(&self, desk: &OutboxDesk, series: &SeriesBook) -> Arc<Sight> {
        let seen = self.of(desk);
        let mut last = seen.sight.lock().await;
        if let Some((at, sight)) = &*last
            && at.elapsed() < FRESH
        {
            return Arc::clone(sight);
        }
        let sight = Arc::new(look(desk, series).await);
        *last = Some((Instant::now(), Arc::clone(&sight)));
        sight
    }

    /// Events that came behind a number, and the number of the last one. Without a number none, and where it
    /// begins.
    pub(crate) async fn tail(&self, desk: &OutboxDesk, behind: Option<u64>) -> (Vec<LogEvent>, u64) {
        let seen = self.of(desk);
        let mut tail = seen.tail.lock().await;
        if tail.asked.is_none_or(|at| at.elapsed() >= FRESH) {
            tail.look(desk).await;
        }
        let behind = behind.unwrap_or(tail.count);
        let missing = usize::try_from(tail.count.saturating_sub(behind)).unwrap_or(usize::MAX);
        let skipped = tail.events.len().saturating_sub(missing);
        (tail.events.iter().skip(skipped).cloned().collect(), tail.count)
    }
}

impl TailSeen {
    async fn look(&mut self, desk: &OutboxDesk) {
        if self.asked.is_some_and(|at| at.elapsed() > TAIL_LEFT) {
            (self.place, self.events) = (None, VecDeque::new());
        }
        let place = self.place.clone();
        let look = desk
            .look(|admin| async move { admin.events_since(&EventFilter::default(), place.as_ref()).await });
        // A database that does not answer is told of by the sight; the place is kept.
        if let Ok((events, place)) = look.await {
            self.place = Some(place);
            self.count += events.len() as u64;
            self.events.extend(events);
            let more = self.events.len().saturating_sub(TAIL_MAX);
            self.events.drain(..more);
        }
        self.asked = Some(Instant::now());
    }
}

async fn look(desk: &OutboxDesk, series: &SeriesBook) -> Sight {
    let (status, consumers) = tokio::join!(
        desk.look(|admin| async move {
            let (status, lacks) = (admin.status().await?, admin.lacks());
            let jobs = match admin.jobs() {
                Some(jobs) => jobs.jobs(None, false, JOBS_MAX).await?,
                None => Vec::new(),
            };
            Ok((status, lacks, jobs))
        }),
        desk.look_at_consumers(|admin| async move { admin.consumers(None).await }),
    );
    let mut sight = Sight::default();
    match consumers {
        Ok(found) => {
            let shown = |status| value(&ShownConsumer::new(&desk.outbox, status, BrokerView::default()));
            sight.consumers = found.into_iter().flatten().map(shown).collect();
        }
        Err(problem) => sight.unreachable = Some(problem.detail),
    }
    match status {
        Ok((status, lacks, jobs)) => {
            take_over(desk, &jobs);
            sight.point = Some(note(series, desk, &status));
            let shown = shown_outbox(desk, status, lacks);
            sight.named = value(shown.named());
            sight.outbox = value(&shown);
            sight.jobs = jobs;
        }
        Err(problem) => {
            let why = format!("{} {}", problem.detail, problem.events);
            sight.named = value(&crate::picture::named(&desk.outbox, Err(why)));
        }
    }
    sight
}

fn note(series: &SeriesBook, desk: &OutboxDesk, status: &OutboxStatus) -> OutboxPoint {
    series.note(desk.name(), status)
}

/// Whoever looks at a job that nobody runs any more need not ask for anything else: it is run from here.
pub(crate) fn take_over(desk: &OutboxDesk, jobs: &[JobStatus]) {
    let is_left = |job: &JobStatus| !job.alive && matches!(job.state, JobState::Queued | JobState::Running);
    if jobs.iter().any(is_left) {
        desk.bell.ring();
    }
}
