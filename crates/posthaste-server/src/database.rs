//! The database of an outbox: which one it is, and what is asked of it.
//!
//! Everything else in this program knows the seams only. A further kind of store is a variant here.

use crate::config::{ConsumerSetting, scrub};
use crate::handlers::HandledBy;
use posthaste::Limits;
use posthaste::admin::{Admin, AdminError};
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::consumer::{ConsumerSettings, InboxStore};
use posthaste::intake::{Intake, IntakeBounds, TenantStore};
use posthaste::lifecycle::ClassOverrides;
use posthaste::schema::CheckedRemote;
use posthaste::sink::Finding;
use posthaste::source::leased::Leases;
use posthaste::store::{ErrorClass, Store, StoreCode, StoreError};
use posthaste_postgres::claim::{ClaimAdmin, ClaimPace, ClaimStore, Layout};
use posthaste_postgres::consumer::{
    CheckedHandler, Handler, InboxOptions, OutsideHandler, PostgresInbox, SqlHandler, mapped,
};
use posthaste_postgres::doctor::Bounds;
use posthaste_postgres::migrate::{self, Outcome, Roles, Status};
use posthaste_postgres::{PostgresAdmin, PostgresConfig, PostgresIntake, PostgresStore, PostgresTenants};
#[cfg(feature = "sqlite")]
use posthaste_sqlite::{SqliteAdmin, SqliteConfig, SqliteIntake, SqliteStore, SqliteTenants};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// One database, as configured. It has no `Debug`: it may hold a password.
#[derive(Clone)]
pub(crate) enum Database {
    /// A schema on a server.
    Postgres {
        /// How to reach it.
        config: Box<PostgresConfig>,
        /// Who may do what in it.
        roles: Roles,
    },
    /// Somebody else's table on a server.
    Adopted {
        /// How to reach it.
        config: Box<PostgresConfig>,
        /// What it looks like.
        layout: Box<Layout>,
        /// The one sink that it feeds.
        sink: Arc<str>,
    },
    /// A file.
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteConfig),
}

/// What is said where a command is about our own log.
fn not_ours(layout: &Layout) -> StoreError {
    StoreError::fatal(
        StoreCode::Adopted,
        format!(
            "{} is an adopted table: it belongs to its owners, and nothing of it is set up or changed by us. `posthaste adopt \
             sql` prints every statement that it sees",
            layout.table
        ),
    )
}

