//! What tenants hand in goes through: the gateway's login, and the Redis that its limits are counted in.
//!
//! That each topic is taken by a route is looked at before: a file that offers another one is refused.

use super::{Outbox, PATIENCE, Remark, remark};
use crate::config::Config;
use posthaste::gcra::Rate;
use posthaste::intake::{LimitDecision, OnLoss};
use posthaste::sink::{Finding, Level};
use posthaste_postgres::doctor::{Bounds, GATEWAY_RIGHTS};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The check of the Redis that limits are counted in.
pub(super) const LIMITER: &str = "limiter";

/// No tenant can have this name. What is counted for it is forgotten after a millisecond.
const NOBODY: &str = "~doctor";

/// The gateway of this outbox, if there is one. Of a login that is the outbox's own only what an outbox does
/// not need.
pub(super) async fn examine(outbox: &Outbox, config: &Config, bounds: &Bounds) -> Vec<Remark> {
    let Some(setting) = config.gateway.as_ref().filter(|gateway| gateway.outbox == outbox.name) else {
        return Vec::new();
    };
    let login = |database: &crate::database::Database| {
        database.server().map(|own| (own.url.clone(), own.password_file.clone()))
    };
    let is_own = login(&setting.database).is_some_and(|own| Some(own) != login(&outbox.database));
    let mut findings = match crate::database::examine_gateway(&setting.database, bounds).await {
        Ok(findings) => findings,
        Err(error) => {
            let text = format!("{error}. Requests are answered with 503, and nothing of them is stored");
            vec![Finding { check: "connect".to_owned(), level: Level::Fail, text }]
        }
    };
    let is_postgres = setting.database.server().is_some();
    findings.retain(|finding| is_own || !is_postgres || finding.check == GATEWAY_RIGHTS);
    if let Some(redis) = &setting.limit.redis {
        let lost = match redis.build(PATIENCE, "doctor") {
            Ok(limiter) => ask(&*limiter).await.err(),
            Err(error) => Some(error.to_string()),
        };
        let (level, text) = judge_limiter(lost, setting.limit.on_loss);
        findings.push(Finding { check: LIMITER.to_owned(), level, text });
    }
    let of = "gateway".to_owned();
    findings.into_iter().map(|found| remark(of.clone(), &found.check, found.level, found.text)).collect()
}

/// One event of nobody. The limiter connects meanwhile, and until then it has nothing to ask.
async fn ask(limiter: &dyn posthaste::intake::Limiter) -> Result<(), String> {
    let (nobody, rate) = (Arc::from(NOBODY), Rate { per_s: 100_000.0, burst: 1 });
    let until = Instant::now() + PATIENCE / 5;
    loop {
        let why = match limiter.take(&nobody, rate, 1).await {
            LimitDecision::Passed { .. } | LimitDecision::Wait { .. } => return Ok(()),
            LimitDecision::Lost(why) | LimitDecision::Odd(why) => why,
        };
        if Instant::now() > until {
            return Err(why);
        }
        tokio::time::sleep(Duration::from_millis(100)).await; // pace
    }
}

fn judge_limiter(lost: Option<String>, on_loss: OnLoss) -> (Level, String) {
    let Some(why) = lost else {
        return (Level::Ok, "Redis counts what tenants hand in".to_owned());
    };
    let (level, then) = match on_loss {
        OnLoss::Local => (Level::Warn, "each gateway counts by itself, at its part of the rate"),
        OnLoss::Open => (Level::Warn, "every tenant may hand in as much as it likes"),
        OnLoss::Closed => (Level::Fail, "every request is answered with 503"),
    };
    let text = format!(
        "Redis does not count what tenants hand in: {why}. Until it does, {then} (`limit.on_loss`). Start it, or mend \
         `gateway.limit.redis`"
    );
    (level, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_lost_limiter_goes_by_its_mode() {
        let judge = |on_loss| judge_limiter(Some("connection refused".to_owned()), on_loss);
        assert_eq!(judge(OnLoss::Local).0, Level::Warn);
        assert_eq!(judge(OnLoss::Open).0, Level::Warn);
        assert_eq!(judge(OnLoss::Closed).0, Level::Fail);
        assert_eq!(judge_limiter(None, OnLoss::Closed).0, Level::Ok);
    }
}
