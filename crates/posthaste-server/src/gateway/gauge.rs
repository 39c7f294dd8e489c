//! The gateway's metrics.
//!
//! A tenant is a label only for the first `metrics_max` of them; further ones share `~other`. A topic that is
//! not offered is `none`: a stranger must not be able to make series.

use super::roll::KnownTenant;
use axum::http::StatusCode;
use metrics::{counter, gauge, histogram};
use posthaste::intake::{IntakeFigures, LimiterMode};
use posthaste::telemetry::gateway as names;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The label of those who have none of their own.
const OTHER: &str = "~other";

/// Counts.
pub(super) struct Gauges {
    tenants_max: AtomicUsize,
    named: Mutex<BTreeSet<Arc<str>>>,
    commits: Mutex<IntakeFigures>,
    requests: AtomicU64,
    refused: AtomicU64,
}

impl Gauges {
    pub(super) fn new(tenants_max: usize) -> Self {
        Self {
            tenants_max: AtomicUsize::new(tenants_max),
            named: Mutex::default(),
            commits: Mutex::default(),
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Another bound, from now on. Whoever has a series keeps it.
    pub(super) fn name_at_most(&self, tenants_max: usize) {
        self.tenants_max.store(tenants_max, Ordering::Relaxed);
    }

    fn label(&self, tenant: Option<&KnownTenant>) -> Arc<str> {
        let Some(tenant) = tenant else { return "none".into() };
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if !named.contains(&tenant.name) {
            if named.len() >= self.tenants_max.load(Ordering::Relaxed) {
                return OTHER.into();
            }
            named.insert(Arc::clone(&tenant.name));
        }
        Arc::clone(&tenant.name)
    }

    /// Events are stored.
    pub(super) fn stored(&self, tenant: Option<&KnownTenant>, events: u32) {
        counter!(names::EVENTS, "tenant" => self.label(tenant)).increment(u64::from(events));
    }

    /// A request was refused.
    pub(super) fn refused(&self, tenant: Option<&KnownTenant>, code: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        counter!(names::REFUSED, "tenant" => self.label(tenant), "code" => code.to_owned()).increment(1);
    }

    /// A request was answered.
    pub(super) fn answered(&self, topic: &str, status: StatusCode, took: Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let status = status.as_u16().to_string();
        counter!(names::REQUESTS, "topic" => topic.to_owned(), "status" => status).increment(1);
        histogram!(names::REQUEST_SECONDS).record(took.as_secs_f64());
    }

    /// Requests that were answered, and those of them that were refused.
    pub(super) fn so_far(&self) -> (u64, u64) {
        let refused = self.refused.load(Ordering::Relaxed);
        (self.requests.load(Ordering::Relaxed), refused)
    }

    /// Who counts events. Where nobody is shared, that mode is no series: it would look like a loss.
    pub(super) fn limiter(&self, mode: LimiterMode, is_shared: bool, errors: u64) {
        let is_possible = |each: &LimiterMode| is_shared || *each != LimiterMode::Shared;
        for each in LimiterMode::ALL.into_iter().filter(is_possible) {
            gauge!(names::LIMITER_STATE, "state" => each.as_str()).set(f64::from(u8::from(each == mode)));
        }
        counter!(names::LIMITER_ERRORS).absolute(errors);
    }

    /// How the intake is.
    pub(super) fn intake(&self, figures: IntakeFigures) {
        gauge!(names::QUEUED_EVENTS).set(figures.queued_events as f64);
        let mut before = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        let commits = figures.commits.saturating_sub(before.commits);
        if commits > 0 {
            let events = figures.committed_events.saturating_sub(before.committed_events);
            histogram!(names::COMMIT_EVENTS).record(events as f64 / commits as f64);
        }
        *before = figures;
    }
}