impl Database {
    /// Opens it for a relay. Rows of an adopted table are claimed at this pace.
    pub(crate) async fn store(
        &self,
        pace: Option<&watch::Receiver<ClaimPace>>,
    ) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Self::Postgres { config, .. } => Arc::new(PostgresStore::connect((**config).clone()).await?),
            Self::Adopted { config, layout, .. } => {
                let (config, layout) = ((**config).clone(), (**layout).clone());
                Arc::new(match pace {
                    Some(pace) => ClaimStore::connect_paced(config, layout, pace.clone()).await?,
                    None => ClaimStore::connect(config, layout).await?,
                })
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Arc::new(SqliteStore::connect(config.clone()).await?),
        })
    }

    /// Opens it for looking and acting.
    pub(crate) async fn admin(&self) -> Result<Box<dyn Admin>, StoreError> {
        Ok(match self {
            Self::Postgres { config, .. } => Box::new(PostgresAdmin::connect((**config).clone()).await?),
            Self::Adopted { config, layout, sink } => {
                Box::new(ClaimAdmin::connect((**config).clone(), (**layout).clone(), Arc::clone(sink)).await?)
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Box::new(SqliteAdmin::connect(config.clone()).await?),
        })
    }

    /// The same, but a statement ends by itself after so long: what nobody waits for any more does not go on.
    /// Behind a pooler settings of a connection are lost, and there it is as it was.
    pub(crate) fn within(&self, longest: Duration) -> Self {
        let mut same = self.clone();
        if let Self::Postgres { config, .. } | Self::Adopted { config, .. } = &mut same
            && !config.pooled
            && config.url.contains("://")
            && !config.url.contains("options=")
        {
            let mark = if config.url.contains('?') { '&' } else { '?' };
            let longest = longest.as_millis();
            config.url = format!("{}{mark}options=-c%20statement_timeout%3D{longest}", config.url);
        }
        same
    }

    /// Whether consumers that have their inbox here can be looked at and acted on.
    pub(crate) fn has_consumers(&self) -> bool {
        self.layout().is_none()
    }

    /// Opens it for looking at consumers and acting on them, with another login where that is given. Those
    /// that are named have their own tables.
    pub(crate) async fn consumer_admin(
        &self,
        login: Option<&PostgresConfig>,
        consumers: &[&ConsumerSetting],
    ) -> Result<Option<Box<dyn ConsumerAdmin>>, StoreError> {
        let config = match self {
            Self::Postgres { config, .. } => config,
            Self::Adopted { .. } => return Ok(None),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => return Ok(Some(Box::new(SqliteAdmin::connect(config.clone()).await?))),
        };
        Ok(Some(Box::new(mapped_admin(login.unwrap_or(config), consumers).await?)))
    }

    /// Opens it for running jobs. Those about the consumers that are named go by their own tables. `None`: an
    /// adopted table has no place for jobs.
    pub(crate) async fn job_admin(
        &self,
        consumers: &[&ConsumerSetting],
    ) -> Result<Option<Box<dyn Admin>>, StoreError> {
        Ok(match self {
            Self::Postgres { config, .. } => Some(Box::new(mapped_admin(config, consumers).await?)),
            Self::Adopted { .. } => None,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Some(Box::new(SqliteAdmin::connect(config.clone()).await?)),
        })
    }

    /// The tables of a consumer that are not ours, and the rights on them, as SQL.
    pub(crate) fn tables_of(&self, setting: &ConsumerSetting) -> Result<String, StoreError> {
        let Self::Postgres { roles, .. } = self else { return Ok(String::new()) };
        mapped::sql(&setting.own.tables, roles)
    }

    /// Where a gateway's events go.
    pub(crate) fn intake(&self, bounds: IntakeBounds) -> Result<Arc<dyn Intake>, StoreError> {
        Ok(match self {
            Self::Postgres { config, .. } => Arc::new(PostgresIntake::start((**config).clone(), bounds)),
            Self::Adopted { layout, .. } => return Err(not_ours(layout)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Arc::new(SqliteIntake::start(config.clone(), bounds)?),
        })
    }

    /// Who may hand in events here.
    pub(crate) fn tenants(&self) -> Result<Arc<dyn TenantStore>, StoreError> {
        Ok(match self {
            Self::Postgres { config, .. } => Arc::new(PostgresTenants::new((**config).clone())),
            Self::Adopted { layout, .. } => return Err(not_ours(layout)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Arc::new(SqliteTenants::new(config.clone())),
        })
    }

    /// For how long a request or an append can be repeated with its key.
    pub(crate) fn remembered(&self) -> Duration {
        match self {
            Self::Postgres { config, .. } | Self::Adopted { config, .. } => config.retention.idempotency_keys,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => config.retention.idempotency_keys,
        }
    }

    /// Checks every assumption. Also of a database that [`admin`](Self::admin) refuses: that one has
    /// something to be found.
    pub(crate) async fn examine(&self, bounds: &Bounds) -> Result<Vec<Finding>, AdminError> {
        match self {
            Self::Postgres { config, .. } => PostgresAdmin::new((**config).clone()).doctor_with(bounds).await,
            Self::Adopted { config, layout, .. } => {
                Ok(posthaste_postgres::claim::examine(config, layout).await)
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => SqliteAdmin::new(config.clone()).doctor().await,
        }
    }

    /// Sets the outbox up, or brings it up to date.
    pub(crate) async fn migrate(&self) -> Result<Outcome, StoreError> {
        match self {
            Self::Postgres { config, roles } => migrate::up(config, roles).await,
            Self::Adopted { layout, .. } => Err(not_ours(layout)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => {
                let outcome = posthaste_sqlite::migrate::up(config)?;
                let change = |(before, now)| migrate::TopicChange { before, now };
                let audit_topic = outcome.audit_topic.map(change);
                Ok(Outcome { applied: outcome.applied, to_run_by_hand: Vec::new(), audit_topic })
            }
        }
    }

    /// What is set up and what is missing.
    pub(crate) async fn migrations(&self) -> Result<Status, StoreError> {
        match self {
            Self::Postgres { config, .. } => migrate::status(config).await,
            Self::Adopted { layout, .. } => Err(not_ours(layout)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => {
                let status = posthaste_sqlite::migrate::status(config)?;
                let applied = status.applied.into_iter().map(|one| migrate::Applied {
                    version: one.version,
                    name: one.name,
                    applied_at: one.applied_at,
                    // A file knows no users.
                    applied_by: String::new(),
                });
                Ok(Status {
                    current: status.current,
                    latest: status.latest,
                    applied: applied.collect(),
                    pending: status.pending,
                    audit_topic: status.audit_topic,
                })
            }
        }
    }

    /// All of it as SQL, without a database.
    pub(crate) fn script(&self) -> Result<String, StoreError> {
        match self {
            Self::Postgres { config, roles } => migrate::sql(&config.schema, roles, &config.limits),
            Self::Adopted { layout, .. } => Err(not_ours(layout)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Ok(posthaste_sqlite::migrate::sql()),
        }
    }

    /// What an append accepts.
    pub(crate) fn limits(&self) -> Limits {
        match self {
            Self::Postgres { config, .. } | Self::Adopted { config, .. } => config.limits,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => config.limits,
        }
    }

    /// What errors of a sink mean for this outbox, where the sink's table does not say it. The owners of an
    /// adopted table count a topic that does not exist as a failure of the row.
    pub(crate) fn classes(&self, own: &ClassOverrides) -> ClassOverrides {
        let mut classes = own.clone();
        if self.layout().is_some_and(|(_, layout)| !layout.waits_for_topics) {
            for code in posthaste_brokers::no_destination() {
                classes.entry(code.to_owned()).or_insert(ErrorClass::Transient);
            }
        }
        classes
    }

    /// Where its audit goes, once `migrate up` has written it down.
    pub(crate) fn set_audit_topic(&mut self, topic: &str) {
        match self {
            Self::Postgres { config, .. } => config.audit_topic = Some(topic.to_owned()),
            Self::Adopted { .. } => {}
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => config.audit_topic = Some(topic.to_owned()),
        }
    }

    /// Where the configuration lets its audit go.
    pub(crate) fn audit_topic(&self) -> Option<&str> {
        match self {
            Self::Postgres { config, .. } => config.audit_topic.as_deref(),
            Self::Adopted { .. } => None,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => config.audit_topic.as_deref(),
        }
    }

    /// Its address, without secrets.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Postgres { config, .. } | Self::Adopted { config, .. } => scrub(&config.url),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => format!("sqlite:{}", config.path.display()),
        }
    }

    /// Where in it the outbox is, for people.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Postgres { config, .. } => format!("schema {}", config.schema),
            Self::Adopted { layout, .. } => format!("table {}", layout.table),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => format!("file {}", config.path.display()),
        }
    }

    /// How to reach the server, where it is one.
    pub(crate) fn server(&self) -> Option<&PostgresConfig> {
        match self {
            Self::Postgres { config, .. } | Self::Adopted { config, .. } => Some(config),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => None,
        }
    }

    /// The layout of an adopted table.
    pub(crate) fn layout(&self) -> Option<(&PostgresConfig, &Layout)> {
        match self {
            Self::Adopted { config, layout, .. } => Some((config, layout)),
            _ => None,
        }
    }

    /// The server and its roles, where it is our own schema on one.
    pub(crate) fn postgres(&self) -> Option<(&PostgresConfig, &Roles)> {
        match self {
            Self::Postgres { config, roles } => Some((config, roles)),
            Self::Adopted { .. } => None,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => None,
        }
    }
}

/// An administration that knows which consumers have tables of their own.
async fn mapped_admin(
    config: &PostgresConfig,
    consumers: &[&ConsumerSetting],
) -> Result<PostgresAdmin, StoreError> {
    let mut admin = PostgresAdmin::connect(config.clone()).await?;
    for setting in consumers {
        admin.map_tables(&setting.name, setting.group(), &setting.tables());
    }
    Ok(admin)
}

/// Names of the checks that [`Database::examine`] makes, by kind.
pub(crate) fn checks() -> Vec<(&'static str, &'static [&'static str])> {
    vec![
        ("outbox", posthaste_postgres::doctor::CHECKS),
        ("outbox (adopted)", posthaste_postgres::claim::CHECKS),
        ("consumer", mapped::CHECKS),
        ("consumer handlers", &[posthaste_postgres::doctor::HANDLERS]),
        ("consumer login", posthaste_postgres::doctor::CONSUMER_CHECKS),
        ("gateway login", posthaste_postgres::doctor::GATEWAY_CHECKS),
        #[cfg(feature = "sqlite")]
        ("gateway (SQLite)", &[GATEWAY_FILE]),
        #[cfg(feature = "sqlite")]
        ("outbox (SQLite)", posthaste_sqlite::CHECKS),
    ]
}

/// The check of a file that a gateway's events go to.
#[cfg(feature = "sqlite")]
const GATEWAY_FILE: &str = "gateway_file";

/// Checks what a gateway rests on, with its own login.
pub(crate) async fn examine_gateway(
    database: &Database,
    bounds: &Bounds,
) -> Result<Vec<Finding>, StoreError> {
    match database {
        Database::Postgres { config, .. } => {
            posthaste_postgres::doctor::examine_gateway(config, bounds).await
        }
        Database::Adopted { layout, .. } => Err(not_ours(layout)),
        #[cfg(feature = "sqlite")]
        Database::Sqlite(config) => {
            use posthaste::sink::Level;
            let (level, text) = match SqliteIntake::check(config) {
                Ok(()) => (Level::Ok, "a commit is on the disk when 202 is answered".to_owned()),
                Err(error) => (Level::Fail, format!("{error}. The gateway does not start with this file")),
            };
            Ok(vec![Finding { check: GATEWAY_FILE.to_owned(), level, text }])
        }
    }
}

/// Checks what a consumer rests on, with its own login.
pub(crate) async fn examine_login(
    setting: &ConsumerSetting,
    bounds: &Bounds,
) -> Result<Vec<Finding>, StoreError> {
    posthaste_postgres::doctor::examine_consumer(&setting.database, bounds).await
}

/// Checks the functions and the receivers that are to handle a consumer's messages.
pub(crate) async fn examine_handlers(setting: &ConsumerSetting) -> Vec<Finding> {
    let (mut functions, mut findings) = (Vec::new(), Vec::new());
    for (_, by) in setting.handlers() {
        match by {
            HandledBy::Function(function) => {
                functions.push(SqlHandler::new(&setting.database.schema, function));
            }
            HandledBy::Receiver(receiver) => findings.extend(receiver.examine(&setting.name).await),
        }
    }
    if !functions.is_empty() {
        findings.extend(posthaste_postgres::doctor::examine_handlers(&setting.database, &functions).await);
    }
    findings
}

/// Compares the tables of a consumer that are not ours with what it needs of them.
pub(crate) async fn examine_tables(setting: &ConsumerSetting) -> Vec<Finding> {
    mapped::examine(&setting.database, &setting.own.tables, &setting.name, setting.group()).await
}

/// Opens the inbox of a consumer, with its handlers, and the leases that are in it. What is missing is told
/// before anything is taken.
pub(crate) async fn inbox(
    setting: &ConsumerSetting,
    settings: &ConsumerSettings,
) -> Result<(Arc<dyn InboxStore>, Arc<dyn Leases>), StoreError> {
    let options = InboxOptions {
        transactions_max: settings.transactions_max,
        dead_letters: setting.own.dead_letters.clone(),
        group: setting.own.group.clone(),
        tables: setting.tables(),
        ..InboxOptions::new(&*setting.name)
    };
    let (schema, checks) = (&setting.database.schema, &setting.checks);
    let handler = |(filter, by)| {
        let handler: Arc<dyn Handler> = match by {
            HandledBy::Function(function) => {
                let handler = SqlHandler::new(schema, function);
                match checks.is_empty() {
                    true => Arc::new(handler),
                    false => Arc::new(CheckedHandler::new(Arc::clone(checks), Arc::new(handler))),
                }
            }
            HandledBy::Receiver(receiver) => {
                let remote = receiver.build(&setting.name);
                let remote =
                    remote.map_err(|error| StoreError::fatal(StoreCode::Layout, error.to_string()))?;
                Arc::new(OutsideHandler::new(schema, CheckedRemote::around(remote, checks)))
            }
        };
        Ok::<_, StoreError>((filter, handler))
    };
    let handlers = setting.handlers().map(handler).collect::<Result<_, _>>()?;
    let inbox = Arc::new(PostgresInbox::connect(setting.database.clone(), options, handlers).await?);
    Ok((Arc::clone(&inbox) as Arc<dyn InboxStore>, inbox))
}
