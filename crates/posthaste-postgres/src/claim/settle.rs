//! Writing down what became of claimed rows.
//!
//! Each event for itself: what was delivered, what failed and is tried again, what is given up, and what goes back as
//! it was because nobody tried it (an outage is not an event's fault, F50). All of one settlement is one transaction.

use super::hand::Hand;
use super::line::Line;
use super::row::Claimed;
use super::statements::Statements;
use posthaste::store::{Deferral, Due, ErrorClass, Reason, Settlement};
use std::time::Duration;
use tokio_postgres::types::Type;

/// Longest error text that is written.
const ERROR_CHARS_MAX: usize = 2_000;

/// Rows that went back untried are left alone for a moment: their destination is out of reach, or their route paused, and
/// where the statement cannot tell, they would be claimed again at once.
const UNTRIED_PAUSE: Duration = Duration::from_millis(200);

/// What a settlement means for rows in hand.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    delivered: Rows,
    failed: Rows,
    dead: Rows,
    back: Rows,
    /// Numbers of all of them.
    pub(super) seqs: Vec<i64>,
    /// Rows to leave alone: key, pause, attempts.
    pub(super) keep: Vec<(String, Duration, Option<u32>)>,
}

/// Rows as arrays, one for each parameter.
#[derive(Debug, Clone, Default)]
struct Rows {
    ids: Vec<String>,
    marks: Vec<Option<String>>,
    attempts: Vec<i32>,
    delays: Vec<f64>,
    errors: Vec<Option<String>>,
    classes: Vec<Option<&'static str>>,
    was: Vec<Option<String>>,
    was_at: Vec<Option<String>>,
}

impl Rows {
    fn put(&mut self, row: &Claimed) {
        self.ids.push(row.id.clone());
        self.marks.push(row.mark.clone());
    }

    /// One of them.
    fn one(&self, at: usize) -> Self {
        fn pick<T: Clone>(list: &[T], at: usize) -> Vec<T> {
            list.get(at).cloned().into_iter().collect()
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
        }
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

impl Outcome {
    /// Sorts a settlement out. Rows that are not in hand any more were settled before: a repeated settlement changes
    /// nothing.
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
            self.back.put(row);
            self.back.was.push(row.was.clone());
            self.back.was_at.push(row.was_at.clone());
            return self.keep.push((row.id.clone(), delay.max(pause.min(UNTRIED_PAUSE)), None));
        }
        self.failed.put_failure(row, deferral.attempts, deferral.error.as_deref(), deferral.class);
        self.failed.delays.push(delay.as_secs_f64());
        if row.attempts.is_none() || !keeps_time {
            let attempts = row.attempts.is_none().then_some(deferral.attempts);
            self.keep.push((row.id.clone(), delay.max(pause), attempts));
        }
    }

    /// Writes it. Answers how many rows were not hit although they were in hand: somebody else has them.
    pub(super) async fn write(
        &self,
        line: &mut Line,
        sql: &Statements,
    ) -> Result<usize, tokio_postgres::Error> {
        let mut hit = 0;
        let mut asked = 0;
        let texts = Type::TEXT_ARRAY;
        let rows = &self.delivered;
        if !rows.ids.is_empty() {
            asked += rows.ids.len();
            hit += line
                .query(&sql.delivered(), &[(&rows.ids, texts.clone()), (&rows.marks, texts.clone())])
                .await?
                .len();
        }
        let rows = &self.failed;
        if let Some(statement) = sql.failed().filter(|_| !rows.ids.is_empty()) {
            asked += rows.ids.len();
            let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 6] = [
                (&rows.ids, texts.clone()),
                (&rows.marks, texts.clone()),
                (&rows.attempts, Type::INT4_ARRAY),
                (&rows.delays, Type::FLOAT8_ARRAY),
                (&rows.errors, texts.clone()),
                (&rows.classes, texts.clone()),
            ];
            hit += line.query(&statement, &params).await?.len();
        }
        let rows = &self.dead;
        if !rows.ids.is_empty() {
            asked += rows.ids.len();
            let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 5] = [
                (&rows.ids, texts.clone()),
                (&rows.marks, texts.clone()),
                (&rows.attempts, Type::INT4_ARRAY),
                (&rows.errors, texts.clone()),
                (&rows.classes, texts.clone()),
            ];
            hit += line.query(&sql.dead(), &params).await?.len();
        }
        let rows = &self.back;
        if let Some(statement) = sql.given_back().filter(|_| !rows.ids.is_empty()) {
            asked += rows.ids.len();
            let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 4] = [
                (&rows.ids, texts.clone()),
                (&rows.marks, texts.clone()),
                (&rows.was, texts.clone()),
                (&rows.was_at, texts),
            ];
            hit += line.query(&statement, &params).await?.len();
        }
        Ok(asked.saturating_sub(hit))
    }

    /// The same, one row each.
    pub(super) fn singles(&self) -> Vec<Self> {
        let each = |rows: &Rows, put: fn(&mut Self) -> &mut Rows| -> Vec<Self> {
            let single = |at: usize| {
                let mut outcome = Self::default();
                *put(&mut outcome) = rows.one(at);
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
        let all = [&self.delivered, &self.failed, &self.dead, &self.back];
        all.into_iter().find_map(|rows| rows.ids.first()).map(String::as_str)
    }

    /// Everything in hand goes back as it was.
    pub(super) fn all_back(hand: &Hand) -> Self {
        let mut outcome = Self::default();
        for row in hand.rows() {
            outcome.back.put(row);
            outcome.back.was.push(row.was.clone());
            outcome.back.was_at.push(row.was_at.clone());
        }
        outcome
    }

    pub(super) fn is_empty(&self) -> bool {
        [&self.delivered, &self.failed, &self.dead, &self.back].iter().all(|rows| rows.ids.is_empty())
    }
}
