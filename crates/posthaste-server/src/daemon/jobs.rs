//! Runs the jobs of the outboxes that can be acted on from here, apart from the requests that ask for them.
//!
//! A request writes its job down and rings a bell; the runner of the outbox takes it. So a job outlives its
//! request, and what a process left behind when it was killed is taken by another one. Runners look once at
//! their start and then only when they are rung or know of a job that is open, so that many processes without
//! work ask nothing (F83). A relay looks at its outbox anyway (`stats.rs`) and rings for a job that nobody
//! runs, within 20 seconds of the end of its lease; so does whoever watches the outbox by the API. Where
//! neither is, a runner looks by itself every five minutes.
//!
//! A database that is away is waited for: one outbox without its database is no reason to serve no other.

use crate::api::Api;
use crate::config::scrub;
use crate::desk::OutboxDesk;
use posthaste::admin::Admin;
use posthaste::admin::job::run_jobs;
use posthaste::failpoint;
use posthaste::task::{Task, spawn};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Between two tries to open a database that is away.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause, and the pause where somebody has to help first.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// For the chunks that are under way. One waits for a lock for ten seconds at most; what is not committed
/// then is rolled back, and done by whoever takes the job.
const STOP_TIME: Duration = Duration::from_secs(15);

/// Between two looks for jobs where no relay looks at the outbox: the cheapest question there is, one index
/// of open jobs, and soon enough for what has waited since its process died.
const LOOK_PAUSE: Duration = Duration::from_secs(300);

/// The runners of all outboxes that can be acted on. Dropping them stops them between two statements.
pub(crate) struct Runners {
    stop: watch::Sender<bool>,
    tasks: Vec<Task<()>>,
}

impl Runners {
    /// Begins to run what nobody runs. `is_beside`: relays in this process look at their outboxes.
    pub(crate) fn start(api: &Api, is_beside: bool) -> Self {
        let stop = watch::Sender::new(false);
        // Two runners never have the same name, also in one process.
        let suffix = uuid::Uuid::new_v4().simple().to_string();
        let owner = format!("{}:{}:{}", crate::output::host(), std::process::id(), &suffix[..6]);
        let task = |desk: &Arc<OutboxDesk>| {
            let is_looked_at = is_beside && desk.outbox.relays;
            spawn("jobs", run(Arc::clone(desk), owner.clone(), stop.subscribe(), is_looked_at))
        };
        let tasks = api.acting().map(task).collect();
        Self { stop, tasks }
    }

    /// Lets the chunks that are under way come to their end. The jobs are left to whoever comes next.
    pub(crate) async fn stop(&mut self) {
        self.stop.send_replace(true);
        let ends = async {
            for task in self.tasks.drain(..) {
                if let Err(died) = task.await {
                    tracing::error!(error = %died, "whoever ran jobs ended before; others take them");
                }
            }
        };
        if timeout(STOP_TIME, ends).await.is_err() {
            tracing::warn!(
                "a chunk of a job did not end in time: it is rolled back, and done by the next runner"
            );
        }
    }
}

async fn run(desk: Arc<OutboxDesk>, owner: String, mut stop: watch::Receiver<bool>, is_looked_at: bool) {
    // A sender that is gone is a stop, too.
    let told = async move { _ = stop.wait_for(|stop| *stop).await };
    tokio::pin!(told);
    let admin = tokio::select! {
        biased;
        () = &mut told => return,
        admin = open(&desk) => admin,
    };
    let Some(admin) = admin else { return };
    let bell = desk.bell.clone();
    let look = async move {
        loop {
            sleep(failpoint::time("POSTHASTE_JOB_LOOK_MS", LOOK_PAUSE)).await;
            bell.ring();
        }
    };
    let _looks = (!is_looked_at).then(|| spawn("looks for jobs", look));
    run_jobs(&*admin, &owner, &desk.bell, told).await;
}

/// Opens the database, however long that takes. `None`: it has no place for jobs.
async fn open(desk: &OutboxDesk) -> Option<Box<dyn Admin>> {
    let mut pause = FIRST_PAUSE;
    let mut told = String::new();
    loop {
        let error = match desk.open_for_jobs().await {
            Ok(admin) => return admin,
            Err(error) => error,
        };
        if !error.is_transient() {
            pause = LONGEST_PAUSE;
        }
        let why = scrub(&error.to_string());
        if why != told {
            let outbox = desk.name();
            tracing::warn!(
                outbox,
                error = why,
                "jobs wait: the database cannot be opened for acts; it is tried again"
            );
            told = why;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
