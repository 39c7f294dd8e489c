//! The life of a gateway in the daemon: its listener, its looks at the database, how it is, its end.

use super::door::Door;
use super::roll::Roll;
use super::router;
use super::section::GatewaySetting;
use crate::config::scrub;
use crate::daemon::Board;
use crate::http::{Certificate, Listening, bind, serve};
use crate::standing::GatewayStanding;
use anyhow::Context as _;
use posthaste::intake::{GuardedLimiter, Limiter, TenantStore};
use posthaste::store::StoreError;
use posthaste::task::{Task, spawn};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How often it says how it is.
const REPORT: Duration = Duration::from_millis(250);
/// Old requests are forgotten this often while there are new ones.
const PURGE_BUSY: Duration = Duration::from_secs(60);
/// The same while there are none.
const PURGE_IDLE: Duration = Duration::from_secs(3_600);
/// After a purge that has not come to an end.
const PURGE_MORE: Duration = Duration::from_millis(200);

/// How a gateway is.
#[derive(Clone, Default, Serialize)]
pub(crate) struct GatewayHealth {
    pub(crate) ready: bool,
    /// In words.
    pub(crate) why: String,
    /// Who counts events: `shared`, `local`, `open` or `closed`.
    pub(crate) limiter: String,
    /// Why it is not `shared`, if it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limiter_lost: Option<String>,
    /// Tenants that are known.
    pub(crate) tenants: usize,
}

impl GatewayHealth {
    /// Not ready.
    pub(crate) fn unwell(why: impl Into<String>) -> Self {
        Self { why: why.into(), ..Self::default() }
    }
}

/// A running gateway.
pub(crate) struct Gateway {
    door: Arc<Door>,
    certificate: Option<Arc<Certificate>>,
    shared: Option<Arc<dyn Limiter>>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: Task<()>,
    _tasks: [Task<()>; 3],
}

impl Gateway {
    /// Begins to listen, or says why nothing was started. The database may be away: requests are answered
    /// with 503 until it is there.
    pub(crate) async fn start(
        setting: GatewaySetting,
        board: Arc<Board>,
        seat: usize,
        standing: watch::Sender<Option<GatewayStanding>>,
    ) -> anyhow::Result<Self> {
        let listener = bind(setting.listen, "the gateway", "gateway.listen").await?;
        let address = listener.local_addr().context("the address of the gateway is not known")?;
        let read = |(cert, key): &(PathBuf, PathBuf)| Certificate::read(cert, key).map(Arc::new);
        let certificate = setting.certificate.as_ref().map(read).transpose()?;
        let shared = setting.shared_limiter()?;
        let limiter = Arc::new(GuardedLimiter::new(setting.plan(shared.clone())));
        let intake = setting.database.intake(setting.intake_bounds())?;
        let tenants = setting.database.tenants()?;
        let (stop, stopped) = watch::channel(false);
        let listening = Listening::gateway(certificate.clone(), setting.bounds.sockets_max, stopped);
        let door = Arc::new(Door::new(setting, intake, limiter));
        let serving = serve(listener, listening, router(Arc::clone(&door)), None);
        let url = url_of(certificate.is_some(), address);
        let looks = Arc::new(Looks {
            door: Arc::clone(&door),
            tenants,
            board,
            seat,
            url,
            standing,
            last: Mutex::new(Err("connecting".to_owned())),
            has_worked: AtomicBool::new(false),
        });
        let tasks = [
            spawn("gateway looks", Arc::clone(&looks).run()),
            spawn("gateway purge", Arc::clone(&looks).run_purges()),
            spawn("gateway health", looks.run_reports()),
        ];
        Ok(Self { door, certificate, shared, address, stop, serving, _tasks: tasks })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        url_of(self.certificate.is_some(), self.address)
    }

    /// Reads the certificate again, and takes what can change while it runs: limits, topics, schemas, sizes.
    pub(crate) fn reload(&self, new: Option<GatewaySetting>) {
        if let Some(Err(error)) = self.certificate.as_ref().map(|certificate| certificate.reload()) {
            tracing::error!("SIGHUP: the gateway's certificate of before stays in force: {error:#}");
        }
        if let Some(mut new) = new {
            let unrouted = new.keep_what_runs(&self.door.setting());
            if !unrouted.is_empty() {
                let topics = unrouted.join(", ");
                tracing::error!(
                    "SIGHUP: the gateway goes on with the topics of before: the running routes do not take {topics} as the \
                     file's do, and routes take effect at the next start"
                );
            }
            // The connection to Redis is kept: another one takes a restart.
            self.door.limiter.change(new.plan(self.shared.clone()));
            self.door.set(new);
        }
    }

    /// Takes no more requests, and answers what is under way.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        // A listener that failed has nobody to wait for.
        let _ = self.serving.await;
    }
}

