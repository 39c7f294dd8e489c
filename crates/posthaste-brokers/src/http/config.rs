//! The options of an HTTP sink.

use super::client::endpoint::{Addresses, Endpoint};
use super::client::guard::Guard;
use super::client::proxy::Proxies;
use super::entry::{Keys, Signer, is_ours};
use super::verdict::{OnStatus, Statuses};
use crate::options::{Options, between, has_options};
use crate::secret::read_text;
use crate::{BuildError, Secret, Urls};
use base64::Engine;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Requests of all hosts together. Each may be a connection, so this is well below the usual limit of 1,024
/// open files.
const MAX_IN_FLIGHT: usize = 256;
const MAX_IN_FLIGHT_LIMIT: usize = 16_384;
/// A receiver is somebody's web server: 32 at once keep a quick one busy (at 10 ms an answer 3,200 events a
/// second) and do not look like an attack to a slow one.
const MAX_IN_FLIGHT_PER_HOST: usize = 32;

/// Options of an HTTP sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::options::with_default::<MAX_IN_FLIGHT>))]
#[serde(deny_unknown_fields)]
pub struct HttpConfig {
    /// Where destinations are paths below: `https://shop.example/hooks`. Without it a destination is a
    /// whole URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub url: Option<Urls>,
    /// The same to one host (scheme, name and port).
    #[serde(default = "max_in_flight_per_host")]
    pub max_in_flight_per_host: usize,
    /// Secrets that requests are signed with, `whsec_` and base64. Each of them signs: while one is being
    /// replaced, the old one and the new one are here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub secrets: Vec<Secret>,
    /// A file with such secrets, one a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_file: Option<PathBuf>,
    /// A token for `Authorization: Bearer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub token: Option<Secret>,
    /// A file with the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// More headers of every request. Values are secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, String>"))]
    pub headers: BTreeMap<String, Secret>,
    /// What answers mean, where it is not what the table says: a status (`404`) or a class (`5xx`), and
    /// `reject`, `retry` or `wait`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub statuses: BTreeMap<String, OnStatus>,
    /// Deliver to addresses that are not public too.
    #[serde(default)]
    pub allow_private: bool,
    /// Networks that may be delivered to though they are not public: `10.1.0.0/16`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_networks: Vec<String>,
    /// The proxy that connections are made through (`http://proxy:3128`), or `environment` for that of
    /// `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`. Behind a proxy it is the proxy that decides which
    /// addresses are reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub proxy: Option<Urls>,
    /// Hosts that are reached without the proxy: names with all names below them, networks, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_proxy: Vec<String>,
    /// User name at the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_user: Option<String>,
    /// Its password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub proxy_password: Option<Secret>,
    /// A file with this password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_password_file: Option<PathBuf>,
    /// What every broker has: delivery timeout, window, login and TLS.
    #[serde(flatten, skip_deserializing, default = "options")]
    #[cfg_attr(feature = "schema", schemars(flatten, !skip_deserializing))]
    pub options: Options,
}

fn options() -> Options {
    Options::new(MAX_IN_FLIGHT)
}

fn max_in_flight_per_host() -> usize {
    MAX_IN_FLIGHT_PER_HOST
}

/// The options in a form that is ready for use.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) addresses: Addresses,
    pub(super) guard: Guard,
    pub(super) statuses: Statuses,
}

has_options!(HttpConfig);

