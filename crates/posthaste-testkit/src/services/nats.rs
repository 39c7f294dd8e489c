//! A private NATS server with JetStream on files.
//!
//! It counts as ready when it greets a connection as itself: the greeting carries the server's name, which is
//! random, so a stranger on the same port is not mistaken for it.
//!
//! A JetStream acknowledgement means "written", not "synced": the server syncs its files every two minutes
//! unless `sync_interval: always` is asked for. A killed process loses nothing by that, a machine without
//! power would.

use std::{net::SocketAddr, path::PathBuf};

use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
};
use uuid::Uuid;

use super::{
    Pair, Port, ServiceError,
    dir::PrivateDir,
    guard::LastSignal,
    locate,
    process::{Process, READY_TIMEOUT, logged, until},
    services_dir,
};

const SERVICE: &str = "nats-server";

/// What a test wants otherwise than the defaults: an open server with JetStream, nothing else.
#[derive(Clone, Debug, Default)]
pub struct NatsOptions {
    settings: Vec<String>,
    jetstream: Vec<String>,
    authorization: Option<String>,
    tls: Option<(Pair, Option<PathBuf>)>,
}

impl NatsOptions {
    /// A line of the configuration, such as `max_payload: 4096`.
    #[must_use]
    pub fn setting(mut self, line: &str) -> Self {
        self.settings.push(line.to_owned());
        self
    }

    /// A line of the configuration's `jetstream` block, such as `sync_interval: always`.
    #[must_use]
    pub fn jetstream(mut self, line: &str) -> Self {
        self.jetstream.push(line.to_owned());
        self
    }

    /// Lets only this user in.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.authorization = Some(format!("user: {name:?}, password: {password:?}"));
        self
    }

    /// Lets only clients with this token in.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.authorization = Some(format!("token: {token:?}"));
        self
    }

    /// Requires TLS, with this certificate.
    #[must_use]
    pub fn tls(mut self, server: &Pair) -> Self {
        self.tls = Some((server.clone(), None));
        self
    }

    /// Requires TLS, and of each client a certificate that `client_ca` signed.
    #[must_use]
    pub fn mutual_tls(mut self, server: &Pair, client_ca: &std::path::Path) -> Self {
        self.tls = Some((server.clone(), Some(client_ca.to_owned())));
        self
    }

    fn configuration(&self, name: &str, addr: SocketAddr, dir: &PrivateDir) -> String {
        let mut lines = vec![
            format!("server_name: {name:?}"),
            format!("listen: \"{addr}\""),
            format!("jetstream {{ store_dir: {:?}\n{} }}", dir.join("jetstream"), self.jetstream.join("\n")),
        ];
        lines.extend(self.authorization.iter().map(|who| format!("authorization {{ {who} }}")));
        lines.extend(self.tls.iter().map(|(server, client_ca)| {
            let client =
                client_ca.iter().map(|ca| format!("ca_file: {ca:?}, verify: true")).collect::<String>();
            format!("tls {{ cert_file: {:?}, key_file: {:?}, {client} }}", server.certificate, server.key)
        }));
        lines.extend(self.settings.iter().cloned());
        lines.join("\n")
    }
}

/// A running server. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Nats {
    binary: PathBuf,
    name: String,
    port: Port,
    tls: bool,
    process: Process,
}

impl Nats {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// `Missing` if it is not installed, otherwise `Failed` with the end of the server's log.
    pub async fn start(options: &NatsOptions) -> Result<Self, ServiceError> {
        let binary = locate(SERVICE, &[services_dir().join("nats/nats-server")])?;
        let failed = |error: std::io::Error| ServiceError::failed(SERVICE, error);
        let (name, port) = (format!("test-{}", Uuid::now_v7().simple()), Port::claim().map_err(failed)?);
        // Unlike PostgreSQL it does not mind running as root.
        let dir = PrivateDir::create("nats", None).map_err(failed)?;
        dir.write("nats.conf", options.configuration(&name, port.addr(), &dir)).map_err(failed)?;
        let process = Process::new(SERVICE.to_owned(), dir, LastSignal::Kill)?;
        let mut server = Self { binary, name, port, tls: options.tls.is_some(), process };
        server.start_again().await?;
        Ok(server)
    }

    /// Starts it after [`kill9`](Self::kill9) or [`stop`](Self::stop), with the same streams on the same
    /// port.
    ///
    /// # Errors
    ///
    /// `Failed` with the end of the server's log.
    pub async fn start_again(&mut self) -> Result<(), ServiceError> {
        let configuration = self.process.dir().join("nats.conf").display().to_string();
        self.process.launch(&self.binary, &["-c".to_owned(), configuration])?;
        let (addr, name) = (self.port.addr(), self.name.clone());
        self.process.until_ready(async || greeted_by(addr, &name).await).await
    }

    /// Kills it with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// `Failed` if it is still there after a minute.
    pub async fn kill9(&mut self) -> Result<(), ServiceError> {
        self.process.end(Signal::KILL).await
    }

    /// Stops it in its own orderly way.
    ///
    /// # Errors
    ///
    /// `Failed` if it is still there after a minute.
    pub async fn stop(&mut self) -> Result<(), ServiceError> {
        self.process.end(Signal::TERM).await
    }

    /// Gives it other options while it runs, such as the rights of its users.
    ///
    /// # Errors
    ///
    /// `Failed` if it does not take them.
    pub async fn reload(&self, options: &NatsOptions) -> Result<(), ServiceError> {
        let text = options.configuration(&self.name, self.port.addr(), self.process.dir());
        let written = self.process.dir().write("nats.conf", text);
        written.map_err(|error| ServiceError::failed(SERVICE, error))?;
        let log = self.process.dir().join("log");
        let before = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
        self.process.signal(Signal::HUP);
        if until(READY_TIMEOUT, || logged(&(log.clone(), before), "Reloaded server configuration")).await {
            return Ok(());
        }
        Err(self.process.failed("it does not take another configuration"))
    }

    /// Stops the process without ending it: connections stay open and nobody answers, from the moment this
    /// returns.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// `nats://` or, with TLS, `tls://`; without credentials.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "tls" } else { "nats" }, self.port.addr())
    }

    /// The loopback address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The process's pid, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }
}

/// The first line of each connection is `INFO {json}`, also before TLS and authentication.
async fn greeted_by(addr: SocketAddr, name: &str) -> bool {
    let Ok(stream) = TcpStream::connect(addr).await else { return false };
    let mut greeting = String::new();
    let read = BufReader::new(stream).read_line(&mut greeting).await;
    let Some(json) = greeting.strip_prefix("INFO ").filter(|_| read.is_ok()) else { return false };
    let info: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    info["server_name"] == name && info["jetstream"] == true
}
