//! `[gateway]`: where tenants hand in events, which topics they may, and how many.

use crate::access::listen;
use crate::audit::check_routed;
use crate::config::{Outbox, Review};
use crate::database::Database;
use crate::http::Certificate;
use crate::login::{OwnLogin, login, outbox_of};
use crate::schemas;
use posthaste::Limits;
use posthaste::gcra::Rate;
use posthaste::intake::{IntakeBounds, Limiter, LimiterPlan, OnLoss};
use posthaste::route::{Route, RouteTable, Template};
use posthaste::schema::Validator;
use posthaste_brokers::{BuildError, LimiterConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Days that an event may be held back for.
pub(super) const DELIVER_WITHIN_DAYS: i64 = 30;

/// `[gateway]`: the door for tenants. It is open where it offers a topic.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct GatewaySection {
    /// Address, or `off`. Other addresses than loopback need a certificate, or `insecure = true`.
    pub(crate) listen: String,
    /// Name of the outbox that takes the events; the only one by default.
    pub(crate) outbox: Option<String>,
    /// The gateway's own login to that database, a member of `posthaste_gateway`; the outbox's by default.
    pub(crate) url: Option<String>,
    /// A file that holds the URL, instead of `url`.
    pub(crate) url_file: Option<PathBuf>,
    /// A file that holds the password, read again at each connect.
    pub(crate) password_file: Option<PathBuf>,
    /// Certificate (PEM), read again on SIGHUP.
    pub(crate) cert_file: Option<PathBuf>,
    /// Its key (PEM).
    pub(crate) key_file: Option<PathBuf>,
    /// Keys of tenants may cross a network without TLS, because something before this process ends it.
    pub(crate) insecure: bool,
    /// How much may be under way at once.
    pub(crate) bounds: BoundsSection,
    /// Tenants and their keys.
    pub(crate) tenants: TenantsSection,
    /// How many events a tenant may hand in.
    pub(crate) limit: LimitSection,
    /// Topics that are offered.
    pub(crate) topic: Vec<TopicSection>,
}

impl Default for GatewaySection {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7680".to_owned(),
            outbox: None,
            url: None,
            url_file: None,
            password_file: None,
            cert_file: None,
            key_file: None,
            insecure: false,
            bounds: BoundsSection::default(),
            tenants: TenantsSection::default(),
            limit: LimitSection::default(),
            topic: Vec::new(),
        }
    }
}

impl GatewaySection {
    /// Whether it offers nothing: then there is no gateway, and nothing of it is shown.
    pub(crate) fn is_shut(&self) -> bool {
        self.topic.is_empty()
    }
}

/// Bounds of the gateway.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BoundsSection {
    /// Connections to the database. Each commits one group at a time.
    pub(crate) connections: usize,
    /// A request that is not stored within this time is answered with 503.
    pub(crate) append_timeout_ms: u64,
    /// A body must have arrived within this time.
    pub(crate) body_timeout_ms: u64,
    /// Largest body.
    pub(crate) body_bytes_max: usize,
    /// Events of one batch.
    pub(crate) batch_events_max: usize,
    /// Bodies in memory, in all. A tenant has an eighth.
    pub(crate) inflight_bytes_max: usize,
    /// Requests under way. A tenant has an eighth.
    pub(crate) requests_max: usize,
    /// Connections of clients.
    pub(crate) sockets_max: usize,
}

impl Default for BoundsSection {
    fn default() -> Self {
        Self {
            connections: 2,
            append_timeout_ms: 5_000,
            body_timeout_ms: 10_000,
            body_bytes_max: 1_114_112,
            batch_events_max: 500,
            inflight_bytes_max: 64 << 20,
            requests_max: 1_024,
            sockets_max: 4_096,
        }
    }
}

/// Tenants and their keys.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TenantsSection {
    /// A key that was revoked opens nothing after this time.
    pub(crate) refresh_ms: u64,
    /// Refuse requests without an `Idempotency-Key`.
    pub(crate) require_idempotency_key: bool,
    /// Tenants with a series of their own in the metrics; further ones are `~other`.
    pub(crate) metrics_max: usize,
}

impl Default for TenantsSection {
    fn default() -> Self {
        Self { refresh_ms: 5_000, require_idempotency_key: false, metrics_max: 100 }
    }
}

