//! Who may hand in events.

use crate::admin::Actor;
use crate::event::Timestamp;
use crate::gcra::Rate;
use crate::store::StoreError;
use async_trait::async_trait;
use serde_json::{Value, json};
use std::sync::Arc;

/// Bytes of a tenant's name.
const NAME_BYTES_MAX: usize = 64;

/// Whether this can be the name of a tenant: it is a key of events, a header's value, part of a key of Redis
/// and a label of metrics.
#[must_use]
pub fn is_tenant_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

/// A tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its name.
    pub tenant: Arc<str>,
    /// Events in a second. `None`: as the configuration says.
    pub rate_per_s: Option<f64>,
    /// Events at once. `None`: as the configuration says.
    pub burst: Option<u32>,
    /// Whether it may hand in nothing for now.
    pub paused: bool,
    /// For people.
    pub note: Option<String>,
    /// When it was changed last.
    pub changed_at: Timestamp,
}

impl Tenant {
    /// Its own limits, and the configuration's where it has none.
    #[must_use]
    pub fn rate(&self, default: Rate) -> Rate {
        Rate { per_s: self.rate_per_s.unwrap_or(default.per_s), burst: self.burst.unwrap_or(default.burst) }
    }
}

/// The SHA-256 of a key.
pub type KeyHash = [u8; 32];

/// A key of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantKey {
    /// What finds it: its second part.
    pub id: Arc<str>,
    /// Whose it is.
    pub tenant: Arc<str>,
    /// Of the whole key.
    pub hash: KeyHash,
    /// Topics that it opens. `None`: all that are offered.
    pub topics: Option<Vec<String>>,
    /// For people.
    pub note: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// From then on it opens nothing.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// Everybody who is known, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Roster {
    /// It is another number after each change.
    pub version: i64,
    /// By name.
    pub tenants: Vec<Tenant>,
    /// By id, revoked and expired ones too.
    pub keys: Vec<TenantKey>,
}

/// What somebody wants changed.
#[derive(Debug, Clone, PartialEq)]
pub enum TenantChange {
    /// A new tenant.
    Add {
        /// Its name.
        tenant: Arc<str>,
        /// Its own rate.
        rate_per_s: Option<f64>,
        /// Its own burst.
        burst: Option<u32>,
        /// For people.
        note: Option<String>,
    },
    /// Another limit. The outer `None` leaves it as it is, the inner one goes back to the configuration's.
    Set {
        /// Whose.
        tenant: Arc<str>,
        /// Events in a second.
        rate_per_s: Option<Option<f64>>,
        /// Events at once.
        burst: Option<Option<u32>>,
        /// For people.
        note: Option<String>,
    },
    /// It may hand in nothing, or may again.
    Pause {
        /// Who.
        tenant: Arc<str>,
        /// Whether.
        paused: bool,
    },
    /// It is gone, with its keys. Its events stay.
    Remove {
        /// Who.
        tenant: Arc<str>,
    },
    /// A new key. Its tenant is made if there is none.
    NewKey(TenantKey),
    /// A key opens nothing any more.
    Revoke {
        /// Which.
        id: Arc<str>,
    },
}

/// Highest rate and burst, as the tables have them.
const RATE_MAX: f64 = 100_000.0;
const BURST_MAX: u32 = 1_000_000;

/// Characters of a key's id.
const KEY_ID_CHARS: usize = 12;

/// Whether this can be the id of a key.
#[must_use]
pub fn is_key_id(id: &str) -> bool {
    id.len() == KEY_ID_CHARS && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

impl TenantChange {
    /// Refuses values that no store would keep.
    pub fn check(&self) -> Result<(), TenantError> {
        match self {
            Self::Add { tenant, rate_per_s, burst, .. } => check(tenant, *rate_per_s, *burst),
            Self::Set { tenant, rate_per_s, burst, .. } => {
                check(tenant, rate_per_s.flatten(), burst.flatten())
            }
            Self::Pause { tenant, .. } | Self::Remove { tenant } => check(tenant, None, None),
            Self::NewKey(key) => check(&key.tenant, None, None).and_then(|()| check_key(&key.id)),
            Self::Revoke { id } => check_key(id),
        }
    }

    /// What the audit calls it.
    #[must_use]
    pub fn action(&self) -> &'static str {
        match self {
            Self::Add { .. } => "gateway.tenant.add",
            Self::Set { .. } => "gateway.tenant.set",
            Self::Pause { paused: true, .. } => "gateway.tenant.pause",
            Self::Pause { paused: false, .. } => "gateway.tenant.resume",
            Self::Remove { .. } => "gateway.tenant.remove",
            Self::NewKey(_) => "gateway.key.new",
            Self::Revoke { .. } => "gateway.key.revoke",
        }
    }

    /// What the audit keeps of it: never a hash.
    #[must_use]
    pub fn detail(&self) -> Value {
        match self {
            Self::Add { tenant, rate_per_s, burst, note } => {
                json!({ "tenant": &**tenant, "rate_per_s": rate_per_s, "burst": burst, "note": note })
            }
            Self::Set { tenant, rate_per_s, burst, note } => {
                let mut detail = json!({ "tenant": &**tenant });
                // What is back to the configuration's is null; what was left alone is not there.
                rate_per_s.iter().for_each(|rate| detail["rate_per_s"] = json!(rate));
                burst.iter().for_each(|burst| detail["burst"] = json!(burst));
                note.iter().for_each(|note| detail["note"] = json!(note));
                detail
            }
            Self::Pause { tenant, .. } | Self::Remove { tenant } => json!({ "tenant": &**tenant }),
            Self::NewKey(key) => json!({
                "tenant": &*key.tenant, "key": &*key.id, "topics": key.topics, "note": key.note,
                "expires_at": key.expires_at,
            }),
            Self::Revoke { id } => json!({ "key": &**id }),
        }
    }
}

