//! What a chunk of a job does, by kind: takes the next ones behind the job's position, and does to those that
//! can go what the plan says. The others are left alone, and counted by the code of the reason.

use super::{JobStep, OpenJob};
use crate::admin::dead::{self, Clause, DeadChunk};
use crate::admin::letters::{self, LetterAct, LetterPage};
use crate::admin::{aside, audit, events, failed, messages};
use crate::clock::{NEVER, now};
use posthaste::admin::job::{CHUNK_MAX, JobPlan, LogLook, LookBound, PREVIEW_SAMPLES, Preview};
use posthaste::admin::{
    AdminError, DeadAct, DeadFilter, DeferredFilter, EventFilter, IDS_AUDITED, ROWS_MAX, TOPICS_AUDITED,
    audited_filter,
};
use posthaste::inbox::kept::KeptHeaders;
use rusqlite::{Connection, Row, Transaction, params, params_from_iter};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Why something is left alone, and its place.
type Picked<T> = (T, Option<String>);

fn act_of(plan: &JobPlan) -> DeadAct {
    match plan {
        JobPlan::DeadDiscard { .. } | JobPlan::ConsumerDiscard { .. } => DeadAct::Discard,
        _ => DeadAct::Replay,
    }
}

fn number(text: Option<&str>) -> i64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What a chunk looked at: where it ended, and what is left alone.
fn looked<T>(picked: &[Picked<T>], chunk: i64, position: impl Fn(&T) -> String) -> JobStep {
    let mut step = JobStep {
        position: picked.last().map(|(one, _)| position(one)),
        last: (picked.len() as i64) < chunk,
        ..JobStep::default()
    };
    for why in picked.iter().filter_map(|(_, why)| why.as_ref()) {
        *step.left_alone.entry(why.clone()).or_default() += 1;
    }
    step
}

/// Does the next so many.
pub(super) fn step(tx: &Transaction<'_>, job: &OpenJob, chunk: i64) -> Result<JobStep, AdminError> {
    let chunk = chunk.clamp(1, CHUNK_MAX);
    match &job.plan {
        JobPlan::DeadReplay { filter } | JobPlan::DeadDiscard { filter } => dead_step(tx, job, filter, chunk),
        JobPlan::DeferredRetry { filter } => deferred_step(tx, job, filter, chunk),
        JobPlan::EventsReplay { sink, filter } => events_step(tx, job, (sink, filter), chunk),
        JobPlan::ConsumerReplay { consumer, filter, headers } => {
            letters_step(tx, job, (consumer, filter, headers), chunk)
        }
        JobPlan::ConsumerDiscard { consumer, filter } => {
            letters_step(tx, job, (consumer, filter, &KeptHeaders::default()), chunk)
        }
        JobPlan::ConsumerRetry { consumer, filter } => messages_step(tx, job, (consumer, filter), chunk),
    }
}

/// The next letters, and why a replay would leave one alone.
fn dead_rows(
    tx: &Connection,
    job: &OpenJob,
    filter: &DeadFilter,
    chunk: i64,
) -> rusqlite::Result<Vec<Picked<i64>>> {
    let mut clause = Clause::of(filter);
    clause.and("letter > ", number(job.status.position.as_deref()), "");
    clause.and("letter <= ", number(Some(&job.status.upto)), "");
    let letters = dead::picked(tx, &clause, chunk)?;
    letters.into_iter().map(|letter| Ok((letter, why_dead(tx, letter, act_of(&job.plan))?))).collect()
}

fn why_dead(tx: &Connection, letter: i64, act: DeadAct) -> rusqlite::Result<Option<String>> {
    match act {
        DeadAct::Discard => Ok(None),
        DeadAct::Replay => Ok(dead::refusal(tx, letter)?.map(|code| code.to_owned())),
    }
}

fn dead_step(
    tx: &Transaction<'_>,
    job: &OpenJob,
    filter: &DeadFilter,
    chunk: i64,
) -> Result<JobStep, AdminError> {
    let picked = dead_rows(tx, job, filter, chunk).map_err(failed)?;
    let mut step = looked(&picked, chunk, i64::to_string);
    let goes: Vec<i64> = picked.iter().filter(|(_, why)| why.is_none()).map(|(letter, _)| *letter).collect();
    if !goes.is_empty() {
        let act =
            DeadChunk { filter, act: act_of(&job.plan), actor: &job.actor(), job: Some(job.status.job) };
        dead::settle(tx, &act, &goes)?;
    }
    step.done = goes.len() as u64;
    Ok(step)
}

