//! The stage: one directory with three databases, a configuration, two logs, and the bank.
//!
//! The broker has a directory of its own, so that it can go away as a whole: a database that is moved without
//! its WAL would be a damaged one, and that is another story.

use super::tenant::{SHOP as SHOP_TENANT, TOPIC};
use crate::output::Usage;
use anyhow::Context as _;
use posthaste_sqlite::broker::{Broker, BrokerConfig};
use posthaste_sqlite::{SqliteConfig, migrate};
use rusqlite::{Connection, OpenFlags};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than any transaction of the demo, on any disk.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// The service's tables. `rolled_back` is its diary: written after the rollback, in a transaction of its own,
/// so that the ledger can look for what must not be anywhere.
const SHOP: &str = "
create table orders (id text primary key, customer text not null, steps integer not null) strict;
create table rolled_back (n integer primary key, tx integer not null, event_id text not null) strict;
";

/// With a gateway the shop's tables are in a file of its own, with one more: events that an answer named. Its
/// `rolled_back` are requests that were refused, under the status they were answered with.
const HANDED_IN: &str = "
create table handed_in (n integer primary key, event_id text not null, replayed integer not null) strict;
";

/// The consumer's tables. `bookings` has no unique index on the event, on purpose: if the inbox let an event
/// through twice, the ledger must see it.
const BILLING: &str = "
create table bookings (n integer primary key, event_id text not null, order_id text not null, cents integer not null,
                       attempt integer not null) strict;
create index bookings_again on bookings (attempt) where attempt > 1;
create table accounts (customer text primary key, cents integer not null) strict;
create table refused (n integer primary key, event_id text not null) strict;
";

pub(crate) struct Stage {
    dir: PathBuf,
    /// Removed at the end.
    temporary: bool,
}

