//! The gateway of the configuration, and the tenants who hand in events by it. No key, and no hash of one.

use crate::api::call::ApiCall;
use crate::api::spec::NoQuery;
use crate::http::ApiProblem;
use crate::standing::GatewayStanding;
use posthaste::Timestamp;
use posthaste::gcra::Rate;
use posthaste::intake::{Roster, Tenant, TenantKey};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;

/// Tenants in an answer. Whoever has more of them looks at the command line.
const TENANTS_MAX: usize = 1_000;

/// The gateway of the configuration.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownGateway {
    /// Of its events.
    outbox: String,
    /// Where it listens by the configuration.
    listen: String,
    /// How it is, if this process runs it.
    standing: Option<GatewayStanding>,
    /// Events in a second, of a tenant without a rate of its own.
    rate_per_s: f64,
    /// Events at once, of a tenant without a burst of its own.
    burst: u32,
    /// How many tenants there are; `null`: see `unreachable`.
    tenants_count: Option<usize>,
    /// The first 1,000 of them, by name.
    tenants: Vec<ShownTenant>,
    /// Why tenants could not be looked at.
    unreachable: Option<String>,
}

/// One tenant. What is in force is its own, or else the configuration's.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownTenant {
    /// Its name.
    tenant: String,
    /// Events in a second that are in force.
    rate_per_s: f64,
    /// Whether that rate is its own.
    has_own_rate: bool,
    /// Events at once that are in force.
    burst: u32,
    /// Whether that burst is its own.
    has_own_burst: bool,
    /// Whether its requests are refused for now.
    paused: bool,
    /// How many keys open something: neither revoked nor expired.
    good_keys: usize,
    /// For people.
    note: Option<String>,
    /// When it was changed last.
    changed_at: Timestamp,
}

/// `null`: no gateway is configured here, or the token is not for its outbox.
pub(crate) async fn gateway(call: ApiCall, _: NoQuery) -> Result<Option<ShownGateway>, ApiProblem> {
    let Some(setting) = &call.api.config.gateway else { return Ok(None) };
    let Ok(desk) = call.desk_named(&setting.outbox) else { return Ok(None) };
    let standing = call.api.standing.borrow().clone();
    let default = standing.as_ref().map_or_else(|| setting.rate(), |standing| standing.rate);
    let roster = desk.roster(&setting.database).await;
    let (tenants_count, tenants, unreachable) = match roster {
        Ok((roster, now)) => (Some(roster.tenants.len()), shown(&roster, default, now), None),
        Err(problem) => (None, Vec::new(), Some(problem.detail)),
    };
    Ok(Some(ShownGateway {
        outbox: setting.outbox.to_string(),
        listen: setting.listen.to_string(),
        standing,
        rate_per_s: default.per_s,
        burst: default.burst,
        tenants_count,
        tenants,
        unreachable,
    }))
}

fn shown(roster: &Roster, default: Rate, now: Timestamp) -> Vec<ShownTenant> {
    let is_good = |key: &&TenantKey| key.revoked_at.is_none() && key.expires_at.is_none_or(|end| now < end);
    let mut good: HashMap<&str, usize> = HashMap::new();
    for key in roster.keys.iter().filter(is_good) {
        *good.entry(&key.tenant).or_default() += 1;
    }
    let tenant = |own: &Tenant| {
        let Rate { per_s, burst } = own.rate(default);
        ShownTenant {
            tenant: own.tenant.to_string(),
            rate_per_s: per_s,
            has_own_rate: own.rate_per_s.is_some(),
            burst,
            has_own_burst: own.burst.is_some(),
            paused: own.paused,
            good_keys: good.get(&*own.tenant).copied().unwrap_or_default(),
            note: own.note.clone(),
            changed_at: own.changed_at,
        }
    };
    roster.tenants.iter().take(TENANTS_MAX).map(tenant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_force_is_said_with_the_keys_that_open_something() {
        let own = |name: &str, rate_per_s, burst| Tenant {
            tenant: name.into(),
            rate_per_s,
            burst,
            paused: false,
            note: None,
            changed_at: Timestamp(1),
        };
        let key = |id: &str, expires_at, revoked_at| TenantKey {
            id: id.into(),
            tenant: "acme".into(),
            hash: [7; 32],
            topics: None,
            note: None,
            created_at: Timestamp(1),
            expires_at,
            revoked_at,
        };
        let now = Timestamp(10);
        let roster = Roster {
            version: 1,
            tenants: vec![own("acme", Some(5.0), None), own("zeta", None, None)],
            keys: vec![
                key("good", None, None),
                key("still", Some(Timestamp(11)), None),
                key("over", Some(now), None),
                key("revoked", None, Some(Timestamp(2))),
            ],
        };
        let all = shown(&roster, Rate { per_s: 100.0, burst: 200 }, now);
        let told = |one: &ShownTenant| {
            (one.rate_per_s, one.has_own_rate, one.burst, one.has_own_burst, one.good_keys)
        };
        assert_eq!(told(&all[0]), (5.0, true, 200, false, 2));
        assert_eq!(told(&all[1]), (100.0, false, 200, false, 0));
        let many = (0..TENANTS_MAX + 1).map(|n| own(&n.to_string(), None, None)).collect();
        let roster = Roster { tenants: many, ..Roster::default() };
        assert_eq!(shown(&roster, Rate { per_s: 1.0, burst: 1 }, now).len(), TENANTS_MAX);
    }
}
