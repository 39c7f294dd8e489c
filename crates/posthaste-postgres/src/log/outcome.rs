//! What became of a batch, as rows: events that wait, events that died.
//!
//! Four lists of a settlement, two shapes: a deferral or a death, each with the number of its event. A whole
//! list is one statement.
//!
//! **The last resort.** A list may hold something that the database will never take: the words of a broker in
//! a database that is not UTF-8, a delay beyond the end of time, whatever a trigger or a constraint of
//! somebody else forbids. Repeated as it is, the settlement would fail for ever, and its lane would stand
//! still for one event. So a refusal for data is looked into, in a second transaction: each list is written
//! under a savepoint, halved where it is refused, until one event remains. That one becomes a dead letter in
//! plain words, with everything that came from outside left out. Its own columns come from the log, where
//! the database has taken them once.
//!
//! It is still one transaction with one receipt: all of it is applied or nothing (G2), a lost lease is
//! refused by the receipt before any of this (G4), and a repetition finds the receipt. Refused: cleaning
//! everything beforehand. Nobody can know what a database refuses, and the healthy path would pay for it.

use crate::error::{is_refusal_of_data, store_error};
use crate::log::lease::LogLease;
use crate::row::with_event;
use crate::session::{Param, Session};
use posthaste::event::StoredEvent;
use posthaste::store::{Death, Deferral, Due, ErrorClass, StoreError};
use std::sync::LazyLock;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Why a settlement was not written.
pub(crate) enum WriteError {
    /// The database will not take these values, however often it is asked.
    ForItsData(String),
    /// Anything else.
    Otherwise(StoreError),
}

impl From<StoreError> for WriteError {
    fn from(error: StoreError) -> Self {
        Self::Otherwise(error)
    }
}

impl From<WriteError> for StoreError {
    fn from(refused: WriteError) -> Self {
        match refused {
            WriteError::Otherwise(error) => error,
            // Not even the plain dead letter is taken. Whoever forbids that may stop to: it is tried again,
            // and the log says so each time.
            WriteError::ForItsData(message) => Self::Transient { message, outcome_known: true },
        }
    }
}

fn refused(error: tokio_postgres::Error) -> WriteError {
    if is_refusal_of_data(&error) {
        return WriteError::ForItsData(crate::error::describe(&error));
    }
    WriteError::Otherwise(store_error(error))
}

