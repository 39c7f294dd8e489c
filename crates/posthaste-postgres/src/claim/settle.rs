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
use tokio_postgres::types::Type;

/// Longest error text that is written.
const ERROR_CHARS_MAX: usize = 2_000;

/// Rows that went back untried are left alone for this long. Their destination is out of reach, or their
/// route is paused. Where the statement cannot tell, they would be claimed again at once.
const UNTRIED_PAUSE: Duration = Duration::from_millis(200);

/// What a settlement means for rows in hand.
#[derive(Debug, Clone, Default)]
pub(super) struct RowOutcomes {
    delivered: Rows,
    failed: Rows,
    dead: Rows,
    back: Rows,
    /// Numbers of all these rows.
    pub(super) seqs: Vec<i64>,
    /// Rows to leave alone: key, pause, attempts.
    pub(super) keep: Vec<(String, Duration, Option<u32>)>,
}

/// Rows as arrays, one for each parameter.
#[derive(Debug, Clone, Default)]
struct Rows {
    ids: Vec<String>,
    marks: Vec<Option<Moment>>,
    attempts: Vec<i32>,
    delays: Vec<f64>,
    errors: Vec<Option<String>>,
    classes: Vec<Option<&'static str>>,
    was: Vec<Option<String>>,
    was_at: Vec<Option<Moment>>,
    /// Attempts to give back, where one was charged.
    restored: Vec<Option<i32>>,
}

impl Rows {
    fn put(&mut self, row: &Claimed) {
        self.ids.push(row.id.clone());
        self.marks.push(row.mark);
        self.restored.push(row.to_restore());
    }

    fn put_back(&mut self, row: &Claimed) {
        self.put(row);
        self.was.push(row.was.clone());
        self.was_at.push(row.was_at);
    }

    fn is_restoring(&self) -> bool {
        self.restored.iter().any(Option::is_some)
    }