impl HttpConfig {
    /// A sink for paths below this URL, with every default.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self { url: Some(Urls::new(url)), ..Self::for_whole_urls() }
    }

    /// A sink whose destinations are whole URLs, with every default.
    #[must_use]
    pub fn for_whole_urls() -> Self {
        Self {
            url: None,
            options: options(),
            max_in_flight_per_host: MAX_IN_FLIGHT_PER_HOST,
            secrets: Vec::new(),
            secrets_file: None,
            token: None,
            token_file: None,
            headers: BTreeMap::new(),
            statuses: BTreeMap::new(),
            allow_private: false,
            allow_networks: Vec::new(),
            proxy: None,
            no_proxy: Vec::new(),
            proxy_user: None,
            proxy_password: None,
            proxy_password_file: None,
        }
    }

    /// Checks what can be checked without a receiver.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        self.check_words()?;
        self.keys()?;
        self.proxies()?;
        self.options.tls().client_config().map(drop)
    }

    /// Checks what can be checked without a receiver and without the files it names.
    pub(crate) fn check_words(&self) -> Result<(), BuildError> {
        self.words().map(drop)
    }

    /// Whether a request can ever go to this destination. A wrong address of the sink itself is told
    /// elsewhere.
    pub(crate) fn check_destination(&self, destination: &str) -> Result<(), &'static str> {
        let Ok(addresses) = Addresses::new(self.url.as_ref(), self.wants_tls()) else { return Ok(()) };
        Endpoint::new(destination, &addresses.find(destination)?).map(drop)
    }

    pub(super) fn words(&self) -> Result<Words, BuildError> {
        self.options.check_words(MAX_IN_FLIGHT_LIMIT)?;
        self.options.check_user()?;
        let per_host = self.max_in_flight_per_host as u64;
        between("max_in_flight_per_host", per_host, 1, MAX_IN_FLIGHT_LIMIT as u64)?;
        self.check_credentials()?;
        self.fixed_headers()?;
        self.check_proxy()?;
        if let Some(token) = &self.token {
            secret_value("token", token.expose())?;
        }
        Ok(Words {
            addresses: Addresses::new(self.url.as_ref(), self.wants_tls())?,
            guard: Guard::new(self.allow_private, &self.allow_networks)?,
            statuses: Statuses::new(&self.statuses)?,
        })
    }

    fn check_credentials(&self) -> Result<(), BuildError> {
        let given_token = self.token.is_some() || self.token_file.is_some();
        let refuse = |option, why: &str| Err(BuildError::option(option, why));
        if self.options.user.is_some() && given_token {
            return refuse("user", "only one of user and token can be used");
        }
        let own = self.headers.keys().any(|name| name.eq_ignore_ascii_case(AUTHORIZATION.as_str()));
        if own && (self.options.user.is_some() || given_token) {
            return refuse("headers", "authorization is given twice");
        }
        if self.url.is_none() && (self.options.user.is_some() || given_token || !self.headers.is_empty()) {
            return refuse(
                "url",
                "token, user and headers need it: without url a destination names the host, and they would be sent to whoever that is",
            );
        }
        Ok(())
    }

    fn check_proxy(&self) -> Result<(), BuildError> {
        let has_password = self.proxy_password.is_some() || self.proxy_password_file.is_some();
        let lacks = |option, what| Err(BuildError::option(option, format!("needs {what}")));
        if self.proxy.is_none() && !self.no_proxy.is_empty() {
            return lacks("no_proxy", "proxy");
        }
        match (&self.proxy_user, has_password) {
            (Some(_), _) if self.proxy.is_none() => return lacks("proxy_user", "proxy"),
            (Some(_), false) => return lacks("proxy_user", "proxy_password or proxy_password_file"),
            (None, true) => return lacks("proxy_password", "proxy_user"),
            _ => {}
        }
        self.proxies_with(None).map(drop)
    }

    /// Which host is reached through which proxy. The proxy's password is read.
    pub(super) fn proxies(&self) -> Result<Proxies, BuildError> {
        let password = Secret::read(
            self.proxy_password.as_ref(),
            self.proxy_password_file.as_ref(),
            "proxy_password_file",
        )?;
        let authorization = match (&self.proxy_user, password) {
            (Some(user), Some(password)) => Some(secret_value("proxy_user", &basic(user, &password))?),
            _ => None,
        };
        self.proxies_with(authorization)
    }

    fn proxies_with(&self, authorization: Option<HeaderValue>) -> Result<Proxies, BuildError> {
        let given: Vec<_> = self.proxy.iter().flat_map(Urls::iter).collect();
        if given.len() > 1 {
            return Err(BuildError::option("proxy", "must be one URL"));
        }
        Proxies::new(given.first().copied(), &self.no_proxy, authorization)
    }

    fn fixed_headers(&self) -> Result<HeaderMap, BuildError> {
        let bad = |name: &str, why| BuildError::option("headers", format!("{name:?} {why}"));
        let mut fixed = HeaderMap::new();
        for (name, value) in &self.headers {
            let legal =
                HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad(name, "is no header name"))?;
            if is_ours(legal.as_str()) && legal != AUTHORIZATION {
                return Err(bad(name, "is written by Posthaste itself"));
            }
            let value = secret_value("headers", value.expose());
            fixed.insert(legal, value.map_err(|_| bad(name, "has a value that is not printable ASCII"))?);
        }
        Ok(fixed)
    }

    /// Reads secrets, wherever they lie.
    pub(super) fn keys(&self) -> Result<Keys, BuildError> {
        let secrets = self.read_secrets()?;
        let mut headers = self.fixed_headers()?;
        let mut hidden: Vec<String> = secrets.iter().map(|secret| secret.expose().to_owned()).collect();
        // A receiver may quote a secret without the prefix that all of them have.
        let bare = secrets.iter().filter_map(|secret| secret.expose().strip_prefix("whsec_"));
        hidden.extend(bare.map(str::to_owned));
        hidden.extend(self.headers.values().map(|value| value.expose().to_owned()));
        if let Some((option, text, secret)) = self.authorization()? {
            headers.insert(AUTHORIZATION, secret_value(option, &text)?);
            hidden.extend([text.split_once(' ').map_or(text.clone(), |(_, rest)| rest.to_owned()), secret]);
        }
        hidden.retain(|text| !text.is_empty());
        // A secret that holds another one is hidden first.
        hidden.sort_by_key(|text| std::cmp::Reverse(text.len()));
        Ok(Keys { signer: Signer::new(&secrets)?, headers, hidden })
    }

    fn read_secrets(&self) -> Result<Vec<Secret>, BuildError> {
        let Some(path) = &self.secrets_file else { return Ok(self.secrets.clone()) };
        if !self.secrets.is_empty() {
            let why = "secrets are given twice, in the configuration and as a file";
            return Err(BuildError::option("secrets_file", why));
        }
        let text = read_text("secrets_file", path)?;
        let secrets: Vec<_> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(Secret::new).collect();
        // An empty file is one that is being written. It never means that requests are not signed.
        if secrets.is_empty() {
            return Err(BuildError::file("secrets_file", path, "there is no secret in it"));
        }
        Ok(secrets)
    }

    /// The value of `Authorization`, which option it comes from, and the secret in it.
    fn authorization(&self) -> Result<Option<(&'static str, String, String)>, BuildError> {
        if let Some(token) = Secret::read(self.token.as_ref(), self.token_file.as_ref(), "token_file")? {
            let token = token.expose();
            let option = if self.token.is_some() { "token" } else { "token_file" };
            return Ok(Some((option, format!("Bearer {token}"), token.to_owned())));
        }
        let password = self.options.read_password()?;
        let (Some(user), Some(password)) = (&self.options.user, password) else { return Ok(None) };
        Ok(Some(("user", basic(user, &password), password.expose().to_owned())))
    }

    /// The files that hold secrets.
    pub(super) fn secret_files(&self) -> [Option<&PathBuf>; 3] {
        [self.secrets_file.as_ref(), self.token_file.as_ref(), self.options.password_file.as_ref()]
    }

    /// Whether requests are signed.
    pub(super) fn signs(&self) -> bool {
        !self.secrets.is_empty() || self.secrets_file.is_some()
    }

    /// Whether a secret goes over the wire as it is.
    pub(super) fn sends_secret(&self) -> bool {
        self.options.user.is_some()
            || self.token.is_some()
            || self.token_file.is_some()
            || !self.headers.is_empty()
    }

    pub(super) fn wants_tls(&self) -> bool {
        self.options.wants_tls()
    }
}

