//! One key that has fallen behind: many of its messages are deferred, and more of it come beside all others.
//!
//! The deferred ones are written by SQL as the consumer would have left them. The key is free when none is
//! left; until then whatever comes of it goes behind them.

use super::plan::{Mode, ModePlan};
use super::{ConsumeArgs, PARTITIONS, effects, judge};
use crate::Bench;
use crate::load::TOPIC;
use crate::output::remark;
use crate::report::Report;
use crate::yard::Yard as _;
use crate::yard::kafka::KafkaYard;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

const KEY: &str = "hot";
/// Deferred messages of the key, and how many more come in a second.
const DEFERRED: u64 = 100_000;
const HOT_PER_S: f64 = 1_000.0;
/// How long more come.
const SECONDS: f64 = 60.0;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// `judged`: with all of them, and for as long as it says here.
pub(super) async fn run(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    yard: &mut KafkaYard,
    (batch_per_s, judged): (f64, bool),
    report: &mut Report,
) -> anyhow::Result<effects::Wrong> {
    let (deferred, seconds) = if judged { (DEFERRED, SECONDS) } else { (DEFERRED / 500, 1.0) };
    yard.clear(None).await?;
    let (client, schema) = (&bench.ground.client, &bench.ground.schema);
    effects::clear(client, schema).await?;
    let per_s = HOT_PER_S + batch_per_s / 2.0;
    let more = (per_s * seconds) as u64;
    let mut plan = ModePlan { messages: deferred + more, ..super::plan(bench, args, Mode::Hot, 0)? };
    plan.settings.deferred_max = plan.messages;
    super::show(&plan)?;
    defer(bench, &plan, deferred).await?;

    let source = "bench".into();
    let is_hot = |n: u64| (n as f64 * HOT_PER_S / per_s).fract() < HOT_PER_S / per_s;
    let message = |n: u64| {
        let mut message = crate::baseline::message(&bench.load, deferred + n, &source);
        if is_hot(n) {
            message.stored.event.key = Some(KEY.to_owned());
        }
        (n as f64 / per_s, message)
    };
    let watching = async {
        until(client, &format!("select count(position) = {PARTITIONS} from {schema}.inbox_partitions"))
            .await?;
        let began = Instant::now();
        let others = async {
            yard.send_paced((0..more).map(message)).await?;
            let sql = format!("select count(*) from {schema}.effects where key <> '{KEY}'");
            Ok::<i64, anyhow::Error>(client.query_one(&sql, &[]).await?.get(0))
        };
        let free = async {
            until(client, &format!("select not exists (select from {schema}.inbox_deferred)")).await?;
            Ok(began.elapsed().as_secs_f64())
        };
        tokio::try_join!(others, free)
    };
    let (measured, (others, free_s)) = tokio::try_join!(plan.measure(&bench.scratch), watching)?;
    remark(&format!("bench: hot: the key is free after {free_s:.1} s"));
    let sent = (0..more).filter(|n| !is_hot(*n)).count() as f64;
    report.figure("hot_others_per_s", sent / seconds, "offered on other keys: half of batch");
    let words = "part of them that is done in the same time";
    judge(report, judged, ("hot_others_ratio", others as f64 / sent, words), 0.9..f64::MAX);
    let words = "until nothing of the key is deferred any more";
    judge(report, judged, ("hot_free_s", free_s, words), 0.0..60.0);
    let words = "resident memory at its peak";
    judge(report, judged, ("hot_rss_peak_mb", measured.rss_peak_mb, words), 0.0..80.0);
    effects::audit(client, schema, plan.messages, 0).await
}

/// Messages of the key as if the first of them had failed and the others had come behind it.
async fn defer(bench: &Bench<'_>, plan: &ModePlan, messages: u64) -> anyhow::Result<()> {
    let (schema, load) = (&bench.ground.schema, &bench.load);
    let ids: Vec<String> = (0..messages).map(|n| load.id(n).to_string()).collect();
    let sql = format!(
        "with m as (select * from unnest($2::text[]) with ordinality as m (id, n)),
              marks as (insert into {schema}.inbox (consumer, message_id, topic, partition, outcome)
                        select $1, id, '{TOPIC}', 0, 'w' from m)
         insert into {schema}.inbox_deferred
                (consumer, message_id, topic, partition, key, order_id, headers, payload, reason, holds, due_at)
         select $1, id, '{TOPIC}', 0, '{KEY}', encode(substr(sha256('key{KEY}'), 1, 16), 'hex')::uuid,
                jsonb_build_array(jsonb_build_array('Message-ID', id)), $3, 'failed', true,
                case when n = 1 then now() else 'infinity' end
           from m order by n"
    );
    let payload = load.payload(0);
    bench.ground.client.execute(&sql, &[&plan.consumer, &ids, &&*payload]).await?;
    Ok(())
}

/// Asks until the answer is yes.
async fn until(client: &Client, sql: &str) -> anyhow::Result<()> {
    while !client.query_one(sql, &[]).await?.get::<_, bool>(0) {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