    /// The parameters of a statement: keys, marks, and these.
    fn with<'a, const N: usize>(&'a self, more: [Param<'a>; N]) -> Vec<Param<'a>> {
        let mut params: Vec<Param<'a>> = Vec::with_capacity(N + 2);
        params.extend([(&self.ids as _, Type::TEXT_ARRAY), (&self.marks as _, Type::TIMESTAMPTZ_ARRAY)]);
        params.extend(more);
        params
    }

    /// The rows at these places.
    fn pick(&self, at: &[usize]) -> Self {
        fn pick<T: Clone>(list: &[T], at: &[usize]) -> Vec<T> {
            at.iter().filter_map(|at| list.get(*at).cloned()).collect()
        }
        Self {
            ids: pick(&self.ids, at),
            marks: pick(&self.marks, at),
            attempts: pick(&self.attempts, at),
            delays: pick(&self.delays, at),
            errors: pick(&self.errors, at),
            classes: pick(&self.classes, at),
            was: pick(&self.was, at),
            was_at: pick(&self.was_at, at),
            restored: pick(&self.restored, at),
        }
    }

    /// The rows of these keys, and the others.
    fn split(&self, chosen: &FxHashSet<String>) -> (Self, Self) {
        let (mine, others): (Vec<usize>, Vec<usize>) =
            (0..self.ids.len()).partition(|at| chosen.contains(&self.ids[*at]));
        (self.pick(&mine), self.pick(&others))
    }

    fn append(&mut self, mut more: Self) {
        self.ids.append(&mut more.ids);
        self.marks.append(&mut more.marks);
        self.attempts.append(&mut more.attempts);
        self.delays.append(&mut more.delays);
        self.errors.append(&mut more.errors);
        self.classes.append(&mut more.classes);
        self.was.append(&mut more.was);
        self.was_at.append(&mut more.was_at);
        self.restored.append(&mut more.restored);
    }

    fn put_failure(&mut self, row: &Claimed, attempts: u32, error: Option<&str>, class: Option<ErrorClass>) {
        self.put(row);
        self.attempts.push(i32::try_from(attempts).unwrap_or(i32::MAX));
        self.errors.push(error.map(writable));
        self.classes.push(class.map(ErrorClass::as_str));
    }
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
                outcome.delivered.put(row);
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
                outcome.dead.put_failure(row, death.attempts, Some(&error), Some(death.class));
                outcome.seqs.push(*seq);
            }
        }
        outcome
    }

    fn put_again(&mut self, row: &Claimed, deferral: &Deferral, keeps_time: bool, pause: Duration) {
        let delay = if let Due::In(delay) = deferral.due { delay } else { Duration::ZERO };
        let is_attempt = matches!(deferral.reason, Reason::Retry | Reason::Unknown);
        if !is_attempt {
            self.back.put_back(row);
            return self.keep.push((row.id.clone(), delay.max(pause.min(UNTRIED_PAUSE)), None));
        }
        self.failed.put_failure(row, deferral.attempts, deferral.error.as_deref(), deferral.class);
        self.failed.delays.push(delay.as_secs_f64());
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
        for (statement, rows, params) in self.parts(sql) {
            let hit = session.execute(first.take(), &statement, &params).await?;
            missed += rows.saturating_sub(usize::try_from(hit).unwrap_or(usize::MAX));
        }
        Ok(missed)
    }

    /// One statement for each kind of fate: its text, its rows, its parameters.
    fn parts<'a>(&'a self, sql: &Statements) -> Vec<(String, usize, Vec<Param<'a>>)> {
        let mut parts = Vec::with_capacity(1);
        let mut put = |statement: Option<String>, rows: &Rows, more: Vec<Param<'a>>| {
            if let Some(statement) = statement.filter(|_| !rows.ids.is_empty()) {
                parts.push((statement, rows.ids.len(), more));
            }
        };
        let rows = &self.delivered;
        match sql.cleared().filter(|_| rows.is_restoring()) {
            Some(cleared) => put(Some(cleared), rows, rows.with([(&rows.restored, Type::INT4_ARRAY)])),
            None => put(Some(sql.delivered()), rows, rows.with([])),
        }
        let rows = &self.failed;
        let more: [Param<'_>; 4] = [
            (&rows.attempts, Type::INT4_ARRAY),
            (&rows.delays, Type::FLOAT8_ARRAY),
            (&rows.errors, Type::TEXT_ARRAY),
            (&rows.classes, Type::TEXT_ARRAY),
        ];
        put(sql.failed(), rows, rows.with(more));
        let rows = &self.dead;
        let more: [Param<'_>; 3] = [
            (&rows.attempts, Type::INT4_ARRAY),
            (&rows.errors, Type::TEXT_ARRAY),
            (&rows.classes, Type::TEXT_ARRAY),
        ];
        put(Some(sql.dead()), rows, rows.with(more));
        let rows = &self.back;
        let more: [Param<'_>; 3] = [
            (&rows.was, Type::TEXT_ARRAY),
            (&rows.was_at, Type::TIMESTAMPTZ_ARRAY),
            (&rows.restored, Type::INT4_ARRAY),
        ];
        put(sql.given_back(), rows, rows.with(more));
        parts
    }

    /// How many kinds of fate there are in these outcomes.
    pub(super) fn kinds(&self) -> usize {
        self.all().iter().filter(|rows| !rows.ids.is_empty()).count()
    }

    /// Whether everything in it was delivered.
    pub(super) fn is_all_delivered(&self) -> bool {
        self.kinds() == 1 && !self.delivered.ids.is_empty()
    }

    /// Whether something in it was not tried: the sink is out of reach, or the relay is about to go.
    pub(super) fn has_untried(&self) -> bool {
        !self.back.ids.is_empty()
    }

    fn all(&self) -> [&Rows; 4] {
        [&self.delivered, &self.failed, &self.dead, &self.back]
    }

    fn all_mut(&mut self) -> [&mut Rows; 4] {
        [&mut self.delivered, &mut self.failed, &mut self.dead, &mut self.back]
    }

    /// Keys and marks of everything in it.
    pub(super) fn keys(&self) -> (Vec<String>, Vec<Option<Moment>>) {
        let rows = || self.all().into_iter();
        (
            rows().flat_map(|rows| rows.ids.iter().cloned()).collect(),
            rows().flat_map(|rows| rows.marks.iter().copied()).collect(),
        )
    }

    /// The outcomes of these rows, and those of the others.
    pub(super) fn split(&self, chosen: &FxHashSet<String>) -> (Self, Self) {
        let (mut mine, mut others) = (Self::default(), Self::default());
        let both = mine.all_mut().into_iter().zip(others.all_mut());
        for (rows, (mine, others)) in self.all().into_iter().zip(both) {
            (*mine, *others) = rows.split(chosen);
        }
        (mine, others)
    }

    /// Adds other outcomes.
    pub(super) fn append(&mut self, mut more: Self) {
        for (rows, more) in self.all_mut().into_iter().zip(more.all_mut()) {
            rows.append(std::mem::take(more));
        }
    }

    /// The rows bear another mark by now.
    pub(super) fn remark(&mut self, mark: Option<Moment>) {
        for rows in self.all_mut() {
            rows.marks.fill(mark);
        }
    }

    /// The same outcomes, one row each.
    pub(super) fn singles(&self) -> Vec<Self> {
        let each = |rows: &Rows, put: fn(&mut Self) -> &mut Rows| -> Vec<Self> {
            let single = |at: usize| {
                let mut outcome = Self::default();
                *put(&mut outcome) = rows.pick(&[at]);
                outcome
            };
            (0..rows.ids.len()).map(single).collect()
        };
        let mut singles = each(&self.delivered, |outcome| &mut outcome.delivered);
        singles.extend(each(&self.failed, |outcome| &mut outcome.failed));
        singles.extend(each(&self.dead, |outcome| &mut outcome.dead));
        singles.extend(each(&self.back, |outcome| &mut outcome.back));
        singles
    }

    /// The key of its first row.
    pub(super) fn first(&self) -> Option<&str> {
        self.all().into_iter().find_map(|rows| rows.ids.first()).map(String::as_str)
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
            self.back.put_back(row);
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
        outcome.dead.put_failure(row, spent, Some(&error), Some(ErrorClass::Permanent));
        outcome.seqs.push(seq);
        outcome
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds() == 0
    }
}
