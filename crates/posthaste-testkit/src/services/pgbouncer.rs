//! A private PgBouncer in transaction mode.
//!
//! This is the mode in which a session is not a session: each transaction may run on another server
//! connection, so session settings, LISTEN, advisory session locks and, in Debian's version, prepared
//! statements do not hold from one transaction to the next. Code that only seems to work without them shows
//! it here.

use std::{net::SocketAddr, path::PathBuf};

use rustix::process::Signal;
use tokio_postgres::NoTls;

use super::{
    Port, Postgres, ServiceError,
    dir::{PrivateDir, User},
    guard::LastSignal,
    locate,
    process::Process,
};

const SERVICE: &str = "pgbouncer";
const BINARY: &str = "/usr/sbin/pgbouncer";

/// A running PgBouncer. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct PgBouncer {
    port: Port,
    process: Process,
}

impl PgBouncer {
    /// Starts one in front of a private server.
    ///
    /// # Errors
    ///
    /// `Missing` if it is not installed, otherwise `Failed` with the end of its log.
    pub async fn start(server: &Postgres) -> Result<Self, ServiceError> {
        Self::start_before(server.addr()).await
    }

    /// Starts one in front of any server that trusts the user `postgres`, such as a [`Proxy`](super::Proxy).
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_before(server: SocketAddr) -> Result<Self, ServiceError> {
        locate(SERVICE, &[PathBuf::from(BINARY)])?;
        let failed = |error: std::io::Error| ServiceError::failed(SERVICE, error);
        let port = Port::claim().map_err(failed)?;
        let dir = PrivateDir::create("pgbouncer", User::for_servers().map_err(failed)?).map_err(failed)?;
        dir.write("users.txt", "\"postgres\" \"\"\n").map_err(failed)?;
        dir.write("pgbouncer.ini", ini(server, port.number(), &dir)).map_err(failed)?;
        let process = Process::new(SERVICE.to_owned(), dir, LastSignal::Kill)?;
        let mut bouncer = Self { port, process };
        bouncer.start_again().await?;
        Ok(bouncer)
    }

    /// Starts it after [`kill9`](Self::kill9), on the same port.
    ///
    /// # Errors
    ///
    /// `Failed` with the end of its log.
    pub async fn start_again(&mut self) -> Result<(), ServiceError> {
        let ini = self.process.dir().join("pgbouncer.ini").display().to_string();
        self.process.launch(BINARY.as_ref(), &[ini])?;
        let console = self.url_for("pgbouncer");
        self.process.until_ready(async || answers(&console).await).await
    }

    /// Kills it with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// `Failed` if it is still there after a minute.
    pub async fn kill9(&mut self) -> Result<(), ServiceError> {
        self.process.end(Signal::KILL).await
    }

    /// The database `postgres` by way of the pool.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// A database by way of the pool. `pgbouncer` is its own console.
    pub fn url_for(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.port.addr())
    }

    /// The loopback address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }
}

fn ini(server: SocketAddr, port: u16, dir: &PrivateDir) -> String {
    format!(
        "[databases]
* = host={} port={}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
auth_type = trust
auth_file = {}
admin_users = postgres
ignore_startup_parameters = extra_float_digits
",
        server.ip(),
        server.port(),
        dir.join("users.txt").display(),
    )
}

/// Its console answers: a stranger on the same port has none.
async fn answers(console: &str) -> bool {
    let Ok((client, connection)) = tokio_postgres::connect(console, NoTls).await else { return false };
    let connection = tokio::spawn(connection);
    let answer = client.simple_query("SHOW VERSION").await.is_ok();
    connection.abort();
    answer
}
