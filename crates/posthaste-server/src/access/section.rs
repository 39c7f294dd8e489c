//! `[admin]`: where the API listens, and what it must have to do so.

use crate::config::Review;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// `[admin]`: the API for people who look and act. It is served where somebody could enter.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdminSection {
    /// Address, or `off`. Other addresses than loopback need a certificate and a file of tokens.
    pub(crate) listen: String,
    /// Who may enter: a line of `posthaste token new` for each. Read again on SIGHUP.
    pub(crate) tokens_file: Option<PathBuf>,
    /// Certificate (PEM), read again on SIGHUP.
    pub(crate) cert_file: Option<PathBuf>,
    /// Its key (PEM).
    pub(crate) key_file: Option<PathBuf>,
    /// Names in the `Host` header that are accepted beside the address and `localhost`.
    pub(crate) hosts: Vec<String>,
    /// Whether keys of events are shown to tokens that may not see payloads.
    pub(crate) show_keys: bool,
}

impl Default for AdminSection {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7679".to_owned(),
            tokens_file: None,
            cert_file: None,
            key_file: None,
            hosts: Vec::new(),
            show_keys: false,
        }
    }
}

/// `[admin]`, checked.
#[derive(Clone, Default)]
pub(crate) struct AdminSetting {
    /// Where it is served; `None`: switched off.
    pub(crate) listen: Option<SocketAddr>,
    /// Whether somebody wrote the address.
    pub(crate) is_given: bool,
    pub(crate) tokens_file: Option<PathBuf>,
    /// Certificate and key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) hosts: Vec<String>,
    pub(crate) show_keys: bool,
}

impl AdminSetting {
    /// Where a relay serves it: only where somebody could enter, or was meant to.
    pub(crate) fn beside_a_relay(&self) -> Option<SocketAddr> {
        self.listen.filter(|_| self.is_given || self.tokens_file.is_some())
    }
}

/// Checks the section. What listens elsewhere than on loopback is for others: they need a token, and a token
/// needs TLS on its way.
pub(crate) fn admin(review: &mut Review<'_>, section: &AdminSection) -> AdminSetting {
    let address = listen(review, "admin.listen", &section.listen);
    if section.cert_file.is_some() != section.key_file.is_some() {
        review.problem("admin.cert_file", "`admin.cert_file` and `admin.key_file` belong together");
    }
    let certificate = section.cert_file.clone().zip(section.key_file.clone());
    if let Some(address) = address.filter(|address| !address.ip().is_loopback())
        && (certificate.is_none() || section.tokens_file.is_none())
    {
        review.problem(
            "admin.listen",
            format!(
                "admin.listen = \"{address}\" can be reached by others, and there events are read and discarded: it \
                 needs `cert_file` and `key_file` for TLS and a `tokens_file` that says who may enter. Nothing was \
                 started. Write them into [admin], or listen on 127.0.0.1"
            ),
        );
    }
    AdminSetting {
        listen: address,
        is_given: review.is_given("admin", "listen"),
        tokens_file: section.tokens_file.clone(),
        certificate,
        hosts: section.hosts.clone(),
        show_keys: section.show_keys,
    }
}

/// An address, or none for `off`.
pub(crate) fn listen(review: &mut Review<'_>, key: &str, text: &str) -> Option<SocketAddr> {
    if text == "off" {
        return None;
    }
    let text = text.replacen("localhost:", "127.0.0.1:", 1);
    text.parse()
        .map_err(|_| {
            review
                .problem(key, format!("{key} = {text:?} must be an address like 127.0.0.1:7678, or \"off\""))
        })
        .ok()
}
