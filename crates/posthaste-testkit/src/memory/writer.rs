//! The application's side: transactions that append.

use super::MemoryDatabase;
use super::tables::slot_of;
use posthaste::cursor::Xid;
use posthaste::event::{Event, StoredEvent};

/// A writer's transaction. It may stay open as long as it likes; dropping it rolls it back.
///
/// The xid is assigned lazily, with the first append (F2), as PostgreSQL does.
#[derive(Debug)]
pub struct Tx {
    database: MemoryDatabase,
    /// With the server's life that it belongs to: a crash gives xids out again.
    xid: Option<(u64, Xid)>,
    synchronous: bool,
    /// Whether the wakeup flag was up when it appended. A flag that is raised later is not seen.
    rings: bool,
}

impl Tx {
    pub(super) fn new(database: MemoryDatabase) -> Self {
        Self { database, xid: None, synchronous: true, rings: false }
    }

    /// Lets the commit be lost in a crash of the server: `synchronous_commit = off`.
    #[must_use]
    pub fn asynchronous(mut self) -> Self {
        self.synchronous = false;
        self
    }

    /// Takes an xid without appending anything, as any other write of the application would.
    pub fn touch(&mut self) -> Xid {
        if let Some((_, xid)) = self.xid {
            return xid;
        }
        let mut tables = self.database.tables();
        let xid = tables.log.assign();
        self.xid = Some((tables.log.life(), xid));
        xid
    }

    fn is_alive(&self) -> bool {
        self.xid.is_none_or(|(life, _)| life == self.database.tables().log.life())
    }

    /// Appends an event and returns its number.
    pub fn append(&mut self, event: Event) -> i64 {
        let xid = self.touch();
        if !self.is_alive() {
            return 0; // The server crashed under this transaction; its commit will say so.
        }
        let mut tables = self.database.tables();
        let now = tables.now();
        self.rings |= now < tables.doze_until;
        let seq = tables.log.draw(xid);
        let slot = slot_of(event.key.as_deref(), seq);
        tables.log.insert(xid, StoredEvent { seq, slot, appended_at: now, event, defect: None });
        seq
    }

    /// Commits. `false`: the server crashed in between, and nothing was appended.
    pub fn commit(mut self) -> bool {
        let alive = self.is_alive();
        let Some((_, xid)) = self.xid.take() else { return true };
        if !alive {
            return false;
        }
        let mut tables = self.database.tables();
        tables.log.commit(xid, self.synchronous);
        if self.rings {
            tables.ring();
        }
        true
    }

    /// Rolls back.
    pub fn rollback(self) {
        drop(self);
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let alive = self.is_alive();
        if let Some((_, xid)) = self.xid.take()
            && alive
        {
            self.database.tables().log.rollback(xid);
        }
    }
}
