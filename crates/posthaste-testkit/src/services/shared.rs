//! The PostgreSQL server that all tests of a process share, and a fresh database on it for each test.
//!
//! A server costs a second, a database some twenty milliseconds, and databases of one server cannot see each
//! other's tables, locks, notifications or slots. So a test takes a private [`Postgres`] only if it kills,
//! stops or configures the server, or counts what the whole server does, and a [`TestDatabase`] otherwise.
//!
//! `./test` starts one server for all test binaries and names it in `POSTHASTE_TEST_PG`; a lone `cargo test`
//! starts its own with the first test that asks. That one lives in a `static`, which Rust never drops: its
//! guard ends it.

use std::{io, time::Duration};

use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use super::{Postgres, PostgresOptions, ServiceError, Version, with_database, with_user};

const SERVICE: &str = "the shared postgres";
/// A database whose connections are gone is dropped in milliseconds; one that is not must not hold up the
/// test's end.
const DROP_TIMEOUT: Duration = Duration::from_secs(30);

/// The server of all tests of this process.
#[derive(Debug)]
pub struct SharedPostgres {
    url: String,
    _own: Option<Postgres>,
}

impl SharedPostgres {
    /// The server's maintenance database, as a superuser.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// The server of all tests of this process: that of `POSTHASTE_TEST_PG`, or a private one.
///
/// # Errors
///
/// `Missing` or `Failed`, the same each time: a start that failed is not tried again by each test.
pub async fn shared() -> Result<&'static SharedPostgres, ServiceError> {
    static SHARED: OnceCell<Result<SharedPostgres, ServiceError>> = OnceCell::const_new();
    SHARED.get_or_init(find_or_start).await.as_ref().map_err(Clone::clone)
}

async fn find_or_start() -> Result<SharedPostgres, ServiceError> {
    if let Ok(url) = std::env::var("POSTHASTE_TEST_PG") {
        return Ok(SharedPostgres { url, _own: None });
    }
    let options = PostgresOptions::default().setting("max_connections", "300");
    let own = Postgres::start(Version::tested(), &options).await?;
    Ok(SharedPostgres { url: own.url(), _own: Some(own) })
}

/// An empty database of its own for a test. Dropping it drops the database, with the connections that are
/// still open.
#[derive(Debug)]
pub struct TestDatabase {
    maintenance_url: String,
    name: String,
}

impl TestDatabase {
    /// A new database on the [`shared`] server.
    ///
    /// # Errors
    ///
    /// As [`shared`], and `Failed` if the server refuses.
    pub async fn create() -> Result<Self, ServiceError> {
        Self::create_at(shared().await?.url(), "").await
    }

    /// A new database on the [`shared`] server whose text is stored in another encoding than UTF-8.
    ///
    /// # Errors
    ///
    /// As [`TestDatabase::create`].
    pub async fn create_encoded(encoding: &str) -> Result<Self, ServiceError> {
        let locale = format!(" ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'");
        Self::create_at(shared().await?.url(), &locale).await
    }

    /// A new database on a private server.
    ///
    /// # Errors
    ///
    /// `Failed` if the server refuses.
    pub async fn create_on(server: &Postgres) -> Result<Self, ServiceError> {
        Self::create_at(&server.url(), "").await
    }

    async fn create_at(maintenance_url: &str, locale: &str) -> Result<Self, ServiceError> {
        let name = format!("test_{}", Uuid::now_v7().simple());
        let create = async {
            // Nobody can be connected to template0, and a connection to a template is what makes CREATE
            // DATABASE fail.
            connect(maintenance_url)
                .await?
                .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0{locale}"))
                .await?;
            // What 15 does by itself. What an older server's owner is told to do has tests of its own.
            if Version::tested() < Version::V15 {
                let database = connect(&with_database(maintenance_url, &name)).await?;
                database.batch_execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC").await?;
            }
            Ok::<_, tokio_postgres::Error>(())
        };
        create.await.map_err(|error| ServiceError::failed(SERVICE, format!("create {name}: {error:?}")))?;
        Ok(Self { maintenance_url: maintenance_url.to_owned(), name })
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This database, as a superuser.
    pub fn url(&self) -> String {
        with_database(&self.maintenance_url, &self.name)
    }

    /// This database, as another user (`name` or `name:password`).
    pub fn url_as(&self, user: &str) -> String {
        with_user(&self.url(), user)
    }

    /// A new connection, driven by a task of the current runtime.
    ///
    /// # Errors
    ///
    /// `Failed` if the server refuses.
    pub async fn connect(&self) -> Result<Client, ServiceError> {
        connect(&self.url()).await.map_err(|error| ServiceError::failed(SERVICE, format!("{error:?}")))
    }
}

impl Drop for TestDatabase {
    /// On a thread with a runtime of its own: `drop` cannot wait in the test's runtime, and that one may be
    /// gone.
    fn drop(&mut self) {
        let (url, name) = (self.maintenance_url.clone(), self.name.clone());
        let dropped = std::thread::spawn(move || -> io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let dropping = async { tokio::time::timeout(DROP_TIMEOUT, drop_database(&url, &name)).await };
            runtime.block_on(dropping)?.map_err(io::Error::other)
        });
        // A server that the test has killed for good has no database to drop. Anything else is worth a line,
        // and no second panic.
        if let Ok(Err(error)) = dropped.join() {
            eprintln!("the database {} was not dropped: {error}", self.name);
        }
    }
}

/// FORCE ends connections and drops slots, but it refuses while a slot is being read, and does not end
/// prepared transactions: of those there are few places on the shared server, and each holds back its vacuum.
async fn drop_database(maintenance_url: &str, name: &str) -> Result<(), tokio_postgres::Error> {
    let server = connect(maintenance_url).await?;
    let database = connect(&with_database(maintenance_url, name)).await?;
    for row in
        database.query("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()", &[]).await?
    {
        let gid: &str = row.get(0);
        database.batch_execute(&format!("ROLLBACK PREPARED '{}'", gid.replace('\'', "''"))).await?;
    }
    drop(database);
    server.batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await?;
    let end_readers = "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE database = $1 AND active";
    server.execute(end_readers, &[&name]).await?;
    server.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