/// A deferred event: its sink, number, id and topic.
type WaitingEvent = (String, i64, String, String);

fn why_waiting() -> String {
    format!(
        "case when reason = 'scheduled' then 'deferred.scheduled' when due_at >= {NEVER} then 'deferred.behind' \
         when due_at <= {} then 'deferred.due' end",
        now()
    )
}

fn deferred_rows(
    tx: &Connection,
    job: &OpenJob,
    filter: &DeferredFilter,
    chunk: i64,
) -> rusqlite::Result<Vec<Picked<WaitingEvent>>> {
    let mut clause = aside::of(filter);
    let place = job.status.position.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let (sink, seq): (String, i64) = place.unwrap_or_default();
    clause.and("(sink, seq) > (", sink, &format!(", {seq})"));
    clause.and("seq <= ", number(Some(&job.status.upto)), "");
    let sql = format!(
        "select sink, seq, id, topic, {} from posthaste_deferred where {} order by sink, seq limit {chunk}",
        why_waiting(),
        clause.sql
    );
    let read = |row: &Row<'_>| Ok(((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?), row.get(4)?));
    tx.prepare(&sql)?.query_map(params_from_iter(clause.values()), read)?.collect()
}

fn place_of((sink, seq, ..): &WaitingEvent) -> String {
    json!([sink, seq]).to_string()
}

fn deferred_step(
    tx: &Transaction<'_>,
    job: &OpenJob,
    filter: &DeferredFilter,
    chunk: i64,
) -> Result<JobStep, AdminError> {
    let picked = deferred_rows(tx, job, filter, chunk).map_err(failed)?;
    let mut step = looked(&picked, chunk, place_of);
    let goes: Vec<&WaitingEvent> =
        picked.iter().filter(|(_, why)| why.is_none()).map(|(one, _)| one).collect();
    for (sink, seq, ..) in &goes {
        let sql = "update posthaste_deferred set due_at = ?3 where sink = ?1 and seq = ?2";
        tx.execute(sql, params![sink, seq, now()]).map_err(failed)?;
    }
    if !goes.is_empty() {
        let ids: Vec<&String> = goes.iter().take(IDS_AUDITED).map(|(_, _, id, _)| id).collect();
        let topics: BTreeSet<&String> = goes.iter().map(|(.., topic)| topic).collect();
        let topics: Vec<_> = topics.into_iter().take(TOPICS_AUDITED).collect();
        let number = job.status.job;
        let filter = audited_filter(filter, goes.len(), Some(number));
        let detail =
            json!({ "job": number, "filter": filter, "count": goes.len(), "ids": ids, "topics": topics });
        audit(tx, &job.actor(), "retry", &detail)?;
    }
    step.done = goes.len() as u64;
    Ok(step)
}

