//! What a chunk of a job does, by kind: picks the next ones behind the job's position, locks them, and does
//! to those that can go what the plan says. The others are left alone, and counted by the code of the reason.
//!
//! Who is first of a key is decided under the same locks as everywhere: see `lock_keys.sql`, and
//! `lock_all.sql` for consumers. So a replayed letter goes back to its place in its key, whoever replays it
//! (F57).

use super::{JobStep, LockedJob};
use crate::admin::dead::{Clause, DeadChunk};
use crate::admin::{PostgresAdmin, aside};
use crate::consumers;
use crate::session::{Session, params};
use posthaste::admin::job::{CHUNK_MAX, JobPlan, LogLook, LookBound, PREVIEW_SAMPLES, Preview};
use posthaste::admin::{
    AdminError, DeadAct, DeadFilter, DeferredFilter, EventFilter, IDS_AUDITED, audited_filter,
};
use posthaste::inbox::kept::KeptHeaders;
use serde_json::{Value, json};
use tokio_postgres::Row;
use uuid::Uuid;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/admin/", $name, ".sql"))
    };
}

macro_rules! consumer_sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/consumer/", $name, ".sql"))
    };
}

/// Why a replay leaves a letter alone. `/*replay*/` is whether it is one.
const WHY_DEAD: &str = "case when not /*replay*/ then null \
    when l.error_code = 'route.none' then \
      case when not exists (select from posthaste.lanes s where s.retired_at is null and s.sink <> 'unrouted' \
                             and (s.filter = '' or (left(s.filter, 1) = '+' \
                                  and l.topic like any (string_to_array(substr(s.filter, 2), chr(10)))))) \
           then 'admin.no_route' end \
    when not exists (select from posthaste.lanes s where s.sink = l.sink and s.retired_at is null) \
      then 'admin.not_served' end";

/// Why a deferred event is left alone.
const WHY_DEFERRED: &str = "case when d.reason = 'scheduled' then 'deferred.scheduled' \
    when not isfinite(d.due_at) then 'deferred.behind' when d.due_at <= clock_timestamp() then 'deferred.due' end";

/// Why a deferred message is left alone.
const WHY_MESSAGE: &str = "case when not isfinite(d.due_at) then 'deferred.behind' \
    when d.due_at <= clock_timestamp() then 'deferred.due' end";

/// The same clause, of those that go: nothing says why they would be left alone.
fn that_go(mut clause: Clause, why: &str) -> Clause {
    clause.and_sql(&format!("{why} is null"));
    clause
}

fn why_dead(sql: &str, act: DeadAct) -> String {
    let replay = if act == DeadAct::Replay { "true" } else { "false" };
    sql.replace("/*why*/", &WHY_DEAD.replace("/*replay*/", replay))
}

/// The act of a plan on letters.
fn act_of(plan: &JobPlan) -> DeadAct {
    match plan {
        JobPlan::DeadDiscard { .. } | JobPlan::ConsumerDiscard { .. } => DeadAct::Discard,
        _ => DeadAct::Replay,
    }
}

/// Numbers of a position or an end, as this kind of job writes them.
fn number(text: Option<&str>) -> Option<i64> {
    text.and_then(|text| text.parse().ok())
}

/// A place among the deferred of all sinks.
fn place(text: Option<&str>) -> Option<(String, i64)> {
    text.and_then(|text| serde_json::from_str(text).ok())
}

impl PostgresAdmin {
    /// Does the next so many.
    pub(super) async fn step(
        &self,
        session: &mut Session,
        job: &LockedJob,
        chunk: i64,
    ) -> Result<JobStep, AdminError> {
        let chunk = chunk.clamp(1, CHUNK_MAX);
        match &job.plan {
            JobPlan::DeadReplay { filter } | JobPlan::DeadDiscard { filter } => {
                self.dead_step(session, job, filter, chunk).await
            }
            JobPlan::DeferredRetry { filter } => self.deferred_step(session, job, filter, chunk).await,
            JobPlan::EventsReplay { sink, filter } => {
                self.events_step(session, job, (sink, filter), chunk).await
            }
            JobPlan::ConsumerReplay { consumer, filter, headers } => {
                self.letters_step(session, job, (consumer, filter, headers), chunk).await
            }
            JobPlan::ConsumerDiscard { consumer, filter } => {
                let headers = KeptHeaders::default();
                self.letters_step(session, job, (consumer, filter, &headers), chunk).await
            }
            JobPlan::ConsumerRetry { consumer, filter } => {
                self.messages_step(session, job, (consumer, filter), chunk).await
            }
        }
    }

