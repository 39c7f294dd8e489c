//! A private PostgreSQL server.
//!
//! `initdb` into a temporary directory, one `postgres` child, one loopback port, trust for everybody but the
//! users that the options name. The defaults are those of a careful installation, because durability is what
//! the tests are about: `fsync` stays on. What the tests need beyond is on too: `wal_level=logical`, prepared
//! transactions, and room for connections.
//!
//! The server counts as ready when its own `postmaster.pid` says so. That is how `pg_ctl` knows, and unlike a
//! connection it does not depend on what `pg_hba.conf` a test asked for.

mod options;

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio_postgres::{Client, NoTls};

pub use options::{PostgresOptions, Version};

use super::{
    Port, ServiceError,
    dir::{PrivateDir, User},
    guard::LastSignal,
    process::{Process, READY_TIMEOUT, until},
    tree::children_of,
};

/// A running server. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Postgres {
    version: Version,
    binaries: PathBuf,
    port: Port,
    process: Process,
}

impl Postgres {
    /// Initialises and starts a server of this version.
    ///
    /// # Errors
    ///
    /// `Missing` if this version is not installed, otherwise `Failed` with the end of the server's log.
    pub async fn start(version: Version, options: &PostgresOptions) -> Result<Self, ServiceError> {
        let binaries = version.binaries()?;
        let failed = |error: io::Error| ServiceError::failed(version.name(), error);
        let dir = PrivateDir::create("pg", User::for_servers().map_err(failed)?).map_err(failed)?;
        // The guard first: a test process that is killed during initdb leaves nothing behind either.
        let process = Process::new(version.name(), dir, LastSignal::Quit)?;
        initdb(version, &binaries, process.dir()).await?;
        configure(process.dir(), options).map_err(failed)?;
        let mut server = Self { version, binaries, port: Port::claim().map_err(failed)?, process };
        server.start_again().await?;
        server.execute(&options.create_roles()).await?;
        Ok(server)
    }

    /// Starts it after [`kill9`](Self::kill9) or [`stop_fast`](Self::stop_fast), with the same data on the
    /// same port, and waits until recovery is over and it accepts connections.
    ///
    /// # Errors
    ///
    /// `Failed` with the end of the server's log.
    pub async fn start_again(&mut self) -> Result<(), ServiceError> {
        let data = self.data_dir();
        let args =
            ["-D", &data.display().to_string(), "-p", &self.port.number().to_string()].map(str::to_owned);
        self.process.launch(&self.binaries.join("postgres"), &args)?;
        let (status_file, pid) = (data.join("postmaster.pid"), self.pid().unwrap_or_default().to_string());
        self.process.until_ready(async || says_ready(&status_file, &pid)).await
    }

    /// Kills the postmaster and all its children with SIGKILL, as a machine that loses its power would, and
    /// waits until they are gone. Nothing is flushed; the next start recovers from the WAL.
    ///
    /// # Errors
    ///
    /// `Failed` if one of them is still there after a minute.
    pub async fn kill9(&mut self) -> Result<(), ServiceError> {
        let Some(pid) = self.pid() else { return Ok(()) };
        // A stopped postmaster forks no child that we would miss.
        self.process.pause();
        let children = children_of(pid);
        children.iter().for_each(|child| child.kill());
        self.process.end(Signal::KILL).await?;
        match until(Duration::from_secs(60), || !children.iter().any(|child| child.is_alive())).await {
            true => Ok(()),
            false => Err(self.process.failed("a backend survived SIGKILL for a minute")),
        }
    }

    /// The fast shutdown: connections are cut, a checkpoint is written.
    ///
    /// # Errors
    ///
    /// `Failed` if it is still there after a minute.
    pub async fn stop_fast(&mut self) -> Result<(), ServiceError> {
        self.process.end(Signal::INT).await
    }

