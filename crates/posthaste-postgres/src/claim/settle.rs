//! Writing down what became of claimed rows.
//!
//! Each row is settled by itself. It was delivered, or it failed and is tried again, or it is given up, or it
//! goes back as it was because nobody tried it (an outage is not an event's fault, F50). All of one
//! settlement is one transaction.

use super::hand::Hand;
use super::row::{Claimed, Moment};
use super::session::ClaimSession;
use super::statements::Statements;
use crate::session::{Param, SqlResult};
use posthaste::store::{Deferral, Due, ErrorClass, Reason, Settlement};
use rustc_hash::FxHashSet;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// Longest error text that is written.
const ERROR_CHARS_MAX: usize = 2_000;

/// Rows that went back untried are left alone for this long. Their destination is out of reach, or their
/// route is paused. Where the statement cannot tell, they would be claimed again at once.
const UNTRIED_PAUSE: Duration = Duration::from_millis(200);

/// What a settlement means for rows in hand.
#[derive(Debug, Clone, Default)]
pub(super) struct RowOutcomes {
    delivered: Vec<RowOutcome>,
    failed: Vec<RowOutcome>,
    dead: Vec<RowOutcome>,
    back: Vec<RowOutcome>,
    /// Numbers of all these rows.
    pub(super) seqs: Vec<i64>,
    /// Rows to leave alone: key, pause, attempts.
    pub(super) keep: Vec<(String, Duration, Option<u32>)>,
}

/// A row, and what is written about it.
#[derive(Debug, Clone, Default)]
pub(super) struct RowOutcome {
    id: String,
    mark: Option<Moment>,
    attempts: i32,
    delay: f64,
    error: Option<String>,
    class: Option<&'static str>,
    was: Option<String>,
    was_at: Option<Moment>,
    /// Attempts to give back, where one was charged.
    restored: Option<i32>,
}

impl RowOutcome {
    fn new(row: &Claimed) -> Self {
        Self { id: row.id.clone(), mark: row.mark, restored: row.to_restore(), ..Self::default() }
    }

    /// What a rehearsal writes about a row that it has claimed.
    pub(super) fn rehearsed(row: &Row) -> Self {
        Self {
            id: row.get("id"),
            mark: row.get("mark"),
            attempts: 1,
            delay: 1.0,
            error: Some("rehearsal".to_owned()),
            class: Some("transient"),
            was: row.get("was"),
            was_at: row.get("was_at"),
            restored: Some(1),
        }
    }

    fn back(row: &Claimed) -> Self {
        Self { was: row.was.clone(), was_at: row.was_at, ..Self::new(row) }
    }

    fn failure(row: &Claimed, attempts: u32, error: Option<&str>, class: Option<ErrorClass>) -> Self {
        Self {
            attempts: i32::try_from(attempts).unwrap_or(i32::MAX),
            error: error.map(writable),
            class: class.map(ErrorClass::as_str),
            ..Self::new(row)
        }
    }
}

/// A parameter of a statement: one value for each row.
type Array<'a> = (Box<dyn ToSql + Sync + Send + 'a>, Type);

/// How such a parameter is made.
pub(super) type ArrayMaker = for<'a> fn(&'a [RowOutcome]) -> Array<'a>;

const ID: ArrayMaker = |rows| array(rows, Type::TEXT_ARRAY, |row| &*row.id);
const MARK: ArrayMaker = |rows| array(rows, Type::TIMESTAMPTZ_ARRAY, |row| row.mark);
const ATTEMPTS: ArrayMaker = |rows| array(rows, Type::INT4_ARRAY, |row| row.attempts);
const DELAY: ArrayMaker = |rows| array(rows, Type::FLOAT8_ARRAY, |row| row.delay);
const ERROR: ArrayMaker = |rows| array(rows, Type::TEXT_ARRAY, |row| row.error.as_deref());
const CLASS: ArrayMaker = |rows| array(rows, Type::TEXT_ARRAY, |row| row.class);
const WAS: ArrayMaker = |rows| array(rows, Type::TEXT_ARRAY, |row| row.was.as_deref());
const WAS_AT: ArrayMaker = |rows| array(rows, Type::TIMESTAMPTZ_ARRAY, |row| row.was_at);
const RESTORED: ArrayMaker = |rows| array(rows, Type::INT4_ARRAY, |row| row.restored);

