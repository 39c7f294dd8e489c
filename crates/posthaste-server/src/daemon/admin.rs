//! The API beside a relay or alone: its listener, its tokens and certificate, what a SIGHUP does to them, and
//! the jobs that are asked for by it.

use super::Signals;
use super::jobs::Runners;
use crate::access::AdminSetting;
use crate::api::{Api, SeriesBook, router};
use crate::config::{Config, Flags};
use crate::http::{Certificate, Listening, bind, serve};
use crate::output::remark;
use crate::standing::Standing;
use anyhow::Context as _;
use posthaste::admin::job::JobBell;
use posthaste::relay::RelaySettings;
use posthaste::task::Task;
use posthaste::telemetry;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// A running API.
pub(crate) struct AdminServer {
    api: Arc<Api>,
    certificate: Option<Arc<Certificate>>,
    pub(crate) address: SocketAddr,
    runners: Runners,
    /// What a code was told by.
    code_file: Option<PathBuf>,
    _task: Task<()>,
}

impl AdminServer {
    /// Begins to listen, or says why nothing was started. `is_beside`: relays run in this process.
    pub(crate) async fn start(
        config: &Config,
        relay: watch::Receiver<RelaySettings>,
        standing: Standing,
        address: SocketAddr,
        is_beside: bool,
    ) -> anyhow::Result<Self> {
        let listener = bind(address, "the API", "admin.listen").await?;
        let address = listener.local_addr().context("the address of the API is not known")?;
        let certificate = certificate(&config.admin)?;
        let api = Arc::new(Api::new(config, relay, standing, address)?);
        metrics::gauge!(telemetry::api::TOKENS_BROKEN).set(0.0);
        let listening = Listening::api(certificate.clone());
        let task = serve(listener, listening, router(Arc::clone(&api)), None);
        let runners = Runners::start(&api, is_beside);
        Ok(Self { api, certificate, address, runners, code_file: None, _task: task })
    }

    /// Runs no job any more, once the chunks that are under way have ended.
    pub(crate) async fn stop(&mut self) {
        self.runners.stop().await;
    }

    /// Reads tokens and certificate again. What cannot be used changes nothing.
    pub(crate) fn reload(&self) {
        let broken = match self.api.reload() {
            Ok(()) => false,
            Err(error) => {
                tracing::error!("SIGHUP: the tokens of before stay in force: {error:#}");
                true
            }
        };
        metrics::gauge!(telemetry::api::TOKENS_BROKEN).set(if broken { 1.0 } else { 0.0 });
        if let Some(Err(error)) = self.certificate.as_ref().map(|certificate| certificate.reload()) {
            tracing::error!("SIGHUP: the certificate of before stays in force: {error:#}");
        }
    }

    /// Why the file of tokens could not be read the last time.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.api.trouble()
    }

    /// The last hour of each sink: looks for gauges go there, too.
    pub(crate) fn series(&self) -> Arc<SeriesBook> {
        self.api.series()
    }

    /// What calls whoever runs the jobs of an outbox. `None`: nobody does from here.
    pub(crate) fn bell(&self, outbox: &str) -> Option<JobBell> {
        self.api.acting().find(|desk| desk.name() == outbox).map(|desk| desk.bell.clone())
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Where a browser enters, once, within five minutes. The code stands behind `#`: no browser sends that.
    pub(crate) fn link(&self) -> anyhow::Result<String> {
        Ok(format!("{}/#code={}", self.url(), self.api.one_time_code()?))
    }

    /// Where there are no tokens: tells a code that opens one session, to a terminal, or else into a file
    /// that only its owner reads. Nobody could enter otherwise.
    pub(crate) fn tell_code(&mut self, setting: &AdminSetting) -> anyhow::Result<()> {
        if setting.tokens_file.is_some() {
            return Ok(());
        }
        if std::io::stderr().is_terminal() {
            remark(&format!("dashboard, opened by this link once, within five minutes: {}", self.link()?));
            return Ok(());
        }
        let code = self.api.one_time_code()?;
        // A name that nobody knows before: one that is there already would keep the code from being told.
        let name = format!("posthaste-code-{}", uuid::Uuid::new_v4().simple());
        let path = std::env::temp_dir().join(name);
        write_private(&path, &code)?;
        remark(&format!("one-time code, for five minutes: in {}", path.display()));
        self.code_file = Some(path);
        Ok(())
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        if let Some(path) = &self.code_file {
            // Whoever has taken it away has read it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let about = || format!("cannot write {}", path.display());
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(about)?;
    file.write_all(text.as_bytes()).with_context(about)
}

fn certificate(setting: &AdminSetting) -> anyhow::Result<Option<Arc<Certificate>>> {
    let read = |(cert, key): &(PathBuf, PathBuf)| Certificate::read(cert, key).map(Arc::new);
    setting.certificate.as_ref().map(read).transpose()
}

/// Of a process that runs none.
pub(crate) fn no_gateway() -> Standing {
    watch::channel(None).1
}

/// Serves the API without a relay, until a signal.
pub(crate) async fn serve_alone(config: &Config, flags: &Flags) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen(false)?;
    let address = config.admin.listen.context(
        "admin.listen is \"off\", and there is nothing else to serve. Set an address, for example 127.0.0.1:7679",
    )?;
    let relay = watch::Sender::new(config.relay.clone());
    let mut server = AdminServer::start(config, relay.subscribe(), no_gateway(), address, false).await?;
    remark(&format!("posthaste {}: API {}/api/v1", env!("CARGO_PKG_VERSION"), server.url()));
    server.tell_code(&config.admin)?;
    loop {
        match signals.next().await {
            super::Heard::Stop(name) => {
                let first = (name, Instant::now());
                tokio::select! {
                    () = server.stop() => return Ok(ExitCode::SUCCESS),
                    name = signals.stop_again(first) => super::at_once(name),
                }
            }
            super::Heard::Reload => {
                server.reload();
                match Config::load(flags) {
                    Ok(config) => {
                        relay.send_replace(config.relay);
                    }
                    Err(error) => {
                        tracing::error!("SIGHUP: the configuration of before stays in force: {error}")
                    }
                }
            }
        }
    }
}
