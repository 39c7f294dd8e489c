//! One read of a cursor: late rows, then the tail; two looks, never one.
//!
//! [`posthaste::cursor`] says where to look and what the position is afterwards; this file supplies the
//! rows. It is the model's counterpart of the PostgreSQL store's two queries and nothing more, so that
//! whatever the simulation proves about the cursor holds there too.

use super::mvcc::{Log, LogRow};
use posthaste::cursor::{CatchUp, Elder, Look, Marks, Position, Snapshot};
use posthaste::event::StoredEvent;
use posthaste::store::PageLimit;

/// Rows a tail looks at before it says "more", whatever the filter selects: a scan is bounded too.
const SCAN_ROWS_MAX: usize = 4_096;

/// What one read found, and where the cursor is now.
pub(super) struct ReadRows {
    pub(super) events: Vec<StoredEvent>,
    pub(super) position: Position,
    pub(super) more: bool,
}

/// A page while it fills.
struct Filling {
    limit: PageLimit,
    events: Vec<StoredEvent>,
    bytes: usize,
    full: bool,
}

impl Filling {
    fn new(limit: PageLimit) -> Self {
        Self { limit, events: Vec::new(), bytes: 0, full: false }
    }

    /// Adds an event, or says that the page is full.
    fn push(&mut self, stored: &StoredEvent) -> bool {
        let bytes = stored.event.payload.as_ref().map_or(0, bytes::Bytes::len);
        let fits = self.events.len() < self.limit.events && self.bytes + bytes <= self.limit.bytes;
        if !fits && !self.events.is_empty() {
            self.full = true;
            return false;
        }
        self.events.push(stored.clone());
        self.bytes += bytes;
        self.full = self.events.len() >= self.limit.events;
        true
    }

    fn last_seq(&self) -> Option<i64> {
        self.events.last().map(|stored| stored.seq)
    }
}

/// Reads once. `mine` picks the rows of this lane and sink.
pub(super) fn read(
    log: &Log,
    cursor: &Position,
    marks: &Marks,
    limit: PageLimit,
    mine: impl Fn(&StoredEvent) -> bool,
) -> ReadRows {
    let now = log.snapshot();
    match cursor.look(marks, &now) {
        Look::CatchUp => {
            let catch_up = cursor.catching_up.as_ref().expect("only a cursor that catches up looks so");
            read_catching_up(log, cursor, catch_up, limit, mine)
        }
        Look::Fresh { late_from, elders } => {
            let mut page = Filling::new(limit);
            let late = late_rows(log, cursor, late_from, &elders, &now);
            fill(&mut page, late, &mine);
            match page.last_seq().filter(|_| page.full) {
                Some(last) => {
                    let position = cursor.after_full_late_page(now, last);
                    ReadRows { events: page.events, position, more: true }
                }
                None => read_tail(log, cursor, now, page, mine),
            }
        }
    }
}

/// Late rows by number: those of elders that have ended, then those of the window.
fn late_rows<'a>(
    log: &'a Log,
    cursor: &'a Position,
    late_from: i64,
    elders: &[Elder],
    now: &'a Snapshot,
) -> Vec<&'a LogRow> {
    let mut rows: Vec<&LogRow> = elders
        .iter()
        .flat_map(|elder| {
            log.visible(now, elder.low, late_from).filter(|row| row.xid == elder.xid).collect::<Vec<_>>()
        })
        .collect();
    rows.sort_unstable_by_key(|row| row.stored.seq);
    let window = log.visible(now, late_from, cursor.position);
    rows.extend(window.filter(|row| !cursor.snapshot.sees(row.xid)));
    rows
}

fn fill<'a>(
    page: &mut Filling,
    rows: impl IntoIterator<Item = &'a LogRow>,
    mine: &impl Fn(&StoredEvent) -> bool,
) {
    for row in rows {
        if mine(&row.stored) && !page.push(&row.stored) {
            break;
        }
    }
}

fn read_catching_up(
    log: &Log,
    cursor: &Position,
    catch_up: &CatchUp,
    limit: PageLimit,
    mine: impl Fn(&StoredEvent) -> bool,
) -> ReadRows {
    let mut page = Filling::new(limit);
    let rows = log.visible(&catch_up.target, catch_up.late_position, cursor.position);
    fill(&mut page, rows.filter(|row| !cursor.snapshot.sees(row.xid)), &mine);
    // A page that is not full held the last of them: the target becomes the snapshot.
    let reached = page.last_seq().filter(|_| page.full).unwrap_or(cursor.position);
    ReadRows { events: page.events, position: cursor.after_catch_up(reached), more: true }
}

fn read_tail(
    log: &Log,
    cursor: &Position,
    now: Snapshot,
    mut page: Filling,
    mine: impl Fn(&StoredEvent) -> bool,
) -> ReadRows {
    let mut reached = cursor.position;
    let mut more = false;
    for (scanned, row) in log.visible(&now, cursor.position, i64::MAX).enumerate() {
        if scanned >= SCAN_ROWS_MAX || page.full {
            more = true;
            break;
        }
        if mine(&row.stored) && !page.push(&row.stored) {
            more = true;
            break;
        }
        reached = row.stored.seq;
    }
    ReadRows { events: page.events, position: cursor.after_tail(now, reached), more }
}
