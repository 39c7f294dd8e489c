//! The consumer: billing. It books every event once, in the transaction that marks it in the inbox (G5).
//!
//! It is a process of its own, which the demo starts as `posthaste demo --consumer DIR`, so that it can
//! really die between its commit and its acknowledgement. It knows the broker by the source seam only, and
//! takes deliveries by the batch: their marks and their effects commit together, then they are acknowledged.

use super::service::Payload;
use super::stage::{Stage, connect};
use crate::config::LogFormat;
use crate::{lifeline, logging};
use anyhow::Context as _;
use posthaste::inbox::{Admission, Origin};
use posthaste::source::{Delivery, Limit, Source, SourceError, Ticket};
use posthaste_sqlite::broker::{Broker, BrokerConfig, SourceConfig};
use posthaste_sqlite::inbox::Inbox;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use std::process::ExitCode;
use std::time::Duration;

/// The group at the broker, and the consumer's name in the inbox.
const NAME: &str = "billing";

/// Deliveries of one transaction.
const LIMIT: Limit = Limit { events: 64, bytes: 1 << 20 };

/// How long a call for messages waits.
const WAIT: Duration = Duration::from_secs(1);

/// Between two attempts to reach a broker that is away.
const PAUSE: Duration = Duration::from_millis(100);

/// For the end: what is in hand is acknowledged by then.
const DRAIN: Duration = Duration::from_secs(5);

pub(super) async fn run(stage: &Stage, die_after: Option<u64>) -> anyhow::Result<ExitCode> {
    logging::start(LogFormat::Human, None, "info")?;
    let mut billing = Billing { connection: connect(&stage.billing())?, inbox: Inbox::new(NAME) };
    let broker = Broker::open(BrokerConfig { create: false, ..BrokerConfig::new(stage.broker()) })?;
    let source: Box<dyn Source> = Box::new(broker.source(SourceConfig::new(NAME, ["orders"]))?);
    let mut lifeline = tokio::spawn(lifeline::closed());
    let mut handled = 0;
    loop {
        let next = tokio::select! {
            next = source.next(LIMIT, WAIT) => next,
            _ = &mut lifeline => break,
        };
        let Some(batch) = or_later(next).await? else { continue };
        if batch.deliveries.is_empty() {
            continue;
        }
        tokio::task::block_in_place(|| billing.handle(&batch.deliveries))?;
        handled += batch.deliveries.len() as u64;
        if die_after.is_some_and(|limit| handled >= limit) {
            die();
        }
        let tickets: Vec<Ticket> = batch.deliveries.into_iter().map(|delivery| delivery.ticket).collect();
        // Revoked tickets need nothing: whoever has the messages now finds their marks in the inbox.
        while or_later(source.ack(&tickets).await).await?.is_none() {
            anyhow::ensure!(
                !lifeline.is_finished(),
                "told to end while the broker is away; it delivers them again"
            );
        }
    }
    source.drain(DRAIN).await?;
    Ok(ExitCode::SUCCESS)
}

/// What the source said; `None` after a pause if it is worth another try.
async fn or_later<T>(said: Result<T, SourceError>) -> anyhow::Result<Option<T>> {
    match said {
        Ok(said) => Ok(Some(said)),
        Err(error) if error.is_transient() => {
            tracing::warn!(%error, "the broker is out of reach; it is tried again");
            tokio::time::sleep(PAUSE).await; // pace
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// As `kill -9` does it: committed, not acknowledged, and nobody is told.
fn die() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

struct Billing {
    connection: Connection,
    inbox: Inbox,
}

impl Billing {
    /// Books what is new and refuses what is not, in one transaction.
    fn handle(&mut self, deliveries: &[Delivery]) -> anyhow::Result<()> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for delivery in deliveries {
            let id = delivery.identity().context("a message without an identity")?;
            match self.inbox.admit(&tx, &id, Origin::from(delivery))? {
                Admission::First => book(&tx, &id, delivery)?,
                Admission::Duplicate => refuse(&tx, &id)?,
            }
        }
        Ok(tx.commit()?)
    }
}

fn book(tx: &Transaction<'_>, id: &str, delivery: &Delivery) -> anyhow::Result<()> {
    let payload = delivery.message.payload.as_deref().unwrap_or_default();
    let payload: Payload = serde_json::from_slice(payload).with_context(|| format!("event {id}"))?;
    let booking = "insert into bookings (event_id, order_id, cents) values (?1, ?2, ?3)";
    tx.prepare_cached(booking)?.execute(params![id, payload.order, payload.cents])?;
    let account = "insert into accounts (customer, cents) values (?1, ?2)
                   on conflict (customer) do update set cents = cents + excluded.cents";
    tx.prepare_cached(account)?.execute(params![payload.customer, payload.cents])?;
    Ok(())
}

fn refuse(tx: &Transaction<'_>, id: &str) -> anyhow::Result<()> {
    tx.prepare_cached("insert into refused (event_id) values (?1)")?.execute([id])?;
    Ok(())
}
