//! Running a job to its end: chunk after chunk, at its rate.
//!
//! One bad letter stops no job. A chunk that is refused is tried again by halves, down to the one letter that
//! is the reason; that one is left alone with the code of its error. So many in a row that nothing seems to
//! go at all, and the job has failed.
//!
//! A chunk whose outcome is unknown is simply done again: the job's position moved in the same transaction,
//! so the next chunk begins behind whatever was committed.

use super::{CHUNK_MAX, ChunkEnd, JOB_LEASE, JobLease, JobStatus, JobStore, answer_max};
use crate::admin::error::AdminError;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// Refused one after another: then it is not the letters.
const REFUSED_MAX: u32 = 100;
/// Chunks a second of a job that has a rate: few enough to be cheap, enough to be even.
const CHUNKS_PER_S: f64 = 5.0;
/// Pauses after a failure of the database.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// For a chunk that is under way when somebody says stop. It may wait for a lock for ten seconds.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

/// How a job is run.
#[derive(Debug, Clone, Copy)]
pub struct JobRun {
    /// At most so many a second.
    pub rate_per_s: Option<f64>,
    /// In one transaction, at most.
    pub chunk: i64,
    /// For how long the database may be away.
    pub patience: Duration,
}

/// How it ended.
#[derive(Debug)]
pub enum RunEnd {
    /// Done, failed, paused or cancelled.
    Ended(Box<JobStatus>),
    /// Somebody else runs it.
    LeaseLost,
    /// Whoever runs it was told to stop. The job is as it was.
    Interrupted,
}

/// What a run has seen so far.
struct Run<'a> {
    store: &'a dyn JobStore,
    lease: &'a JobLease,
    how: JobRun,
    /// Letters of the next chunk.
    chunk: i64,
    refused: u32,
    next: Instant,
    done: Option<u64>,
    away_since: Option<Instant>,
    pause: Duration,
}

/// What to do after a chunk.
enum After {
    Wait,
    End(RunEnd),
}

/// Runs a job until it ends, or until `stop` does.
pub async fn run_job(
    store: &dyn JobStore,
    lease: &JobLease,
    how: JobRun,
    stop: impl Future<Output = ()>,
    mut progress: impl FnMut(&JobStatus),
) -> Result<RunEnd, AdminError> {
    tokio::pin!(stop);
    // A chunk that never ends would be the last one.
    store.answer_within(answer_max());
    let mut run = Run::new(store, lease, how);
    loop {
        match run.turn_until(&mut stop, &mut progress).await? {
            After::Wait => {}
            After::End(end) => return Ok(end),
        }
        loop {
            let until = run.next.min(Instant::now() + JOB_LEASE / 4);
            tokio::select! {
                biased;
                () = &mut stop => return Ok(RunEnd::Interrupted),
                () = sleep_until(until) => {}
            }
            if Instant::now() >= run.next {
                break;
            }
            // Nothing is due for long, and the owner lives.
            match store.renew_job(lease).await {
                Ok(ChunkEnd::Committed(_)) => {}
                Ok(ChunkEnd::Stopped(job)) => return Ok(RunEnd::Ended(job)),
                Ok(ChunkEnd::LeaseLost) => return Ok(RunEnd::LeaseLost),
                // The next chunk will say what is wrong.
                Err(_) => {}
            }
        }
    }
}

impl<'a> Run<'a> {
    fn new(store: &'a dyn JobStore, lease: &'a JobLease, how: JobRun) -> Self {
        let (next, pause) = (Instant::now(), FIRST_PAUSE);
        let run = Self { store, lease, how, chunk: 1, refused: 0, next, done: None, away_since: None, pause };
        Self { chunk: run.largest(), ..run }
    }

    /// The largest chunk that keeps the rate even.
    fn largest(&self) -> i64 {
        let most = self.how.chunk.clamp(1, CHUNK_MAX);
        self.how.rate_per_s.map_or(most, |rate| ((rate / CHUNKS_PER_S).ceil() as i64).clamp(1, most))
    }

    /// The next chunk. When `stop` ends meanwhile, the chunk is done to its end, unless it has none: what is
    /// given up is rolled back, and done by whoever takes the job.
    async fn turn_until(
        &mut self,
        stop: &mut (impl Future<Output = ()> + Unpin),
        progress: &mut impl FnMut(&JobStatus),
    ) -> Result<After, AdminError> {
        let mut turn = pin!(self.turn(progress));
        tokio::select! {
            biased;
            turned = &mut turn => return turned,
            () = stop => {}
        }
        match timeout(STOP_PATIENCE, turn).await {
            Ok(Ok(After::Wait)) | Err(_) => Ok(After::End(RunEnd::Interrupted)),
            Ok(turned) => turned,
        }
    }

    async fn turn(&mut self, progress: &mut impl FnMut(&JobStatus)) -> Result<After, AdminError> {
        let end = match self.store.run_chunk(self.lease, self.chunk).await {
            Ok(end) => {
                self.refused = 0;
                self.chunk = (self.chunk * 2).min(self.largest());
                end
            }
            Err(AdminError::Store(error)) if error.is_transient() => {
                // It may be one letter that somebody holds: the smaller the chunk, the fewer wait with it.
                self.chunk = (self.chunk / 2).max(1);
                return self.away(AdminError::Store(error));
            }
            Err(_) if self.chunk > 1 => {
                self.chunk /= 2;
                return Ok(After::Wait);
            }
            Err(error) => {
                self.refused += 1;
                let mut end = match self.refused >= REFUSED_MAX {
                    true => self.store.fail_job(self.lease, &error.to_string()).await,
                    false => self.store.leave_alone(self.lease, error.code()).await,
                };
                // Not even the next one can be looked at, as when the sink of a replay was retired: nothing
                // can be passed over.
                if matches!(&end, Err(why) if !is_away(why)) {
                    end = self.store.fail_job(self.lease, &error.to_string()).await;
                }
                match end {
                    Err(AdminError::Store(error)) if error.is_transient() => {
                        self.refused -= 1;
                        return self.away(AdminError::Store(error));
                    }
                    end => end?,
                }
            }
        };
        self.away_since = None;
        self.pause = FIRST_PAUSE;
        Ok(match end {
            ChunkEnd::Committed(job) => {
                progress(&job);
                self.pace(&job);
                if job.state.is_over() { After::End(RunEnd::Ended(job)) } else { After::Wait }
            }
            ChunkEnd::Stopped(job) => After::End(RunEnd::Ended(job)),
            ChunkEnd::LeaseLost => After::End(RunEnd::LeaseLost),
        })
    }

