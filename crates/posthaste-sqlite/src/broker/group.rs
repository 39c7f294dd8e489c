//! Groups: members, who serves which partition, and where the group is.
//!
//! A partition's row in `positions` is everything: the committed position, the owner and the epoch. Taking it
//! over means writing a higher epoch; whoever comes with a lower one changes no row and learns that it lost
//! the partition (G4). Everything here runs as jobs of the writer thread, hence one after the other over all
//! processes: members that race for a partition are a queue.
//!
//! A member is alive until its row expires, or until its heart stops: then its partitions are free at once.
//! Time is the host's, one clock for all processes. An expiry that lies further ahead than any lease lasts
//! was written before somebody set the clock back, and counts as past.

use super::roll::share;
use crate::clock;
use crate::log::heart;
use posthaste::source::{SeekTo, StartFrom};
use rusqlite::{OptionalExtension, Transaction, params};
use std::path::Path;
use std::sync::Arc;

/// A partition in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    /// Its row.
    pub(super) row: i64,
    /// The epoch under which it is held.
    pub(super) epoch: i64,
    /// Where the group is: the position to go on with.
    pub(super) committed: i64,
}

/// A partition that was taken now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TakenPartition {
    pub(super) topic: Arc<str>,
    pub(super) number: i32,
    pub(super) held: Held,
    /// The oldest position that is there, and the one that the next message gets.
    pub(super) first: i64,
    pub(super) next: i64,
    /// How often a former owner died at this position.
    pub(super) crashes: u32,
}

/// A heartbeat, as a member sends it.
#[derive(Debug, Clone)]
pub(super) struct Beat {
    pub(super) group: Arc<str>,
    pub(super) member: Arc<str>,
    pub(super) topics: Vec<Arc<str>>,
    pub(super) heart: Option<String>,
    pub(super) ttl_micros: i64,
    pub(super) start_from: StartFrom,
    /// What the member believes to hold, each with the position that may be committed.
    pub(super) held: Vec<Held>,
    /// Whether it takes more.
    pub(super) takes: bool,
}

/// What it learns.
#[derive(Debug, Default)]
pub(super) struct Beaten {
    pub(super) taken: Vec<TakenPartition>,
    /// Rows that it no longer holds.
    pub(super) lost: Vec<i64>,
    /// Rows that are above its share.
    pub(super) surplus: Vec<i64>,
    /// Hearts of the other members.
    pub(super) others: Vec<String>,
    /// How often groups have changed.
    pub(super) changes: i64,
}

/// Renews the membership and what is held; finds out what to take and what to give back.
pub(super) fn beat(tx: &Transaction<'_>, database: &Path, beat: &Beat) -> rusqlite::Result<Beaten> {
    let now = clock::now();
    let mut beaten = Beaten::default();
    for held in &beat.held {
        if !commit(tx, &beat.group, &beat.member, held)? {
            beaten.lost.push(held.row);
        }
    }
    let mut changed = false;
    for topic in &beat.topics {
        changed |= enrol(tx, beat, topic, now)?;
        changed |= strike_off_the_dead(tx, database, beat, topic, now)?;
        share_out(tx, beat, topic, &mut beaten)?;
    }
    let sql = "select distinct heart from members where grp = ?1 and member <> ?2 and heart is not null";
    let mut read = tx.prepare_cached(sql)?;
    let hearts = read.query_map(params![beat.group, beat.member], |row| row.get(0))?;
    beaten.others = hearts.collect::<rusqlite::Result<_>>()?;
    if changed || !beaten.taken.is_empty() {
        bump(tx)?;
    }
    beaten.changes = changes(tx)?;
    Ok(beaten)
}

/// Commits a position under its epoch. `false`: the partition is somebody else's.
pub(super) fn commit(tx: &Transaction<'_>, group: &str, member: &str, held: &Held) -> rusqlite::Result<bool> {
    let sql = "update positions set committed = max(committed, ?5) where grp = ?1 and partition = ?2 and epoch = ?3 and owner = ?4";
    let rows =
        tx.prepare_cached(sql)?.execute(params![group, held.row, held.epoch, member, held.committed])?;
    Ok(rows == 1)
}

/// Gives partitions back. `abandoned` says of each whether something of it was still in hand.
pub(super) fn release(
    tx: &Transaction<'_>,
    group: &str,
    member: &str,
    held: &[(Held, bool)],
) -> rusqlite::Result<()> {
    let sql = "update positions set owner = null, crashes = ?4, committed = max(committed, ?5)
                where grp = ?1 and partition = ?2 and epoch = ?3 and owner = ?6";
    let mut update = tx.prepare_cached(sql)?;
    for (held, abandoned) in held {
        let crashes = i64::from(*abandoned);
        update.execute(params![group, held.row, held.epoch, crashes, held.committed, member])?;
    }
    bump(tx)
}

/// Says goodbye: the others share what is there.
pub(super) fn leave(tx: &Transaction<'_>, group: &str, member: &str) -> rusqlite::Result<()> {
    tx.execute("delete from members where grp = ?1 and member = ?2", params![group, member])?;
    bump(tx)
}

