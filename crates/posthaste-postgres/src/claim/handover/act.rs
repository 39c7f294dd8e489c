//! The steps of a move: start, finish, stop.

use super::lock::{Lock, Next, WAIT_MS};
use super::{Done, Handover, HandoverError, HandoverStatus, Trigger};
use crate::claim::statements::handover::OFF;
use crate::error::{commit_error, is_code};
use crate::session::SqlResult;
use posthaste::admin::Actor;
use posthaste::store::StoreError;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;

/// The result of a try: it is done, or what the server said to its last statement.
type Try = SqlResult<()>;

impl Handover {
    /// From now on rows are handed over as they are committed. `hold` names sinks of the log to hold back
    /// until `finish`.
    pub async fn start(
        &mut self,
        hold: &[String],
        patience: Duration,
        actor: &Actor,
    ) -> Result<Done, HandoverError> {
        self.check_log().await?;
        let trigger = self.trigger().await?;
        if trigger == Trigger::On && hold.is_empty() {
            return Ok(Done::Before);
        }
        if matches!(trigger, Trigger::On | Trigger::Other) && !hold.is_empty() {
            return Err(HandoverError::Refused(
                "rows are handed over already: sinks can only be held from before the first one on. Nothing was changed"
                    .to_owned(),
            ));
        }
        self.check_rights().await?;
        self.check_surroundings().await?;
        self.rehearse().await?;
        if hold.is_empty() {
            return self.arm(patience, actor).await;
        }
        self.hold(hold, actor).await?;
        // CRASH(handover.held): sinks are paused and no row is handed over. What is in the log waits. `start`
        // goes on from here, `stop` lets them go.
        posthaste::crash_point!("handover.held");
        let armed = match self.noticed().await {
            Ok(()) => self.arm(patience, actor).await,
            Err(error) => Err(error),
        };
        if armed.is_err() {
            self.let_go(actor).await?;
        }
        armed
    }

    /// Function and trigger, in one transaction.
    async fn arm(&mut self, patience: Duration, actor: &Actor) -> Result<Done, HandoverError> {
        let (since, mut wait) = (Instant::now(), WAIT_MS);
        loop {
            self.begin(wait).await?;
            let tried = self.arm_in(actor).await;
            let Err(error) = self.or_rollback(tried).await? else { return Ok(Done::Now) };
            match self.next_try(error, since, patience, Lock::Writes).await? {
                Next::Again(next) => wait = next,
                Next::GiveUp(who) => {
                    return Err(HandoverError::Refused(format!(
                        "{} was busy: the trigger needs a moment in which nobody writes to it, and waits for one no longer than {WAIT_MS} ms at \
                         a time, so that your application does not notice. In the way: {who}. Nothing was changed; try again",
                        self.place.table
                    )));
                }
            }
        }
    }

    async fn arm_in(&mut self, actor: &Actor) -> Result<Try, HandoverError> {
        let trigger = self.trigger().await?;
        for sql in [self.definition(), self.place.keep_private(), self.place.describe()] {
            self.run(&sql).await?;
        }
        let detail = json!({ "table": self.place.table.to_string(), "function": self.place.function() });
        self.audit(actor, "adopt.start", &detail).await?;
        // The table's lock comes last, and is held for one commit.
        let last = match trigger {
            Trigger::Absent => self.place.put_on(),
            Trigger::Disabled => self.place.enable(),
            Trigger::On | Trigger::Other | Trigger::Off => String::new(),
        };
        if let Err(error) = self.session.batch(&last).await {
            return Ok(Err(error));
        }
        // CRASH(handover.start): before this commit there is no trigger, and rows wait in their table; after
        // it, every row that is committed is handed over. Transactions that wrote to the table before have
        // ended: it waited for them.
        posthaste::crash_point!("handover.start");
        Ok(self.session.commit().await)
    }

    /// Lets held sinks go on, if nothing waits in the table any more. Answers which.
    pub async fn finish(&mut self, actor: &Actor) -> Result<Vec<String>, HandoverError> {
        self.finish_if(HandoverStatus::is_drained, actor).await
    }

    /// The same, although rows wait for their time or next attempt. What is in the log goes before them.
    pub async fn finish_anyway(&mut self, actor: &Actor) -> Result<Vec<String>, HandoverError> {
        self.finish_if(|standing| standing.waiting.count == 0, actor).await
    }

