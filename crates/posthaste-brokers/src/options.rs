//! Options that every broker has: who we are, whom we trust, and how much may be under way.
//!
//! A sink's table holds them beside the broker's own ones. They are read out of the table first. The rest is
//! the broker's, which refuses keys that it does not know. serde's `flatten` was refused, because with it an
//! unknown key is answered without the list of known ones, and a slip of the finger gets no advice.

#[cfg(feature = "tls")]
use crate::tls::Files;
use crate::{BuildError, Secret};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::Duration;

/// Shorter than the relay's own bound of 10 s for a publish, so that the sink is the one to say what a
/// silence means.
pub(crate) const DELIVERY_TIMEOUT_MS: u64 = 8_000;

/// The options of every sink, whatever its broker is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Options {
    /// How long a message may take from the call to the broker's answer.
    #[cfg_attr(feature = "schema", schemars(default = "delivery_timeout_ms"))]
    pub delivery_timeout_ms: u64,
    /// Messages of all calls together that wait for the broker's answer.
    #[cfg_attr(feature = "schema", schemars(default))]
    pub max_in_flight: usize,
    /// User name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub password: Option<Secret>,
    /// A file with the user's password. It is read anew for each connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// The authority that signed the servers' certificates, instead of those of the system (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Our own certificate (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// Its key (PEM, not encrypted).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Refuse servers without TLS. Naming one of the three files says the same.
    #[cfg_attr(feature = "schema", schemars(default))]
    pub require_tls: bool,
}

#[cfg(feature = "schema")]
fn delivery_timeout_ms() -> u64 {
    DELIVERY_TIMEOUT_MS
}

/// Puts the broker's own default of `max_in_flight` into its schema.
#[cfg(feature = "schema")]
pub(crate) fn with_default<const MAX_IN_FLIGHT: usize>(schema: &mut schemars::Schema) {
    schema.ensure_object()["properties"]["max_in_flight"]["default"] = MAX_IN_FLIGHT.into();
}

/// A broker's own options, with [`Options`] inside.
pub(crate) trait HasOptions: DeserializeOwned {
    fn options_mut(&mut self) -> &mut Options;

    /// Reads a table: these options first, then the broker's own.
    fn read(mut table: Map<String, Value>) -> Result<Self, serde_json::Error> {
        let given: Map<_, _> =
            Options::KEYS.iter().filter_map(|key| Some(((*key).to_owned(), table.remove(*key)?))).collect();
        let own: Result<Self, _> = serde_path_to_error::deserialize(Value::Object(table));
        let mut config = own.map_err(name_keys)?;
        config.options_mut().set(given)?;
        Ok(config)
    }
}

/// For a broker's configuration with a field `options`.
macro_rules! has_options {
    ($config:ident) => {
        impl $crate::options::HasOptions for $config {
            fn options_mut(&mut self) -> &mut Options {
                &mut self.options
            }
        }

        impl $config {
            /// The same with other options.
            #[must_use]
            pub fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
                change(&mut self.options);
                self
            }
        }
    };
}
pub(crate) use has_options;

/// The options of a source: those of its own, and the login and TLS that every broker has. The expression
/// makes a sink's configuration of its own ones; a source is that broker from the other side.
macro_rules! source_keys {
    (
        $(#[$meta:meta])*
        $name:ident, $keys:ident => $config:ident: $make:expr,
        { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$field_meta])* $field: $type,)*
            /// User name.
            user: Option<String>,
            /// The user's password.
            #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
            password: Option<$crate::Secret>,
            /// A file with the user's password. It is read anew for each connection.
            password_file: Option<std::path::PathBuf>,
            /// The authority that signed the servers' certificates, instead of those of the system (PEM).
            ca_file: Option<std::path::PathBuf>,
            /// Our own certificate (PEM).
            cert_file: Option<std::path::PathBuf>,
            /// Its key (PEM, not encrypted).
            key_file: Option<std::path::PathBuf>,
            /// Refuse servers without TLS. Naming one of the three files says the same.
            #[serde(default)]
            require_tls: bool,
        }

        impl From<$name> for $config {
            fn from($keys: $name) -> Self {
                let config: Self = $make;
                config.with(|options| {
                    (options.user, options.password) = ($keys.user, $keys.password);
                    (options.password_file, options.ca_file) = ($keys.password_file, $keys.ca_file);
                    (options.cert_file, options.key_file) = ($keys.cert_file, $keys.key_file);
                    options.require_tls = $keys.require_tls;
                })
            }
        }
    };
}
pub(crate) use source_keys;

