//! Jobs by the API: one without a rate, one with a rate that is cancelled, and whether the letters went where
//! they had to.

use super::ApiArgs;
use super::asker::Asker;
use super::daemon::{ApiDaemon, SINK, check_progress};
use super::fill::ApiField;
use super::looks::{OUTBOX, causes};
use crate::judge::{Judge, Target};
use anyhow::{Context as _, bail, ensure};
use posthaste::Timestamp;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Between two looks at a job: less than a tenth of the time between two of its chunks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(15);
/// How long a job may stand still.
const PATIENCE: Duration = Duration::from_secs(60);
/// A job that was cancelled is looked at for so long, whether it goes on all the same.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// What the jobs did.
pub(super) struct Jobs {
    letters: u64,
    letters_per_s: f64,
    delivered_s: f64,
    rate_per_s: f64,
    cancel_ms: f64,
    wrong: i64,
}

impl Jobs {
    pub(super) fn figures(&self, judge: &mut Judge<'_>, args: &ApiArgs) {
        judge.report.fact("job_letters", self.letters, "of one cause, by a job without a rate");
        let words = "letters of it, from its start to its end by the database's clock";
        judge.target("job_letters_per_s", self.letters_per_s, Target::Least(5_000.0), words);
        judge.report.figure("job_delivered_s", self.delivered_s, "request → the relay has delivered them");
        let rate = args.job_rate as f64;
        let words = "letters of a job with a rate, between its first chunk and its last";
        judge.target("job_rate_per_s", self.rate_per_s, Target::Within(rate * 0.95, rate * 1.05), words);
        let words = "request → cancelled, and nothing is done any more";
        judge.target("job_cancel_ms", self.cancel_ms, Target::Most(1_000.0), words);
        let words = "letters that are neither delivered nor where they were";
        judge.target("job_letters_wrong", self.wrong as f64, Target::Most(0.0), words);
    }
}

/// A job as it was seen.
struct JobSeen {
    state: String,
    done: u64,
    left_alone: u64,
    took: Option<Duration>,
}

impl JobSeen {
    async fn look(asker: &Asker, job: i64) -> anyhow::Result<Self> {
        let seen = asker.look(&format!("{OUTBOX}/jobs/{job}")).await?;
        let moment = |name: &str| serde_json::from_value::<Timestamp>(seen[name].clone()).ok();
        let took = moment("started_at").zip(moment("ended_at"));
        Ok(Self {
            state: seen["state"].as_str().context("a job without a state")?.to_owned(),
            done: seen["done"].as_u64().context("a job without its progress")?,
            left_alone: seen["left_alone"].as_u64().unwrap_or(0),
            took: took.map(|(start, end)| Duration::from_micros((end.0 - start.0).max(1) as u64)),
        })
    }

    fn is_over(&self) -> bool {
        matches!(&*self.state, "done" | "failed" | "cancelled")
    }
}

async fn begin(asker: &Asker, fingerprint: &str, rate: Option<u64>) -> anyhow::Result<i64> {
    let mut body = json!({ "kind": "dead.replay", "filter": { "fingerprint": fingerprint } });
    if let Some(rate) = rate {
        body["rate_per_s"] = json!(rate as f64);
    }
    let job: Value = asker.act(&format!("{OUTBOX}/jobs"), body).await?;
    job["job"].as_i64().with_context(|| format!("a job without a number: {job}"))
}

/// Both jobs, on the two most frequent causes.
pub(super) async fn run(field: &ApiField<'_>, daemon: &ApiDaemon) -> anyhow::Result<Jobs> {
    let (asker, args) = (daemon.asker()?, field.args);
    let causes = causes(asker).await?;
    let asked = Instant::now();
    let (letters, took) = replay(asker, &causes[0].fingerprint).await?;
    ensure!(letters == causes[0].letters, "{letters} letters of {} were replayed", causes[0].letters);
    settled(field, letters).await?;
    let delivered_s = asked.elapsed().as_secs_f64();
    let job = begin(asker, &causes[1].fingerprint, Some(args.job_rate)).await?;
    let rate_per_s = paced(asker, job, Duration::from_secs(args.job_seconds)).await?;
    let (cancel_ms, done) = cancel(asker, job).await?;
    let wrong = settled(field, letters + done).await?;
    let letters_per_s = letters as f64 / took.as_secs_f64();
    Ok(Jobs { letters, letters_per_s, delivered_s, rate_per_s, cancel_ms, wrong })
}

