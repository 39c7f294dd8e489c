//! The table of [`super`] in code: what the relay is told about an answer, or about the lack of one.
//!
//! The one rule behind the rows: an event may only be rejected for something that is its own. What an
//! operator can heal, here or at the receiver, waits.

use super::client::dial::Unreached;
use super::client::guard::Forbidden;
use super::client::hosts::Reach;
use crate::BuildError;
use crate::dial::tls_error;
use hyper::StatusCode;
use posthaste::sink::{Failure, Verdict};
use rustls::AlertDescription;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) const CONNECTION_LOST: &str = "http.connection_lost";

/// What a status means for the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnStatus {
    /// The event will never be taken: a dead letter.
    Reject,
    /// The event may be taken later: an attempt is spent.
    Retry,
    /// The destination is out of order: its events wait, and no attempt is spent.
    Wait,
}

/// The configured exceptions.
#[derive(Debug)]
pub(super) struct Statuses {
    single: BTreeMap<u16, OnStatus>,
    classes: BTreeMap<u16, OnStatus>,
    /// What all others mean.
    pub(super) usual: fn(u16) -> OnStatus,
}

impl Statuses {
    pub(super) fn new(given: &BTreeMap<String, OnStatus>) -> Result<Self, BuildError> {
        let mut statuses = Self { single: BTreeMap::new(), classes: BTreeMap::new(), usual };
        for (name, meaning) in given {
            let class = name.strip_suffix("xx").and_then(|class| class.parse().ok());
            let (table, number) = match (class, name.parse::<u16>()) {
                (Some(class @ 3..=5), _) => (&mut statuses.classes, class),
                (None, Ok(status @ 300..=599)) => (&mut statuses.single, status),
                _ => {
                    let why = format!("{name:?} must be a status from 300 to 599, or 3xx, 4xx or 5xx");
                    return Err(BuildError::option("statuses", why));
                }
            };
            table.insert(number, *meaning);
        }
        Ok(statuses)
    }

    pub(super) fn meaning(&self, status: u16) -> OnStatus {
        let given = self.single.get(&status).or_else(|| self.classes.get(&(status / 100)));
        given.copied().unwrap_or_else(|| (self.usual)(status))
    }

    /// The verdict for a status that is not 2xx. `words` say what the receiver wrote.
    pub(super) fn verdict(
        &self,
        status: StatusCode,
        words: String,
        retry_after: Option<Duration>,
    ) -> Verdict {
        let code = format!("http.{}", status.as_u16());
        match self.meaning(status.as_u16()) {
            OnStatus::Reject => Verdict::Rejected(Failure::of_event(code, words)),
            OnStatus::Retry => Verdict::Retry(Failure::of_event(code, words).with_retry_after(retry_after)),
            OnStatus::Wait => {
                Verdict::Retry(Failure::of_destination(code, words).with_retry_after(retry_after))
            }
        }
    }
}

fn usual(status: u16) -> OnStatus {
    match status {
        400 | 410 | 413..=415 | 422 | 431 => OnStatus::Reject,
        300..=399 | 401..=405 | 407 | 408 | 421 | 429 | 451 => OnStatus::Wait,
        502..=504 | 507 | 520..=530 => OnStatus::Wait,
        _ => OnStatus::Retry,
    }
}

/// The words of a failure: who answered what.
pub(super) fn words(origin: &str, status: StatusCode, snippet: &str) -> String {
    let remark = match status.as_u16() {
        300..=399 => "; redirects are not followed: correct the URL",
        401 | 403 => "; its events wait until it lets us in",
        _ => "",
    };
    let said = if snippet.is_empty() { String::new() } else { format!(": {snippet:?}") };
    format!("{origin} answered {status}{said}{remark}")
}

/// Why there is no answer.
#[derive(Debug, PartialEq)]
pub(super) struct NoResponse {
    failure: Failure,
    /// Whether the event may have arrived all the same.
    sent: bool,
}

impl NoResponse {
    /// Nothing came in time.
    pub(super) fn timeout(origin: &str, after: Duration) -> Self {
        let text = format!("{origin} gave no answer within {} ms", after.as_millis());
        Self { failure: Failure::of_destination("http.timeout", text), sent: true }
    }

