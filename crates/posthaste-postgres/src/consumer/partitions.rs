//! Taking partitions, and T4: saving positions.

use super::columns::count;
use super::{End, PostgresInbox, witness};
use crate::row::Micros;
use crate::session::{Param, params};
use posthaste::consumer::store::{
    ConsumerControls, InboxError, ProcessReport, SavedPosition, Saving, Taken, Taking, Witness,
};
use posthaste::event::Timestamp;
use posthaste::source::Partition;
use posthaste::store::{Deaths, reach};
use std::time::Duration;
use tokio_postgres::Row;

impl PostgresInbox {
    pub(super) async fn take_partitions(
        &self,
        partitions: &[Partition],
        member: &str,
    ) -> Result<Taking, InboxError> {
        self.check_topics(partitions)?;
        self.transact_alone(async |tx| {
            let consumer = &*self.consumer;
            let topics: Vec<&str> = partitions.iter().map(|partition| &*partition.topic).collect();
            let numbers: Vec<i32> = partitions.iter().map(|partition| partition.number).collect();
            let params = params![TEXT consumer, TEXT_ARRAY topics, INT4_ARRAY numbers];
            tx.query(&self.statements.make, params).await?;
            let rows = tx.query(&self.statements.take_lock, params).await?;
            let found: Vec<(Taken, Deaths)> = rows.iter().map(|row| taken(row, member)).collect();
            let deaths: Vec<&Deaths> = found.iter().map(|(_, deaths)| deaths).collect();
            let params = params![
                TEXT consumer, TEXT member,
                TEXT_ARRAY found.iter().map(|(taken, _)| &*taken.partition.topic).collect::<Vec<_>>(),
                INT4_ARRAY found.iter().map(|(taken, _)| taken.partition.number).collect::<Vec<_>>(),
                INT4_ARRAY deaths.iter().map(|deaths| count(deaths.unclean)).collect::<Vec<_>>(),
                INT8_ARRAY deaths.iter().map(|deaths| deaths.place).collect::<Vec<_>>(),
                INT8_ARRAY deaths.iter().map(|deaths| deaths.suspect.map(|(at, _)| at)).collect::<Vec<_>>(),
                INT4_ARRAY deaths.iter().map(|deaths| deaths.suspect.map_or(0, |(_, n)| count(n))).collect::<Vec<_>>(),
            ];
            tx.query(&self.statements.take, params).await?;
            let in_order = partitions.iter().filter_map(|partition| {
                found.iter().map(|(taken, _)| taken).find(|taken| taken.partition == *partition).cloned()
            });
            let witness = rows.first().map(witness).unwrap_or_default();
            Ok((Taking { witness, taken: in_order.collect() }, End::Commit))
        })
        .await
    }

    pub(super) async fn save_positions(
        &self,
        member: &str,
        made_under: Witness,
        positions: &[SavedPosition],
        report: Option<&ProcessReport>,
    ) -> Result<Saving, InboxError> {
        let consumer = &*self.consumer;
        let topics: Vec<&str> = positions.iter().map(|saved| &*saved.partition.topic).collect();
        let numbers: Vec<i32> = positions.iter().map(|saved| saved.partition.number).collect();
        let says =
            |saved: &SavedPosition| saved.position.is_some() || saved.in_hand.is_some() || saved.release;
        if report.is_none() && !positions.iter().any(says) {
            let places = params![TEXT consumer, TEXT_ARRAY topics, INT4_ARRAY numbers];
            let rows = self.look(&self.statements.controls, places).await?;
            return Ok(rows.first().map(saving).unwrap_or_default());
        }
        self.transact_alone(async |tx| {
            let made_under = made_under.0.map(|at| at.0);
            let places = params![TEXT consumer, TEXT_ARRAY topics, INT4_ARRAY numbers];
            if !positions.is_empty() {
                tx.query(&self.statements.save_lock, places).await?;
            }
            let times: Vec<Option<i64>> =
                positions.iter().map(|saved| saved.position_time.map(|at| at.0)).collect();
            let rest = params![
                INT8_ARRAY positions.iter().map(|saved| saved.position).collect::<Vec<_>>(),
                INT8_ARRAY times,
                TEXT_ARRAY positions.iter().map(|saved| saved.log_id.as_deref()).collect::<Vec<_>>(),
                INT8_ARRAY positions.iter().map(|saved| saved.in_hand).collect::<Vec<_>>(),
                INT8_ARRAY positions.iter().map(|saved| saved.seeks).collect::<Vec<_>>(),
                BOOL_ARRAY positions.iter().map(|saved| saved.release).collect::<Vec<_>>(), TEXT member,
                INT8 made_under,
            ];
            let params: Vec<Param<'_>> = places.iter().chain(rest).cloned().collect();
            let rows = tx.query(&self.statements.save, &params).await?;
            self.trace_positions(tx, places).await?;
            if let Some(report) = report {
                // A zero byte is text for others, and JSON that PostgreSQL refuses.
                let text = report.report.replace("\\u0000", "\\ufffd");
                let params = params![
                    TEXT report.process, TEXT report.role, TEXT report.name, TEXT report.version,
                    TEXT report.host, INT8 report.started_at.0, TEXT text,
                ];
                tx.query(&self.statements.report, params).await?;
            }
            Ok((rows.first().map(saving).unwrap_or_default(), End::Commit))
        })
        .await
    }
}

/// What operators want.
fn saving(row: &Row) -> Saving {
    Saving {
        witness: witness(row),
        seeks: row.get("seeks"),
        owned: row.get("owned"),
        controls: ConsumerControls { paused: row.get("paused"), rate_limit: row.get("rate_limit") },
    }
}

/// A partition as it is found, and the deaths that the next owner starts with.
fn taken(row: &Row, member: &str) -> (Taken, Deaths) {
    let (owner, position): (Option<&str>, Option<i64>) = (row.get("owner"), row.get("position"));
    let number = |name| row.get::<_, i32>(name).unsigned_abs();
    let in_hand: Option<i64> = row.get("in_hand");
    let before = Deaths {
        unclean: number("unclean"),
        place: row.get("unclean_position"),
        suspect: row.get::<_, Option<i64>>("suspect").map(|at| (at, number("suspect_deaths"))),
    };
    // Who takes its own partition once more did not die.
    let place = position.unwrap_or(0);
    let deaths = match owner {
        Some(owner) if owner == member => before,
        Some(_) if !row.get::<_, bool>("clean") => before.and_one(place, in_hand, reach(1)),
        _ => {
            let held = row.get::<_, Option<f64>>("held").unwrap_or(0.0).max(0.0);
            before.given_back(place, Duration::from_secs_f64(held), reach(1))
        }
    };
    let taken = Taken {
        partition: Partition::new(row.get::<_, &str>("topic"), row.get("partition")),
        position,
        position_time: row.get::<_, Option<Micros>>("position_time").map(|at| Timestamp(at.0)),
        log_id: row.get("log_id"),
        seeks: row.get("seeks"),
        care: deaths.care(in_hand),
        knows_topic: row.get("knows_topic"),
    };
    (taken, deaths)
}