/// serde lists the broker's own keys only, and does not say whose value is wrong.
fn name_keys(error: serde_path_to_error::Error<serde_json::Error>) -> serde_json::Error {
    let (path, message) = (error.path().to_string(), error.inner().to_string());
    if message.starts_with("unknown field") {
        let more = Options::KEYS.map(|key| format!("`{key}`")).join(", ");
        return serde::de::Error::custom(format_args!("{message}, {more}"));
    }
    match path.as_str() {
        "." => error.into_inner(),
        key => serde::de::Error::custom(format_args!("{key}: {message}")),
    }
}

fn value<T: for<'de> Deserialize<'de>>(key: &str, value: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(value).map_err(|error| serde::de::Error::custom(format_args!("{key}: {error}")))
}

impl Options {
    /// The keys, as they stand in a table.
    pub(crate) const KEYS: [&'static str; 9] = [
        "delivery_timeout_ms",
        "max_in_flight",
        "user",
        "password",
        "password_file",
        "ca_file",
        "cert_file",
        "key_file",
        "require_tls",
    ];

    /// All defaults. How much may be under way depends on the broker.
    pub(crate) fn new(max_in_flight: usize) -> Self {
        Self {
            delivery_timeout_ms: DELIVERY_TIMEOUT_MS,
            max_in_flight,
            user: None,
            password: None,
            password_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            require_tls: false,
        }
    }