    async fn dead_rows(
        &self,
        session: &mut Session,
        job: &LockedJob,
        filter: &DeadFilter,
        chunk: i64,
    ) -> Result<Vec<Row>, AdminError> {
        let clause = Clause::of(filter, 4);
        let sql = clause.put_into(&why_dead(sql!("job_dead"), act_of(&job.plan)));
        let after = number(job.status.position.as_deref()).unwrap_or(0);
        let upto = number(Some(&job.status.upto)).unwrap_or(0);
        self.query(session, &sql, &clause.params(params![INT8 after, INT8 upto, INT8 chunk])).await
    }

    async fn dead_step(
        &self,
        session: &mut Session,
        job: &LockedJob,
        filter: &DeadFilter,
        chunk: i64,
    ) -> Result<JobStep, AdminError> {
        self.lock_deferred(session).await?;
        let rows = self.dead_rows(session, job, filter, chunk).await?;
        let mut step = JobStep::of(&rows, chunk, |row| row.get::<_, i64>("letter").to_string());
        let goes: Vec<i64> = goes(&rows).map(|row| row.get("letter")).collect();
        if !goes.is_empty() {
            let act =
                DeadChunk { filter, act: act_of(&job.plan), actor: &job.actor(), job: Some(job.status.job) };
            self.settle_letters(session, &act, &goes).await?;
        }
        step.done = goes.len() as u64;
        Ok(step)
    }

    async fn deferred_rows(
        &self,
        session: &mut Session,
        job: &LockedJob,
        filter: &DeferredFilter,
        chunk: i64,
    ) -> Result<Vec<Row>, AdminError> {
        let clause = aside::of_deferred(filter, 5);
        let sql = clause.put_into(&sql!("job_deferred").replace("/*why*/", WHY_DEFERRED));
        let (sink, seq) = place(job.status.position.as_deref()).unzip();
        let upto = number(Some(&job.status.upto)).unwrap_or(0);
        let params = params![TEXT sink, INT8 seq, INT8 upto, INT8 chunk];
        self.query(session, &sql, &clause.params(params)).await
    }

    async fn deferred_step(
        &self,
        session: &mut Session,
        job: &LockedJob,
        filter: &DeferredFilter,
        chunk: i64,
    ) -> Result<JobStep, AdminError> {
        // Before its rows: with them in hand it would wait for whoever holds the table and wants these rows.
        self.query(session, "lock table posthaste.deferred in row exclusive mode", &[]).await?;
        let rows = self.deferred_rows(session, job, filter, chunk).await?;
        let mut step = JobStep::of(&rows, chunk, deferred_place);
        let goes: Vec<&Row> = goes(&rows).collect();
        if !goes.is_empty() {
            let sinks: Vec<String> = goes.iter().map(|row| row.get("sink")).collect();
            let seqs: Vec<i64> = goes.iter().map(|row| row.get("seq")).collect();
            self.query(session, sql!("job_deferred_due"), params![TEXT_ARRAY sinks, INT8_ARRAY seqs]).await?;
            let ids: Vec<Uuid> = goes.iter().take(IDS_AUDITED).map(|row| row.get("id")).collect();
            let number = job.status.job;
            let filter = audited_filter(filter, goes.len(), Some(number));
            let detail = json!({
                "job": number, "filter": filter, "count": goes.len(), "ids": ids, "topics": aside::topics(&rows),
            });
            self.audit(session, &job.actor(), "retry", &detail).await?;
            self.wake(session, "").await?;
        }
        step.done = goes.len() as u64;
        Ok(step)
    }

    async fn events_step(
        &self,
        session: &mut Session,
        job: &LockedJob,
        (sink, filter): (&str, &EventFilter),
        chunk: i64,
    ) -> Result<JobStep, AdminError> {
        let after = number(job.status.position.as_deref()).unwrap_or(0);
        let upto = number(Some(&job.status.upto)).unwrap_or(0);
        let filter =
            EventFilter { to_seq: Some(filter.to_seq.map_or(upto, |to| to.min(upto))), ..filter.clone() };
        let did = self
            .replay_some(session, (sink, &filter), after, chunk, Some((&job.actor(), job.status.job)))
            .await?;
        let mut step = JobStep {
            done: did.events,
            position: Some(did.reached.to_string()),
            last: did.done || did.reached >= upto,
            ..JobStep::default()
        };
        if did.left_alone > 0 {
            step.left_alone.insert("events.waits_or_dead".to_owned(), did.left_alone);
        }
        Ok(step)
    }

