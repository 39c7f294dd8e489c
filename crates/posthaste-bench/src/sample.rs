//! Looking at the relay from outside: what the kernel says of its process, and what its receipts say of its
//! work.
//!
//! Receipts carry the database's time, so the length of a drain is exact although it is only looked at every
//! twenty milliseconds. And they are a double entry: each says how many rows of which segment it covers and
//! the sum of a hash of their numbers. When both sums equal those of the log itself, the relay has settled
//! exactly these rows, each once. That is how a drain to the null sink is verified.

use super::ground::BenchOutbox;
use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Client;

/// How often Linux counts a process's time, on every machine that we know (proc_pid_stat(5)).
const TICKS_PER_S: f64 = 100.0;

/// What a process has used so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessUsage {
    pub(super) cpu_s: f64,
    pub(super) rss_peak_mb: f64,
    /// What it holds now.
    pub(super) rss_mib: f64,
}

impl ProcessUsage {
    /// Of the process with this number.
    pub(super) fn of(pid: u32) -> anyhow::Result<Self> {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/{pid}/{name}"))
                .context("cannot look at the relay's process: /proc is needed, and the relay must be running")
        };
        let usage = parse(&read("stat")?, &read("status")?);
        usage.context("/proc has another form than expected")
    }
}

fn parse(stat: &str, status: &str) -> Option<ProcessUsage> {
    // The name of the program stands in brackets and may hold anything: count from its end.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |n: usize| fields.get(n)?.parse::<f64>().ok();
    let kib = |name: &str| {
        let text = status.lines().find_map(|line| line.strip_prefix(name))?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(ProcessUsage {
        cpu_s: (ticks(11)? + ticks(12)?) / TICKS_PER_S,
        rss_peak_mb: kib("VmHWM:")? * 1024.0 / 1e6,
        rss_mib: kib("VmRSS:")? / 1024.0,
    })
}

/// What a sink's receipts say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Covered {
    /// Rows that are settled.
    pub(super) rows: u64,
    /// A lane has been taken.
    pub(super) taken: bool,
}

/// How far a sink is. One short statement over its receipts.
pub(super) async fn covered(client: &Client, schema: &str, sink: &str) -> anyhow::Result<Covered> {
    let sql = format!(
        "select coalesce(sum((select sum(c) from unnest(counts) c)), 0)::bigint, bool_or(kind = 'takeover')
           from {schema}.receipts where sink = $1"
    );
    let row = client.query_one(&sql, &[&sink]).await?;
    let rows: i64 = row.get(0);
    Ok(Covered { rows: rows as u64, taken: row.get::<_, Option<bool>>(1).unwrap_or(false) })
}

/// The first moment of a drain and its last, by the database's clock, in microseconds.
pub(super) async fn span(client: &Client, schema: &str, sink: &str, rows: u64) -> anyhow::Result<Duration> {
    let sql = format!(
        "select kind = 'takeover', (extract(epoch from settled_at) * 1e6)::bigint,
                coalesce((select sum(c) from unnest(counts) c), 0)::bigint
           from {schema}.receipts where sink = $1 order by settled_at"
    );
    let (mut from, mut covered) = (None, 0);
    for row in client.query(&sql, &[&sink]).await? {
        let (takeover, at, count): (bool, i64, i64) = (row.get(0), row.get(1), row.get(2));
        if takeover && from.is_none() {
            from = Some(at);
        }
        covered += count as u64;
        if let Some(from) = from.filter(|_| covered >= rows) {
            return Ok(Duration::from_micros((at - from).max(1) as u64));
        }
    }
    bail!("the receipts cover {covered} of {rows} events")
}