fn events_step(
    tx: &Transaction<'_>,
    job: &OpenJob,
    (sink, filter): (&str, &EventFilter),
    chunk: i64,
) -> Result<JobStep, AdminError> {
    let (after, upto) = (number(job.status.position.as_deref()), number(Some(&job.status.upto)));
    let filter =
        EventFilter { to_seq: Some(filter.to_seq.map_or(upto, |to| to.min(upto))), ..filter.clone() };
    let did = events::replay(tx, sink, &filter, after, chunk, (&job.actor(), Some(job.status.job)))?;
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

/// Letters of a consumer behind the job's position, up to its end, that were dead when it was asked for: one
/// that was replayed and dies again is not taken a second time.
fn letters_of(job: &OpenJob, consumer: &str, filter: &DeadFilter) -> Clause {
    let mut clause = letters::clause(consumer, filter);
    clause.and("letter > ", job.status.position.clone().unwrap_or_default(), "");
    clause.and("letter <= ", job.status.upto.clone(), "");
    clause.and("dead_at <= ", job.status.created_at.0, "");
    clause
}

fn letters_step(
    tx: &Transaction<'_>,
    job: &OpenJob,
    (consumer, filter, headers): (&str, &DeadFilter, &KeptHeaders),
    chunk: i64,
) -> Result<JobStep, AdminError> {
    let letters = letters::pick(tx, &letters_of(job, consumer, filter), chunk).map_err(failed)?;
    let actor = job.actor();
    let act = LetterAct {
        consumer,
        filter,
        act: act_of(&job.plan),
        headers,
        actor: &actor,
        job: Some(job.status.job),
    };
    letters::settle(tx, &act, &letters)?;
    Ok(JobStep {
        done: letters.len() as u64,
        position: letters.last().map(ToString::to_string),
        last: (letters.len() as i64) < chunk,
        ..JobStep::default()
    })
}

fn message_rows(
    tx: &Connection,
    job: &OpenJob,
    (consumer, filter): (&str, &DeferredFilter),
    chunk: i64,
) -> rusqlite::Result<Vec<Picked<(i64, String, String)>>> {
    let mut clause = messages::clause(consumer, filter);
    clause.and("seq > ", job.status.position.as_deref().map_or(i64::MIN, |text| number(Some(text))), "");
    clause.and("seq <= ", number(Some(&job.status.upto)), "");
    let sql = format!(
        "select seq, message_id, topic, {} from posthaste_inbox_deferred where {} order by seq limit {chunk}",
        why_waiting(),
        clause.sql
    );
    let read = |row: &Row<'_>| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?));
    tx.prepare(&sql)?.query_map(params_from_iter(clause.values()), read)?.collect()
}

fn messages_step(
    tx: &Transaction<'_>,
    job: &OpenJob,
    (consumer, filter): (&str, &DeferredFilter),
    chunk: i64,
) -> Result<JobStep, AdminError> {
    let picked = message_rows(tx, job, (consumer, filter), chunk).map_err(failed)?;
    let mut step = looked(&picked, chunk, |(seq, ..)| seq.to_string());
    let goes: Vec<&(i64, String, String)> =
        picked.iter().filter(|(_, why)| why.is_none()).map(|(one, _)| one).collect();
    for (seq, ..) in &goes {
        let sql = "update posthaste_inbox_deferred set due_at = ?2 where seq = ?1";
        tx.execute(sql, params![seq, now()]).map_err(failed)?;
    }
    if !goes.is_empty() {
        let ids: Vec<&String> = goes.iter().take(IDS_AUDITED).map(|(_, id, _)| id).collect();
        let topics: BTreeSet<&String> = goes.iter().map(|(.., topic)| topic).collect();
        let topics: Vec<_> = topics.into_iter().take(TOPICS_AUDITED).collect();
        let number = job.status.job;
        let filter = audited_filter(filter, goes.len(), Some(number));
        let detail = json!({
            "job": number, "consumer": consumer, "filter": filter, "count": goes.len(), "ids": ids, "topics": topics,
        });
        audit(tx, &job.actor(), "retry", &detail)?;
    }
    step.done = goes.len() as u64;
    Ok(step)
}

/// The place of the next one, whatever is to be done with it.
pub(super) fn next(tx: &Transaction<'_>, job: &OpenJob) -> Result<Option<String>, AdminError> {
    let next = match &job.plan {
        JobPlan::DeadReplay { filter } | JobPlan::DeadDiscard { filter } => {
            dead_rows(tx, job, filter, 1).map(|rows| rows.first().map(|(letter, _)| letter.to_string()))
        }
        JobPlan::DeferredRetry { filter } => {
            deferred_rows(tx, job, filter, 1).map(|rows| rows.first().map(|(one, _)| place_of(one)))
        }
        JobPlan::EventsReplay { sink, filter } => {
            let (after, upto) = (number(job.status.position.as_deref()), number(Some(&job.status.upto)));
            let looked = events::would_replay(tx, sink, filter, after, 1)?;
            Ok((after < upto).then(|| looked.reached.to_string()))
        }
        JobPlan::ConsumerReplay { consumer, filter, .. } | JobPlan::ConsumerDiscard { consumer, filter } => {
            let letters = letters::pick(tx, &letters_of(job, consumer, filter), 1);
            letters.map(|letters| letters.first().map(ToString::to_string))
        }
        JobPlan::ConsumerRetry { consumer, filter } => message_rows(tx, job, (consumer, filter), 1)
            .map(|rows| rows.first().map(|((seq, ..), _)| seq.to_string())),
    };
    next.map_err(failed)
}

/// What a plan would do.
pub(super) fn look_ahead(tx: &Connection, plan: &JobPlan, bound: LookBound) -> Result<Preview, AdminError> {
    match plan {
        JobPlan::DeadReplay { filter } | JobPlan::DeadDiscard { filter } => {
            look_at_dead(tx, filter, act_of(plan)).map_err(failed)
        }
        JobPlan::DeferredRetry { filter } => {
            let mut clause = aside::of(filter);
            let seen = counted(tx, "posthaste_deferred", &clause).map_err(failed)?;
            clause.sql.push_str(&format!(" and ({}) is null", why_waiting()));
            let samples = aside::list_of(tx, &clause, PREVIEW_SAMPLES).map_err(failed)?;
            Ok(Preview { samples: values(&samples), ..seen })
        }
        JobPlan::EventsReplay { sink, filter } => look_at_events(tx, sink, filter, bound),
        JobPlan::ConsumerReplay { consumer, filter, .. } | JobPlan::ConsumerDiscard { consumer, filter } => {
            look_at_letters(tx, consumer, filter).map_err(failed)
        }
        JobPlan::ConsumerRetry { consumer, filter } => {
            let mut clause = messages::clause(consumer, filter);
            let seen = counted(tx, "posthaste_inbox_deferred", &clause).map_err(failed)?;
            clause.sql.push_str(&format!(" and ({}) is null", why_waiting()));
            let samples = messages::list_of(tx, &clause, PREVIEW_SAMPLES).map_err(failed)?;
            Ok(Preview { samples: values(&samples), ..seen })
        }
    }
}

/// Groups of letters, each a sink and perhaps a topic, of which this letter is none.
const LEFT_ALONE: &str = ") g where g.value ->> 0 = sink \
    and g.value ->> 1 is case when error_code = 'route.none' then topic end)";

fn look_at_dead(tx: &Connection, filter: &DeadFilter, act: DeadAct) -> rusqlite::Result<Preview> {
    let (mut clause, mut seen) = (Clause::of(filter), Preview::default());
    let sql = clause.put_into(include_str!("../../sql/admin/job_dead_count.sql"), ROWS_MAX);
    let read = |row: &Row<'_>| {
        let group: (String, Option<String>) = (row.get(2)?, row.get(3)?);
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, group))
    };
    let (mut upto, mut left) = (None, Vec::new());
    for row in tx.prepare(&sql)?.query_map(params_from_iter(clause.values()), read)? {
        let (count, last, group) = row?;
        upto = upto.max(Some(last));
        match why_dead(tx, last, act)? {
            None => seen.goes += count.unsigned_abs(),
            Some(why) => {
                *seen.left_alone.entry(why).or_default() += count.unsigned_abs();
                left.push(group);
            }
        }
    }
    seen.upto = upto.map(|last: i64| last.to_string()).unwrap_or_default();
    let left = json!(left).to_string();
    clause.and("not exists (select 1 from json_each(", left, LEFT_ALONE);
    seen.samples = values(&dead::list_of(tx, &clause, PREVIEW_SAMPLES)?);
    Ok(seen)
}

