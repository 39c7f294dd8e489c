//! What the options say of servers and logins.

use super::session::EntryPoint;
use crate::address::{Address, Scheme, Shape};
use crate::redis::RedisConfig;
use crate::{BuildError, Secret};
use std::path::PathBuf;

/// How addresses look.
pub(super) const SHAPE: Shape = Shape {
    schemes: &[
        Scheme { name: "redis", tls: false, port: 6379 },
        Scheme { name: "rediss", tls: true, port: 6379 },
    ],
    needs_scheme: true,
    has_path: true,
    example: "redis://host:6379/0",
    credentials: "user with password_file",
};
const SENTINELS: Shape = Shape {
    schemes: &[
        Scheme { name: "redis", tls: false, port: 26379 },
        Scheme { name: "rediss", tls: true, port: 26379 },
    ],
    ..SHAPE
};

/// Where the configuration says that the servers are.
#[derive(Debug, Clone)]
pub(crate) enum Topology {
    /// One server, or the sentinels that know it.
    One(Vec<EntryPoint>),
    /// Some nodes of a cluster. They know the others.
    Cluster(Vec<Address>),
}

/// Our login at a server.
pub(crate) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) database: u32,
    /// The login in words that hold no secret.
    pub(super) identity: String,
}

impl Login {
    /// The server's words without our secrets. A server that does not know a command repeats its arguments,
    /// long ones in part.
    pub(super) fn without_secrets(&self, words: &str) -> String {
        let words = words.split(", with args beginning").next().unwrap_or_default();
        let password = self.password.as_ref().map(Secret::expose).filter(|password| !password.is_empty());
        password.map_or_else(|| words.to_owned(), |password| words.replace(password, "***"))
    }
}

impl RedisConfig {
    pub(crate) fn check_logins(&self) -> Result<(), BuildError> {
        let (user, password, file) =
            (&self.sentinel_user, &self.sentinel_password, &self.sentinel_password_file);
        if user.is_some() && password.is_none() && file.is_none() {
            return Err(BuildError::option(
                "sentinel_user",
                "needs sentinel_password or sentinel_password_file",
            ));
        }
        if self.sentinel_master.is_none() && (user.is_some() || password.is_some() || file.is_some()) {
            return Err(BuildError::option("sentinel_master", "is missing: who the sentinels watch"));
        }
        Ok(())
    }

    pub(crate) fn topology(&self) -> Result<Topology, BuildError> {
        let bad = |why: &str| BuildError::option("url", why);
        let shape = if self.sentinel_master.is_some() { SENTINELS } else { SHAPE };
        let parsed: Result<Vec<_>, String> = self.url.iter().map(|url| server(shape, url)).collect();
        let parsed = parsed.map_err(|why| bad(&why))?;
        let (first, database) = parsed.first().cloned().ok_or_else(|| bad("there is no server"))?;
        if parsed.iter().any(|(address, other)| *other != database || address.tls != first.tls) {
            return Err(bad("must name the same database and the same scheme everywhere"));
        }
        if self.options.wants_tls() && !first.tls {
            return Err(bad("must begin with rediss:// where TLS is required or a certificate is named"));
        }
        let addresses: Vec<_> = parsed.into_iter().map(|(address, _)| address).collect();
        match (&self.sentinel_master, self.cluster || addresses.len() > 1) {
            (Some(_), _) if self.cluster => {
                Err(BuildError::option("cluster", "a cluster has no sentinels: leave one of them out"))
            }
            (Some(name), _) if name.is_empty() => {
                Err(BuildError::option("sentinel_master", "must not be empty"))
            }
            (Some(name), _) => {
                let target = |sentinel| EntryPoint::Sentinel { sentinel, master: name.clone(), database };
                Ok(Topology::One(addresses.into_iter().map(target).collect()))
            }
            (None, true) if database != 0 => Err(bad("must name no database: a cluster has only 0")),
            (None, true) => Ok(Topology::Cluster(addresses)),
            (None, false) => Ok(Topology::One(vec![EntryPoint::Server { address: first, database }])),
        }
    }

    /// The login, with its files read anew for each connection.
    pub(super) fn login(&self, database: u32) -> Result<Login, BuildError> {
        let password = self.options.read_password()?;
        Ok(Login { user: self.options.user.clone(), password, database, identity: self.identity() })
    }

    pub(crate) fn sentinel_login(&self) -> Result<Login, BuildError> {
        let (text, file) = (self.sentinel_password.as_ref(), self.sentinel_password_file.as_ref());
        let password = Secret::read(text, file, "sentinel_password_file")?;
        let identity = identity(self.sentinel_user.as_deref(), text.is_some(), file, None);
        Ok(Login { user: self.sentinel_user.clone(), password, database: 0, identity })
    }

    /// As whom we log in, in words that hold no secret.
    pub(super) fn identity(&self) -> String {
        let (user, file) = (self.options.user.as_deref(), self.options.password_file.as_ref());
        identity(user, self.options.password.is_some(), file, self.options.cert_file.as_ref())
    }

    /// Whether a secret goes over the wire as it is.
    pub(crate) fn sends_secret(&self) -> bool {
        self.options.has_password()
            || self.sentinel_password.is_some()
            || self.sentinel_password_file.is_some()
    }
}

/// A server and the number of the database there.
pub(super) fn server(shape: Shape, url: &str) -> Result<(Address, u32), String> {
    let (address, database) = shape.parse(url)?;
    match database {
        "" => Ok((address, 0)),
        number => match number.parse() {
            Ok(number) => Ok((address, number)),
            Err(_) => Err("must end with the number of a database, as in /0".to_owned()),
        },
    }
}

fn identity(
    user: Option<&str>,
    password: bool,
    file: Option<&PathBuf>,
    certificate: Option<&PathBuf>,
) -> String {
    let user = user.unwrap_or("default");
    match (file, password, certificate) {
        (Some(path), ..) => format!("user {user:?} with the password in {}", path.display()),
        (None, true, _) => format!("user {user:?}"),
        (None, false, Some(path)) => format!("user {user:?} with the certificate {}", path.display()),
        (None, false, None) => format!("user {user:?} without a password"),
    }
}