/// Compares a sink's receipts with the log, row for row. Answers with the number of events settled, each
/// exactly once.
pub(super) async fn audit(client: &Client, schema: &str, sink: &str) -> anyhow::Result<u64> {
    // The hash of the receipts, which the store's own audit of a segment uses too.
    let sql = format!(
        "with log as (select segment, count(*) as rows, sum((seq % 2147483647) * 48271 % 2147483647) as hash
                        from {schema}.outbox group by segment),
              covered as (select u.segment, sum(u.rows) as rows, sum(u.hash) as hash
                            from {schema}.receipts r, unnest(r.segments, r.counts, r.sums) u (segment, rows, hash)
                           where r.sink = $1 group by u.segment)
         select coalesce(sum(log.rows), 0)::bigint, coalesce(sum(c.rows), 0)::bigint,
                coalesce(bool_and(log.rows = c.rows and log.hash = c.hash), false),
                (select count(*) from {schema}.deferred where sink = $1),
                (select count(*) from {schema}.dead_letters where sink = $1)
           from log full join covered c using (segment)"
    );
    let row = client.query_one(&sql, &[&sink]).await?;
    let (log, settled, equal): (i64, i64, bool) = (row.get(0), row.get(1), row.get(2));
    let (deferred, dead): (i64, i64) = (row.get(3), row.get(4));
    if deferred > 0 || dead > 0 {
        bail!("{deferred} events are deferred and {dead} are dead, so the drain was none: look with --keep");
    }
    if !equal {
        bail!("the log has {log} rows, and the receipts say that {settled} were settled");
    }
    Ok(log as u64)
}

/// Counts what the server does for everybody in this database.
pub(super) enum Counter {
    /// By pg_stat_statements in this schema, quoted: statements, exactly.
    Statements(String),
    /// By the statistics of the database: transactions, a second late. Several statements may be in one.
    Transactions,
}

impl Counter {
    /// The better one that there is. The extension is made in our schema, and goes with it.
    pub(super) async fn find(ground: &BenchOutbox) -> Self {
        let make = format!("create extension if not exists pg_stat_statements schema {}", ground.schema);
        // It may be there already, or not be ours to make.
        let _ = ground.client.batch_execute(&make).await;
        let place =
            "select quote_ident(n.nspname) from pg_extension e join pg_namespace n on n.oid = e.extnamespace
                      where e.extname = 'pg_stat_statements'";
        let Ok(Some(row)) = ground.client.query_opt(place, &[]).await else { return Self::Transactions };
        let statements = Self::Statements(row.get(0));
        // Without its library in the server it exists, but cannot be read.
        if statements.read(ground).await.is_ok() { statements } else { Self::Transactions }
    }

    /// How often each statement has run, by its text.
    pub(super) async fn read(&self, ground: &BenchOutbox) -> anyhow::Result<BTreeMap<String, i64>> {
        let sql = match self {
            Self::Statements(schema) => format!(
                "select left(regexp_replace(s.query, '\\s+', ' ', 'g'), 200), sum(s.calls)::bigint
                   from {schema}.pg_stat_statements s join pg_database d on d.oid = s.dbid
                  where d.datname = current_database() and s.query not like '%pg_stat_statements%' group by 1"
            ),
            Self::Transactions => "select 'all', xact_commit + xact_rollback from pg_stat_database
                                    where datname = current_database()"
                .to_owned(),
        };
        let rows = ground.client.query(&sql, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Whether only those connections are counted that ask for it.
    pub(super) async fn is_on_demand(&self, ground: &BenchOutbox) -> anyhow::Result<bool> {
        let sql = "select current_setting('pg_stat_statements.track', true) = 'none'";
        let track: Option<bool> = ground.client.query_one(sql, &[]).await?.get(0);
        Ok(matches!(self, Self::Statements(_)) && track == Some(true))
    }

    pub(super) fn words(&self) -> &'static str {
        match self {
            Self::Statements(_) => "by pg_stat_statements",
            Self::Transactions => "transactions, by pg_stat_database: pg_stat_statements is not loaded",
        }
    }
}

/// The value below which this part of the sorted values lies (nearest rank).
pub(super) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// Sorted, for [`quantile`].
pub(super) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_by_its_two_files() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 3 0";
        let usage = parse(stat, "Name:\tx\nVmHWM:\t   62500 kB\nVmRSS:\t 2048 kB\n").expect("parses");
        assert_eq!((usage.cpu_s, usage.rss_peak_mb, usage.rss_mib), (2.0, 64.0, 2.0));
        assert!(ProcessUsage::of(std::process::id()).is_ok());
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = sorted((1..=100).rev().map(f64::from).collect());
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|part| quantile(&values, part)), [1.0, 50.0, 99.0, 100.0]);
        assert_eq!(quantile(&[7.0], 0.5), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