impl Stage {
    /// A directory that is there already.
    pub(crate) fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), temporary: false }
    }

    /// A new one, which goes when this is dropped.
    pub(crate) fn temporary() -> anyhow::Result<Self> {
        // Short, so that lines with a path fit into a terminal. If it is there already, making it fails.
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let dir = std::env::temp_dir().join(format!("posthaste-demo-{:08x}", random >> 32));
        make_dir(&dir)?;
        Ok(Self { dir: dir.canonicalize()?, temporary: true })
    }

    /// One that stays. Somebody's files must not be mixed with ours.
    pub(crate) fn keep(dir: &Path) -> anyhow::Result<Self> {
        let is_empty = match std::fs::read_dir(dir) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                make_dir(dir)?;
                true
            }
            Err(error) => return Err(error).with_context(|| format!("cannot use {}", dir.display())),
        };
        if !is_empty {
            return Err(Usage(format!("--keep {}: the directory is not empty", dir.display())).into());
        }
        Ok(Self { dir: dir.canonicalize()?, temporary: false })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn orders(&self) -> PathBuf {
        self.dir.join("orders.db")
    }

    pub(crate) fn broker(&self) -> PathBuf {
        self.broker_dir().join("broker.db")
    }

    pub(crate) fn billing(&self) -> PathBuf {
        self.dir.join("billing.db")
    }

    /// The shop's own file, if it hands in by HTTP.
    pub(crate) fn till(&self) -> PathBuf {
        self.dir.join("till.db")
    }

    /// Whether orders are handed in by HTTP. The files say so, also to whoever counts them later.
    pub(crate) fn has_gateway(&self) -> bool {
        self.till().is_file()
    }

    /// Where the shop's tables are: beside the outbox, or in a file of its own.
    pub(crate) fn shop(&self) -> PathBuf {
        if self.has_gateway() { self.till() } else { self.orders() }
    }

    /// What stands before an order's number in the key of its events.
    pub(crate) fn key_prefix(&self) -> String {
        if self.has_gateway() { format!("{SHOP_TENANT}:") } else { String::new() }
    }

    /// The bank answers while this is there.
    pub(crate) fn bank(&self) -> PathBuf {
        self.dir.join("bank")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.join("posthaste.toml")
    }

    /// What a process of this name has to say.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    /// For whoever looks at shop and billing by the dashboard.
    pub(crate) fn page_config(&self, address: &str) -> anyhow::Result<PathBuf> {
        let path = self.dir.join("dashboard.toml");
        let quoted = |text: String| toml::Value::String(text).to_string();
        let url = |path: PathBuf| quoted(format!("sqlite://{}", path.display()));
        let text = format!(
            "[[outbox]]\nname = \"shop\"\nurl = {}\nrelay = false\n\n\
             [[outbox]]\nname = \"billing\"\nurl = {}\nrelay = false\n\n\
             [admin]\nlisten = {}\n",
            url(self.orders()),
            url(self.billing()),
            quoted(address.to_owned())
        );
        std::fs::write(&path, text)?;
        Ok(path)
    }

    fn broker_dir(&self) -> PathBuf {
        self.dir.join("broker")
    }

    fn away_dir(&self) -> PathBuf {
        self.dir.join("broker.away")
    }

    /// Whether the files are there.
    pub(crate) fn is_complete(&self) -> bool {
        [self.orders(), self.broker(), self.billing()].iter().all(|path| path.is_file())
    }

    /// The event that was given up, for whoever looks around.
    pub(crate) fn dead_letter(&self) -> anyhow::Result<String> {
        let sql = "select id from posthaste_dead_letters order by letter limit 1";
        Ok(connect(&self.orders())?.query_row(sql, [], |row| row.get(0))?)
    }

    /// The broker goes away: from one moment to the next nobody reaches its file by its name.
    pub(crate) fn take_broker_away(&self) -> anyhow::Result<()> {
        std::fs::rename(self.broker_dir(), self.away_dir()).context("cannot move the broker away")
    }

    /// Whether it is away.
    pub(crate) fn is_broker_away(&self) -> bool {
        self.away_dir().exists()
    }

    pub(crate) fn bring_broker_back(&self) -> anyhow::Result<()> {
        std::fs::rename(self.away_dir(), self.broker_dir()).context("cannot move the broker back")
    }

    /// The bank goes away, for whoever asks from now on.
    pub(crate) fn take_bank_away(&self) -> anyhow::Result<()> {
        std::fs::remove_file(self.bank()).context("cannot take the bank away")
    }

    pub(crate) fn bring_bank_back(&self) -> anyhow::Result<()> {
        std::fs::write(self.bank(), "open").context("cannot bring the bank back")
    }

    /// Makes the databases and the configuration, and answers with the latter's text. A gateway listens at
    /// this address.
    pub(crate) fn set_up(&self, gateway: Option<SocketAddr>) -> anyhow::Result<String> {
        migrate::up(&SqliteConfig::new(self.orders()))?;
        if gateway.is_some() {
            Connection::open(self.till())?
                .execute_batch(&format!("pragma journal_mode = wal; {HANDED_IN}"))?;
        }
        connect(&self.shop())?.execute_batch(SHOP)?;
        make_dir(&self.broker_dir())?;
        drop(Broker::open(BrokerConfig::new(self.broker()))?);
        migrate::up(&SqliteConfig::new(self.billing()))?;
        connect(&self.billing())?.execute_batch(BILLING)?;
        self.bring_bank_back()?;
        let mut text = self.config_text();
        if let Some(address) = gateway {
            text.push_str(&gateway_text(address));
        }
        std::fs::write(self.config(), &text)?;
        Ok(text)
    }

    fn config_text(&self) -> String {
        let quoted = |text: String| toml::Value::String(text).to_string();
        let url = quoted(format!("sqlite://{}", self.orders().display()));
        let path = quoted(self.broker().display().to_string());
        format!(
            "service = \"shop\"\n\n\
             [outbox]\nurl = {url}\n\n\
             [sinks.local]\ntype = \"local\"\npath = {path}\n\n\
             [[route]]\ntopics = [\"orders.*\"]\nsinks = [\"local\"]\n\
             destination = \"orders\"   # the broker's topic\n\
             validate = \"json\"        # anything else is a dead letter\n\n\
             [http]\nlisten = \"off\"\n"
        )
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.temporary {
            // Nobody can be told if this fails, and nothing depends on it.
            let _ = std::fs::remove_dir_all(&self.dir);
        } else if self.away_dir().exists() {
            let _ = self.bring_broker_back();
        }
    }
}

fn gateway_text(address: SocketAddr) -> String {
    format!(
        "\n[gateway]\nlisten = \"{address}\"\nlimit = {{ rate_per_s = 10000, burst = 1000 }}\n\n\
         [[gateway.topic]]\ntopic = \"{TOPIC}\"\nkey = \"client\"           # the order: its events stay in order\n"
    )
}

fn make_dir(dir: &Path) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(dir);
    made.with_context(|| format!("cannot make {}", dir.display()))
}

/// A connection as a service has one. The file must be there.
pub(crate) fn connect(path: &Path) -> anyhow::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)
        .with_context(|| format!("cannot open {}", path.display()))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // A commit is on the disk: an order that was confirmed is not lost with the power.
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}
