//! A limiter that is away: what was declared holds, it is said where operators look, and nobody waits.

use crate::rig::{Answered, Rig};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Redis, RedisOptions, ServiceError};
use std::time::{Duration, Instant};

/// What each tenant of these tests may: so little that nothing comes back while a test lasts.
const BURST: usize = 3;
/// Redis is waited for a fifth of a second. Whoever waits for it again and again needs longer than this.
const SOON: Duration = Duration::from_secs(10);

struct Lost<'a> {
    rig: &'a Rig,
    mode: &'static str,
}

impl Lost<'_> {
    /// `/readyz` and the metric say who counts.
    #[track_caller]
    fn says(&self, mode: &str) {
        let says = |status: u16, page: &str| {
            let page: serde_json::Value = serde_json::from_str(page).unwrap_or_default();
            status == 200 && page["gateway"]["limiter"] == mode && page["gateway"]["ready"] == true
        };
        self.rig.daemon.page("/readyz", says);
        let series =
            |state: &str, is: u8| format!("posthaste_gateway_limiter_state{{state=\"{state}\"}} {is}");
        self.rig.daemon.page("/metrics", |_, page| {
            ["shared", "local", "open", "closed"]
                .iter()
                .all(|state| page.contains(&series(state, u8::from(*state == mode))))
        });
    }

    /// What a tenant that nobody knows yet is answered, event by event, without waiting for long.
    #[track_caller]
    fn answers(&self, tenant: &str) -> Vec<Answered> {
        let key = self.rig.key(tenant, &[]);
        let begun = Instant::now();
        let answers = (0..BURST + 3).map(|n| self.rig.post("raw", &key, &n.to_string())).collect();
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        answers
    }

    /// As the mode says, from the first request of the outage on.
    #[track_caller]
    fn holds(&self, tenant: &str) {
        let before = self.rig.events().len();
        let answers = self.answers(tenant);
        let is = |from: usize, status: u16, code: &str| {
            answers[from..]
                .iter()
                .all(|answer| answer.status == status && (status == 202 || answer.code() == code))
        };
        let taken = answers.iter().filter(|answer| answer.status == 202).count();
        let fits = match self.mode {
            "local" => taken == BURST && is(BURST, 429, "gateway.limited"),
            "open" => taken == answers.len(),
            _ => {
                let later = answers.iter().all(|answer| answer.field("retry-after") == Some("1"));
                taken == 0 && is(0, 503, "gateway.limiter") && later
            }
        };
        assert!(fits, "{tenant} {}: {answers:?}", self.mode);
        assert_eq!(self.rig.events().len() - before, taken, "a row for each 202");
        self.says(self.mode);
    }

    /// It counts again: somebody asks once in a second.
    #[track_caller]
    fn is_back(&self, tenant: &str) {
        // Whoever was refused in this process asks nobody until its time has come, so it must be one that was
        // not.
        let probe = format!("{tenant}-probe");
        let key = self.rig.key(&probe, &[]);
        let set = ["gateway", "tenants", "set", &probe, "--rate", "1000/s", "--burst", "100000"];
        self.rig.cli(&set).ok();
        self.rig.until("Redis counts again", || {
            let _ = self.rig.post("raw", &key, "1");
            self.rig.daemon.get("/readyz").1.contains("\"limiter\":\"shared\"")
        });
        self.says("shared");
        let taken = self.answers(tenant).iter().filter(|answer| answer.status == 202).count();
        assert_eq!(taken, BURST, "{tenant}");
    }
}

fn limit(redis: &Redis, mode: &str, password: &str) -> String {
    format!(
        "limit = {{ rate_per_s = 0.001, burst = {BURST}, on_loss = {mode:?}, gateways = 2, timeout_ms = 200, \
         redis = {{ url = {:?}, password = {password:?} }} }}\n",
        redis.url()
    )
}

async fn server() -> Result<Redis, ServiceError> {
    Redis::start(&RedisOptions::default().setting("requirepass yes")).await
}

async fn each_fault(mut redis: Redis, mode: &'static str) {
    let rig = Rig::start(&limit(&redis, mode, "yes"));
    let lost = Lost { rig: &rig, mode };
    lost.is_back("at-first");
    redis.pause();
    lost.holds("while-frozen");
    redis.resume();
    lost.is_back("thawed");
    redis.kill9().await.expect("it is gone");
    lost.holds("while-stopped");
    redis.start_again().await.expect("it starts");
    lost.is_back("restarted");
    // The log has each change once.
    let said = rig.daemon.said();
    assert_eq!(said.matches("the shared limiter judges tenants again").count(), 2, "{said}");
    drop(rig);
    let rig = Rig::start(&limit(&redis, mode, "no"));
    Lost { rig: &rig, mode }.holds("wrong-password");
    let said = rig.daemon.said();
    assert!(!said.contains("password = "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_that_is_away_is_replaced_by_this_process() {
    each_fault(require_service!(server().await), "local").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_that_is_away_lets_all_pass() {
    each_fault(require_service!(server().await), "open").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_that_is_away_lets_nobody_pass() {
    each_fault(require_service!(server().await), "closed").await;
}