/// To its end: how many letters, and how long by the database's clock.
async fn replay(asker: &Asker, fingerprint: &str) -> anyhow::Result<(u64, Duration)> {
    let job = begin(asker, fingerprint, None).await?;
    let (mut done, mut since) = (0, Instant::now());
    loop {
        let seen = JobSeen::look(asker, job).await?;
        if seen.is_over() {
            ensure!(seen.state == "done" && seen.left_alone == 0, "the job is {}", seen.state);
            return Ok((seen.done, seen.took.context("a job that is done has no end")?));
        }
        if seen.done != done {
            (done, since) = (seen.done, Instant::now());
        }
        check_progress(since, PATIENCE, "the job")?;
        tokio::time::sleep(BETWEEN_LOOKS).await; // pace
    }
}

/// Letters a second between the first chunk that was seen and the last one.
async fn paced(asker: &Asker, job: i64, time: Duration) -> anyhow::Result<f64> {
    let (mut first, mut last, begun) = (None, (Instant::now(), 0), Instant::now());
    while first.is_none_or(|(at, _): (Instant, u64)| at.elapsed() < time) {
        let seen = JobSeen::look(asker, job).await?;
        if seen.is_over() {
            bail!("the job with a rate is {} before it was cancelled: it has too few letters", seen.state);
        }
        if seen.done > last.1 {
            last = (Instant::now(), seen.done);
            first.get_or_insert(last);
        }
        if first.is_none() {
            check_progress(begun, PATIENCE, "the job with a rate")?;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await; // pace
    }
    let Some((at, done)) = first else { bail!("the job with a rate did nothing") };
    Ok((last.1 - done) as f64 / (last.0 - at).as_secs_f64())
}

/// Cancels it. The milliseconds until nothing more is done, and how many were.
async fn cancel(asker: &Asker, job: i64) -> anyhow::Result<(f64, u64)> {
    let asked = Instant::now();
    asker.act(&format!("{OUTBOX}/jobs/{job}/cancel"), json!({})).await?;
    let (mut over, mut moved, mut done) = (None, asked, 0);
    while asked.elapsed() < PATIENCE {
        let seen = JobSeen::look(asker, job).await?;
        if seen.is_over() {
            over.get_or_insert(Instant::now());
        }
        if seen.done != done {
            (moved, done) = (if done == 0 { moved } else { Instant::now() }, seen.done);
        }
        if over.is_some_and(|at| at.elapsed() > AFTERWARDS) {
            break;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await; // pace
    }
    let over = over.context("the job goes on although it was cancelled")?;
    Ok(((over.max(moved) - asked).as_secs_f64() * 1e3, done))
}

/// Waits until what was replayed is delivered. Rows that are not what they have to be then.
async fn settled(field: &ApiField<'_>, replayed: u64) -> anyhow::Result<i64> {
    let ground = field.bench.ground;
    let sql = format!(
        "select (select count(*) from {0}.deferred where sink = $1),
                (select count(*) from {0}.dead_letters where sink = $1)",
        ground.schema
    );
    let rows = field.args.rows as i64;
    let (mut before, mut since) = (0, Instant::now());
    loop {
        let row = ground.client.query_one(&sql, &[&SINK]).await?;
        let (deferred, dead): (i64, i64) = (row.get(0), row.get(1));
        let wrong = (deferred - rows).abs() + (dead - (rows - replayed as i64)).abs();
        if wrong == 0 || since.elapsed() > PATIENCE {
            return Ok(wrong);
        }
        if wrong != before {
            (before, since) = (wrong, Instant::now());
        }
        tokio::time::sleep(BETWEEN_LOOKS * 4).await; // pace
    }
}