    /// The address in the URL may not be connected to.
    pub(super) fn forbidden(forbidden: &Forbidden) -> Self {
        let failure = Failure::of_destination("http.private_address", forbidden.to_string());
        Self { failure, sent: false }
    }

    /// There is no connection.
    pub(super) fn unreached(origin: &str, files: &str, unreached: &Unreached) -> Self {
        let failure =
            |code: &'static str, why: String| Failure::of_destination(code, format!("{origin}: {why}"));
        let failure = match unreached {
            Unreached::Late => failure("http.unreachable", "no connection in time".to_owned()),
            Unreached::Proxy(why) => Failure::of_sink("http.proxy", format!("the proxy {why}")),
            Unreached::Failed(error) => match (error.downcast_ref::<Forbidden>(), tls_error(&**error)) {
                (Some(forbidden), _) => return Self::forbidden(forbidden),
                (None, Some(tls)) => return Self::tls(origin, files, tls),
                (None, None) => failure("http.unreachable", innermost(&**error)),
            },
        };
        Self { failure, sent: false }
    }

    /// The connection ended without an answer.
    pub(super) fn lost(origin: &str, files: &str, error: &(dyn Error + 'static)) -> Self {
        if let Some(tls) = tls_error(error).filter(|tls| is_about_us(tls)) {
            return Self::tls(origin, files, tls);
        }
        let text = format!("{origin}: {}", innermost(error));
        Self { failure: Failure::of_destination(CONNECTION_LOST, text), sent: true }
    }

    fn tls(origin: &str, files: &str, error: &rustls::Error) -> Self {
        let text = format!("{origin}: no TLS connection: {error} ({files})");
        Self { failure: Failure::of_destination("http.tls", text), sent: false }
    }

    pub(super) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Which requests the host fails for. One lost connection says nothing about the others.
    pub(super) fn reach(&self) -> Option<Reach> {
        (self.failure.code != CONNECTION_LOST).then_some(Reach::Everywhere)
    }

    pub(super) fn verdict(self) -> Verdict {
        if self.sent { Verdict::Unknown(self.failure) } else { Verdict::Retry(self.failure) }
    }
}

/// With TLS 1.3 a server refuses our certificate after our side of the handshake is done. It says so before
/// it reads a request, so nothing was taken.
fn is_about_us(tls: &rustls::Error) -> bool {
    let rustls::Error::AlertReceived(alert) = tls else { return false };
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

/// The last error of the chain. It says the most, and nothing of the URL.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    loop {
        let inner = last.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        match inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| last.source()) {
            Some(next) => last = next,
            None => return last.to_string(),
        }
    }
}

pub(super) fn bad_url(why: &str) -> Verdict {
    Verdict::Rejected(Failure::of_event("http.bad_url", format!("the destination {why}")))
}

pub(super) fn bad_header(name: &str) -> Verdict {
    let text = format!("header {name:?} cannot travel with HTTP");
    Verdict::Rejected(Failure::of_event("http.bad_header", text))
}

/// What the configuration adds to every request cannot travel. The event is not to blame.
pub(super) fn bad_config(name: &str) -> Verdict {
    let text = format!(
        "header {name:?} of the configuration cannot travel with HTTP; events wait until it is mended"
    );
    Verdict::Retry(Failure::of_sink("http.config", text))
}

/// The same failure, for a message that was not tried because of it.
pub(super) fn not_tried(failure: &Failure) -> Verdict {
    let message = format!("not tried: {}", failure.message);
    Verdict::Retry(Failure { message, ..failure.clone() })
}

/// The verdict on a request of which nobody knows how far it came.
pub(super) fn interrupted() -> Verdict {
    Verdict::Unknown(Failure::of_destination(CONNECTION_LOST, "the delivery was interrupted"))
}

pub(super) fn closed() -> Failure {
    Failure::of_sink("http.closed", "the sink was closed")
}

/// What `Retry-After` asks for: seconds, or a date.
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let at = UNIX_EPOCH + Duration::from_secs(http_date(value)?);
    Some(at.duration_since(now).unwrap_or_default())
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`. Older forms are not sent by anybody.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let clock: Vec<u64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [hour, minute, second] = clock[..] else { return None };
    if !(1970..=9999).contains(&year) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // A year that begins in March ends with the leap day.
    let (years, months) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day - 1;
    let since_1970 = days.checked_sub(719_468)?;
    Some(since_1970 * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests;
