//! Which server a test wants: the version, and what is to be otherwise than the defaults.
//!
//! The options end as the text of `postgresql.conf` and `pg_hba.conf`. PostgreSQL takes the last of two equal
//! settings and the first of two matching access lines, and the texts below are in the order that makes a
//! test's wish win.

use std::path::{Path, PathBuf};

use crate::services::{Pair, ServiceError, locate, services_dir};

/// A major version of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// PostgreSQL 14, the oldest that Posthaste supports.
    V14,
    /// PostgreSQL 15, Debian 12's own.
    V15,
    /// PostgreSQL 16.
    V16,
    /// PostgreSQL 17.
    V17,
    /// PostgreSQL 18.
    V18,
}

impl Version {
    /// All of them, oldest first.
    pub const ALL: [Self; 5] = [Self::V14, Self::V15, Self::V16, Self::V17, Self::V18];

    /// The one that this run is about: that of `POSTHASTE_TEST_PG_VERSION`, or 15.
    ///
    /// # Panics
    ///
    /// If the variable names no version that Posthaste supports.
    pub fn tested() -> Self {
        let Ok(wanted) = std::env::var("POSTHASTE_TEST_PG_VERSION") else { return Self::V15 };
        let found = Self::ALL.into_iter().find(|version| version.major().to_string() == wanted);
        found.unwrap_or_else(|| panic!("POSTHASTE_TEST_PG_VERSION={wanted} is no supported version"))
    }

    /// For a test that needs this version or a newer one.
    ///
    /// # Errors
    ///
    /// `Missing`, with the reason, if the run is about an older one.
    pub fn or_newer(self, why: &str) -> Result<(), ServiceError> {
        if Self::tested() >= self {
            return Ok(());
        }
        Err(ServiceError::Missing { service: self.name(), why: why.to_owned() })
    }

    /// The number: 14 for `V14`.
    pub fn major(self) -> u16 {
        match self {
            Self::V14 => 14,
            Self::V15 => 15,
            Self::V16 => 16,
            Self::V17 => 17,
            Self::V18 => 18,
        }
    }

    pub(super) fn name(self) -> String {
        format!("postgres-{}", self.major())
    }

    /// The directory of `initdb` and `postgres`.
    pub(super) fn binaries(self) -> Result<PathBuf, ServiceError> {
        let ours = services_dir().join(self.name()).join("bin/postgres");
        let debian = PathBuf::from(format!("/usr/lib/postgresql/{}/bin/postgres", self.major()));
        let postgres = locate(&self.name(), &[ours, debian])?;
        Ok(postgres.with_file_name(""))
    }
}

/// What a test wants otherwise than the defaults. The default value wants nothing.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    settings: Vec<(String, String)>,
    hba: Vec<String>,
    pub(super) tls: Option<(Pair, PathBuf)>,
    tls_only: bool,
    scram_users: Vec<(String, String)>,
    certificate_users: Vec<String>,
}

impl PostgresOptions {
    /// A line of `postgresql.conf`; a later one wins over an earlier one and over the defaults.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A line of `pg_hba.conf`, before all lines but the one that lets the testkit itself in.
    #[must_use]
    pub fn hba(mut self, line: &str) -> Self {
        self.hba.push(line.to_owned());
        self
    }

    /// Offers TLS with this certificate, and asks clients for one that `client_ca` signed. Plain connections
    /// work too.
    #[must_use]
    pub fn tls(mut self, server: &Pair, client_ca: &Path) -> Self {
        self.tls = Some((server.clone(), client_ca.to_owned()));
        self
    }

    /// Refuses connections without TLS.
    #[must_use]
    pub fn tls_only(mut self) -> Self {
        self.tls_only = true;
        self
    }

    /// Makes a role without any privileges that must log in with this password (SCRAM-SHA-256).
    #[must_use]
    pub fn scram_user(mut self, name: &str, password: &str) -> Self {
        self.scram_users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Makes a role without any privileges that must log in with a client certificate of this common name.
    #[must_use]
    pub fn certificate_user(mut self, name: &str) -> Self {
        self.certificate_users.push(name.to_owned());
        self
    }

    pub(super) fn postgresql_conf(&self, sockets: &Path) -> String {
        let sockets = sockets.display().to_string();
        let mut settings = vec![
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", sockets.as_str()),
            ("wal_level", "logical"),
            ("max_connections", "200"),
            ("max_prepared_transactions", "20"),
        ];
        if self.tls.is_some() {
            settings.extend([
                ("ssl", "on"),
                ("ssl_cert_file", "../server.crt"),
                ("ssl_key_file", "../server.key"),
                ("ssl_ca_file", "../client-ca.crt"),
            ]);
        }
        settings.extend(self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        settings.iter().map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''"))).collect()
    }

    pub(super) fn pg_hba_conf(&self) -> String {
        let host = if self.tls_only { "hostssl" } else { "host" };
        let mut lines = vec!["local all postgres trust".to_owned()];
        lines.extend(self.hba.iter().cloned());
        lines.extend(
            self.scram_users.iter().map(|(name, _)| format!("{host} all {name} 127.0.0.1/32 scram-sha-256")),
        );
        lines.extend(
            self.certificate_users.iter().map(|name| format!("hostssl all {name} 127.0.0.1/32 cert")),
        );
        lines.push(format!("{host} all all 127.0.0.1/32 trust"));
        lines.push(format!("{host} replication all 127.0.0.1/32 trust\n"));
        lines.join("\n")
    }

    pub(super) fn create_roles(&self) -> String {
        let scram = self.scram_users.iter().map(|(name, password)| {
            format!("CREATE ROLE \"{name}\" LOGIN PASSWORD '{}';", password.replace('\'', "''"))
        });
        let certificate = self.certificate_users.iter().map(|name| format!("CREATE ROLE \"{name}\" LOGIN;"));
        scram.chain(certificate).collect()
    }
}
