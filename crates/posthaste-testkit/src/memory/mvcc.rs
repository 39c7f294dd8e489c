//! A log table under multi-version concurrency, as small as it can be and still be PostgreSQL.
//!
//! What matters to the cursor is modelled to the letter, because each of these has cost somebody events:
//!
//! - an xid is assigned before a number is drawn, and numbers are never given back (F2, F4);
//! - a snapshot's `xmax` is "last completed + 1", not "next to be assigned": transactions above it may be
//!   running and are not listed (F3);
//! - a commit is visible at once but durable only with the next flush, so a crash of the server can take
//!   the last asynchronous commits away, and with them the numbers and xids they used (F7).
//!
//! What does not matter is left out: rows are never updated, so there are no row versions; a rolled back
//! transaction's rows are simply gone.

use posthaste::cursor::{Snapshot, Xid};
use posthaste::event::StoredEvent;
use std::collections::{BTreeMap, BTreeSet};

/// A row of the log.
#[derive(Debug, Clone)]
pub(super) struct LogRow {
    /// The transaction that inserted it.
    pub(super) xid: Xid,
    /// The rest.
    pub(super) stored: StoredEvent,
}

/// What a crash cannot take away.
#[derive(Debug, Clone, Copy)]
struct Durable {
    next_xid: Xid,
    last_seq: i64,
}

/// The log, its sequence and its transactions.
#[derive(Debug)]
pub(super) struct Log {
    next_xid: Xid,
    last_completed: Xid,
    running: BTreeSet<Xid>,
    last_seq: i64,
    rows: BTreeMap<i64, LogRow>,
    durable: Durable,
    /// Commits since the last flush.
    unflushed: BTreeSet<Xid>,
    life: u64,
}

/// Any number will do; a small one that is not 1 keeps seqs and xids apart in a printout.
const FIRST_XID: Xid = 700;

impl Default for Log {
    fn default() -> Self {
        Self {
            next_xid: FIRST_XID,
            last_completed: FIRST_XID - 1,
            running: BTreeSet::new(),
            last_seq: 0,
            rows: BTreeMap::new(),
            durable: Durable { next_xid: FIRST_XID, last_seq: 0 },
            unflushed: BTreeSet::new(),
            life: 1,
        }
    }
}

impl Log {
    /// Assigns the next xid to a transaction, which is running from now on.
    pub(super) fn assign(&mut self) -> Xid {
        let xid = self.next_xid;
        self.next_xid += 1;
        self.running.insert(xid);
        xid
    }

    /// Draws a number. Only a transaction can: the xid comes first, by construction.
    pub(super) fn draw(&mut self, xid: Xid) -> i64 {
        assert!(self.running.contains(&xid), "transaction {xid} draws a number although it has ended");
        self.last_seq += 1;
        self.last_seq
    }

    /// Inserts a row of a running transaction.
    pub(super) fn insert(&mut self, xid: Xid, stored: StoredEvent) {
        self.rows.insert(stored.seq, LogRow { xid, stored });
    }

    /// Ends a transaction so that its rows are visible. An asynchronous commit is not durable yet.
    pub(super) fn commit(&mut self, xid: Xid, synchronous: bool) {
        if !self.end(xid) {
            return;
        }
        self.unflushed.insert(xid);
        if synchronous {
            self.flush();
        }
    }

    /// Ends a transaction so that its rows never were.
    pub(super) fn rollback(&mut self, xid: Xid) {
        if self.end(xid) {
            self.rows.retain(|_, row| row.xid != xid);
        }
    }

    fn end(&mut self, xid: Xid) -> bool {
        self.last_completed = self.last_completed.max(xid);
        self.running.remove(&xid)
    }

    /// A transaction that begins and commits in one breath, synchronously: what a settlement is.
    pub(super) fn transact(&mut self) -> Xid {
        let xid = self.assign();
        self.commit(xid, true);
        xid
    }

    /// Everything written so far is durable: there is one write-ahead log, in one order.
    fn flush(&mut self) {
        self.unflushed.clear();
        self.durable = Durable { next_xid: self.next_xid, last_seq: self.last_seq };
    }

    /// Which of its lives the server is in: a crash ends all transactions and gives their xids out again.
    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// Which transactions have ended.
    pub(super) fn snapshot(&self) -> Snapshot {
        let xmax = self.last_completed + 1;
        let running: Vec<Xid> = self.running.range(..xmax).copied().collect();
        Snapshot { xmin: running.first().copied().unwrap_or(xmax), xmax, running }
    }

    /// The last number drawn.
    pub(super) fn last_seq(&self) -> i64 {
        self.last_seq
    }

    /// Rows of transactions that this snapshot shows, with numbers in `(after, up_to]`, by number.
    pub(super) fn visible<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        after: i64,
        up_to: i64,
    ) -> impl DoubleEndedIterator<Item = &'a LogRow> + 'a {
        let from = after.saturating_add(1);
        let range = if from > up_to { self.rows.range(0..0) } else { self.rows.range(from..=up_to) };
        range.map(|(_, row)| row).filter(|row| snapshot.sees(row.xid))
    }

    /// The row with this number, committed or not.
    pub(super) fn row(&self, seq: i64) -> Option<&LogRow> {
        self.rows.get(&seq)
    }

    /// Committed rows, by number.
    pub(super) fn committed(&self) -> impl Iterator<Item = &LogRow> {
        self.rows.values().filter(|row| !self.running.contains(&row.xid))
    }

    /// The server dies and comes back: running transactions and unflushed commits never happened, and
    /// the sequence stands where the durable part of the log left it, plus what it had logged ahead.
    pub(super) fn crash(&mut self, logged_ahead: i64) {
        let (running, unflushed) = (std::mem::take(&mut self.running), std::mem::take(&mut self.unflushed));
        self.rows.retain(|_, row| !running.contains(&row.xid) && !unflushed.contains(&row.xid));
        self.life += 1;
        self.next_xid = self.durable.next_xid;
        self.last_completed = self.next_xid - 1;
        self.last_seq = self.durable.last_seq + logged_ahead.clamp(0, 32);
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // F3
    #[test]
    fn a_snapshot_does_not_list_what_runs_above_the_last_completed() {
        let mut log = Log::default();
        let (a, b, c) = (log.assign(), log.assign(), log.assign());
        assert_eq!(log.snapshot(), Snapshot { xmin: a, xmax: a, running: vec![] });
        log.commit(b, true);
        assert_eq!(log.snapshot(), Snapshot { xmin: a, xmax: c, running: vec![a] });
        log.rollback(a);
        assert_eq!(log.snapshot(), Snapshot { xmin: c, xmax: c, running: vec![] });
    }

    // F7
    #[test]
    fn a_crash_takes_asynchronous_commits_and_their_numbers_away() {
        let mut log = Log::default();
        log.transact();
        let a = log.assign();
        let lost = log.draw(a);
        log.commit(a, false);
        log.crash(0);
        let b = log.assign();
        assert_eq!((b, log.draw(b)), (a, lost));
        log.commit(b, true);
        log.crash(32);
        let c = log.assign();
        assert_eq!((c, log.draw(c)), (b + 1, lost + 33));
    }
}