    fn set(&mut self, given: Map<String, Value>) -> Result<(), serde_json::Error> {
        for (key, given) in given {
            match key.as_str() {
                "delivery_timeout_ms" => self.delivery_timeout_ms = value(&key, given)?,
                "max_in_flight" => self.max_in_flight = value(&key, given)?,
                "user" => self.user = value(&key, given)?,
                "password" => self.password = value(&key, given)?,
                "password_file" => self.password_file = value(&key, given)?,
                "ca_file" => self.ca_file = value(&key, given)?,
                "cert_file" => self.cert_file = value(&key, given)?,
                "key_file" => self.key_file = value(&key, given)?,
                "require_tls" => self.require_tls = value(&key, given)?,
                // `KEYS` has no other key.
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks what can be checked without the files.
    pub(crate) fn check_words(&self, max_in_flight_limit: usize) -> Result<(), BuildError> {
        between("delivery_timeout_ms", self.delivery_timeout_ms, 100, 600_000)?;
        between("max_in_flight", self.max_in_flight as u64, 1, max_in_flight_limit as u64)?;
        if self.user.is_some() && !self.has_password() {
            return Err(BuildError::option("user", "needs password or password_file"));
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(BuildError::option("cert_file", "cert_file and key_file belong together"));
        }
        Ok(())
    }

    /// For brokers that know a password only together with its user.
    pub(crate) fn check_user(&self) -> Result<(), BuildError> {
        if self.user.is_none() && self.has_password() {
            return Err(BuildError::option("password", "needs user"));
        }
        Ok(())
    }

    /// Reads the files, so that a wrong path is an error at the start and not an outage.
    #[cfg(feature = "tls")]
    pub(crate) fn check_files(&self) -> Result<(), BuildError> {
        self.read_password()?;
        self.tls().client_config().map(drop)
    }

    pub(crate) fn has_password(&self) -> bool {
        self.password.is_some() || self.password_file.is_some()
    }

    /// The password, from its file if it has one.
    pub(crate) fn read_password(&self) -> Result<Option<Secret>, BuildError> {
        Secret::read(self.password.as_ref(), self.password_file.as_ref(), "password_file")
    }

    #[cfg(feature = "tls")]
    pub(crate) fn tls(&self) -> Files<'_> {
        Files { ca: self.ca_file.as_ref(), certificate: self.cert_file.as_ref(), key: self.key_file.as_ref() }
    }

    pub(crate) fn wants_tls(&self) -> bool {
        let files = [&self.ca_file, &self.cert_file, &self.key_file];
        self.require_tls || files.iter().any(|file| file.is_some())
    }

    pub(crate) fn delivery_timeout(&self) -> Duration {
        Duration::from_millis(self.delivery_timeout_ms)
    }

    /// As whom we log in, in words that hold no secret. They are `nobody` if there is neither a user nor a
    /// certificate.
    pub(crate) fn identity(&self, nobody: &str) -> String {
        match (&self.user, &self.password_file, &self.cert_file) {
            (Some(user), Some(path), _) => format!("user {user:?} with the password in {}", path.display()),
            (Some(user), None, _) => format!("user {user:?}"),
            (None, _, Some(path)) => format!("the certificate {}", path.display()),
            (None, _, None) => nobody.to_owned(),
        }
    }
}

/// A number within its bounds.
pub(crate) fn between(option: &'static str, value: u64, least: u64, most: u64) -> Result<(), BuildError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(BuildError::option(option, format!("must be between {least} and {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        url: String,
        #[serde(skip, default = "defaults")]
        options: Options,
    }

    fn defaults() -> Options {
        Options::new(64)
    }

    impl HasOptions for Config {
        fn options_mut(&mut self) -> &mut Options {
            &mut self.options
        }
    }

    fn read(text: &str) -> Result<Config, String> {
        let Value::Object(table) = serde_json::from_str(text).expect("JSON") else { panic!("{text}") };
        Config::read(table).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_is_read_in_two_parts() {
        let config = read(r#"{"url":"h","user":"shop","password":"pw","max_in_flight":7}"#).expect("read");
        let expected = Options {
            user: Some("shop".to_owned()),
            password: Some(Secret::new("pw")),
            max_in_flight: 7,
            ..defaults()
        };
        assert_eq!((config.url.as_str(), config.options), ("h", expected));
        assert_eq!(read(r#"{"url":"h"}"#).expect("read").options, defaults());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let unknown = read(r#"{"url":"h","cafile":"x"}"#).expect_err("unknown");
        assert!(unknown.starts_with("unknown field `cafile`, expected"), "{unknown}");
        assert!(unknown.contains("`url`") && unknown.contains("`ca_file`"), "{unknown}");
        let wrong = read(r#"{"url":"h","max_in_flight":"many"}"#).expect_err("no number");
        assert!(wrong.starts_with("max_in_flight: invalid type"), "{wrong}");
    }

    #[test]
    fn every_key_can_be_set() {
        let sample = |key: &str| match key {
            "delivery_timeout_ms" | "max_in_flight" => Value::from(101),
            "require_tls" => Value::Bool(true),
            _ => Value::from("x"),
        };
        let table: Map<_, _> = Options::KEYS.iter().map(|key| ((*key).to_owned(), sample(key))).collect();
        let mut options = defaults();
        options.set(table).expect("set");
        let shown = serde_json::to_value(&options).expect("serializes");
        let shown = shown.as_object().expect("a table");
        let keys: Vec<&str> = shown.keys().map(String::as_str).collect();
        assert_eq!(keys.len(), Options::KEYS.len(), "{keys:?}");
        assert!(Options::KEYS.iter().all(|key| shown.contains_key(*key)), "{keys:?}");
    }
}