    async fn letters_step(
        &self,
        session: &mut Session,
        job: &LockedJob,
        (consumer, filter, headers): (&str, &DeadFilter, &KeptHeaders),
        chunk: i64,
    ) -> Result<JobStep, AdminError> {
        let act = consumers::LetterChunk {
            consumer,
            filter,
            act: act_of(&job.plan),
            headers,
            actor: &job.actor(),
            job: Some(job.status.job),
        };
        let picked = self.act_on_letters(session, &act, letters_of(job, filter), chunk).await?;
        let mut step = JobStep {
            done: picked.done,
            position: picked.last.map(|letter| letter.to_string()),
            last: picked.picked < chunk,
            ..JobStep::default()
        };
        let not_taken = picked.picked.unsigned_abs().saturating_sub(picked.done);
        if not_taken > 0 {
            step.left_alone.insert("letters.not_taken".to_owned(), not_taken);
        }
        Ok(step)
    }

    async fn message_rows(
        &self,
        session: &mut Session,
        job: &LockedJob,
        (consumer, filter): (&str, &DeferredFilter),
        chunk: i64,
    ) -> Result<Vec<Row>, AdminError> {
        let clause = consumers::of_deferred(filter, 5);
        let sql = clause.put_into(&consumer_sql!("job_deferred").replace("/*why*/", WHY_MESSAGE));
        let after = number(job.status.position.as_deref());
        let upto = number(Some(&job.status.upto)).unwrap_or(0);
        let params = params![TEXT consumer, INT8 after, INT8 upto, INT8 chunk];
        self.query(session, &sql, &clause.params(params)).await
    }

    async fn messages_step(
        &self,
        session: &mut Session,
        job: &LockedJob,
        (consumer, filter): (&str, &DeferredFilter),
        chunk: i64,
    ) -> Result<JobStep, AdminError> {
        let rows = self.message_rows(session, job, (consumer, filter), chunk).await?;
        let mut step = JobStep::of(&rows, chunk, |row| row.get::<_, i64>("seq").to_string());
        let seqs: Vec<i64> = goes(&rows).map(|row| row.get("seq")).collect();
        if !seqs.is_empty() {
            let params = params![TEXT consumer, INT8_ARRAY seqs];
            self.query(session, consumer_sql!("job_deferred_due"), params).await?;
            let ids: Vec<String> = goes(&rows).take(IDS_AUDITED).map(|row| row.get("message_id")).collect();
            let number = job.status.job;
            let filter = audited_filter(filter, seqs.len(), Some(number));
            let detail = json!({
                "job": number, "consumer": consumer, "filter": filter, "count": seqs.len(), "ids": ids,
                "topics": aside::topics(&rows),
            });
            self.audit(session, &job.actor(), "retry", &detail).await?;
        }
        step.done = seqs.len() as u64;
        Ok(step)
    }

    /// The place of the next one, whatever is to be done with it.
    pub(super) async fn next_of(
        &self,
        session: &mut Session,
        job: &LockedJob,
    ) -> Result<Option<String>, AdminError> {
        Ok(match &job.plan {
            JobPlan::DeadReplay { filter } | JobPlan::DeadDiscard { filter } => {
                let rows = self.dead_rows(session, job, filter, 1).await?;
                rows.first().map(|row| row.get::<_, i64>("letter").to_string())
            }
            JobPlan::DeferredRetry { filter } => {
                self.deferred_rows(session, job, filter, 1).await?.first().map(deferred_place)
            }
            JobPlan::EventsReplay { sink, filter } => {
                let after = number(job.status.position.as_deref()).unwrap_or(0);
                let upto = number(Some(&job.status.upto)).unwrap_or(0);
                let looked = self.replay_some(session, (sink, filter), after, 1, None).await?;
                (after < upto).then(|| looked.reached.to_string())
            }
            JobPlan::ConsumerReplay { consumer, filter, .. }
            | JobPlan::ConsumerDiscard { consumer, filter } => {
                let clause = letters_of(job, filter);
                let picked = self.pick_letters(session, consumer, &clause, 1).await?;
                picked.first().map(|(letter, ..)| letter.to_string())
            }
            JobPlan::ConsumerRetry { consumer, filter } => {
                let rows = self.message_rows(session, job, (consumer, filter), 1).await?;
                rows.first().map(|row| row.get::<_, i64>("seq").to_string())
            }
        })
    }