/// Where a seek led to, and the bounds of the partition then.
pub(super) struct Sought {
    pub(super) held: Held,
    pub(super) first: i64,
    pub(super) next: i64,
}

/// Moves a group to another place in a partition. Whoever holds it is fenced by the new epoch; `keep` is an
/// owner that stays, because it is the one that asks. Answers with the new epoch and position; `None`: not
/// its own partition.
pub(super) fn seek(
    tx: &Transaction<'_>,
    group: &str,
    row: i64,
    to: SeekTo,
    keep: Option<(&str, i64)>,
) -> rusqlite::Result<Option<Sought>> {
    let (first, next) = bounds(tx, row)?;
    let committed = match to {
        SeekTo::Earliest => first,
        SeekTo::Latest => next,
        SeekTo::Position(position) => position.clamp(first, next),
        SeekTo::Time(time) => super::look::first_since(tx, row, first, next, time.0)?,
    };
    if keep.is_none() {
        let sql =
            "insert into positions (grp, partition, committed) values (?1, ?2, ?3) on conflict do nothing";
        tx.prepare_cached(sql)?.execute(params![group, row, committed])?;
    }
    let sql = "update positions set committed = ?3, epoch = epoch + 1, crashes = 0, taken_at = -1, owner = ?4
                where grp = ?1 and partition = ?2 and (?4 is null or (owner = ?4 and epoch = ?5)) returning epoch";
    let (owner, epoch) = (keep.map(|(owner, _)| owner), keep.map(|(_, epoch)| epoch));
    let mut update = tx.prepare_cached(sql)?;
    let epoch =
        update.query_row(params![group, row, committed, owner, epoch], |row| row.get(0)).optional()?;
    bump(tx)?;
    Ok(epoch.map(|epoch| Sought { held: Held { row, epoch, committed }, first, next }))
}

/// The oldest position of a partition that is there, and the one that the next message gets.
pub(super) fn bounds(tx: &Transaction<'_>, row: i64) -> rusqlite::Result<(i64, i64)> {
    let sql = "select first, next from partitions where id = ?1";
    tx.prepare_cached(sql)?.query_row([row], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Whether a member still holds a partition.
pub(super) fn holds(
    tx: &Transaction<'_>,
    group: &str,
    member: &str,
    row: i64,
    epoch: i64,
) -> rusqlite::Result<bool> {
    let sql = "select 1 from positions where grp = ?1 and partition = ?2 and epoch = ?3 and owner = ?4";
    tx.prepare_cached(sql)?.exists(params![group, row, epoch, member])
}

/// How often groups have changed: members, owners, positions, topics.
pub(super) fn changes(tx: &Transaction<'_>) -> rusqlite::Result<i64> {
    let sql = "select value from state where name = 'group_changes'";
    tx.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

fn bump(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    let sql = "update state set value = value + 1 where name = 'group_changes'";
    tx.prepare_cached(sql)?.execute([]).map(drop)
}

/// Writes the member's row. Answers whether it is new.
fn enrol(tx: &Transaction<'_>, beat: &Beat, topic: &str, now: i64) -> rusqlite::Result<bool> {
    let since = "insert into groups (grp, topic, since) values (?1, ?2, ?3) on conflict do nothing";
    tx.prepare_cached(since)?.execute(params![beat.group, topic, now])?;
    let known = "select 1 from members where grp = ?1 and topic = ?2 and member = ?3";
    let known = tx.prepare_cached(known)?.exists(params![beat.group, topic, beat.member])?;
    let sql = "insert into members (grp, topic, member, heart, expires_at) values (?1, ?2, ?3, ?4, ?5)
               on conflict do update set heart = excluded.heart, expires_at = excluded.expires_at";
    let expires_at = now.saturating_add(beat.ttl_micros);
    tx.prepare_cached(sql)?.execute(params![beat.group, topic, beat.member, beat.heart, expires_at])?;
    Ok(!known)
}

/// Removes members that expired or whose heart stopped. Answers whether there were any.
fn strike_off_the_dead(
    tx: &Transaction<'_>,
    database: &Path,
    beat: &Beat,
    topic: &str,
    now: i64,
) -> rusqlite::Result<bool> {
    let sql = "select member, heart, expires_at from members where grp = ?1 and topic = ?2 and member <> ?3";
    let mut read = tx.prepare_cached(sql)?;
    let others = read.query_map(params![beat.group, topic, beat.member], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, i64>(2)?))
    })?;
    let mut dead = Vec::new();
    for other in others {
        let (member, heart, expires_at) = other?;
        // No lease is written for longer than this.
        let too_far = now.saturating_add(LEASE_MICROS_MAX);
        let stopped = heart.is_some_and(|heart| !heart::beats(database, &heart));
        if expires_at <= now || expires_at > too_far || stopped {
            dead.push(member);
        }
    }
    for member in &dead {
        let sql = "delete from members where grp = ?1 and topic = ?2 and member = ?3";
        tx.prepare_cached(sql)?.execute(params![beat.group, topic, member])?;
    }
    Ok(!dead.is_empty())
}

