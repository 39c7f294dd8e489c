//! Partitions: who has one, how far it is decided, and how former owners ended.

use super::apply::transact;
use super::{InboxSetup, LIFE};
use crate::clock::now;
use posthaste::Timestamp;
use posthaste::consumer::store::{
    ConsumerControls, InboxError, ProcessReport, SavedPosition, Saving, Taken, Taking,
};
use posthaste::source::Partition;
use posthaste::store::{Deaths, reach};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use std::time::Duration;

pub(super) fn take(
    connection: &mut Connection,
    setup: &InboxSetup,
    partitions: &[Partition],
    member: &str,
) -> Result<Taking, InboxError> {
    let taken = transact(connection, |tx| {
        partitions.iter().map(|partition| take_one(tx, setup, partition, member)).collect()
    })?;
    Ok(Taking { witness: LIFE, taken })
}

/// What a partition's row says of its last owner.
struct Former {
    is_alive: bool,
    clean: bool,
    /// How long it had it, if it was given back.
    held: Duration,
    in_hand: Option<i64>,
    deaths: Deaths,
}

fn take_one(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    partition: &Partition,
    member: &str,
) -> rusqlite::Result<Taken> {
    let (consumer, topic) = (&setup.consumer, &*partition.topic);
    let make = include_str!("../../sql/consumer/make_partition.sql");
    tx.prepare_cached(make)?.execute(params![consumer, topic, partition.number])?;
    let sql = include_str!("../../sql/consumer/partition.sql");
    let read = |row: &Row<'_>| {
        let owner: Option<String> = row.get("owner")?;
        let former = Former {
            is_alive: owner.as_deref() == Some(member),
            clean: row.get("clean")?,
            held: between(row.get("taken_at")?, row.get("saved_at")?),
            in_hand: row.get("in_hand")?,
            deaths: Deaths {
                unclean: row.get("unclean")?,
                place: row.get("unclean_position")?,
                suspect: row.get::<_, Option<i64>>("suspect")?.zip(row.get("suspect_deaths")?),
            },
        };
        let taken = Taken {
            partition: partition.clone(),
            position: row.get("position")?,
            position_time: row.get::<_, Option<i64>>("position_time")?.map(Timestamp),
            log_id: row.get("log_id")?,
            seeks: row.get("seeks")?,
            care: Default::default(),
            knows_topic: row.get("knows_topic")?,
        };
        Ok((former, taken))
    };
    let (former, mut taken) =
        tx.prepare_cached(sql)?.query_row(params![consumer, topic, partition.number], read)?;
    let place = taken.position.unwrap_or(0);
    let (deaths, in_hand) = match former {
        Former { clean: true, held, deaths, .. } => (deaths.given_back(place, held, reach(1)), None),
        // It takes anew what is its own, and lives.
        Former { is_alive: true, deaths, .. } => (deaths, None),
        Former { in_hand, deaths, .. } => (deaths.and_one(place, in_hand, reach(1)), in_hand),
    };
    taken.care = deaths.care(in_hand);
    let (suspect, charged) = deaths.suspect.unzip();
    tx.prepare_cached(include_str!("../../sql/consumer/take.sql"))?.execute(params![
        consumer,
        topic,
        partition.number,
        member,
        now(),
        deaths.unclean,
        deaths.place,
        suspect,
        charged.unwrap_or(0),
    ])?;
    Ok(taken)
}

fn between(from: Option<i64>, until: Option<i64>) -> Duration {
    let micros = from.zip(until).map_or(0, |(from, until)| until.saturating_sub(from));
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn save(
    connection: &mut Connection,
    setup: &InboxSetup,
    member: &str,
    positions: &[SavedPosition],
    report: Option<&ProcessReport>,
) -> Result<Saving, InboxError> {
    transact(connection, |tx| write(tx, setup, member, positions, report))
}

fn write(
    tx: &Transaction<'_>,
    setup: &InboxSetup,
    member: &str,
    positions: &[SavedPosition],
    report: Option<&ProcessReport>,
) -> rusqlite::Result<Saving> {
    let mut saving = Saving::default();
    let found = include_str!("../../sql/consumer/found.sql");
    for saved in positions {
        let Partition { topic, number } = &saved.partition;
        tx.prepare_cached(include_str!("../../sql/consumer/save.sql"))?.execute(params![
            setup.consumer,
            &**topic,
            number,
            saved.position,
            saved.position_time.map(|at| at.0),
            saved.log_id,
            now(),
            member,
            saved.in_hand,
            saved.release,
            saved.seeks,
        ])?;
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found = tx.prepare_cached(found)?.query_row(params![setup.consumer, &**topic, number], read);
        // A row that somebody took away is one that must be taken anew.
        let (seeks, is_owned) = found.optional()?.unwrap_or((-1, false));
        saving.seeks.push(seeks);
        saving.owned.push(is_owned);
    }
    if let Some(report) = report {
        crate::log::store::write_report(tx, report)?;
    }
    let controls = include_str!("../../sql/consumer/control.sql");
    let read = |row: &Row<'_>| Ok(ConsumerControls { paused: row.get(0)?, rate_limit: row.get(1)? });
    let set = tx
        .prepare_cached(controls)?
        .query_row(rusqlite::params![&setup.consumer, crate::clock::now()], read)
        .optional()?;
    saving.controls = set.unwrap_or_default();
    Ok(saving)
}
