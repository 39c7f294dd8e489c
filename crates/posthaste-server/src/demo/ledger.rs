//! The ledger: what became of every event, counted from the files.
//!
//! It knows the databases and nothing else: not how many events were asked for, not what the script
//! believes to have done. Events are compared by their ids, one by one, so that a lost one and an invented
//! one do not make a right sum. [`Counts`] are the queries, [`Ledger::of`] is what they must satisfy; both
//! can be read without the other.

use super::handed::HandedCounts;
use crate::demo::stage::Stage;
use crate::output::thousands;
use rusqlite::Connection;
use serde::Serialize;

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    orders: u64,
    /// Events in the outbox.
    committed: u64,
    /// Orders that have more or fewer events than steps, and events without an order.
    torn: u64,
    rolled_back: u64,
    /// Events of rolled back transactions that are in the outbox, at the broker or in billing.
    risen: u64,
    /// Events of the outbox that are at the broker.
    delivered: u64,
    /// Events of the outbox that are dead letters.
    dead: u64,
    /// Events of the outbox that were dead letters and that somebody discarded.
    discarded: u64,
    /// Events of the outbox that are none of these, or delivered and dead.
    missing: u64,
    doubtful: u64,
    /// Messages at the broker that nobody appended.
    invented: u64,
    /// First deliveries of a key that came before an earlier event of it: at the broker, in billing.
    unordered_delivered: u64,
    unordered_applied: u64,
    /// Effects in billing.
    applied: u64,
    applied_twice: u64,
    /// Delivered events without an effect, and effects of anything else.
    unapplied: u64,
    refused: u64,
    /// Refused although nothing was decided about it.
    refused_wrongly: u64,
    /// In billing: attempts beyond the first, messages that were deferred, dead letters.
    retried: u64,
    deferred: u64,
    buried: u64,
    /// Messages in billing that were dead letters and that somebody discarded.
    let_go: u64,
    /// Marks of the inbox that say something else than the tables.
    lies: u64,
    cents_delivered: i64,
    cents_booked: i64,
    /// Deferred events and messages.
    waiting: u64,
    /// Lanes of the relay and partitions of the consumer that somebody still owns.
    leases: u64,
    /// With a gateway: what tenants were answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    handed: Option<HandedCounts>,
}

/// One line: a promise, what was counted for it, whether it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LedgerLine {
    pub(crate) guarantee: &'static str,
    pub(crate) text: String,
    pub(crate) holds: bool,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ledger {
    balances: bool,
    pub(crate) lines: Vec<LedgerLine>,
    counts: Counts,
}

impl Ledger {
    /// Counts the files and judges.
    pub(crate) fn count(stage: &Stage) -> anyhow::Result<Self> {
        Ok(Self::of(Counts::read(stage)?))
    }

    pub(crate) fn balances(&self) -> bool {
        self.balances
    }

    /// What the counts mean.
    fn of(c: Counts) -> Self {
        let n = thousands;
        let mut lines = Vec::new();
        let mut line = |guarantee, text, holds| lines.push(LedgerLine { guarantee, text, holds });
        line(
            "G1",
            format!(
                "{} orders and their {} events; one without the other: {}",
                n(c.orders),
                n(c.committed),
                n(c.torn)
            ),
            c.torn == 0 && c.committed > 0,
        );
        match &c.handed {
            None => line(
                "G1",
                format!("rolled back {} events; of them seen anywhere: {}", n(c.rolled_back), n(c.risen)),
                c.risen == 0,
            ),
            Some(handed) => {
                handed.lines().into_iter().for_each(|own| line(own.guarantee, own.text, own.holds))
            }
        }
        line(
            "G2",
            format!(
                "committed {} = delivered {} + dead {}{}",
                n(c.committed),
                n(c.delivered),
                n(c.dead),
                by_hand(c.discarded)
            ),
            c.committed == c.delivered + c.dead + c.discarded && c.missing == 0 && c.doubtful == 0,
        );
        line("G2", format!("delivered, but never appended: {}", n(c.invented)), c.invented == 0);
        line(
            "G2",
            format!(
                "delivered {} = applied {} + dead in billing {}{}",
                n(c.delivered),
                n(c.applied),
                n(c.buried),
                by_hand(c.let_go)
            ),
            c.delivered == c.applied + c.buried + c.let_go,
        );
        line(
            "G3",
            format!(
                "out of their key's order: at the broker {}, in billing {}",
                n(c.unordered_delivered),
                n(c.unordered_applied)
            ),
            c.unordered_delivered == 0 && c.unordered_applied == 0,
        );
        line(
            "G5",
            format!(
                "applied {}, each once; applied twice {}, not applied {}",
                n(c.applied),
                n(c.applied_twice),
                n(c.unapplied)
            ),
            c.applied_twice == 0 && c.unapplied == 0,
        );
        line(
            "G5",
            format!("duplicates that the inbox refused: {}; wrongly: {}", n(c.refused), n(c.refused_wrongly)),
            c.refused_wrongly == 0,
        );
        line(
            "G5",
            format!("money delivered {} = money booked {}", money(c.cents_delivered), money(c.cents_booked)),
            c.cents_delivered == c.cents_booked,
        );
        line(
            "G6",
            format!(
                "billing tried again {}, deferred {}, gave up {}; marks that lie: {}",
                n(c.retried),
                n(c.deferred),
                n(c.buried),
                n(c.lies)
            ),
            c.lies == 0,
        );
        line(
            "G8",
            format!("still waiting {}, leases left behind {}", n(c.waiting), n(c.leases)),
            c.waiting == 0 && c.leases == 0,
        );
        Self { balances: lines.iter().all(|line| line.holds), lines, counts: c }
    }
}