    /// What a plan would do.
    pub(super) async fn look_ahead(&self, plan: &JobPlan, bound: LookBound) -> Result<Preview, AdminError> {
        match plan {
            JobPlan::DeadReplay { filter } | JobPlan::DeadDiscard { filter } => {
                let clause = Clause::of(filter, 1);
                let sql = clause.put_into(&why_dead(sql!("job_dead_count"), act_of(plan)));
                let rows = self.look_freely(&sql, &clause.params(&[])).await?;
                let go = that_go(Clause::of(filter, 3), &why_dead("/*why*/", act_of(plan)));
                let samples = self.list_dead_of(&go, 0, PREVIEW_SAMPLES).await?;
                Ok(Preview { samples: values(&samples), ..counted(&rows, |row| row.get("last")) })
            }
            JobPlan::DeferredRetry { filter } => {
                let clause = aside::of_deferred(filter, 1);
                let sql = clause.put_into(&sql!("job_deferred_count").replace("/*why*/", WHY_DEFERRED));
                let rows = self.look_freely(&sql, &clause.params(&[])).await?;
                let go = that_go(aside::of_deferred(filter, 4), WHY_DEFERRED);
                let samples = self.list_deferred_of(&go, None, PREVIEW_SAMPLES).await?;
                Ok(Preview { samples: values(&samples), ..counted(&rows, |row| row.get("last")) })
            }
            JobPlan::EventsReplay { sink, filter } => self.look_at_events(sink, filter, bound).await,
            JobPlan::ConsumerReplay { consumer, filter, .. }
            | JobPlan::ConsumerDiscard { consumer, filter } => {
                let clause = consumers::clause(filter, 2);
                let sql = clause.put_into(consumer_sql!("job_letters_count"));
                let rows = self.look_freely(&sql, &clause.params(params![TEXT consumer])).await?;
                let upto = rows.first().and_then(|row| row.get::<_, Option<String>>("last"));
                let goes = rows.first().map_or(0, |row| row.get::<_, i64>("count").unsigned_abs());
                let samples = self.list_letters(consumer, filter, None, PREVIEW_SAMPLES).await?;
                let upto = upto.unwrap_or_default();
                Ok(Preview { goes, upto, samples: values(&samples), ..Preview::default() })
            }
            JobPlan::ConsumerRetry { consumer, filter } => {
                let clause = consumers::of_deferred(filter, 2);
                let sql =
                    clause.put_into(&consumer_sql!("job_deferred_count").replace("/*why*/", WHY_MESSAGE));
                let rows = self.look_freely(&sql, &clause.params(params![TEXT consumer])).await?;
                let go = that_go(consumers::of_deferred(filter, 4), WHY_MESSAGE);
                let samples = self.list_messages_of(consumer, &go, None, PREVIEW_SAMPLES).await?;
                Ok(Preview { samples: values(&samples), ..counted(&rows, |row| row.get("last")) })
            }
        }
    }

    /// Events of the log have no table of their own: they are gone through, window by window.
    async fn look_at_events(
        &self,
        sink: &str,
        filter: &EventFilter,
        bound: LookBound,
    ) -> Result<Preview, AdminError> {
        let mut look = LogLook::new(filter, bound);
        loop {
            let (filter, after, rows) = look.next();
            let window = self.replay_events(sink, filter, after, rows, None).await?;
            if let Some(seen) = look.take(&window) {
                return Ok(seen);
            }
        }
    }
}

/// Letters of a consumer behind the job's position, up to its end, that were dead when it was asked for: one
/// that was replayed and dies again is not taken a second time.
fn letters_of(job: &LockedJob, filter: &DeadFilter) -> Clause {
    let mut clause = consumers::clause(filter, 3);
    let letter = |text: Option<&str>| text.and_then(|text| Uuid::try_parse(text).ok()).unwrap_or_default();
    clause.and_letters(letter(job.status.position.as_deref()), letter(Some(&job.status.upto)));
    clause.and_time("dead_at <= ", job.status.created_at);
    clause
}

fn deferred_place(row: &Row) -> String {
    json!([row.get::<_, String>("sink"), row.get::<_, i64>("seq")]).to_string()
}

fn goes(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| row.get::<_, Option<&str>>("why").is_none())
}

fn counted(rows: &[Row], last: impl Fn(&Row) -> Option<i64>) -> Preview {
    let mut seen = Preview::default();
    for row in rows {
        let count = row.get::<_, i64>("count").unsigned_abs();
        match row.get::<_, Option<String>>("why") {
            None => seen.goes += count,
            Some(why) => _ = seen.left_alone.insert(why, count),
        }
    }
    seen.upto = rows.iter().filter_map(last).max().map(|last| last.to_string()).unwrap_or_default();
    seen
}

fn values<T: serde::Serialize>(samples: &[T]) -> Vec<Value> {
    samples.iter().filter_map(|sample| serde_json::to_value(sample).ok()).collect()
}
