//! Positions go to the database, then to the broker; what operators want comes back.

use super::engine::{Engine, SAVE_FILLED, SAVE_IDLE, SAVE_MOVED};
use super::errands::Answer;
use super::handle::{ConsumerHealth, EngineStep};
use super::identity::{Found, hash_of};
use super::partition::{PartitionState, Stage};
use super::store::{InboxError, InboxStore, ProcessReport, SavedPosition, Saving, Work};
use super::watchdog::STALLED_AFTER;
use crate::admin::Pulse;
use crate::admin::history::History;
use crate::crash_point;
use crate::source::{Delivery, Partition, SourceError, Standing};
use crate::store::REPORT_BYTES_MAX;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What met a lock is shown until it must have been tried again: the longest pause, and time for the try,
/// beside a handler's own, which may end in front of the lock.
const STUCK_SHOWN: Duration = Duration::from_secs(10);
/// Between two tries to acknowledge.
const ACK_PAUSE: Duration = Duration::from_millis(200);
/// A report is given at least this often, so that a reader knows who lives.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Saves, behind what is to be written down before.
async fn save(
    store: &dyn InboxStore,
    skipped: &[Work],
    saving: impl Future<Output = Result<Saving, InboxError>>,
) -> Result<Saving, InboxError> {
    if !skipped.is_empty() {
        store.trace_skipped(skipped).await?;
    }
    saving.await
}

impl Engine {
    /// Whether any position is not saved yet.
    pub(super) fn has_moved(&self) -> bool {
        self.partitions.values().any(|state| state.unsaved().is_some())
    }

    /// How long a save waits after the last one.
    pub(super) fn save_pause(&self) -> Duration {
        if self.is_filled(self.partitions.values().map(PartitionState::unsaved_messages).sum()) {
            SAVE_FILLED
        } else if self.has_moved() {
            SAVE_MOVED
        } else {
            SAVE_IDLE
        }
    }

    /// Whether so many messages that are settled fill a good part of the source's hands. It reads no further
    /// while they are full, so a pause would bound the speed (ADR 16).
    pub(super) fn is_filled(&self, messages: usize) -> bool {
        messages >= (self.settings.in_hand_max / 4).max(1)
    }

