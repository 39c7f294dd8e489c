//! The desk of one outbox: where its looks and acts go to its database, a few at a time (G7).
//!
//! Four looks are with a database at once and 32 wait; the next is told to come again. So a database that is
//! slow or away holds up its own looks and nobody else's, and a hundred open pages cost it four connections.
//! Acts go by the operators' login, `admin_url`: the relay's may not do them.

use crate::config::{Config, ConsumerSetting, Outbox, scrub};
use crate::database::Database;
use crate::http::ApiProblem;
use axum::http::StatusCode;
use posthaste::Timestamp;
use posthaste::admin::job::{JOB_ANSWER_MAX, JobBell};
use posthaste::admin::{Admin, AdminError};
use posthaste::clock::{Clock as _, SystemClock};
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::intake::{Roster, TenantStore};
use posthaste::sink::Finding;
use posthaste::store::StoreError;
use posthaste_postgres::doctor::Bounds;
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

/// Looks at one database at once.
const LOOKS_MAX: usize = 4;
/// Acts on one database at once; the others wait for their turn as long as for an answer.
const ACTS_MAX: usize = 4;
/// Looks that wait for one of them.
const WAITING_MAX: usize = 32;
/// Longest statement of a look: the server ends it.
const LOOK_STATEMENT: Duration = Duration::from_secs(5);
/// Longest look, its turn included.
const LOOK_TIME: Duration = Duration::from_secs(8);
/// Longest act that a request waits for, what it looks at before it acts included; and its longest statement.
/// Without that, its place would be free while the server goes on for nobody.
const ACT_TIME: Duration = Duration::from_secs(30);

/// Lines about what was denied that are being written at a time.
const TELLING_MAX: usize = 4;
/// For so long what was examined is told again.
const EXAMINED_FOR: Duration = Duration::from_secs(10);

/// A connection's worth of administration, opened when it is first needed.
type Opened<T> = Mutex<Option<Arc<T>>>;
/// Where tenants are, and all of them as they were read last.
type KnownTenants = (Arc<dyn TenantStore>, Arc<Roster>);

/// One outbox.
pub(crate) struct OutboxDesk {
    pub(crate) outbox: Outbox,
    config: Config,
    looking: Opened<dyn Admin>,
    acting: Opened<dyn Admin>,
    consumers: Opened<dyn ConsumerAdmin>,
    acting_consumers: Opened<dyn ConsumerAdmin>,
    /// Rung by whoever has asked for a job.
    pub(crate) bell: JobBell,
    places: Semaphore,
    acts: Semaphore,
    waiting: AtomicUsize,
    /// Places of lines about what was denied.
    pub(crate) telling: Arc<Semaphore>,
    examined: Mutex<Option<(Instant, Examined)>>,
    /// Of the gateway.
    tenants: Mutex<Option<KnownTenants>>,
}

/// What was found when its database was examined.
#[derive(Clone, Serialize, JsonSchema)]
pub(crate) struct Examined {
    /// The outbox.
    outbox: String,
    /// When, by the clock of this host.
    at: Timestamp,
    /// What `posthaste doctor` finds in the database, the worst first.
    findings: Vec<Finding>,
}