/// What an operator discarded, where somebody did.
fn by_hand(count: u64) -> String {
    if count == 0 { String::new() } else { format!(" + discarded {}", thousands(count)) }
}

fn money(cents: i64) -> String {
    let whole = thousands(cents.unsigned_abs() / 100);
    format!("{}{whole}.{:02}", if cents < 0 { "-" } else { "" }, cents.unsigned_abs() % 100)
}

/// Ids as 32 digits, whatever a file keeps them as: the broker has 16 bytes, the others have text. A key is
/// the order's number: a gateway puts the tenant before it. The shop's tables are where the outbox is, or in
/// a file of its own, so they are named without one.
const PREPARE: &str = "
create temp table log as
  select seq, replace(id, '-', '') as id, substr(key, instr(key, ':') + 1) as key, topic, headers, payload
    from shop.posthaste_outbox;
create unique index temp.log_id on log (id);
create temp table dead as select distinct replace(id, '-', '') as id from shop.posthaste_dead_letters;
create temp table sent as
  select lower(case typeof(id) when 'blob' then hex(id) else replace(id, '-', '') end) as id, min(place) as place
    from broker.messages group by 1;
create unique index temp.sent_id on sent (id);
create temp table booked as
  select replace(event_id, '-', '') as id, min(n) as n, count(*) as times from billing.bookings group by 1;
create unique index temp.booked_id on booked (id);
create temp table buried as
  select replace(message_id, '-', '') as id, attempts from billing.posthaste_inbox_dead_letters;
create unique index temp.buried_id on buried (id);
create temp table discarded as
  select distinct replace(one.value, '-', '') as id
    from shop.posthaste_audit act, json_each(act.detail, '$.ids') one where act.action = 'discard';
delete from discarded where id in (select id from dead) or id in (select id from sent);
create unique index temp.discarded_id on discarded (id);
create temp table marked as select replace(message_id, '-', '') as id, outcome from billing.posthaste_inbox;
create unique index temp.marked_id on marked (id);
create temp table let_go as
  select distinct replace(one.value, '-', '') as id
    from billing.posthaste_audit act, json_each(act.detail, '$.ids') one where act.action = 'discard';
delete from let_go where id in (select id from buried) or id not in (select id from marked where outcome = 'x');
create unique index temp.let_go_id on let_go (id);
create temp table undone as select replace(event_id, '-', '') as id from rolled_back;
";