    /// Saves: soon while something moves, once a second for the controls, and as the probe of a database that
    /// was away. A message is never the probe (F50).
    pub(super) fn start_save(&mut self, now: Instant) {
        let is_probe = !self.database.is_closed();
        if self.saves.is_out || !self.may_ask_database(now) {
            return;
        }
        let is_leaving =
            self.leaving.iter().any(|leaving| leaving.state.running == 0 || leaving.until <= now);
        let pause = self.save_pause();
        // The first one asks for the controls: one that is paused begins nothing.
        let is_first = !self.are_controls_known;
        if !is_probe && !is_leaving && !is_first && now < self.saved_at + pause {
            return;
        }
        if is_probe {
            self.database.probe();
        }
        let mut positions: Vec<(u64, SavedPosition)> = Vec::new();
        for (partition, state) in &self.partitions {
            if let Stage::Reading | Stage::Stopped(_) = state.stage {
                positions.push((state.life, state.to_save(partition, state.unsaved())));
            }
        }
        // Open transactions of a partition that goes elsewhere were waited for.
        let (gone, waited): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|leaving| leaving.state.running == 0 || leaving.until <= now);
        self.leaving = waited;
        for leaving in gone {
            let is_clean = leaving.state.running == 0;
            let position = leaving.state.to_save(&leaving.partition, Some(leaving.state.position()));
            self.releases.push(SavedPosition { release: is_clean, in_hand: None, ..position });
        }
        positions.extend(self.releases.iter().map(|release| (0, release.clone())));
        self.send_save(positions, now);
    }

    fn send_save(&mut self, positions: Vec<(u64, SavedPosition)>, now: Instant) {
        (self.saves.is_out, self.saved_at) = (true, now);
        self.measure();
        let report = self.news(now);
        let (store, member) = (Arc::clone(&self.plan.store), Arc::clone(&self.plan.member));
        let (witness, skipped) = (self.witness.unwrap_or_default(), self.skipped.clone());
        let rows: Vec<SavedPosition> = positions.iter().map(|(_, row)| self.written(row)).collect();
        self.ask("save", async move {
            let result = save(&*store, &skipped, store.save(&member, witness, &rows, report.as_ref())).await;
            Answer::Saved { positions, skipped: skipped.len(), result }
        });
    }

    /// A row as the database gets it. How many a queue has handed out is no position: it begins anew with
    /// each connection.
    fn written(&self, row: &SavedPosition) -> SavedPosition {
        let has_positions = self.plan.source.capabilities().seeks;
        SavedPosition { position: row.position.filter(|_| has_positions), ..row.clone() }
    }

    pub(super) fn on_saved(
        &mut self,
        positions: Vec<(u64, SavedPosition)>,
        result: Result<Saving, InboxError>,
        now: Instant,
    ) -> EngineStep {
        self.saves.back(now);
        let saving = match result {
            Ok(saving) => saving,
            Err(InboxError::Conflict(why)) => {
                self.last_error = Some(why);
                self.database_works();
                return Ok(());
            }
            Err(error) => return self.tolerate(&error, "saving positions", now),
        };
        self.database_works();
        (self.controls, self.are_controls_known) = (saving.controls.clone(), true);
        if !self.check_witness(saving.witness) {
            return Ok(());
        }
        let before = self.releases.len();
        self.releases.retain(|release| !positions.iter().any(|(_, written)| written == release));
        if self.releases.len() < before {
            // CRASH(consume.revoked): a partition that goes elsewhere is saved and given back, and the source
            // has not let it go. Its next owner starts at the saved position (G5).
            crash_point!("consume.revoked");
        }
        // CRASH(consume.saved): the database is ahead of the broker. The next start reads from the database's
        // position: nothing comes again.
        crash_point!("consume.saved");
        // A queue's row is of all its members, and each of them gives it back.
        let takes_anew = self.plan.source.capabilities().seeks && !self.is_draining();
        for ((life, saved), (seeks, is_owned)) in
            positions.into_iter().zip(saving.seeks.into_iter().zip(saving.owned))
        {
            let Some(state) = self.partitions.get_mut(&saved.partition).filter(|state| state.life == life)
            else {
                continue;
            };
            if seeks != saved.seeks {
                tracing::info!(consumer = %self.plan.name, partition = %saved.partition, "an operator moved the position: taken anew");
                self.retake(&saved.partition);
                continue;
            }
            let is_lost = !is_owned && state.is_reading() && takes_anew;
            if let Some(position) = saved.position {
                state.saved = Some(position);
                state.is_in_hand_written &= saved.in_hand.is_some();
                let tickets = state.tickets_before(position);
                self.to_ack.extend(tickets);
            }
            // Somebody's taking came late, and was given back. What is in hand here would not be written
            // down, nor a death counted (F21). The seek says whether this one still has it.
            if is_lost {
                tracing::info!(consumer = %self.plan.name, partition = %saved.partition, "a former owner gave the partition back after this one took it: taken anew");
                self.retake(&saved.partition);
            }
        }
        Ok(())
    }

    pub(super) fn on_acked(&mut self, result: Result<Vec<Standing>, SourceError>, now: Instant) {
        // A courtesy: whoever reads next begins at the database's position.
        if let Err(error) = result {
            tracing::debug!(consumer = %self.plan.name, %error, "the broker's position could not be written");
        }
        self.acks.back(now + ACK_PAUSE);
    }

    /// Writes and gives back everything at the end. `false`: it could not be written.
    pub(super) async fn say_goodbye(&mut self) -> bool {
        let Some(witness) = self.witness else { return true };
        let mut rows = std::mem::take(&mut self.releases);
        let mut is_clean = true;
        for (partition, state) in &self.partitions {
            let release = state.running == 0;
            is_clean &= release;
            rows.push(SavedPosition { release, in_hand: None, ..state.to_save(partition, state.unsaved()) });
        }
        for leaving in std::mem::take(&mut self.leaving) {
            let row = leaving.state.to_save(&leaving.partition, Some(leaving.state.position()));
            rows.push(SavedPosition { release: leaving.state.running == 0, in_hand: None, ..row });
        }
        if rows.is_empty() {
            return is_clean;
        }
        let within = Duration::from_secs(5);
        let store = &*self.plan.store;
        let written: Vec<SavedPosition> = rows.iter().map(|row| self.written(row)).collect();
        let saving = save(store, &self.skipped, store.save(&self.plan.member, witness, &written, None));
        let saved = tokio::time::timeout(within, saving).await;
        let Ok(Ok(saving)) = saved else {
            tracing::warn!(consumer = %self.plan.name, "the positions could not be saved; what was settled since is a duplicate next time");
            return false;
        };
        if saving.witness != witness {
            return false;
        }
        for (row, seeks) in rows.iter().zip(saving.seeks) {
            if let (Some(state), Some(position)) = (self.partitions.get_mut(&row.partition), row.position)
                && seeks == row.seeks
            {
                let tickets = state.tickets_before(position);
                self.to_ack.extend(tickets);
            }
        }
        let tickets = std::mem::take(&mut self.to_ack);
        if !tickets.is_empty() {
            let _ = tokio::time::timeout(within, self.plan.source.ack(&tickets)).await;
        }
        is_clean
    }

    /// The report, if it is new or was not given for a while. Lag and latency alone make it no news: they
    /// always move.
    fn news(&mut self, now: Instant) -> Option<ProcessReport> {
        let health = self.health(now);
        let stopped: Vec<_> = health.stopped.iter().take(16).collect();
        let mut report = json!({
            "ready": health.ready,
            "why": health.why,
            "error": health.error.as_deref().map(|error| error.chars().take(500).collect::<String>()),
            "partitions": health.partitions,
            "stopped": stopped,
            "unavailable": health.unavailable,
            "last_error": self.last_error.as_deref().map(|error| error.chars().take(500).collect::<String>()),
        });
        let text = report.to_string();
        let is_new = self
            .reported
            .as_ref()
            .is_none_or(|(at, before)| *before != text || now.saturating_duration_since(*at) >= REPORT_EVERY);
        if !is_new {
            return None;
        }
        if let Some(Pulse { p50_ms, p99_ms, .. }) = self.metrics.latency.alone(now) {
            report["latency"] = json!({ "p50_ms": p50_ms, "p99_ms": p99_ms });
        }
        let without_lag = report.to_string();
        let lag = |(partition, state): (&Partition, &PartitionState)| {
            Some((partition.to_string(), (state.end? - state.position()).max(0)))
        };
        report["lag"] = json!(self.partitions.iter().filter_map(lag).collect::<BTreeMap<_, _>>());
        let fits = |text: &String| text.len() <= REPORT_BYTES_MAX;
        let report = [report.to_string(), without_lag, text.clone()].into_iter().find(fits);
        self.reported = Some((now, text));
        Some(ProcessReport {
            process: self.plan.member.to_string(),
            role: "consumer",
            name: self.plan.name.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.plan.host.to_string(),
            started_at: self.started_at,
            report: report.unwrap_or_else(|| "{}".to_owned()),
        })
    }

    /// Keeps a skipped message until it is written down, for stores that do.
    pub(super) fn note_skipped(&mut self, mut delivery: Delivery) {
        if !self.plan.store.traces_skipped() {
            return;
        }
        let id = match self.plan.identity.of(&delivery) {
            Found::Known(id) | Found::Unfit(id) => id,
            Found::Nothing => delivery.place().unwrap_or_else(|| hash_of(&delivery)).into(),
        };
        (delivery.message.key, delivery.message.payload) = (None, None);
        let (delivery, history) = (Arc::new(delivery), History::default());
        self.skipped.push(Work { delivery, id, order_id: None, attempts: 0, history });
    }

    /// Whether the consumer makes progress, or has nothing to do; else why not.
    pub(super) fn health(&self, now: Instant) -> ConsumerHealth {
        let stopped: Vec<(String, String)> = self
            .partitions
            .iter()
            .filter_map(|(partition, state)| match &state.stage {
                Stage::Stopped(why) => Some((partition.to_string(), why.clone())),
                _ => None,
            })
            .collect();
        let unavailable: Vec<String> = self.dependencies.away().map(|(name, _)| name.to_string()).collect();
        let (in_hand, shown) = (self.in_hand(), STUCK_SHOWN + self.settings.handler_timeout());
        let ours = |ready: bool, why: &str| (ready, why.to_owned(), None);
        let (ready, why, error) = if !self.database.is_closed() {
            (false, "the database is away".to_owned(), self.last_error.clone())
        } else if let Some((_, why)) = stopped.first() {
            ours(false, why)
        } else if self.is_all_failing() {
            (false, "every message fails, and one at a time is tried".to_owned(), self.last_error.clone())
        } else if !unavailable.is_empty() {
            let said = self.dependencies.away().map(|(name, why)| format!("{name} ({why})"));
            let said = said.collect::<Vec<_>>().join(", ");
            (false, format!("waiting for {}", unavailable.join(", ")), Some(said))
        } else if let Some((_, why)) = self.stuck.as_ref().filter(|(at, _)| now < *at + shown) {
            ours(false, why)
        } else if self.controls.paused {
            ours(true, "paused by an operator")
        } else if self.deferred >= self.settings.deferred_max {
            let why =
                format!("{} messages are deferred: no more are taken until some are handled", self.deferred);
            ours(false, &why)
        } else if self.partitions.is_empty() && now.saturating_duration_since(self.began) >= STALLED_AFTER {
            (false, "no partition is assigned".to_owned(), self.last_error.clone())
        } else if self.is_stalled(now) {
            ours(false, "there is lag, and nothing was settled for a minute")
        } else if let Some((error, _)) = &self.source_away {
            (true, "the broker is out of reach".to_owned(), Some(error.clone()))
        } else if in_hand == 0 {
            ours(true, "idle")
        } else {
            ours(true, "progressing")
        };
        let partitions = self.partitions.values().filter(|state| state.is_reading()).count();
        ConsumerHealth { ready, why, error, partitions, in_hand, stopped, unavailable }
    }
}