// What each statement takes behind keys and marks.
pub(super) const CLEARED: &[ArrayMaker] = &[RESTORED];
pub(super) const FAILED: &[ArrayMaker] = &[ATTEMPTS, DELAY, ERROR, CLASS];
pub(super) const DEAD: &[ArrayMaker] = &[ATTEMPTS, ERROR, CLASS];
pub(super) const BACK: &[ArrayMaker] = &[WAS, WAS_AT, RESTORED];

fn array<'a, T>(rows: &'a [RowOutcome], kind: Type, of: fn(&'a RowOutcome) -> T) -> Array<'a>
where
    T: ToSql + Sync + Send + 'a,
{
    (Box::new(rows.iter().map(of).collect::<Vec<T>>()), kind)
}

/// Runs a statement about these rows, with `first` before it in the same round trip. Answers how many it hit.
pub(super) async fn execute(
    session: &mut ClaimSession,
    first: Option<&str>,
    sql: &str,
    rows: &[RowOutcome],
    more: &[ArrayMaker],
) -> SqlResult<u64> {
    let arrays: Vec<Array<'_>> = [ID, MARK].iter().chain(more).map(|column| column(rows)).collect();
    let params: Vec<Param<'_>> = arrays.iter().map(|(array, kind)| (&**array as _, kind.clone())).collect();
    session.execute(first, sql, &params).await
}

/// An error that every text column takes.
fn writable(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(ERROR_CHARS_MAX).collect()
}

impl RowOutcomes {
    /// Sorts a settlement out. Rows that are not in hand any more were settled before, so a repeated
    /// settlement changes nothing.
    pub(super) fn new(settlement: &Settlement, hand: &Hand, keeps_time: bool, pause: Duration) -> Self {
        let mut outcome = Self::default();
        for seq in &settlement.delivered {
            if let Some(row) = hand.row(*seq) {
                outcome.delivered.push(RowOutcome::new(row));
                outcome.seqs.push(*seq);
            }
        }
        for (seq, deferral) in &settlement.again {
            if let Some(row) = hand.row(*seq) {
                outcome.put_again(row, deferral, keeps_time, pause);
                outcome.seqs.push(*seq);
            }
        }
        for (seq, death) in &settlement.died {
            if let Some(row) = hand.row(*seq) {
                let error = format!("{}: {}", death.code, death.error);
                let (attempts, class) = (death.attempts, Some(death.class));
                outcome.dead.push(RowOutcome::failure(row, attempts, Some(&error), class));
                outcome.seqs.push(*seq);
            }
        }
        outcome
    }

    fn put_again(&mut self, row: &Claimed, deferral: &Deferral, keeps_time: bool, pause: Duration) {
        let delay = if let Due::In(delay) = deferral.due { delay } else { Duration::ZERO };
        let is_attempt = matches!(deferral.reason, Reason::Retry | Reason::Unknown);
        if !is_attempt {
            self.back.push(RowOutcome::back(row));
            return self.keep.push((row.id.clone(), delay.max(pause.min(UNTRIED_PAUSE)), None));
        }
        let failure = RowOutcome::failure(row, deferral.attempts, deferral.error.as_deref(), deferral.class);
        self.failed.push(RowOutcome { delay: delay.as_secs_f64(), ..failure });
        if row.attempts.is_none() || !keeps_time {
            let attempts = row.attempts.is_none().then_some(deferral.attempts);
            self.keep.push((row.id.clone(), delay.max(pause), attempts));
        }
    }

    /// Writes the outcomes. `first` goes before them in the same round trip. Answers how many rows were in
    /// hand and not hit, because somebody else has them.
    pub(super) async fn write(
        &self,
        session: &mut ClaimSession,
        sql: &Statements,
        first: Option<&str>,
    ) -> SqlResult<usize> {
        let (mut first, mut missed) = (first, 0);
        for (statement, rows, more) in self.parts(sql) {
            let Some(statement) = statement.filter(|_| !rows.is_empty()) else { continue };
            let hit = execute(session, first.take(), &statement, rows, more).await?;
            missed += rows.len().saturating_sub(usize::try_from(hit).unwrap_or(usize::MAX));
        }
        Ok(missed)
    }

    /// One statement for each kind of fate: its text, its rows, its parameters.
    fn parts(&self, sql: &Statements) -> [(Option<String>, &[RowOutcome], &'static [ArrayMaker]); 4] {
        let restores = self.delivered.iter().any(|row| row.restored.is_some());
        let (delivered, more) = match sql.cleared().filter(|_| restores) {
            Some(cleared) => (cleared, CLEARED),
            None => (sql.delivered(), &[] as _),
        };
        [
            (Some(delivered), &self.delivered, more),
            (sql.failed(), &self.failed, FAILED),
            (Some(sql.dead()), &self.dead, DEAD),
            (sql.given_back(), &self.back, BACK),
        ]
    }

    /// How many kinds of fate there are in these outcomes.
    pub(super) fn kinds(&self) -> usize {
        self.all().iter().filter(|rows| !rows.is_empty()).count()
    }

    /// Whether everything in it was delivered.
    pub(super) fn is_all_delivered(&self) -> bool {
        self.kinds() == 1 && !self.delivered.is_empty()
    }

    /// Whether something in it was not tried: the sink is out of reach, or the relay is about to go.
    pub(super) fn has_untried(&self) -> bool {
        !self.back.is_empty()
    }

    fn all(&self) -> [&Vec<RowOutcome>; 4] {
        [&self.delivered, &self.failed, &self.dead, &self.back]
    }

    fn all_mut(&mut self) -> [&mut Vec<RowOutcome>; 4] {
        [&mut self.delivered, &mut self.failed, &mut self.dead, &mut self.back]
    }

    /// Keys and marks of everything in it.
    pub(super) fn keys(&self) -> (Vec<String>, Vec<Option<Moment>>) {
        self.all().into_iter().flatten().map(|row| (row.id.clone(), row.mark)).unzip()
    }

    /// The outcomes of these rows, and those of the others.
    pub(super) fn split(&self, chosen: &FxHashSet<String>) -> (Self, Self) {
        let (mut mine, mut others) = (Self::default(), Self::default());
        let both = mine.all_mut().into_iter().zip(others.all_mut());
        for (rows, (mine, others)) in self.all().into_iter().zip(both) {
            (*mine, *others) = rows.iter().cloned().partition(|row| chosen.contains(&row.id));
        }
        (mine, others)
    }

    /// Adds other outcomes.
    pub(super) fn append(&mut self, mut more: Self) {
        for (rows, more) in self.all_mut().into_iter().zip(more.all_mut()) {
            rows.append(more);
        }
    }

    /// The rows bear another mark by now.
    pub(super) fn remark(&mut self, mark: Option<Moment>) {
        self.all_mut().into_iter().flatten().for_each(|row| row.mark = mark);
    }

    /// The same outcomes, one row each.
    pub(super) fn singles(&self) -> Vec<Self> {
        let mut singles = Vec::new();
        for (kind, rows) in self.all().into_iter().enumerate() {
            for row in rows {
                let mut single = Self::default();
                single.all_mut()[kind].push(row.clone());
                singles.push(single);
            }
        }
        singles
    }

    /// The key of its first row.
    pub(super) fn first(&self) -> Option<&str> {
        self.all().into_iter().flatten().next().map(|row| &*row.id)
    }

    /// Rows that go back as they were.
    pub(super) fn back<'a>(rows: impl Iterator<Item = (i64, &'a Claimed)>) -> Self {
        let mut outcome = Self::default();
        outcome.add_back(rows);
        outcome
    }

    /// Adds rows that go back as they were.
    pub(super) fn add_back<'a>(&mut self, rows: impl Iterator<Item = (i64, &'a Claimed)>) {
        for (seq, row) in rows {
            self.back.push(RowOutcome::back(row));
            self.seqs.push(seq);
        }
    }

    /// A row that is given up before anybody tries it again.
    pub(super) fn crashed(seq: i64, row: &Claimed) -> Self {
        let spent = row.attempts.unwrap_or(0);
        let error = format!(
            "relay.crashed: {spent} attempts are spent, and the last one ended without a word: its relay died with this event alone in \
             hand, or the table refused what became of it"
        );
        let mut outcome = Self::default();
        outcome.dead.push(RowOutcome::failure(row, spent, Some(&error), Some(ErrorClass::Permanent)));
        outcome.seqs.push(seq);
        outcome
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds() == 0
    }
}
