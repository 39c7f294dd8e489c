//! Connections: TLS, passwords that change, sessions with the settings we rely on.
//!
//! A password file is read at every connect, and TLS files too, so that a rotation needs no restart.
//! There are two TLS modes, none and verify-full: encryption without verification protects from nobody.
//!
//! A line can die without a word: a host vanishes, a firewall forgets a connection. The kernel finds that
//! out by itself (keepalive), and where something in between still answers for the dead, a bound on the
//! wait does ([`Connection::within`]).

use crate::config::{PostgresConfig, TlsMode};
use crate::error::{describe, store_error};
use posthaste::store::{StoreCode, StoreError};
use posthaste::task::{Task, spawn};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

/// A silent peer is asked for a sign of life after this long, and again every third of it; the kernel's own
/// two hours are longer than any lease.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Bytes that nobody acknowledges for this long end the connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// A connection and the task that drives it. Dropping it closes both.
pub(crate) struct Connection {
    pub(crate) client: Client,
    driver: Task<()>,
}

impl Connection {
    /// Waits for an answer, but not for ever: a connection that is silent for this long is cut, and the call
    /// fails as on any lost connection, its outcome unknown (G7).
    pub(crate) async fn within<T>(&self, limit: Option<Duration>, call: impl Future<Output = T>) -> T {
        within(&self.driver, limit, call).await
    }

    /// The client to lend, and what drives it.
    pub(crate) fn parts(&mut self) -> (&mut Client, &Task<()>) {
        (&mut self.client, &self.driver)
    }
}

/// See [`Connection::within`].
pub(crate) async fn within<T>(
    driver: &Task<()>,
    limit: Option<Duration>,
    call: impl Future<Output = T>,
) -> T {
    let Some(limit) = limit else { return call.await };
    let mut call = pin!(call);
    if let Ok(answer) = tokio::time::timeout(limit, &mut call).await {
        return answer;
    }
    driver.abort();
    call.await
}

/// What to do with NOTIFY messages that arrive on a connection.
pub(crate) type OnNotify = Box<dyn FnMut(&str) + Send>;

/// What to do with whatever a server says unasked.
pub(crate) type OnMessage = Box<dyn FnMut(&AsyncMessage) + Send>;

/// Connects and returns a plain client; its driver runs until the client is dropped. For tools.
pub async fn connect(config: &PostgresConfig) -> Result<Client, StoreError> {
    let connection = open(config, None).await?;
    let Connection { client, driver } = connection;
    // The driver ends by itself when the client is dropped: it must not be aborted before.
    driver.detach();
    Ok(client)
}

/// Opens a connection.
pub(crate) async fn open(
    config: &PostgresConfig,
    on_notify: Option<OnNotify>,
) -> Result<Connection, StoreError> {
    let hear = |mut on_notify: OnNotify| -> OnMessage {
        Box::new(move |message| {
            if let AsyncMessage::Notification(notification) = message {
                on_notify(notification.payload());
            }
        })
    };
    open_hearing(config, on_notify.map(hear)).await
}

/// The same, and hears everything that the server says unasked: before the answer that it belongs to.
pub(crate) async fn open_hearing(
    config: &PostgresConfig,
    on_message: Option<OnMessage>,
) -> Result<Connection, StoreError> {
    let mut target: Config = config.url.parse().map_err(|error: tokio_postgres::Error| {
        StoreError::fatal(StoreCode::Url, format!("the database URL is not valid: {}", describe(&error)))
    })?;
    target.connect_timeout(config.connect_timeout);
    target.application_name("posthaste");
    target.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE / 3).keepalives_retries(3);
    target.tcp_user_timeout(UNACKNOWLEDGED_MAX);
    if let Some(path) = &config.password_file {
        let password = read("password_file", path)?;
        target.password(String::from_utf8_lossy(&password).trim_end_matches(['\r', '\n']));
    }
    let late = |_| StoreError::Transient {
        message: format!("no connection within {:?}", config.connect_timeout),
        outcome_known: true,
    };
    // connect_timeout covers the TCP handshake alone; a server that accepts and says nothing needs this.
    tokio::time::timeout(config.connect_timeout * 2, establish(config, target, on_message))
        .await
        .map_err(late)?
}

async fn establish(
    config: &PostgresConfig,
    mut target: Config,
    on_message: Option<OnMessage>,
) -> Result<Connection, StoreError> {
    match config.tls {
        TlsMode::Disable => {
            target.ssl_mode(SslMode::Disable);
            let (client, connection) = target.connect(NoTls).await.map_err(|e| refused(config, e))?;
            Ok(Connection { client, driver: drive(connection, on_message) })
        }
        TlsMode::VerifyFull => {
            target.ssl_mode(SslMode::Require);
            let tls = tokio_postgres_rustls::MakeRustlsConnect::new(client_config(config)?);
            let (client, connection) = target.connect(tls).await.map_err(|e| refused(config, e))?;
            Ok(Connection { client, driver: drive(connection, on_message) })
        }
    }
}