/// How many events a tenant may hand in, and who counts them.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitSection {
    /// Events in a second, for each tenant without a rate of its own.
    pub(crate) rate_per_s: f64,
    /// Events at once. A batch larger than this can never pass.
    pub(crate) burst: u32,
    /// While Redis is away: `local` counts in this process, at the rate divided by `gateways`; `open` lets
    /// all pass; `closed` answers 503.
    pub(crate) on_loss: OnLoss,
    /// How many gateways there are.
    pub(crate) gateways: u32,
    /// Redis is waited for this long.
    pub(crate) timeout_ms: u64,
    /// The Redis that all gateways count in. Without it each counts in its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redis: Option<LimiterConfig>,
}

impl Default for LimitSection {
    fn default() -> Self {
        let on_loss = OnLoss::default();
        Self { rate_per_s: 100.0, burst: 200, on_loss, gateways: 1, timeout_ms: 20, redis: None }
    }
}

/// What the key of an event is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyBy {
    /// The tenant: all of its events are in one order.
    #[default]
    Tenant,
    /// `TENANT:KEY` with what the client says in `Event-Key`.
    Client,
}

/// `[[gateway.topic]]`.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TopicSection {
    /// Its exact name.
    pub(crate) topic: String,
    /// What the key of its events is: `tenant`, or `client`.
    pub(crate) key: KeyBy,
    /// Content types that it takes; all of them if there is none.
    pub(crate) content_types: Vec<String>,
    /// Types of events that it takes; all of them if there is none.
    pub(crate) types: Vec<String>,
    /// A file with the JSON Schema of its payloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) schema_file: Option<PathBuf>,
    /// Files with a JSON Schema for each type of event. Another type has that of `schema_file`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) schemas: BTreeMap<String, PathBuf>,
}

/// A topic that is offered.
pub(crate) struct OfferedTopic {
    pub(crate) topic: Arc<str>,
    pub(crate) key: KeyBy,
    pub(crate) content_types: Vec<String>,
    pub(crate) types: Vec<String>,
    schema: Option<Arc<dyn Validator>>,
    schemas: BTreeMap<String, Arc<dyn Validator>>,
}

impl OfferedTopic {
    /// The schema of a type of its events.
    pub(crate) fn schema(&self, kind: &str) -> Option<&Arc<dyn Validator>> {
        self.schemas.get(kind).or(self.schema.as_ref())
    }
}

/// `[gateway]`, checked.
#[derive(Clone)]
pub(crate) struct GatewaySetting {
    pub(crate) listen: SocketAddr,
    /// Of the outbox.
    pub(crate) outbox: Arc<str>,
    /// Where the events go, with the gateway's login.
    pub(crate) database: Database,
    /// Certificate and key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) bounds: BoundsSection,
    pub(crate) tenants: TenantsSection,
    pub(crate) limit: LimitSection,
    pub(crate) topics: Arc<Vec<OfferedTopic>>,
    /// What an append accepts.
    pub(crate) limits: Limits,
    /// For how long a request can be repeated with its key.
    pub(crate) remembered: Duration,
    /// Of the outbox, if it is relayed here.
    routes: Option<RouteTable>,
}

impl GatewaySetting {
    /// Takes over what cannot change while it runs. Topics are those of before, all of them, if the running
    /// routes do not take each new one as the file's do: those topics.
    pub(crate) fn keep_what_runs(&mut self, running: &Self) -> Vec<String> {
        let BoundsSection { connections, requests_max, sockets_max, .. } = running.bounds;
        self.bounds = BoundsSection { connections, requests_max, sockets_max, ..self.bounds };
        self.limit.timeout_ms = running.limit.timeout_ms;
        self.limit.redis.clone_from(&running.limit.redis);
        let ways = |routes: &Option<RouteTable>, topic: &str| -> Vec<(Arc<str>, Template)> {
            let routes = routes.iter().flat_map(RouteTable::routes);
            let takes = |route: &&Arc<Route>| route.topics.iter().any(|pattern| pattern.matches(topic));
            routes.filter(takes).map(|route| (Arc::clone(&route.name), route.destination.clone())).collect()
        };
        let differs =
            |topic: &&OfferedTopic| ways(&self.routes, &topic.topic) != ways(&running.routes, &topic.topic);
        let unrouted: Vec<String> =
            self.topics.iter().filter(differs).map(|topic| topic.topic.to_string()).collect();
        if !unrouted.is_empty() {
            self.topics = Arc::clone(&running.topics);
        }
        self.routes.clone_from(&running.routes);
        unrouted
    }

    /// Of a tenant without one of its own.
    pub(crate) fn rate(&self) -> Rate {
        Rate { per_s: self.limit.rate_per_s, burst: self.limit.burst }
    }