/// Counts one that waits.
struct InLine<'a>(&'a AtomicUsize);

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OutboxDesk {
    pub(crate) fn new(outbox: &Outbox, config: &Config) -> Self {
        Self {
            outbox: outbox.clone(),
            config: config.clone(),
            looking: Mutex::default(),
            acting: Mutex::default(),
            consumers: Mutex::default(),
            acting_consumers: Mutex::default(),
            bell: JobBell::default(),
            places: Semaphore::new(LOOKS_MAX),
            acts: Semaphore::new(ACTS_MAX),
            waiting: AtomicUsize::new(0),
            telling: Arc::new(Semaphore::new(TELLING_MAX)),
            examined: Mutex::default(),
            tenants: Mutex::default(),
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.outbox.name
    }

    /// For a look.
    pub(crate) async fn look<T, F>(&self, work: impl FnOnce(Arc<dyn Admin>) -> F) -> Result<T, ApiProblem>
    where
        F: Future<Output = Result<T, AdminError>>,
    {
        self.in_turn(async {
            let admin = self.admin(&self.looking, self.outbox.database.within(LOOK_STATEMENT)).await?;
            work(admin).await.map_err(|error| self.failed(error))
        })
        .await
    }

    /// For a look at consumers. `None`: there can be none here.
    pub(crate) async fn look_at_consumers<T, F>(
        &self,
        work: impl FnOnce(Arc<dyn ConsumerAdmin>) -> F,
    ) -> Result<Option<T>, ApiProblem>
    where
        F: Future<Output = Result<T, AdminError>>,
    {
        if !self.outbox.database.has_consumers() {
            return Ok(None);
        }
        self.in_turn(async {
            let Some(admin) =
                self.consumer_admin(&self.consumers, self.outbox.database.within(LOOK_STATEMENT)).await?
            else {
                return Ok(None);
            };
            work(admin).await.map(Some).map_err(|error| self.failed(error))
        })
        .await
    }

    /// For an act.
    pub(crate) async fn act<T, F>(&self, work: impl FnOnce(Arc<dyn Admin>) -> F) -> Result<T, ApiProblem>
    where
        F: Future<Output = Result<T, AdminError>>,
    {
        let database = self.operators()?.within(ACT_TIME);
        let act = async {
            let _place = self.acts.acquire().await;
            let admin = self.admin(&self.acting, database).await?;
            let done = work(admin).await;
            if done.as_ref().is_err_and(is_session_s) {
                *self.acting.lock().await = None;
            }
            done.map_err(|error| self.failed(error))
        };
        timeout(ACT_TIME, act).await.unwrap_or_else(|_| Err(self.slow_act()))
    }

    /// For an act on consumers.
    pub(crate) async fn act_on_consumers<T, F>(
        &self,
        work: impl FnOnce(Arc<dyn ConsumerAdmin>) -> F,
    ) -> Result<T, ApiProblem>
    where
        F: Future<Output = Result<T, AdminError>>,
    {
        let database = self.operators()?.within(ACT_TIME);
        let act = async {
            let _place = self.acts.acquire().await;
            let Some(admin) = self.consumer_admin(&self.acting_consumers, database).await? else {
                let why = format!("outbox `{}` is an adopted table, and has no consumers", self.name());
                return Err(ApiProblem::new(
                    StatusCode::NOT_FOUND,
                    "admin.adopted",
                    why,
                    "Name another outbox.",
                ));
            };
            let done = work(admin).await;
            if done.as_ref().is_err_and(is_session_s) {
                *self.acting_consumers.lock().await = None;
            }
            done.map_err(|error| self.failed(error))
        };
        timeout(ACT_TIME, act).await.unwrap_or_else(|_| Err(self.slow_act()))
    }

    /// The operators' login.
    fn operators(&self) -> Result<&Database, ApiProblem> {
        self.outbox.acting.as_ref().ok_or_else(|| {
            let why = format!(
                "outbox `{}` has no `admin_url`, and the relay's login may not act on it",
                self.name()
            );
            let advice = "Write `admin_url` or `admin_url_file` into its [[outbox]], with a login of the role \
                          posthaste_admin, best in the file of `posthaste ui`; or act at the command line.";
            ApiProblem::new(StatusCode::CONFLICT, "api.no_admin_url", why, advice)
        })
    }

    async fn in_turn<T>(&self, look: impl Future<Output = Result<T, ApiProblem>>) -> Result<T, ApiProblem> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= LOOKS_MAX + WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let why = format!("{WAITING_MAX} looks at outbox `{}` wait already", self.name());
            return Err(unavailable("api.busy", why, "Ask again in a second."));
        }
        let _waiting = InLine(&self.waiting);
        let look = async {
            let place = self.places.acquire().await;
            let found = look.await;
            drop(place);
            found
        };
        timeout(LOOK_TIME, look).await.unwrap_or_else(|_| Err(self.slow_look(LOOK_TIME)))
    }

    fn slow_look(&self, time: Duration) -> ApiProblem {
        let why = format!("outbox `{}`: no answer within {} s", self.name(), time.as_secs());
        unavailable("api.slow", why, "Look at the database's load, and at what holds locks there.")
    }

    async fn admin(
        &self,
        held: &Opened<dyn Admin>,
        database: Database,
    ) -> Result<Arc<dyn Admin>, ApiProblem> {
        let mut held = held.lock().await;
        if let Some(admin) = &*held {
            return Ok(Arc::clone(admin));
        }
        let admin = Box::pin(database.admin()).await.map_err(|error| self.failed(error.into()))?;
        let admin: Arc<dyn Admin> = Arc::from(admin);
        *held = Some(Arc::clone(&admin));
        Ok(admin)
    }

    async fn consumer_admin(
        &self,
        held: &Opened<dyn ConsumerAdmin>,
        database: Database,
    ) -> Result<Option<Arc<dyn ConsumerAdmin>>, ApiProblem> {
        let mut held = held.lock().await;
        if let Some(admin) = &*held {
            return Ok(Some(Arc::clone(admin)));
        }
        let admin = Box::pin(database.consumer_admin(None, &self.consumers_here())).await;
        let Some(admin) = admin.map_err(|error| self.failed(error.into()))? else { return Ok(None) };
        let admin: Arc<dyn ConsumerAdmin> = Arc::from(admin);
        *held = Some(Arc::clone(&admin));
        Ok(Some(admin))
    }

    /// Checks every assumption that its database is under. One at a time, and not again within ten seconds:
    /// some of the checks are not cheap.
    pub(crate) async fn examine(&self) -> Result<Examined, ApiProblem> {
        let examine = async {
            let mut last = self.examined.lock().await;
            if let Some((at, found)) = &*last
                && at.elapsed() < EXAMINED_FOR
            {
                return Ok(found.clone());
            }
            let database = self.outbox.database.within(LOOK_STATEMENT);
            let found = Box::pin(database.examine(&Bounds::default())).await;
            let mut findings = found.map_err(|error| self.failed(error))?;
            for finding in &mut findings {
                finding.text = scrub(&finding.text);
            }
            // A stable sort: within a level in the order of the checks.
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
            let found = Examined { outbox: self.name().to_owned(), at: SystemClock.now(), findings };
            *last = Some((Instant::now(), found.clone()));
            Ok(found)
        };
        timeout(ACT_TIME, examine).await.unwrap_or_else(|_| Err(self.slow_look(ACT_TIME)))
    }

    /// Who may hand in events by a gateway with this login, and what time it is there. As a gateway does, it
    /// looks at one number, and reads everybody again only when that is another one.
    pub(crate) async fn roster(&self, login: &Database) -> Result<(Arc<Roster>, Timestamp), ApiProblem> {
        let read = async {
            let mut held = self.tenants.lock().await;
            let (store, roster) = match &mut *held {
                Some(held) => held,
                None => held.insert((login.within(LOOK_STATEMENT).tenants()?, Arc::default())),
            };
            let (version, now) = store.version().await?;
            // The first version is 1.
            if version != roster.version {
                *roster = Arc::new(store.roster().await?);
            }
            Ok((Arc::clone(roster), now))
        };
        self.in_turn(async { read.await.map_err(|error: StoreError| self.failed(error.into())) }).await
    }

    /// A connection of its own for running jobs. `None`: nobody may act from here, or there is no place for
    /// jobs.
    pub(crate) async fn open_for_jobs(&self) -> Result<Option<Box<dyn Admin>>, StoreError> {
        match &self.outbox.acting {
            Some(database) => {
                let database = database.within(JOB_ANSWER_MAX);
                Box::pin(database.job_admin(&self.consumers_here())).await
            }
            None => Ok(None),
        }
    }

    /// Consumers that are configured to have their inbox here.
    fn consumers_here(&self) -> Vec<&ConsumerSetting> {
        self.config.consumers.iter().filter(|setting| setting.outbox == self.outbox.name).collect()
    }

    fn slow_act(&self) -> ApiProblem {
        let why = format!("outbox `{}`: no answer within {} s", self.name(), ACT_TIME.as_secs());
        unavailable("api.slow", why, "Look whether it was done before you ask again.")
            .meaning("It is not known whether the change was made.")
    }

    /// An error of the administration, as an answer.
    pub(crate) fn failed(&self, error: AdminError) -> ApiProblem {
        let code = error.code();
        let detail = scrub(&format!("outbox `{}`: {error}", self.name()));
        let seen = "The detail says what to do.";
        match &error {
            AdminError::NotFound { .. } => ApiProblem::new(StatusCode::NOT_FOUND, code, detail, seen),
            AdminError::Conflict { .. } => ApiProblem::new(StatusCode::CONFLICT, code, detail, seen),
            AdminError::Invalid { .. } => ApiProblem::new(StatusCode::BAD_REQUEST, code, detail, seen),
            AdminError::Store(StoreError::Transient { outcome_known, .. }) => {
                let fate = match outcome_known {
                    true => "Nothing was changed.",
                    false => "It is not known whether the change was made.",
                };
                let advice = "Check that the database is up and that its address is right, then ask again.";
                unavailable(code, detail, advice)
                    .meaning(format!("{fate} Appended events stay in the database and are delivered later."))
            }
            _ => {
                let advice = "`posthaste doctor` shows what is missing.";
                unavailable(code, detail, advice).meaning("No event is lost.")
            }
        }
    }
}

/// Whether the session may be what was wrong: one that began while its database took no writes, or on a
/// standby, takes none for ever. The next act has a new one.
fn is_session_s(error: &AdminError) -> bool {
    matches!(error, AdminError::Store(StoreError::Transient { .. }))
}

fn unavailable(code: &str, detail: String, advice: &str) -> ApiProblem {
    ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail, advice)
}
