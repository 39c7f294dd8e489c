//! How far things are, read from the files while others write them. For the view and for the script's cues;
//! the ledger counts by itself.

use crate::demo::stage::{Stage, connect};
use rusqlite::{Connection, Row};

/// What the files say right now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GaugeReading {
    /// Events in the outbox. Numbers are dense in SQLite, rollbacks included, so the last one is their count.
    pub(super) committed: u64,
    pub(super) rolled_back: u64,
    /// Events up to here are settled by the relay.
    pub(super) settled: u64,
    pub(super) dead: u64,
    /// Events that wait for a retry, and the attempts that were counted for them.
    pub(super) deferred: u64,
    pub(super) attempts: u64,
    /// Epoch of the relay's lease, where a relay holds one.
    pub(super) epoch: Option<u64>,
    /// Messages at the broker.
    pub(super) delivered: u64,
    /// Effects in billing.
    pub(super) applied: u64,
    pub(super) refused: u64,
    /// Dead letters in billing, messages that wait there, and attempts beyond the first.
    pub(super) buried: u64,
    pub(super) waiting: u64,
    pub(super) retried: u64,
    /// Dead letters that an operator discarded, in the shop and in billing. One that was sent again and died
    /// again is dead.
    pub(super) discarded: u64,
}

/// A dead letter: its event's number (at the consumer its own) and key, and why it was given up.
pub(super) struct Letter {
    pub(super) seq: u64,
    pub(super) key: String,
    pub(super) code: String,
}

const ORDERS: &str = "
select (select coalesce(max(seq), 0) from posthaste_outbox),
       (select coalesce(max(n), 0) from rolled_back),
       (select coalesce((select position from posthaste_receipts where sink = 'local' order by n desc limit 1), 0)),
       (select count(*) from posthaste_dead_letters),
       (select count(*) from posthaste_deferred),
       (select coalesce(sum(attempts), 0) from posthaste_deferred),
       (select max(epoch) from posthaste_lanes where sink = 'local' and owner is not null),
       (select coalesce(sum(detail ->> '$.count'), 0) from posthaste_audit where action = 'discard')";

const BROKER: &str = "select coalesce(sum(next), 0) from partitions";

const BILLING: &str = "
select (select coalesce(max(n), 0) from bookings), (select coalesce(max(n), 0) from refused),
       (select count(*) from posthaste_inbox_dead_letters), (select count(*) from posthaste_inbox_deferred),
       (select coalesce(sum(attempt - 1), 0) from bookings where attempt > 1),
       (select coalesce(sum(detail ->> '$.count'), 0) from posthaste_audit where action = 'discard')";

pub(super) struct Gauge {
    orders: Connection,
    broker: Connection,
    billing: Connection,
}

impl Gauge {
    pub(super) fn open(stage: &Stage) -> anyhow::Result<Self> {
        let orders = connect(&stage.orders())?;
        if stage.has_gateway() {
            orders.execute("attach ?1 as till", [stage.till().to_string_lossy()])?;
        }
        Ok(Self { orders, broker: connect(&stage.broker())?, billing: connect(&stage.billing())? })
    }

    /// The first dead letter.
    pub(super) fn letter(&self) -> anyhow::Result<Letter> {
        let sql =
            "select seq, coalesce(key, ''), error_code from posthaste_dead_letters order by letter limit 1";
        Ok(self
            .orders
            .query_row(sql, [], |row| Ok(Letter { seq: row.get(0)?, key: row.get(1)?, code: row.get(2)? }))?)
    }

    /// The first one in billing.
    pub(super) fn billing_letter(&self) -> anyhow::Result<Letter> {
        let sql = "select seq, cast(key as text), error_code from posthaste_inbox_dead_letters order by seq limit 1";
        let read = |row: &Row<'_>| Ok(Letter { seq: row.get(0)?, key: row.get(1)?, code: row.get(2)? });
        Ok(self.billing.query_row(sql, [], read)?)
    }

    /// The order whose handler failed, and messages that were deferred so far.
    pub(super) fn stubborn(&self) -> anyhow::Result<(String, u64)> {
        let sql = "select order_id, (select seq from sqlite_sequence where name = 'posthaste_inbox_deferred')
                          - (select count(*) from posthaste_inbox_dead_letters)
                     from bookings where attempt > 1 order by n limit 1";
        Ok(self.billing.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?)
    }

    pub(super) fn read(&self) -> anyhow::Result<GaugeReading> {
        let mut reading = self.orders.prepare_cached(ORDERS)?.query_row([], |row| {
            Ok(GaugeReading {
                committed: row.get(0)?,
                rolled_back: row.get(1)?,
                settled: row.get(2)?,
                dead: row.get(3)?,
                deferred: row.get(4)?,
                attempts: row.get(5)?,
                epoch: row.get(6)?,
                discarded: row.get(7)?,
                ..GaugeReading::default()
            })
        })?;
        reading.delivered = self.broker.prepare_cached(BROKER)?.query_row([], |row| row.get(0))?;
        self.billing.prepare_cached(BILLING)?.query_row([], |row| {
            (reading.applied, reading.refused) = (row.get(0)?, row.get(1)?);
            (reading.buried, reading.waiting, reading.retried) = (row.get(2)?, row.get(3)?, row.get(4)?);
            reading.discarded += row.get::<_, u64>(5)?;
            Ok(())
        })?;
        Ok(reading)
    }
}