    /// What counts events, and what holds while it is away.
    pub(crate) fn plan(&self, shared: Option<Arc<dyn Limiter>>) -> LimiterPlan {
        LimiterPlan { shared, on_loss: self.limit.on_loss, gateways: self.limit.gateways }
    }

    /// The limiter that all gateways share, if there is one.
    pub(crate) fn shared_limiter(&self) -> Result<Option<Arc<dyn Limiter>>, BuildError> {
        let timeout = Duration::from_millis(self.limit.timeout_ms);
        self.limit.redis.as_ref().map(|redis| redis.build(timeout, "gateway")).transpose()
    }

    /// The first file that cannot be used: its key, and why.
    pub(crate) fn check_files(&self) -> Option<(&'static str, String)> {
        if let Some(Err(error)) = self.limit.redis.as_ref().map(LimiterConfig::check_files) {
            return Some(("limit", format!("limit.redis: {error}")));
        }
        let (cert, key) = self.certificate.as_ref()?;
        let error = Certificate::read(cert, key).err()?;
        Some(("cert_file", format!("cert_file: {error:#}")))
    }

    /// Of the intake.
    pub(crate) fn intake_bounds(&self) -> IntakeBounds {
        let BoundsSection { connections, requests_max, inflight_bytes_max, append_timeout_ms, .. } =
            self.bounds;
        IntakeBounds {
            connections,
            requests_max,
            bytes_max: inflight_bytes_max,
            append_timeout: Duration::from_millis(append_timeout_ms),
        }
    }
}

/// Checks the section. `None`: there is no gateway, or its problems are told.
pub(crate) fn gateway(
    review: &mut Review<'_>,
    section: &GatewaySection,
    require_tls: bool,
    outboxes: &[Outbox],
) -> Option<GatewaySetting> {
    if !review.has_section("gateway") {
        return None;
    }
    let address = listen(review, "gateway.listen", &section.listen)?;
    check_door(review, section, address);
    check_numbers(review, section);
    if section.topic.is_empty() {
        let why = "a gateway offers topics: write [[gateway.topic]] with topic = \"orders.placed\"";
        review.problem("gateway", why);
    }
    let outbox =
        outbox_of(review, "gateway", ["a gateway", "[gateway]"], section.outbox.as_deref(), outboxes)?;
    let limits = outbox.database.limits();
    let topics = section.topic.iter().enumerate();
    let topics = topics.map(|(index, topic)| offered(review, index, topic, outbox)).collect();
    let own = OwnLogin {
        url: section.url.as_ref(),
        url_file: section.url_file.as_ref(),
        password_file: section.password_file.as_ref(),
    };
    let database = match outbox.database.postgres() {
        Some((config, roles)) => {
            let config = login(review, "gateway", "the gateway", require_tls, &own, config)?;
            Database::Postgres { config: Box::new(config), roles: roles.clone() }
        }
        None => outbox.database.clone(),
    };
    Some(GatewaySetting {
        listen: address,
        outbox: Arc::clone(&outbox.name),
        remembered: outbox.database.remembered(),
        routes: outbox.relays.then(|| outbox.routes.clone()),
        database,
        certificate: section.cert_file.clone().zip(section.key_file.clone()),
        bounds: section.bounds,
        tenants: section.tenants,
        limit: section.limit.clone(),
        topics: Arc::new(topics),
        limits,
    })
}

fn check_door(review: &mut Review<'_>, section: &GatewaySection, address: SocketAddr) {
    if section.cert_file.is_some() != section.key_file.is_some() {
        review.problem("gateway.cert_file", "`gateway.cert_file` and `gateway.key_file` belong together");
    }
    if !address.ip().is_loopback() && section.cert_file.is_none() && !section.insecure {
        review.problem(
            "gateway.listen",
            format!(
                "gateway.listen = \"{address}\" can be reached by others, and keys of tenants would cross the network in \
                 clear: it needs `cert_file` and `key_file`. Nothing was started. Where something before this process ends \
                 TLS, say `insecure = true`"
            ),
        );
    }
}

