//! Who is known: tenants and their keys, in memory.
//!
//! The database has a number that changes with every change. One row is looked at every `refresh_ms`; all of
//! it is read again when the number is another one. So a key that was revoked opens nothing after that time,
//! and a gateway that nobody uses costs one small statement.
//!
//! While nobody can look, who was known stays known, but not for ever: after a minute, or ten looks, requests
//! are answered with 503. A key may have been revoked meanwhile.

use crate::http::token::{self, TENANT_PREFIX as PREFIX, TokenHash};
use posthaste::Timestamp;
use posthaste::gcra::Rate;
use posthaste::intake::{Roster, Tenant, TenantKey};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The version of what was never read.
const NEVER: i64 = -1;
/// A look that is older than ten of its pauses, and than this, is no longer believed.
const BELIEVED: Duration = Duration::from_secs(60);

/// A tenant, as requests see it.
pub(super) struct KnownTenant {
    pub(super) name: Arc<str>,
    own: Tenant,
    /// The same for as long as it is known, whatever else changes.
    pub(super) load: Arc<Load>,
}

impl KnownTenant {
    /// Its rate, where it has none of its own the configuration's.
    pub(super) fn rate(&self, default: Rate) -> Rate {
        self.own.rate(default)
    }

    /// Whether it may hand in nothing for now.
    pub(super) fn is_paused(&self) -> bool {
        self.own.paused
    }
}

/// What is under way for somebody.
#[derive(Default)]
pub(super) struct Load {
    pub(super) requests: AtomicUsize,
    pub(super) bytes: AtomicUsize,
}

impl Load {
    /// Adds, if it stays within the bound.
    pub(super) fn add(counter: &AtomicUsize, amount: usize, max: usize) -> bool {
        let within = |now: usize| now.checked_add(amount).filter(|sum| *sum <= max);
        counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).is_ok()
    }
}

struct KnownKey {
    hash: TokenHash,
    tenant: Arc<KnownTenant>,
    topics: Option<Vec<String>>,
    expires_at: Option<Timestamp>,
    is_revoked: bool,
}

/// What a key opens.
pub(super) struct Opened {
    pub(super) tenant: Arc<KnownTenant>,
    /// Topics; `None`: all that are offered.
    pub(super) topics: Option<Vec<String>>,
}

/// Everybody who is known.
pub(super) struct Roll {
    pub(super) version: i64,
    keys: HashMap<Arc<str>, KnownKey>,
    tenants: HashMap<Arc<str>, Arc<KnownTenant>>,
    /// Compared with where there is no such key, so that it takes the same way and the same time.
    nobody: TokenHash,
    /// The database's time at a moment of ours: keys end by its clock.
    clock: Mutex<(Instant, Timestamp)>,
}

impl Roll {
    /// Nobody.
    pub(super) fn empty() -> Self {
        Self {
            version: NEVER,
            keys: HashMap::new(),
            tenants: HashMap::new(),
            nobody: TokenHash::of(""),
            clock: Mutex::new((Instant::now(), Timestamp(0))),
        }
    }

    /// Of what the database says. Whoever was known before keeps what is under way.
    pub(super) fn of(roster: Roster, before: &Self, now: Timestamp) -> Self {
        let known = |own: Tenant| {
            let (name, load) = (Arc::clone(&own.tenant), before.tenants.get(&own.tenant));
            let load = load.map(|known| Arc::clone(&known.load)).unwrap_or_default();
            (Arc::clone(&name), Arc::new(KnownTenant { name, own, load }))
        };
        let tenants: HashMap<_, _> = roster.tenants.into_iter().map(known).collect();
        let key = |key: TenantKey| {
            let tenant = Arc::clone(tenants.get(&key.tenant)?);
            let TenantKey { id, hash, topics, expires_at, revoked_at, .. } = key;
            let hash = TokenHash::from(hash);
            Some((id, KnownKey { hash, tenant, topics, expires_at, is_revoked: revoked_at.is_some() }))
        };
        let keys = roster.keys.into_iter().filter_map(key).collect();
        Self {
            version: roster.version,
            keys,
            tenants,
            nobody: TokenHash::of(""),
            clock: Mutex::new((Instant::now(), now)),
        }
    }