    async fn finish_if(
        &mut self,
        is_done: impl Fn(&HandoverStatus) -> bool,
        actor: &Actor,
    ) -> Result<Vec<String>, HandoverError> {
        let standing = self.standing().await?;
        if standing.trigger != Trigger::On {
            let how = if standing.trigger == Trigger::Other { " as this layout says" } else { "" };
            return Err(HandoverError::Refused(format!(
                "{} does not hand its rows over{how}: run `posthaste adopt migrate start` first. Nothing was changed",
                standing.table
            )));
        }
        if !is_done(&standing) {
            return Err(HandoverError::Refused(format!(
                "{} is not drained: {} wait now, {} for their time or next attempt. Let the relay of the adopted table go on, and try \
                 again{}. Nothing was changed",
                standing.table,
                standing.waiting.count,
                standing.later.count,
                if standing.later.count > 0 { "; --anyway does not wait for those" } else { "" }
            )));
        }
        self.begin(WAIT_MS).await?;
        let result = self.finish_in(actor).await;
        self.end(result).await
    }

    async fn finish_in(&mut self, actor: &Actor) -> Result<Vec<String>, StoreError> {
        let sinks = self.let_go_in().await?;
        let detail = json!({ "table": self.place.table.to_string(), "sinks": sinks });
        self.audit(actor, "adopt.finish", &detail).await?;
        // CRASH(handover.finish): before this commit sinks are still held, and `finish` is tried again; after
        // it they go on.
        posthaste::crash_point!("handover.finish");
        Ok(sinks)
    }

    /// From now on rows stay in their table. What is in the log stays there, and is delivered.
    pub async fn stop(&mut self, patience: Duration, actor: &Actor) -> Result<Done, HandoverError> {
        self.check_log().await?;
        let trigger = self.trigger().await?;
        let is_held = !self.hold_line().await?.is_empty();
        if trigger == Trigger::Absent && !is_held {
            // The table may have been dropped and made again. Its function is not left behind.
            self.session.batch(&self.place.take_off()).await.map_err(|error| self.refused(error))?;
            return Ok(Done::Before);
        }
        if trigger != Trigger::Off || is_held {
            self.begin(WAIT_MS).await?;
            let result = self.switch_off_in(trigger, actor).await;
            self.end(result).await?;
        }
        // CRASH(handover.off): the trigger does nothing, rows stay in their table and are claimed. `stop`
        // removes it.
        posthaste::crash_point!("handover.off");
        self.remove(patience).await
    }

    /// Switches the trigger off. That needs no lock on the table, so it takes effect at once, whoever reads
    /// or writes there.
    async fn switch_off_in(&mut self, trigger: Trigger, actor: &Actor) -> Result<(), HandoverError> {
        if trigger != Trigger::Absent {
            let zone = self.statements.layout().time_zone.clone();
            self.run(&self.place.define(OFF, &zone)).await?;
        }
        let sinks = self.let_go_in().await?;
        let detail = json!({ "table": self.place.table.to_string(), "sinks": sinks });
        Ok(self.audit(actor, "adopt.stop", &detail).await?)
    }

    async fn remove(&mut self, patience: Duration) -> Result<Done, HandoverError> {
        let (since, mut wait) = (Instant::now(), WAIT_MS);
        loop {
            self.begin(wait).await?;
            let tried = self.remove_in().await;
            let Err(error) = tried else { return Ok(Done::Now) };
            match self.next_try(error, since, patience, Lock::All).await? {
                Next::Again(next) => wait = next,
                Next::GiveUp(_) => return Ok(Done::Off),
            }
        }
    }

    async fn remove_in(&mut self) -> Try {
        self.session.batch(&self.place.take_off()).await?;
        // CRASH(handover.stop): before this commit the trigger is there and does nothing; after it, it is
        // gone.
        posthaste::crash_point!("handover.stop");
        self.session.commit().await
    }

    /// A statement about the function.
    async fn run(&mut self, sql: &str) -> Result<(), HandoverError> {
        self.session.batch(sql).await.map_err(|error| self.refused(error))
    }

    /// An error of the server. What it does not permit is up to the owner of the table or the function.
    pub(super) fn refused(&self, error: tokio_postgres::Error) -> HandoverError {
        if !is_code(&error, &SqlState::INSUFFICIENT_PRIVILEGE) {
            return commit_error(error).into();
        }
        let what = error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned());
        HandoverError::Refused(format!(
            "{what}: run this as the role that ran `start`, or as the owner of table and log (--owner-url); `posthaste adopt migrate sql` \
             prints the statements. Nothing was changed"
        ))
    }

    async fn or_rollback<T>(&mut self, result: Result<T, HandoverError>) -> Result<T, HandoverError> {
        if result.is_err() {
            // Best effort: a lost connection rolls back by itself.
            let _ = self.session.rollback().await;
        }
        result
    }

    /// Ends the transaction of a step: all of it, or nothing.
    pub(super) async fn end<T>(
        &mut self,
        result: Result<T, impl Into<HandoverError>>,
    ) -> Result<T, HandoverError> {
        let value = self.or_rollback(result.map_err(Into::into)).await?;
        self.session.commit().await.map_err(commit_error)?;
        Ok(value)
    }
}