fn check_numbers(review: &mut Review<'_>, section: &GatewaySection) {
    let GatewaySection { bounds, tenants, limit, .. } = section;
    let mut at_least_one = |key: &str, value: u64| {
        if value == 0 {
            review.problem(&format!("gateway.{key}"), format!("gateway.{key} must be at least 1"));
        }
    };
    at_least_one("bounds.connections", bounds.connections as u64);
    at_least_one("bounds.append_timeout_ms", bounds.append_timeout_ms);
    at_least_one("bounds.body_timeout_ms", bounds.body_timeout_ms);
    at_least_one("bounds.body_bytes_max", bounds.body_bytes_max as u64);
    at_least_one("bounds.batch_events_max", bounds.batch_events_max as u64);
    at_least_one("bounds.sockets_max", bounds.sockets_max as u64);
    at_least_one("tenants.refresh_ms", tenants.refresh_ms);
    at_least_one("limit.gateways", u64::from(limit.gateways));
    at_least_one("limit.timeout_ms", limit.timeout_ms);
    if bounds.batch_events_max > 10_000 {
        let why = "a batch is one transaction, and waits for nobody";
        review.problem(
            "gateway.bounds.batch_events_max",
            format!("batch_events_max must be at most 10000: {why}"),
        );
    }
    if bounds.requests_max < 8 {
        let why = "a tenant has an eighth of it, and that must be one request at least";
        review.problem("gateway.bounds.requests_max", format!("requests_max must be at least 8: {why}"));
    }
    if bounds.inflight_bytes_max / 8 < bounds.body_bytes_max {
        let why = "a tenant has an eighth of it, and its largest body must fit";
        review.problem(
            "gateway.bounds.inflight_bytes_max",
            format!("inflight_bytes_max must be at least eight times body_bytes_max: {why}"),
        );
    }
    if let Some(Err(error)) = limit.redis.as_ref().map(LimiterConfig::check) {
        review.problem("gateway.limit.redis", error);
    }
    if !(limit.rate_per_s > 0.0 && limit.rate_per_s <= 100_000.0) {
        review.problem("gateway.limit.rate_per_s", "rate_per_s must be above 0 and at most 100000");
    }
    if !(1..=1_000_000).contains(&limit.burst) {
        review.problem("gateway.limit.burst", "burst must be between 1 and 1000000");
    }
}

fn offered(review: &mut Review<'_>, index: usize, section: &TopicSection, outbox: &Outbox) -> OfferedTopic {
    let path = format!("gateway.topic[{index}]");
    let TopicSection { topic, key, content_types, types, schema_file, schemas: by_type } = section.clone();
    if topic.is_empty() || topic.contains('*') {
        review.problem(&path, "topic must be the exact name of a topic, for example \"orders.placed\"");
    } else if let Err(why) = outbox.database.limits().check(&posthaste::Event::new(topic.as_str(), "")) {
        review.problem(&path, format!("topic cannot be handed in: {why}"));
    } else {
        check_routed(review, &path, &topic, outbox);
        check_destinations(review, &path, section, outbox);
    }
    let mut compile = |key: &str, file: &PathBuf| {
        let compiled = schemas::compile(file);
        // A consumer calls its file otherwise.
        let mended =
            |why: String| why.strip_prefix("json_schema").map(|why| format!("{key}{why}")).unwrap_or(why);
        compiled.map_err(|why| review.problem(&format!("{path}.{key}"), mended(why))).ok()
    };
    let schema = schema_file.as_ref().and_then(|file| compile("schema_file", file));
    let schemas = by_type.iter();
    let schemas =
        schemas.filter_map(|(kind, file)| Some((kind.clone(), compile("schemas", file)?))).collect();
    let content_types = content_types.iter().map(|kind| kind.to_ascii_lowercase()).collect();
    OfferedTopic { topic: topic.into(), key, content_types, types, schema, schemas }
}

/// An address that a client can choose would let one tenant write where another one reads.
fn check_destinations(review: &mut Review<'_>, path: &str, section: &TopicSection, outbox: &Outbox) {
    let takes = |route: &&Arc<posthaste::route::Route>| {
        route.topics.iter().any(|pattern| pattern.matches(&section.topic))
    };
    for route in outbox.routes.routes().iter().filter(takes) {
        let chosen = route.destination.placeholders().find(|part| match part.as_str() {
            "type" => section.types.is_empty(),
            "key" => section.key == KeyBy::Client,
            "header:tenant_id" | "topic" => false,
            _ => true,
        });
        if let Some(part) = chosen {
            let help = if part == "type" {
                "List the `types` that are allowed here"
            } else {
                "Give this topic another route"
            };
            review.problem(
                path,
                format!(
                    "route `{}` makes the destination of `{{{part}}}`, which a client sets: it could write wherever it likes. \
                     {help}",
                    route.name
                ),
            );
        }
    }
}