    /// Whether the database has said who there is, and not too long ago, if it is asked at this pace. Until
    /// then nobody can be told that a key is none, and afterwards a key may have been revoked.
    pub(super) fn is_believed(&self, refresh: Duration) -> bool {
        let age = self.clock.lock().unwrap_or_else(PoisonError::into_inner).0.elapsed();
        self.version != NEVER && age <= (refresh * 10).max(BELIEVED)
    }

    /// What time it is there.
    pub(super) fn set_clock(&self, now: Timestamp) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = (Instant::now(), now);
    }

    fn now(&self) -> Timestamp {
        let (at, then) = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        then.plus_micros(i64::try_from(at.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    /// What this key opens. Wrong, unknown, revoked and expired ones take one way: the caller learns nothing.
    pub(super) fn open(&self, text: &str) -> Option<Opened> {
        let key = token::id_of(PREFIX, text).and_then(|id| self.keys.get(id));
        let is_right = TokenHash::of(text).is(key.map_or(&self.nobody, |key| &key.hash));
        let is_alive = |key: &&KnownKey| !key.is_revoked && key.expires_at.is_none_or(|end| self.now() < end);
        let key = key.filter(is_alive).filter(|_| is_right)?;
        Some(Opened { tenant: Arc::clone(&key.tenant), topics: key.topics.clone() })
    }

    /// Whether there is such a tenant.
    pub(super) fn knows(&self, tenant: &str) -> bool {
        self.tenants.contains_key(tenant)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.tenants.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

    fn roster(keys: Vec<(&str, &str, Option<i64>, bool)>) -> Roster {
        let tenant = |name: &str| Tenant {
            tenant: name.into(),
            rate_per_s: None,
            burst: Some(7),
            paused: false,
            note: None,
            changed_at: NOW,
        };
        let key = |(text, tenant, expires, revoked): (&str, &str, Option<i64>, bool)| TenantKey {
            id: token::id_of(PREFIX, text).expect("it is one").into(),
            tenant: tenant.into(),
            hash: TokenHash::of(text).bytes(),
            topics: None,
            note: None,
            created_at: NOW,
            expires_at: expires.map(|seconds| NOW.plus_micros(seconds * 1_000_000)),
            revoked_at: revoked.then_some(NOW),
        };
        Roster {
            version: 2,
            tenants: vec![tenant("acme"), tenant("other")],
            keys: keys.into_iter().map(key).collect(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_opens_until_its_end_and_no_other_text_does() {
        let text = || token::mint(PREFIX).expect("random numbers").1;
        let (good, short, revoked, stranger) = (text(), text(), text(), text());
        let all = vec![
            (good.as_str(), "acme", None, false),
            (short.as_str(), "other", Some(10), false),
            (revoked.as_str(), "acme", None, true),
        ];
        let roll = Roll::of(roster(all), &Roll::empty(), NOW);
        let whose = |text: &str| roll.open(text).map(|opened| opened.tenant.name.to_string());
        assert_eq!(whose(&good).as_deref(), Some("acme"));
        assert_eq!(whose(&short).as_deref(), Some("other"));
        for wrong in [&*revoked, &*stranger, "", "phk_", &good[..good.len() - 1], &format!("{good}x")] {
            assert_eq!(whose(wrong), None, "{wrong}");
        }
        // The id of one with the secret of another.
        let mixed = format!("{}{}", &good[..17], &short[17..]);
        assert_eq!(whose(&mixed), None);
        tokio::time::advance(std::time::Duration::from_secs(11)).await;
        assert_eq!(whose(&short), None);
        assert!(whose(&good).is_some());
        let refresh = Duration::from_secs(1);
        assert!(roll.is_believed(refresh) && !Roll::empty().is_believed(refresh));
        tokio::time::advance(Duration::from_secs(50)).await;
        assert!(!roll.is_believed(refresh) && roll.is_believed(refresh * 10));
        roll.set_clock(NOW);
        assert!(roll.is_believed(refresh));
        let default = Rate { per_s: 5.0, burst: 1 };
        let opened = roll.open(&good).expect("it is open");
        assert_eq!(opened.tenant.rate(default), Rate { per_s: 5.0, burst: 7 });
        opened.tenant.load.requests.fetch_add(3, Ordering::Relaxed);
        let again = Roll::of(roster(vec![(good.as_str(), "acme", None, false)]), &roll, NOW);
        let load = &again.open(&good).expect("it is open").tenant.load;
        assert_eq!(load.requests.load(Ordering::Relaxed), 3, "what is under way is not forgotten");
    }
}