/// One list of a settlement.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    /// Of the log: they wait.
    Deferred(&'a [(StoredEvent, Deferral)]),
    /// Of the log: they died.
    Dead(&'a [(StoredEvent, Death)]),
    /// Deferred before: they go on waiting.
    Again(&'a [(i64, Deferral)]),
    /// Deferred before: they died.
    Died(&'a [(i64, Death)]),
}

static DEFER: LazyLock<String> = LazyLock::new(|| with_event(include_str!("../../sql/log/defer.sql")));
static BURY: LazyLock<String> = LazyLock::new(|| with_event(include_str!("../../sql/log/bury.sql")));
static DIED: LazyLock<String> = LazyLock::new(|| with_event(include_str!("../../sql/log/died.sql")));
const AGAIN: &str = include_str!("../../sql/log/again.sql");

impl<'a> Rows<'a> {
    fn len(self) -> usize {
        match self {
            Self::Deferred(list) => list.len(),
            Self::Dead(list) => list.len(),
            Self::Again(list) => list.len(),
            Self::Died(list) => list.len(),
        }
    }

    fn halves(self) -> [Self; 2] {
        let middle = self.len() / 2;
        match self {
            Self::Deferred(list) => [Self::Deferred(&list[..middle]), Self::Deferred(&list[middle..])],
            Self::Dead(list) => [Self::Dead(&list[..middle]), Self::Dead(&list[middle..])],
            Self::Again(list) => [Self::Again(&list[..middle]), Self::Again(&list[middle..])],
            Self::Died(list) => [Self::Died(&list[..middle]), Self::Died(&list[middle..])],
        }
    }

    /// Keys of those that wait behind another: the first of each may go at once.
    fn behind(self) -> Vec<String> {
        let Self::Deferred(list) = self else { return Vec::new() };
        let behind = list.iter().filter(|(_, d)| d.due == Due::Behind);
        behind.filter_map(|(stored, _)| stored.event.key.clone()).collect()
    }

    /// The first event as a dead letter in plain words, how to write it, and its key where we know it.
    fn plainly(self, why: &str) -> Option<(&'static str, i64, Death, Option<&'a str>)> {
        let code = "store.refused";
        let error = format!(
            "the database does not take what was to be written about this event: {}. The event itself is as it was \
             appended; replay it when the cause is gone",
            plain(why)
        );
        let death = |attempts, route: &str, holds| Death {
            attempts,
            class: ErrorClass::Permanent,
            code: code.to_owned(),
            error: error.clone(),
            route: plain(route).into(),
            holds,
        };
        Some(match self {
            Self::Deferred(list) => {
                let (stored, d) = list.first()?;
                let key = stored.event.key.as_deref();
                (&BURY, stored.seq, death(d.attempts, &d.route, d.holds_when_dead), key)
            }
            Self::Dead(list) => {
                let (stored, d) = list.first()?;
                (&BURY, stored.seq, death(d.attempts, &d.route, d.holds), stored.event.key.as_deref())
            }
            Self::Again(list) => {
                let (seq, d) = list.first()?;
                (&DIED, *seq, death(d.attempts, &d.route, d.holds_when_dead), None)
            }
            Self::Died(list) => {
                let (seq, d) = list.first()?;
                (&DIED, *seq, death(d.attempts, &d.route, d.holds), None)
            }
        })
    }
}

/// Writes lists within the transaction of a settlement, and remembers whose turn comes next.
pub(crate) struct OutcomeWriter<'s> {
    lease: &'s LogLease,
    session: &'s mut Session,
    carefully: bool,
    /// Keys whose first waiting event may go.
    keys: Vec<String>,
    given_up: u64,
}

impl<'s> OutcomeWriter<'s> {
    pub(crate) fn new(lease: &'s LogLease, session: &'s mut Session, carefully: bool) -> Self {
        Self { lease, session, carefully, keys: Vec::new(), given_up: 0 }
    }

    /// Writes one list. Carefully: what is refused for its data is halved until one event remains.
    pub(crate) async fn write(&mut self, rows: Rows<'_>) -> Result<(), WriteError> {
        let mut parts = vec![rows];
        while let Some(part) = parts.pop().filter(|part| part.len() > 0) {
            if !self.carefully {
                self.insert(part).await.map_err(refused)?;
                continue;
            }
            self.batch("savepoint part").await?;
            match self.insert(part).await {
                Ok(()) => self.batch("release savepoint part").await?,
                Err(error) if is_refusal_of_data(&error) => {
                    self.batch("rollback to savepoint part; release savepoint part").await?;
                    if part.len() > 1 {
                        // The first half is written first: the order of a list is the order of the log.
                        parts.extend(part.halves().into_iter().rev());
                    } else {
                        self.give_up(part, &crate::error::describe(&error)).await?;
                    }
                }
                Err(error) => return Err(store_error(error).into()),
            }
        }
        Ok(())
    }

    /// One event that cannot be written as it should be.
    async fn give_up(&mut self, part: Rows<'_>, why: &str) -> Result<(), WriteError> {
        let Some((sql, seq, death, key)) = part.plainly(why) else { return Ok(()) };
        tracing::error!(
            lane = %self.lease.id, seq, code = %death.code,
            "event is dead: the database does not take what was to be written about it: {why}"
        );
        let rows = self.bury(sql, &[(seq, &death)]).await.map_err(refused)?;
        self.keys.extend(rows.iter().filter_map(|row| row.get::<_, Option<String>>(0)));
        // What was put aside behind it must not wait for somebody who is not there.
        self.keys.extend(key.map(str::to_owned));
        self.given_up += 1;
        Ok(())
    }

    async fn insert(&mut self, part: Rows<'_>) -> Result<(), tokio_postgres::Error> {
        let rows = match part {
            Rows::Deferred(list) => {
                let list: Vec<_> = list.iter().map(|(stored, d)| (stored.seq, d)).collect();
                self.put_aside(&DEFER, &list).await?
            }
            Rows::Again(list) => {
                let list: Vec<_> = list.iter().map(|(seq, d)| (*seq, d)).collect();
                self.put_aside(AGAIN, &list).await?
            }
            Rows::Dead(list) => {
                let list: Vec<_> = list.iter().map(|(stored, d)| (stored.seq, d)).collect();
                self.bury(&BURY, &list).await?
            }
            Rows::Died(list) => {
                let list: Vec<_> = list.iter().map(|(seq, d)| (*seq, d)).collect();
                self.bury(&DIED, &list).await?
            }
        };
        self.keys.extend(rows.iter().filter_map(|row| row.get::<_, Option<String>>(0)));
        self.keys.extend(part.behind());
        Ok(())
    }

    async fn put_aside(
        &mut self,
        sql: &str,
        list: &[(i64, &Deferral)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let texts =
            |pick: fn(&Deferral) -> &str| -> Vec<&str> { list.iter().map(|(_, d)| pick(d)).collect() };
        let seqs: Vec<i64> = list.iter().map(|(seq, _)| *seq).collect();
        let holds: Vec<bool> = list.iter().map(|(_, d)| d.holds).collect();
        let attempts: Vec<i32> = list.iter().map(|(_, d)| d.attempts as i32).collect();
        let delays: Vec<f64> = list.iter().map(|(_, d)| delay(d)).collect();
        let classes: Vec<Option<&str>> = list.iter().map(|(_, d)| d.class.map(ErrorClass::as_str)).collect();
        let errors: Vec<Option<String>> =
            list.iter().map(|(_, d)| d.error.as_deref().map(storable)).collect();
        let codes: Vec<Option<String>> = list.iter().map(|(_, d)| d.code.as_deref().map(storable)).collect();
        let histories: Vec<Option<String>> = list.iter().map(|(_, d)| d.as_attempt()).collect();
        let sink: &str = &self.lease.id.sink;
        let params: [Param<'_>; 13] = [
            (&sink, Type::TEXT),
            (&seqs, Type::INT8_ARRAY),
            (&texts(|d| &d.route), Type::TEXT_ARRAY),
            (&texts(|d| &d.destination), Type::TEXT_ARRAY),
            (&texts(|d| d.reason.as_str()), Type::TEXT_ARRAY),
            (&holds, Type::BOOL_ARRAY),
            (&attempts, Type::INT4_ARRAY),
            (&texts(due_word), Type::TEXT_ARRAY),
            (&delays, Type::FLOAT8_ARRAY),
            (&classes, Type::TEXT_ARRAY),
            (&errors, Type::TEXT_ARRAY),
            (&codes, Type::TEXT_ARRAY),
            (&histories, Type::TEXT_ARRAY),
        ];
        self.session.query_anew(&self.lease.sql(sql), &params).await
    }

    async fn bury(&mut self, sql: &str, list: &[(i64, &Death)]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let texts = |pick: fn(&Death) -> &str| -> Vec<&str> { list.iter().map(|(_, d)| pick(d)).collect() };
        let seqs: Vec<i64> = list.iter().map(|(seq, _)| *seq).collect();
        let holds: Vec<bool> = list.iter().map(|(_, d)| d.holds).collect();
        let attempts: Vec<i32> = list.iter().map(|(_, d)| d.attempts as i32).collect();
        let codes: Vec<String> = list.iter().map(|(_, d)| storable(&d.code)).collect();
        let errors: Vec<String> = list.iter().map(|(_, d)| storable(&d.error)).collect();
        let sink: &str = &self.lease.id.sink;
        let fingerprints: Vec<i64> = list.iter().map(|(_, d)| d.fingerprint(sink)).collect();
        let histories: Vec<String> = list.iter().map(|(_, d)| d.as_attempt()).collect();
        let params: [Param<'_>; 10] = [
            (&sink, Type::TEXT),
            (&seqs, Type::INT8_ARRAY),
            (&texts(|d| &d.route), Type::TEXT_ARRAY),
            (&holds, Type::BOOL_ARRAY),
            (&attempts, Type::INT4_ARRAY),
            (&texts(|d| d.class.as_str()), Type::TEXT_ARRAY),
            (&codes, Type::TEXT_ARRAY),
            (&errors, Type::TEXT_ARRAY),
            (&fingerprints, Type::INT8_ARRAY),
            (&histories, Type::TEXT_ARRAY),
        ];
        self.session.query_anew(&self.lease.sql(sql), &params).await
    }

    /// Deferred events that were delivered leave.
    pub(crate) async fn forget_delivered(&mut self, seqs: &[i64]) -> Result<(), StoreError> {
        if seqs.is_empty() {
            return Ok(());
        }
        let sink: &str = &self.lease.id.sink;
        let sql = self.lease.sql(include_str!("../../sql/log/delivered.sql"));
        let params: [Param<'_>; 2] = [(&sink, Type::TEXT), (&seqs, Type::INT8_ARRAY)];
        let rows = self.session.query_anew(&sql, &params).await.map_err(store_error)?;
        self.keys.extend(rows.iter().filter_map(|row| row.get::<_, Option<String>>(0)));
        Ok(())
    }

    /// At the end, when all changes are there. Answers with how many events were given up.
    pub(crate) async fn promote(mut self) -> Result<u64, StoreError> {
        self.keys.sort_unstable();
        self.keys.dedup();
        if self.keys.is_empty() {
            return Ok(self.given_up);
        }
        let sink: &str = &self.lease.id.sink;
        let sql = self.lease.sql(include_str!("../../sql/log/promote.sql"));
        let params: [Param<'_>; 2] = [(&sink, Type::TEXT), (&self.keys, Type::TEXT_ARRAY)];
        self.session.query_anew(&sql, &params).await.map_err(store_error)?;
        Ok(self.given_up)
    }

    async fn batch(&mut self, sql: &str) -> Result<(), StoreError> {
        self.session.batch(sql).await.map_err(store_error)
    }
}

/// An error's text as any database takes it: no zero byte, and not without end. It comes from a broker,
/// and should not be the reason why a settlement cannot be written.
fn storable(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(2_000).collect()
}

/// A text as every database takes it, whatever its encoding.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() && !c.is_ascii_control() { c } else { '?' }).take(500).collect()
}

fn due_word(deferral: &Deferral) -> &'static str {
    match deferral.due {
        Due::In(_) => "in",
        Due::AtDelivery => "delivery",
        Due::Behind => "behind",
    }
}

fn delay(deferral: &Deferral) -> f64 {
    match deferral.due {
        Due::In(delay) => delay.as_secs_f64(),
        Due::AtDelivery | Due::Behind => 0.0,
    }
}