fn url_of(has_tls: bool, address: SocketAddr) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// Looks at tenants and keys, and tells how it is.
struct Looks {
    door: Arc<Door>,
    tenants: Arc<dyn TenantStore>,
    board: Arc<Board>,
    seat: usize,
    /// Where it listens.
    url: String,
    /// For whoever looks at it by the API.
    standing: watch::Sender<Option<GatewayStanding>>,
    /// What the last look was like.
    last: Mutex<Result<(), String>>,
    /// Whether one was fine. From then on nothing ends the gateway: somebody may mend it meanwhile.
    has_worked: AtomicBool,
}

impl Looks {
    async fn run(self: Arc<Self>) {
        loop {
            let look_at = Instant::now() + Duration::from_millis(self.door.setting().tenants.refresh_ms);
            self.look().await;
            tokio::time::sleep_until(look_at).await;
        }
    }

    /// A look that hangs must not look like a task that hangs.
    async fn run_reports(self: Arc<Self>) {
        loop {
            self.tell();
            tokio::time::sleep(REPORT).await;
        }
    }

    /// Old requests are forgotten.
    async fn run_purges(self: Arc<Self>) {
        let mut before = 0;
        loop {
            while !self.is_fine() {
                tokio::time::sleep(REPORT).await;
            }
            let pause = if self.door.intake.figures().commits == before { PURGE_IDLE } else { PURGE_BUSY };
            let pause = match self.door.intake.purge(self.door.setting().remembered).await {
                Ok(0) => pause,
                Ok(_) => PURGE_MORE,
                Err(error) => {
                    tracing::warn!(%error, "old requests of the gateway could not be forgotten; tried again later");
                    pause
                }
            };
            // Its own commits are none of a tenant's.
            before = self.door.intake.figures().commits;
            // A gateway that nobody used becomes one that somebody uses.
            let until = Instant::now() + pause;
            while Instant::now() < until
                && (pause < PURGE_IDLE || self.door.intake.figures().commits == before)
            {
                tokio::time::sleep(REPORT.min(until - Instant::now())).await;
            }
        }
    }

    fn last(&self) -> MutexGuard<'_, Result<(), String>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_fine(&self) -> bool {
        self.last().is_ok()
    }

    /// One row, and everything if it has changed. And whether something could be stored, where that is not
    /// known or was not so the last time.
    async fn look(&self) {
        let looked = match self.look_once().await {
            Ok(()) => self.try_to_store().await,
            Err(error) => {
                let why = scrub(&error.to_string());
                if !error.is_transient() && !self.has_worked.load(Ordering::Relaxed) {
                    self.board.fail(self.seat, &format!("gateway: {why}"));
                }
                Err(why)
            }
        };
        let before = std::mem::replace(&mut *self.last(), looked.clone());
        match looked {
            Ok(()) => self.has_worked.store(true, Ordering::Relaxed),
            Err(why) if before.as_ref() != Err(&why) => {
                tracing::warn!(why, "the gateway can store nothing now; requests are answered with 503");
            }
            Err(_) => return,
        }
        if before.is_err() && self.is_fine() {
            tracing::info!("the gateway's tenants are known, and events can be stored");
        }
    }

    async fn try_to_store(&self) -> Result<(), String> {
        let intake = &self.door.intake;
        if self.is_fine() && intake.trouble().is_none() {
            return Ok(());
        }
        intake.probe().await.map_err(|why| scrub(&why))
    }

    async fn look_once(&self) -> Result<(), StoreError> {
        let (version, now) = self.tenants.version().await?;
        let before = self.door.roll();
        if version == before.version {
            before.set_clock(now);
            return Ok(());
        }
        let roster = self.tenants.roster().await?;
        let roll = Roll::of(roster, &before, now);
        self.door.limiter.keep(|tenant| roll.knows(tenant));
        self.door.enroll(roll);
        Ok(())
    }

    fn tell(&self) {
        let figures = self.door.intake.figures();
        self.door.gauges.intake(figures);
        let state = self.door.limiter.state();
        let is_shared = self.door.setting().limit.redis.is_some();
        self.door.gauges.limiter(state.mode, is_shared, self.door.limiter.errors());
        // Trouble that a probe does not find again was somebody's collision.
        let ready = self.is_fine();
        let why = match ready {
            true => "taking events",
            false => "nothing can be stored: requests are answered with 503; the log says why",
        };
        let health = GatewayHealth {
            ready,
            why: why.to_owned(),
            limiter: state.mode.as_str().to_owned(),
            limiter_lost: state.why.as_ref().map(|_| "Redis is away".to_owned()),
            tenants: self.door.roll().len(),
        };
        let (requests, refused) = self.door.gauges.so_far();
        self.standing.send_replace(Some(GatewayStanding {
            url: self.url.clone(),
            ready: health.ready,
            why: health.why.clone(),
            limiter: health.limiter.clone(),
            limiter_lost: state.why.as_deref().map(crate::config::scrub),
            queued_events: figures.queued_events,
            requests,
            refused,
            rate: self.door.setting().rate(),
        }));
        if ready || !self.board.has_failed(self.seat) {
            self.board.tell(self.seat, health);
        }
    }
}