/// Both may hold any letters (RFC 7617).
fn basic(user: &str, password: &Secret) -> String {
    let pair = format!("{user}:{}", password.expose());
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

/// A header's value that the client does not print. The parser also takes bytes beyond ASCII, but every
/// receiver makes something else of them.
fn secret_value(option: &'static str, text: &str) -> Result<HeaderValue, BuildError> {
    let value = HeaderValue::from_str(text).ok().filter(|value| value.to_str().is_ok());
    let mut value = value.ok_or_else(|| {
        BuildError::option(option, "must be printable ASCII: no header carries anything else")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: &HttpConfig) -> &'static str {
        config.check().expect_err("refused").option_name()
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let good = HttpConfig::new("https://h.example/in");
        assert!(good.check().is_ok() && HttpConfig::for_whole_urls().check().is_ok());
        let proxied = HttpConfig { proxy: Some(Urls::new("http://p:3128")), ..good.clone() };
        assert!(proxied.check().is_ok());
        let token = Some(Secret::new("t"));
        let header = |name: &str| BTreeMap::from([(name.to_owned(), Secret::new("v"))]);
        let rows = [
            (good.clone().with(|options| options.delivery_timeout_ms = 1), "delivery_timeout_ms"),
            (good.clone().with(|options| options.max_in_flight = 0), "max_in_flight"),
            (HttpConfig { max_in_flight_per_host: 0, ..good.clone() }, "max_in_flight_per_host"),
            (good.clone().with(|options| options.user = Some("u".into())), "user"),
            (good.clone().with(|options| options.password = token.clone()), "password"),
            (HttpConfig { token: Some(Secret::new("a\nb")), ..good.clone() }, "token"),
            (HttpConfig { headers: header("bad name"), ..good.clone() }, "headers"),
            (HttpConfig { headers: header("webhook-id"), ..good.clone() }, "headers"),
            (
                HttpConfig { headers: header("Authorization"), token: token.clone(), ..good.clone() },
                "headers",
            ),
            (HttpConfig { token: token.clone(), ..HttpConfig::for_whole_urls() }, "url"),
            (HttpConfig { headers: header("x-key"), ..HttpConfig::for_whole_urls() }, "url"),
            (HttpConfig { secrets: vec![Secret::new("whsec_???")], ..good.clone() }, "secrets"),
            (HttpConfig { allow_networks: vec!["10.0.0.0/33".into()], ..good.clone() }, "allow_networks"),
            (HttpConfig { proxy: Some(Urls::new("https://p")), ..good.clone() }, "proxy"),
            (HttpConfig { no_proxy: vec!["h".into()], ..good.clone() }, "no_proxy"),
            (HttpConfig { proxy_user: Some("u".into()), ..good.clone() }, "proxy_user"),
            (HttpConfig { proxy_user: Some("u".into()), ..proxied.clone() }, "proxy_user"),
            (HttpConfig { proxy_password: token.clone(), ..proxied.clone() }, "proxy_password"),
            (HttpConfig { no_proxy: vec!["a b".into()], ..proxied }, "no_proxy"),
            (good.clone().with(|options| options.key_file = Some("/nonexistent".into())), "cert_file"),
            (HttpConfig { secrets_file: Some("/nonexistent".into()), ..good }, "secrets_file"),
        ];
        for (config, option) in rows {
            assert_eq!(refused(&config), option, "{config:?}");
        }
    }

    #[test]
    fn secrets_show_nowhere() {
        let config = HttpConfig {
            secrets: vec![Secret::new("whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0")],
            headers: BTreeMap::from([("x-api-key".to_owned(), Secret::new("hunter3"))]),
            proxy: Some(Urls::new("http://u:hunter5@p")),
            proxy_user: Some("u".into()),
            proxy_password: Some(Secret::new("hunter6")),
            ..HttpConfig::new("https://u:hunter4@h.example").with(|options| {
                options.user = Some("shop".into());
                options.password = Some(Secret::new("hunter2"));
            })
        };
        let shown = format!("{config:?} {}", serde_json::to_string(&config).expect("serializes"));
        assert!(!shown.contains("hunter") && !shown.contains("c2Vj"), "{shown}");
        let error = config.check().expect_err("credentials in the URL").to_string();
        assert!(!error.contains("hunter"), "{error}");
    }
}