/// A password file and the password itself never change in the same moment: what is wrong now may be right
/// soon, and is tried again with what the file says then.
fn refused(config: &PostgresConfig, error: tokio_postgres::Error) -> StoreError {
    match (&config.password_file, error.code()) {
        (Some(file), Some(&SqlState::INVALID_PASSWORD)) => StoreError::Transient {
            message: format!("{} with the password in {}", describe(&error), file.display()),
            outcome_known: true,
        },
        _ if wants_password(&error) => StoreError::fatal(
            StoreCode::Login,
            "the database asks for a password and none is configured: set password_file, or put one into the URL. No event \
             is touched",
        ),
        _ => store_error(error),
    }
}

/// The client finds this out by itself and says it in words only. Without a password file nothing will
/// change about it.
fn wants_password(error: &tokio_postgres::Error) -> bool {
    let cause = std::error::Error::source(error);
    cause.is_some_and(|cause| cause.to_string() == "password missing")
}

fn drive<S, T>(mut connection: tokio_postgres::Connection<S, T>, on_message: Option<OnMessage>) -> Task<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    spawn("postgres connection", async move {
        let Some(mut on_message) = on_message else {
            // Its error reaches every caller of the client as "connection closed".
            let _ = connection.await;
            return;
        };
        let mut messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = futures_util::StreamExt::next(&mut messages).await {
            on_message(&message);
        }
    })
}

impl PostgresConfig {
    /// Reads the files that it names, so that a wrong one is found before anybody connects. Answers with the
    /// option and what is wrong.
    pub fn check_files(&self) -> Result<(), (&'static str, String)> {
        let check =
            |option, found: Result<(), StoreError>| found.map_err(|error| (option, error.to_string()));
        if let Some(path) = &self.password_file {
            check("password_file", read("password_file", path).map(drop))?;
        }
        for (option, path) in [("ca_file", &self.ca_file), ("cert_file", &self.cert_file)] {
            if let Some(path) = path {
                check(option, certificates(option, path).map(drop))?;
            }
        }
        if let Some(path) = &self.key_file {
            check("key_file", private_key("key_file", path).map(drop))?;
        }
        match self.tls {
            TlsMode::Disable => Ok(()),
            TlsMode::VerifyFull => check("cert_file", client_config(self).map(drop)),
        }
    }
}

fn client_config(config: &PostgresConfig) -> Result<ClientConfig, StoreError> {
    let Some(ca_file) = &config.ca_file else {
        let why = "tls = \"verify-full\" needs ca_file: the CA that signed the server's certificate";
        return Err(StoreError::fatal(StoreCode::Tls, why));
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca_file", ca_file)? {
        roots.add(certificate).map_err(|error| bad_file("ca_file", ca_file, &error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::fatal(StoreCode::Tls, format!("TLS: {error}")))?
        .with_root_certificates(roots);
    match (&config.cert_file, &config.key_file) {
        (Some(cert_file), Some(key_file)) => builder
            .with_client_auth_cert(certificates("cert_file", cert_file)?, private_key("key_file", key_file)?)
            .map_err(|error| bad_file("cert_file", cert_file, &error)),
        (None, None) => Ok(builder.with_no_client_auth()),
        _ => Err(StoreError::fatal(StoreCode::Tls, "cert_file and key_file go together")),
    }
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| bad_pem(option, path, error))?;
    if found.is_empty() {
        Err(bad_file(option, path, &"there is no PEM certificate in it"))
    } else {
        Ok(found)
    }
}

fn private_key(option: &str, path: &Path) -> Result<PrivateKeyDer<'static>, StoreError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| bad_pem(option, path, error))
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, StoreError> {
    std::fs::read(path).map_err(|error| bad_file(option, path, &error))
}

fn bad_pem(option: &str, path: &Path, error: pem::Error) -> StoreError {
    match error {
        pem::Error::Io(error) => bad_file(option, path, &error),
        pem::Error::NoItemsFound => bad_file(option, path, &"there is no PEM key in it"),
        // Not the parser's own words: they quote the file, and the file may be a key.
        _ => bad_file(option, path, &"it is not valid PEM"),
    }
}

fn bad_file(option: &str, path: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::fatal(StoreCode::File, format!("{option} {}: {error}", path.display()))
}
