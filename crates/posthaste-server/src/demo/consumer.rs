//! The consumer: billing. It books every event once, in the transaction that marks it in the inbox (G5).
//!
//! It is a process of its own, which the demo starts as `posthaste demo --consumer DIR`, so that it can
//! really die between its commit and its acknowledgement. All that is written here is a handler: the runtime
//! takes messages from the broker, retries, defers and gives up.

use super::service::{PAID, Payload};
use super::stage::Stage;
use crate::config::LogFormat;
use crate::{lifeline, logging};
use anyhow::{bail, ensure};
use posthaste::clock::SystemClock;
use posthaste::consumer::settings::DependencyPauses;
use posthaste::consumer::store::{MessageOutcome, Work};
use posthaste::consumer::{ConsumerPlan, ConsumerRetry, ConsumerSettings, HandlerError, Message, start};
use posthaste::relay::DrainOutcome;
use posthaste_sqlite::Synchronous;
use posthaste_sqlite::broker::{Broker, BrokerConfig, SourceConfig};
use posthaste_sqlite::consumer::{Handler, InboxOptions, inbox};
use posthaste_sqlite::writer::Writer;
use rusqlite::{Connection, Transaction, params};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::watch;

/// The group at the broker, and the consumer's name in the inbox.
const NAME: &str = "billing";

/// The dependency of the handler.
const BANK: &str = "bank";

/// The first retry waits in memory, the second one among the deferred. Short: somebody is watching.
fn settings() -> ConsumerSettings {
    ConsumerSettings {
        retry: ConsumerRetry { delays_ms: vec![200, 900, 900], then: None },
        memory_wait_max_ms: 500,
        dependencies: [(BANK.to_owned(), DependencyPauses { initial_ms: 100, max_ms: 400 })].into(),
        ..ConsumerSettings::default()
    }
}

pub(crate) async fn run(stage: &Stage, die_after: Option<u64>) -> anyhow::Result<ExitCode> {
    logging::start(LogFormat::Human, None, "info")?;
    let writer = Writer::open(&stage.billing(), Synchronous::Full)?;
    let (handled, die_after) = (AtomicU64::new(0), die_after.unwrap_or(u64::MAX));
    let store = inbox(writer, InboxOptions::new(NAME), Billing { bank: stage.bank() }).on_commit(
        move |billing, batch, outcomes| {
            if let Err(error) = after_commit(billing, batch, outcomes, (&handled, die_after)) {
                tracing::warn!(%error, "what was refused is not written down");
            }
        },
    );
    let broker = Broker::open(BrokerConfig { create: false, ..BrokerConfig::new(stage.broker()) })?;
    let source = broker.source(SourceConfig::new(NAME, ["orders"]))?;
    let plan = ConsumerPlan::new(NAME, Arc::new(source), Arc::new(store));
    let (_in_force, settings) = watch::channel(settings());
    let mut consumer = start(plan, settings, Arc::new(SystemClock));
    tokio::select! {
        () = lifeline::closed() => {}
        why = consumer.failed() => bail!(why),
    }
    ensure!(consumer.drain().await == DrainOutcome::Clean, "the consumer did not drain");
    Ok(ExitCode::SUCCESS)
}

/// The handler.
struct Billing {
    /// What the bank can be reached by.
    bank: PathBuf,
}

impl Handler for Billing {
    fn handle(&self, tx: &Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        let payload: Payload = message.json()?;
        if message.message.event_type() == Some(PAID) && !self.bank.exists() {
            return Err(HandlerError::unavailable(BANK, "the bank does not answer"));
        }
        if message.attempt() <= payload.failures {
            return Err(std::io::Error::other("the account is locked").into());
        }
        let booking = "insert into bookings (event_id, order_id, cents, attempt) values (?1, ?2, ?3, ?4)";
        let params = params![message.id(), payload.order, payload.cents, message.attempt()];
        tx.prepare_cached(booking)?.execute(params)?;
        let account = "insert into accounts (customer, cents) values (?1, ?2)
                       on conflict (customer) do update set cents = cents + excluded.cents";
        tx.prepare_cached(account)?.execute(params![payload.customer, payload.cents])?;
        Ok(())
    }
}

/// After each commit: dies when it has to, or writes down what the inbox refused.
fn after_commit(
    billing: &Connection,
    batch: &[Work],
    outcomes: &[MessageOutcome],
    (handled, die_after): (&AtomicU64, u64),
) -> rusqlite::Result<()> {
    let count = |one| outcomes.iter().filter(|outcome| **outcome == one).count() as u64;
    let done = count(MessageOutcome::Done);
    if handled.fetch_add(done, Relaxed) + done >= die_after {
        // As `kill -9` does it: committed, neither saved nor acknowledged, and nobody is told.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    if count(MessageOutcome::Duplicate) == 0 {
        return Ok(());
    }
    let tx = billing.unchecked_transaction()?;
    let refused = batch.iter().zip(outcomes).filter(|(_, outcome)| **outcome == MessageOutcome::Duplicate);
    for (work, _) in refused {
        tx.execute("insert into refused (event_id) values (?1)", [&*work.id])?;
    }
    tx.commit()
}
