//! The claim at a small backlog and at a large one: the same plan, and nearly the same time.
//!
//! It is the relay's own statement, run in transactions that are rolled back, and the median of its times
//! counts. How many rows it takes is the same in both.

use super::super::Bench;
use super::super::report::Report;
use super::super::sample::{quantile, sorted};
use super::table::{AdoptedTable, MARKED, claim_with};
use anyhow::bail;
use posthaste::route::Filter;
use posthaste_postgres::claim;
use serde_json::json;
use std::time::Instant;
use tokio_postgres::types::Type;

/// Claims that are timed.
const TIMES: usize = 41;

/// What the relay's sessions on an adopted table are set to, as far as plans are concerned.
const SESSION: &str = "set enable_seqscan = off; set enable_bitmapscan = off; set max_parallel_workers_per_gather = 0; \
                       set jit = off; set plan_cache_mode = force_custom_plan";

struct Claim {
    plan: String,
    median_ms: f64,
}

pub(super) async fn run(
    bench: &Bench<'_>,
    report: &mut Report,
    small: u64,
    large: u64,
) -> anyhow::Result<()> {
    bench.ground.fill(&bench.load, 0..large).await?;
    let few = claim_at(bench, small).await?;
    let many = claim_at(bench, large).await?;
    if few.plan != many.plan {
        bail!("the plan changes with the backlog:\n{}\n{}", few.plan, many.plan);
    }
    report.fact("backlog_small", small, "rows that wait");
    report.fact("backlog_large", large, "rows that wait");
    report.figure("claim_ms_small", few.median_ms, "the claim of one batch, median");
    report.figure("claim_ms_large", many.median_ms, "the same");
    report.figure("ratio_claim_ms_large_to_small", many.median_ms / few.median_ms, "of the two");
    report.fact("same_plan", true, "asserted: EXPLAIN of both is the same text");
    report.detail("plan", json!(few.plan.lines().collect::<Vec<_>>()));
    Ok(())
}

async fn claim_at(bench: &Bench<'_>, rows: u64) -> anyhow::Result<Claim> {
    let table = AdoptedTable::make(bench, &MARKED, rows).await?;
    let layout = MARKED.layout(bench)?;
    let statements = claim::statements_for(&bench.ground.postgres, &layout).await?;
    let sql = statements.claim(layout.batch, &Filter::Everything);
    let client = bench.ground.connect().await?;
    client.batch_execute(SESSION).await?;
    let mut times = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        client.batch_execute("begin").await?;
        let started = Instant::now();
        let claimed = claim_with(&client, &sql).await?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
        client.batch_execute("rollback").await?;
        if claimed.len() != layout.batch {
            bail!("a claim got {} rows of {}", claimed.len(), layout.batch);
        }
    }
    let plan = explain(&client, &sql).await?;
    table.drop().await?;
    Ok(Claim { plan, median_ms: quantile(&sorted(times), 0.5) })
}

/// The plan without its costs, which grow with the table.
async fn explain(client: &tokio_postgres::Client, sql: &str) -> anyhow::Result<String> {
    let prepare = format!("deallocate all; prepare claim (int4, text[], text[], text, text, int8) as {sql}");
    client.batch_execute(&prepare).await?;
    let explain = "explain (costs off) execute claim (1048576, '{}', '{}', null, 'bench', 4194304)";
    let rows =
        client.query_typed(explain, &[] as &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)]).await?;
    Ok(rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n"))
}
