//! The ledger's part about the gateway: what tenants were answered, against what is in the outbox.

use super::ledger::LedgerLine;
use crate::output::thousands as n;
use rusqlite::Connection;
use serde::Serialize;

/// What was counted. What was not answered with 202 must be nowhere, and what was must be there once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct HandedCounts {
    /// Events that a 202 named, and those of them that are not in the outbox.
    answered: u64,
    lost: u64,
    /// Events of the outbox that no 202 named.
    unanswered: u64,
    /// Requests that were refused, by what they were told.
    refused: u64,
    limited: u64,
    /// Refused requests that the gateway remembers as stored.
    remembered: u64,
    /// Events that were handed in again, and steps of orders that are in the outbox twice.
    replayed: u64,
    twice: u64,
}

impl HandedCounts {
    /// `log` has the outbox; the other tables are those of the shop and of the outbox.
    pub(super) fn read(files: &Connection) -> rusqlite::Result<Self> {
        let count = |sql: &str| files.query_row(sql, [], |row| row.get::<_, u64>(0));
        files.execute_batch(
            "create temp table named as select replace(event_id, '-', '') as id, replayed from handed_in;
             create index temp.named_id on named (id);",
        )?;
        Ok(Self {
            answered: count("select count(*) from named")?,
            lost: count("select count(*) from named where id not in (select id from log)")?,
            unanswered: count("select count(*) from log where id not in (select id from named)")?,
            refused: count("select count(*) from rolled_back where tx <> 429")?,
            limited: count("select count(*) from rolled_back where tx = 429")?,
            remembered: count(
                "select count(*) from rolled_back
                  where event_id in (select key from shop.posthaste_gateway_requests)",
            )?,
            replayed: count("select count(*) from named where replayed")?,
            twice: count(
                "select (select count(*) from named) - (select count(distinct id) from named)
                      + (select count(*) from (select 1 from log group by key, headers ->> '$.type' having count(*) > 1))",
            )?,
        })
    }

    pub(super) fn lines(&self) -> [LedgerLine; 3] {
        let line = |guarantee, text, holds| LedgerLine { guarantee, text, holds };
        [
            line(
                "W1",
                format!(
                    "answered with 202: {} events; lost {}; stored without it {}",
                    n(self.answered),
                    n(self.lost),
                    n(self.unanswered)
                ),
                self.answered > 0 && self.lost == 0 && self.unanswered == 0,
            ),
            line(
                "W2",
                format!(
                    "requests refused {}, with 429 another {}; of them stored {}",
                    n(self.refused),
                    n(self.limited),
                    n(self.remembered)
                ),
                self.remembered == 0,
            ),
            line(
                "W4",
                format!("events handed in again {}; stored twice {}", n(self.replayed), n(self.twice)),
                self.twice == 0,
            ),
        ]
    }

    /// All of them break it.
    #[cfg(test)]
    pub(super) fn broken() -> Vec<Self> {
        let good = Self { answered: 9, ..Self::default() };
        vec![
            Self::default(),
            Self { lost: 1, ..good.clone() },
            Self { unanswered: 1, ..good.clone() },
            Self { remembered: 1, ..good.clone() },
            Self { twice: 1, ..good },
        ]
    }
}