/// Longest lease that anybody may ask for.
pub(super) const LEASE_MICROS_MAX: i64 = 3_600_000_000;

struct PartitionRow {
    id: i64,
    number: i32,
    first: i64,
    next: i64,
    created_at: i64,
    since: i64,
    /// `None`: the group has never read it.
    place: Option<GroupCursor>,
}

struct GroupCursor {
    committed: i64,
    epoch: i64,
    owner: Option<String>,
    crashes: i64,
    taken_at: i64,
}

fn share_out(
    tx: &Transaction<'_>,
    beat: &Beat,
    topic: &Arc<str>,
    beaten: &mut Beaten,
) -> rusqlite::Result<()> {
    let members = {
        let mut read = tx.prepare_cached("select member from members where grp = ?1 and topic = ?2")?;
        let members = read.query_map(params![beat.group, topic], |row| row.get(0))?;
        members.collect::<rusqlite::Result<Vec<String>>>()?
    };
    let rows = rows(tx, beat, topic)?;
    let share = if beat.takes { share(&beat.member, &members, rows.len()) } else { 0 };
    let owner = |row: &PartitionRow| row.place.as_ref().and_then(|place| place.owner.clone());
    let mine: Vec<&PartitionRow> =
        rows.iter().filter(|row| owner(row).as_deref() == Some(&*beat.member)).collect();
    // The highest numbers go.
    beaten.surplus.extend(mine.iter().skip(share).map(|row| row.id));
    let mut room = share.saturating_sub(mine.len());
    for row in &rows {
        let owner = owner(row);
        // Ours by the file and not in hand: a former life of this member.
        let forgotten =
            owner.as_deref() == Some(&*beat.member) && !beat.held.iter().any(|held| held.row == row.id);
        let free = owner.as_ref().is_none_or(|owner| !members.contains(owner));
        if forgotten || (free && room > 0) {
            room = room.saturating_sub(usize::from(!forgotten));
            beaten.taken.push(take(tx, beat, topic, row)?);
        }
    }
    Ok(())
}

fn rows(tx: &Transaction<'_>, beat: &Beat, topic: &str) -> rusqlite::Result<Vec<PartitionRow>> {
    let sql = "select p.id, p.number, p.first, p.next, t.created_at, g.since,
                      o.committed, o.epoch, o.owner, o.crashes, o.taken_at
                 from topics t
                 join partitions p on p.topic = t.id
                 join groups g on g.grp = ?1 and g.topic = t.name
                 left join positions o on o.grp = ?1 and o.partition = p.id
                where t.name = ?2
                order by p.number";
    let mut read = tx.prepare_cached(sql)?;
    let rows = read.query_map(params![beat.group, topic], |row| {
        let place = match row.get::<_, Option<i64>>(6)? {
            None => None,
            Some(committed) => Some(GroupCursor {
                committed,
                epoch: row.get(7)?,
                owner: row.get(8)?,
                crashes: row.get(9)?,
                taken_at: row.get(10)?,
            }),
        };
        Ok(PartitionRow {
            id: row.get(0)?,
            number: row.get(1)?,
            first: row.get(2)?,
            next: row.get(3)?,
            created_at: row.get(4)?,
            since: row.get(5)?,
            place,
        })
    })?;
    rows.collect()
}

/// Takes a partition: the epoch grows, and with it the former owner is fenced.
fn take(
    tx: &Transaction<'_>,
    beat: &Beat,
    topic: &Arc<str>,
    row: &PartitionRow,
) -> rusqlite::Result<TakenPartition> {
    let start = match beat.start_from {
        // A topic that was made after the group began to wait for it is read from its beginning: "from now
        // on" was then.
        StartFrom::Latest if row.created_at <= row.since => row.next,
        _ => row.first,
    };
    let (committed, epoch, crashes) = row.place.as_ref().map_or((start, 1, 0), |place| {
        let crashes = match &place.owner {
            // Given back: whatever was written down then.
            None => place.crashes,
            Some(_) if place.committed == place.taken_at => place.crashes + 1,
            Some(_) => 1,
        };
        (place.committed, place.epoch + 1, crashes)
    });
    let sql = "insert into positions (grp, partition, committed, epoch, owner, crashes, taken_at)
               values (?1, ?2, ?3, ?4, ?5, ?6, ?3)
               on conflict do update set epoch = excluded.epoch, owner = excluded.owner, crashes = excluded.crashes,
                                         taken_at = excluded.taken_at";
    tx.prepare_cached(sql)?.execute(params![beat.group, row.id, committed, epoch, beat.member, crashes])?;
    Ok(TakenPartition {
        topic: Arc::clone(topic),
        number: row.number,
        held: Held { row: row.id, epoch, committed },
        first: row.first,
        next: row.next,
        crashes: u32::try_from(crashes).unwrap_or(u32::MAX),
    })
}