fn check(tenant: &str, rate_per_s: Option<f64>, burst: Option<u32>) -> Result<(), TenantError> {
    let invalid = |why: String| Err(TenantError::Invalid(why));
    if !is_tenant_name(tenant) {
        return invalid(format!(
            "{tenant:?} is no name of a tenant: 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`"
        ));
    }
    // NaN is none of these either.
    if let Some(rate) = rate_per_s.filter(|rate| !(*rate > 0.0 && *rate <= RATE_MAX)) {
        return invalid(format!("{rate} is no rate: above 0, at most {RATE_MAX} events a second"));
    }
    if let Some(burst) = burst.filter(|burst| !(1..=BURST_MAX).contains(burst)) {
        return invalid(format!("{burst} is no burst: 1 to {BURST_MAX} events"));
    }
    Ok(())
}

fn check_key(id: &str) -> Result<(), TenantError> {
    if is_key_id(id) {
        return Ok(());
    }
    Err(TenantError::Invalid(format!("{id:?} is no id of a key: {KEY_ID_CHARS} of a-z and 0-9")))
}

/// Why a change was not made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// There is no such tenant.
    #[error("there is no tenant `{0}`; nothing was changed")]
    NoTenant(Arc<str>),
    /// There is no such key.
    #[error("there is no key `{0}`; nothing was changed")]
    NoKey(Arc<str>),
    /// It is there already.
    #[error("there is a tenant `{0}` already; nothing was changed")]
    Exists(Arc<str>),
    /// A value is not possible.
    #[error("{0}; nothing was changed")]
    Invalid(String),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Tenants and their keys.
#[async_trait]
pub trait TenantStore: Send + Sync {
    /// The version of the roster, in one cheap look, with the database's time: keys expire by it.
    async fn version(&self) -> Result<(i64, Timestamp), StoreError>;

    /// Everybody.
    async fn roster(&self) -> Result<Roster, StoreError>;

    /// Changes something, with its line in the audit, in one transaction.
    async fn change(&self, actor: &Actor, change: &TenantChange) -> Result<(), TenantError>;
}

#[cfg(test)]
mod tests {
    use super::{TenantChange, is_tenant_name};

    #[test]
    fn names_are_short_and_plain() {
        for good in ["acme", "a", "Acme_1.eu-west", &"x".repeat(64)] {
            assert!(is_tenant_name(good), "{good}");
        }
        for bad in ["", "a b", "é", "a/b", "a:b", "a\n", &"x".repeat(65)] {
            assert!(!is_tenant_name(bad), "{bad}");
        }
    }

    #[test]
    fn values_that_no_store_keeps_are_refused() {
        let set = |rate: f64, burst: u32| {
            let (rate_per_s, burst) = (Some(Some(rate)), Some(Some(burst)));
            TenantChange::Set { tenant: "acme".into(), rate_per_s, burst, note: None }.check().is_ok()
        };
        assert!(set(0.001, 1) && set(100_000.0, 1_000_000));
        for rate in [0.0, -1.0, 100_000.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!set(rate, 1), "{rate}");
        }
        assert!(!set(1.0, 0) && !set(1.0, 1_000_001) && !set(1.0, u32::MAX));
        for id in ["", "abc", "ABCDEFGHIJKL", "abcdefghijk_", "abcdefghijklm", "éééééé"] {
            assert!(TenantChange::Revoke { id: id.into() }.check().is_err(), "{id}");
        }
        assert!(TenantChange::Revoke { id: "abc012def345".into() }.check().is_ok());
    }
}