    /// When the next chunk is due. What could not be kept up with is not made up for.
    fn pace(&mut self, job: &JobStatus) {
        let now = Instant::now();
        let Some(rate) = self.how.rate_per_s else {
            self.next = now;
            return;
        };
        // Of the first chunk it is not known how much of it was done by somebody before.
        let fresh = self.done.map_or(self.chunk.unsigned_abs(), |before| job.done.saturating_sub(before));
        self.done = Some(job.done);
        let pause = Duration::from_secs_f64((fresh as f64 / rate).min(86_400.0));
        self.next = self.next.max(now.checked_sub(pause).unwrap_or(now)) + pause;
    }

    /// The database is away: the same chunk again in a while.
    fn away(&mut self, error: AdminError) -> Result<After, AdminError> {
        let now = Instant::now();
        let since = *self.away_since.get_or_insert(now);
        if now.duration_since(since) >= self.how.patience {
            return Err(error);
        }
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(After::Wait)
    }
}

/// Whether the database may answer in a while.
fn is_away(error: &AdminError) -> bool {
    matches!(error, AdminError::Store(error) if error.is_transient())
}

#[cfg(test)]
mod tests {
    use super::super::JobState;
    use super::super::tests::Letters;
    use super::*;

    async fn run(letters: &Letters, rate: Option<f64>) -> Result<RunEnd, AdminError> {
        let how = JobRun { rate_per_s: rate, chunk: 500, patience: Duration::from_secs(30) };
        let lease = JobLease { job: 1, epoch: 1 };
        run_job(letters, &lease, how, std::future::pending(), |_| {}).await
    }

    fn ended(end: Result<RunEnd, AdminError>) -> JobStatus {
        match end {
            Ok(RunEnd::Ended(job)) => *job,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_letter_is_found_by_halves_and_left_alone() {
        let letters = Letters::new(2_000, |n| [0, 777, 778, 1_999].contains(&n));
        let job = ended(run(&letters, None).await);
        assert_eq!((job.state, job.done, job.left_alone), (JobState::Done, 1_996, 4));
        assert_eq!(letters.seen().largest, 500);
    }

    #[tokio::test(start_paused = true)]
    async fn when_nothing_goes_at_all_it_fails_and_leaves_the_rest() {
        let letters = Letters::new(10_000, |_| true);
        let job = ended(run(&letters, None).await);
        assert_eq!((job.state, job.done, job.left_alone), (JobState::Failed, 0, 99));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept_and_not_made_up_for() {
        let letters = Letters::new(1_000, |_| false);
        let start = Instant::now();
        let job = ended(run(&letters, Some(200.0)).await);
        let took = start.elapsed().as_secs_f64();
        assert!((4.75..=5.25).contains(&took), "{took} s for 1,000 at 200/s");
        assert_eq!((job.done, letters.seen().largest), (1_000, 40));
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_waited_for_and_a_pause_ends_the_run() {
        let letters = Letters::new(5_000, |_| false);
        letters.seen().outages = 5;
        letters.seen().paused_at = Some(2_000);
        let job = ended(run(&letters, None).await);
        // Chunks were small while it was away, so none of them ends just there.
        assert_eq!((job.state, (2_000..2_500).contains(&job.done)), (JobState::Paused, true), "{}", job.done);
        letters.seen().outages = u32::MAX;
        let error = run(&letters, None).await.expect_err("too long");
        assert!(matches!(error, AdminError::Store(_)), "{error:?}");
    }

    /// A database that answers nothing any more, and says nothing about it.
    #[tokio::test(start_paused = true)]
    async fn who_says_stop_is_heard_although_a_chunk_never_ends() {
        let letters = Letters::new(5_000, |_| false);
        letters.seen().silent_at = Some(1_000);
        let how = JobRun { rate_per_s: None, chunk: 500, patience: Duration::from_secs(30) };
        let (lease, begun) = (JobLease { job: 1, epoch: 1 }, Instant::now());
        let told = tokio::time::sleep(Duration::from_secs(3));
        let end = timeout(Duration::from_secs(600), run_job(&letters, &lease, how, told, |_| {})).await;
        assert!(matches!(end, Ok(Ok(RunEnd::Interrupted))), "{end:?}");
        assert_eq!((begun.elapsed().as_secs(), letters.seen().done), (15, 1_000));
        // One that ends meanwhile is done to its end.
        let letters = Letters::new(5_000, |_| false);
        letters.seen().slow = Some(Duration::from_secs(9));
        let told = tokio::time::sleep(Duration::from_secs(3));
        let end = run_job(&letters, &lease, how, told, |_| {}).await;
        assert!(matches!(end, Ok(RunEnd::Interrupted)), "{end:?}");
        assert_eq!(letters.seen().done, 500);
    }
}