impl Counts {
    fn read(stage: &Stage) -> anyhow::Result<Self> {
        let files = Connection::open_in_memory()?;
        for (name, path) in
            [("shop", stage.orders()), ("broker", stage.broker()), ("billing", stage.billing())]
        {
            files.execute(&format!("attach ?1 as {name}"), [path.to_string_lossy()])?;
        }
        if stage.has_gateway() {
            files.execute("attach ?1 as till", [stage.till().to_string_lossy()])?;
        }
        files.execute_batch(PREPARE)?;
        let count = |sql: &str| files.query_row(sql, [], |row| row.get::<_, u64>(0));
        let cents = |sql: &str| files.query_row(sql, [], |row| row.get::<_, i64>(0));
        Ok(Self {
            handed: stage.has_gateway().then(|| HandedCounts::read(&files)).transpose()?,
            orders: count("select count(*) from orders")?,
            committed: count("select count(*) from log")?,
            torn: count(
                "select (select count(*) from orders o
                           left join (select key, count(*) as events from log group by key) e on e.key = o.id
                          where o.steps <> coalesce(e.events, 0))
                      + (select count(*) from log where key is null or key not in (select id from orders))",
            )?,
            rolled_back: count("select count(*) from undone")?,
            risen: count(
                "select count(*) from undone where id in (select id from log) or id in (select id from sent)
                     or id in (select id from booked)",
            )?,
            delivered: count("select count(*) from log join sent using (id)")?,
            dead: count("select count(*) from log join dead using (id)")?,
            missing: count(
                "select count(*) from log
                  where id not in (select id from sent union select id from dead union select id from discarded)",
            )?,
            discarded: count("select count(*) from log join discarded using (id)")?,
            doubtful: count("select count(*) from sent join dead using (id)")?,
            invented: count("select count(*) from sent where id not in (select id from log)")?,
            unordered_delivered: count(
                "select count(*) from (
                   select seq, lag(seq) over (partition by key order by place) as earlier from sent join log using (id))
                  where seq < earlier",
            )?,
            unordered_applied: count(
                "select count(*) from (
                   select seq, lag(seq) over (partition by key order by n) as earlier from booked join log using (id))
                  where seq < earlier",
            )?,
            applied: count("select count(*) from billing.bookings")?,
            applied_twice: count("select count(*) from booked where times > 1")?,
            unapplied: count(
                "select (select count(*) from sent where id not in
                             (select id from booked union select id from buried union select id from let_go))
                      + (select count(*) from booked where id not in (select id from sent)
                            or id in (select id from buried union select id from let_go))",
            )?,
            refused: count("select count(*) from billing.refused")?,
            refused_wrongly: count(
                "select count(*) from billing.refused
                  where replace(event_id, '-', '') not in
                        (select id from booked union select id from buried union select id from let_go)",
            )?,
            retried: count(
                "select (select coalesce(sum(attempt - 1), 0) from billing.bookings)
                      + (select coalesce(sum(attempts - 1), 0) from buried)",
            )?,
            // Numbers of the deferred are never drawn twice, and a dead letter has one, too.
            deferred: count(
                "select coalesce((select seq from billing.sqlite_sequence where name = 'posthaste_inbox_deferred'), 0)
                      - (select count(*) from buried)",
            )?,
            buried: count("select count(*) from buried")?,
            let_go: count("select count(*) from let_go")?,
            lies: count(
                "select (select count(*) from marked where outcome = 'd' and id not in (select id from booked))
                      + (select count(*) from booked where id not in (select id from marked where outcome = 'd'))
                      + (select count(*) from marked where outcome = 'x'
                            and id not in (select id from buried union select id from let_go))
                      + (select count(*) from buried where id not in (select id from marked where outcome = 'x'))
                      + (select count(*) from marked where outcome not in ('d', 'x'))",
            )?,
            cents_delivered: cents(
                "select coalesce(sum(cast(payload as text) ->> '$.cents'), 0) from log join sent using (id)",
            )?,
            cents_booked: cents("select coalesce(sum(cents), 0) from billing.accounts")?,
            waiting: count(
                "select (select count(*) from shop.posthaste_deferred)
                      + (select count(*) from billing.posthaste_inbox_deferred)",
            )?,
            leases: count(
                "select (select count(*) from shop.posthaste_lanes where owner is not null)
                      + (select count(*) from broker.positions where owner is not null)
                      + (select count(*) from billing.posthaste_inbox_partitions where not clean)",
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balanced() -> Counts {
        Counts { orders: 3, committed: 9, delivered: 8, dead: 1, applied: 7, buried: 1, ..Counts::default() }
    }

    #[test]
    fn every_number_that_matters_can_break_it() {
        assert!(Ledger::of(Counts { rolled_back: 5, refused: 7, ..balanced() }).balances());
        let broken = [
            Counts { torn: 1, ..balanced() },
            Counts { risen: 1, ..balanced() },
            Counts { delivered: 7, ..balanced() },
            Counts { delivered: 7, missing: 1, invented: 1, ..balanced() },
            Counts { missing: 1, doubtful: 1, ..balanced() },
            Counts { dead: 2, ..balanced() },
            Counts { discarded: 1, ..balanced() },
            Counts { let_go: 1, ..balanced() },
            Counts { invented: 1, ..balanced() },
            Counts { unordered_delivered: 1, ..balanced() },
            Counts { unordered_applied: 1, ..balanced() },
            Counts { applied: 8, applied_twice: 1, ..balanced() },
            Counts { buried: 2, ..balanced() },
            Counts { lies: 1, ..balanced() },
            Counts { unapplied: 1, ..balanced() },
            Counts { refused: 1, refused_wrongly: 1, ..balanced() },
            Counts { cents_booked: 1, ..balanced() },
            Counts { waiting: 1, ..balanced() },
            Counts { leases: 1, ..balanced() },
            Counts::default(),
        ];
        let handed = HandedCounts::broken().into_iter();
        let handed = handed.map(|handed| Counts { handed: Some(handed), ..balanced() });
        for counts in broken.into_iter().chain(handed) {
            assert!(!Ledger::of(counts.clone()).balances(), "{counts:?}");
        }
    }

    #[test]
    fn money_for_people() {
        assert_eq!([0, 7, 123_456, -150].map(money), ["0.00", "0.07", "1,234.56", "-1.50"]);
    }
}