fn look_at_events(
    tx: &Connection,
    sink: &str,
    filter: &EventFilter,
    bound: LookBound,
) -> Result<Preview, AdminError> {
    let mut look = LogLook::new(filter, bound);
    loop {
        let (filter, after, rows) = look.next();
        if let Some(seen) = look.take(&events::would_replay(tx, sink, filter, after, rows)?) {
            return Ok(seen);
        }
    }
}

fn look_at_letters(tx: &Connection, consumer: &str, filter: &DeadFilter) -> rusqlite::Result<Preview> {
    let clause = letters::clause(consumer, filter);
    let sql = format!("select count(*), max(letter) from posthaste_inbox_dead_letters where {}", clause.sql);
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?));
    let (count, upto) = tx.query_row(&sql, params_from_iter(clause.values()), read)?;
    let samples = values(&letters::list(tx, consumer, filter, LetterPage::After(None), PREVIEW_SAMPLES)?);
    Ok(Preview { goes: count.unsigned_abs(), upto: upto.unwrap_or_default(), samples, ..Preview::default() })
}

fn counted(tx: &Connection, table: &str, clause: &Clause) -> rusqlite::Result<Preview> {
    let sql = format!(
        "select {} as why, count(*), max(seq) from {table} where {} group by why",
        why_waiting(),
        clause.sql
    );
    let read =
        |row: &Row<'_>| Ok((row.get::<_, Option<String>>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
    let (mut seen, mut upto) = (Preview::default(), None);
    let mut statement = tx.prepare(&sql)?;
    for row in statement.query_map(params_from_iter(clause.values()), read)? {
        let (why, count, last) = row?;
        upto = upto.max(Some(last));
        match why {
            None => seen.goes += count.unsigned_abs(),
            Some(why) => _ = seen.left_alone.insert(why, count.unsigned_abs()),
        }
    }
    seen.upto = upto.map(|last: i64| last.to_string()).unwrap_or_default();
    Ok(seen)
}

fn values<T: serde::Serialize>(samples: &[T]) -> Vec<Value> {
    samples.iter().filter_map(|sample| serde_json::to_value(sample).ok()).collect()
}