    /// Changes a setting for good (`ALTER SYSTEM`) and returns when new connections see it. A setting that
    /// only a restart can change is taken over by [`start_again`](Self::start_again).
    ///
    /// # Errors
    ///
    /// `Failed` with what the server said.
    pub async fn set(&self, setting: &str, value: &str) -> Result<(), ServiceError> {
        let before = self.configuration_loaded().await?;
        let value = value.replace('\'', "''");
        self.execute(&format!("ALTER SYSTEM SET {setting} = '{value}'")).await?;
        self.execute("SELECT pg_reload_conf()").await?;
        // A new backend inherits the postmaster's configuration and the time it was loaded.
        let deadline = Instant::now() + READY_TIMEOUT;
        while self.configuration_loaded().await? == before {
            if Instant::now() >= deadline {
                return Err(self.process.failed(format!("{setting} was not reloaded")));
            }
        }
        Ok(())
    }

    async fn configuration_loaded(&self) -> Result<String, ServiceError> {
        let row = self.admin().await?.query_one("SELECT pg_conf_load_time()::text", &[]).await;
        row.map(|row| row.get(0)).map_err(|error| self.process.failed(error))
    }

    async fn execute(&self, sql: &str) -> Result<(), ServiceError> {
        let result = self.admin().await?.batch_execute(sql).await;
        result.map_err(|error| self.process.failed(format!("{sql}: {error:?}")))
    }

    /// A superuser's connection over the Unix socket, which works whatever `pg_hba.conf` and TLS say.
    ///
    /// # Errors
    ///
    /// `Failed` if the server is not there.
    pub async fn admin(&self) -> Result<Client, ServiceError> {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.process.dir().path()).port(self.port()).user("postgres").dbname("postgres");
        let (client, connection) = config.connect(NoTls).await.map_err(|error| self.process.failed(error))?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// The database `postgres` as the superuser `postgres`.
    pub fn url(&self) -> String {
        self.url_for("postgres", "postgres")
    }

    /// A database and a user (`name` or `name:password`) of this server.
    pub fn url_for(&self, database: &str, user: &str) -> String {
        format!("postgres://{user}@{}/{database}", self.port.addr())
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The loopback address.
    pub fn addr(&self) -> std::net::SocketAddr {
        self.port.addr()
    }

    /// The postmaster's pid, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.process.dir().join("data")
    }

    /// The major version.
    pub fn version(&self) -> Version {
        self.version
    }
}

async fn initdb(version: Version, binaries: &Path, dir: &PrivateDir) -> Result<(), ServiceError> {
    let mut command = tokio::process::Command::new(binaries.join("initdb"));
    command.arg("-D").arg(dir.join("data")).args([
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-locale",
    ]);
    // The files reach the disk with the server's first checkpoint; until then there is nothing to lose.
    command.args(["--no-sync", "--no-instructions"]).current_dir(dir.path()).kill_on_drop(true);
    if let Some(user) = dir.owner() {
        command.uid(user.uid).gid(user.gid);
    }
    let name = version.name();
    let output = match command.output().await {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let why = format!("{} is not executable for the servers' user: {error}", binaries.display());
            return Err(ServiceError::Missing { service: name, why });
        }
        Err(error) => return Err(ServiceError::failed(name, error)),
        Ok(output) => output,
    };
    if output.status.success() {
        return Ok(());
    }
    Err(ServiceError::failed(name, format!("initdb: {}", String::from_utf8_lossy(&output.stderr))))
}

fn configure(dir: &PrivateDir, options: &PostgresOptions) -> io::Result<()> {
    dir.write("data/postgresql.conf", options.postgresql_conf(dir.path()))?;
    dir.write("data/pg_hba.conf", options.pg_hba_conf())?;
    if let Some((server, client_ca)) = &options.tls {
        dir.write("server.crt", std::fs::read(&server.certificate)?)?;
        dir.write("server.key", std::fs::read(&server.key)?)?;
        dir.write("client-ca.crt", std::fs::read(client_ca)?)?;
    }
    Ok(())
}

/// `postmaster.pid`: the pid in the first line, the status in the eighth. A killed server leaves its file
/// behind.
fn says_ready(status_file: &Path, pid: &str) -> bool {
    let text = std::fs::read_to_string(status_file).unwrap_or_default();
    text.lines().next() == Some(pid) && text.lines().nth(7).map(str::trim) == Some("ready")
}
