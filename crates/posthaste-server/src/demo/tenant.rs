//! Tenants of the demo's gateway: they have a key, a diary, and no transaction in the outbox's database.
//!
//! The shop is one of them with `--gateway`. It hands in each order by HTTP under an `Idempotency-Key`, and
//! repeats until it is answered; what 202 named is in its diary (`till.db`), and so is what was refused. The
//! other tenant, `rush`, hands in far more than its limit.
//!
//! The client is as small as one can be, a connection for each request, so that whoever reads it sees that
//! nothing of Posthaste is needed for this.

use super::service::{OrderStep, TOPICS, Undone, write_order};
use super::stage::{Stage, connect};
use crate::config::{Config, Flags};
use crate::http::token::{TENANT_PREFIX, TokenHash, mint};
use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste::Event;
use posthaste::admin::Actor;
use posthaste::intake::{TenantChange, TenantKey};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

/// The shop, and the tenant that floods.
pub(crate) const SHOP: &str = "shop";
const RUSH: &str = "rush";

/// What is said of the shop, when it begins and when its gateway is killed.
pub(crate) const OPENING: &str = "Orders are handed in by HTTP, and 202 says that their events are committed. One request \
    in ten names another tenant in one of its events: 400, and nothing of it is stored.";
pub(crate) const KILLED: &str = "The gateway died with it, while a request of the shop was under way. The shop repeats \
    that one under its Idempotency-Key until somebody answers.";

/// What `rush` may hand in, and what it tries. Its rate is so low that nothing comes back while we watch.
const RUSH_RATE_PER_S: f64 = 0.001;
pub(crate) const RUSH_BURST: u32 = 10;
const RUSH_TRIES: u32 = 60;

/// The topic that is offered; the steps of an order are its types.
pub(super) const TOPIC: &str = "orders.web";

/// One answer in so many is lost on purpose: the request is sent again.
const LOSE_ONE_IN: u64 = 20;

/// Answers after which the same request is sent again: by everybody, and by whoever obeys his limit.
const NOT_NOW: [u16; 3] = [408, 409, 503];
const LATER: [u16; 4] = [408, 409, 429, 503];

/// Between two tries, how long an answer may take, and how long a gateway may be away.
const PAUSE: Duration = Duration::from_millis(20);
const ANSWER_MAX: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a gateway can listen, also after it was killed: below the ports that clients get by themselves.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    let ports = (0..200).map(|n| 20_000 + ((random >> 40) + n * 37) % 10_000);
    let addresses =
        ports.filter_map(|port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port.try_into().ok()?))));
    let mut free = addresses.filter(|address| TcpListener::bind(address).is_ok());
    free.next().context("no port is free for the gateway")
}

/// What the script and the clients tell each other. Both end together.
#[derive(Debug, Default)]
pub(crate) struct ClientControl {
    pub(super) stop: AtomicBool,
    /// Requests that were sent again because there was no answer.
    repeated: AtomicU64,
    /// The next request is sent, and its answer not read, for as long as this holds.
    hold: AtomicBool,
    held: AtomicBool,
}

impl ClientControl {
    /// The next request stays under way, until it is let go.
    pub(crate) fn hold(&self) {
        self.repeated.store(0, Relaxed);
        self.hold.store(true, Relaxed);
    }

    pub(crate) fn let_go(&self) {
        self.hold.store(false, Relaxed);
    }

    /// Whether one is under way.
    pub(crate) fn holds_one(&self) -> bool {
        self.held.load(Relaxed)
    }

    /// How many since then had no answer.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated.load(Relaxed)
    }
}

/// Makes both tenants and their keys: the shop, and the one that floods.
pub(crate) async fn enroll(stage: &Stage) -> anyhow::Result<(Client, Client)> {
    let config = Config::load(&Flags { config: Some(stage.config()), ..Flags::default() })?;
    let gateway = config.gateway.as_ref().context("the demo's configuration has a gateway")?;
    let tenants = gateway.database.tenants()?;
    let (_, now) = tenants.version().await?;
    let actor = Actor::new("demo".to_owned(), "the story needs them");
    let limits = [(SHOP, None, None), (RUSH, Some(RUSH_RATE_PER_S), Some(RUSH_BURST))];
    let (mut clients, control) = (Vec::new(), Arc::<ClientControl>::default());
    for (name, rate_per_s, burst) in limits {
        let tenant: Arc<str> = name.into();
        let add = TenantChange::Add { tenant: Arc::clone(&tenant), rate_per_s, burst, note: None };
        tenants.change(&actor, &add).await?;
        let (id, key) = mint(TENANT_PREFIX)?;
        let row = TenantKey {
            id: id.as_str().into(),
            tenant,
            hash: TokenHash::of(&key).bytes(),
            topics: None,
            note: None,
            created_at: now,
            expires_at: None,
            revoked_at: None,
        };
        tenants.change(&actor, &TenantChange::NewKey(row)).await?;
        clients.push(Client { address: gateway.listen, key, control: Arc::clone(&control), sent: 0 });
    }
    let mut clients = clients.into_iter();
    clients.next().zip(clients.next()).context("both were made")
}

/// Whoever has a key.
pub(crate) struct Client {
    address: SocketAddr,
    key: String,
    pub(super) control: Arc<ClientControl>,
    sent: u64,
}

/// A request as it is sent, again and again the same.
struct HandIn {
    once: String,
    body: String,
}

impl HandIn {
    fn new(events: &[Value]) -> Self {
        Self { once: uuid::Uuid::new_v4().to_string(), body: json!({ "events": events }).to_string() }
    }
}

/// What came back.
#[derive(Debug, PartialEq, Eq)]
struct TenantAnswer {
    status: u16,
    ids: Vec<String>,
    /// The gateway knew the request, and stored nothing more.
    replayed: bool,
    retry_after: bool,
}

impl Client {
    /// Hands in what a transaction did, and writes down what became of it. With `spoil` one of the events
    /// names another tenant, so all of them are refused. Answers what was refused.
    pub(super) fn hand_in(
        &mut self,
        till: &mut Connection,
        steps: &[OrderStep],
        spoil: bool,
    ) -> anyhow::Result<Option<Undone>> {
        let events = steps.iter().enumerate().map(|(n, step)| as_json(step, spoil && n + 1 == steps.len()));
        let request = HandIn::new(&events.collect::<Vec<_>>());
        self.sent += 1;
        let mut answer = self.until_answered(&request, &LATER)?;
        if spoil {
            ensure!(answer.status == 400, "another tenant's name must be refused: {answer:?}");
            return Ok(Some(Undone { ids: vec![request.once], status: Some(400) }));
        }
        ensure!(answer.status == 202, "the gateway refused an order: {answer:?}");
        if self.sent.is_multiple_of(LOSE_ONE_IN) {
            let again = self.until_answered(&request, &LATER)?;
            ensure!(again.replayed && again.ids == answer.ids, "{again:?} is another answer than {answer:?}");
            answer.replayed = true;
        }
        let tx = till.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for step in steps {
            write_order(&tx, &step.order.id, &step.order.customer, step.order.steps)?;
        }
        note_answer(&tx, &answer)?;
        tx.commit()?;
        Ok(None)
    }

    /// Until there is an answer, and none of these.
    fn until_answered(&self, request: &HandIn, again: &[u16]) -> anyhow::Result<TenantAnswer> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let failed = match self.send(request) {
                Ok(answer) if !again.contains(&answer.status) => return Ok(answer),
                Ok(answer) => format!("{answer:?}"),
                Err(error) => error.to_string(),
            };
            if self.control.stop.load(Relaxed) || Instant::now() > deadline {
                bail!("the gateway took nothing: {failed}");
            }
            self.control.repeated.fetch_add(1, Relaxed);
            std::thread::sleep(PAUSE); // pace
        }
    }

    /// Once.
    fn send(&self, request: &HandIn) -> anyhow::Result<TenantAnswer> {
        let mut stream = TcpStream::connect_timeout(&self.address, ANSWER_MAX)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let HandIn { once, body } = request;
        let head = format!(
            "POST /v1/topics/{TOPIC} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nIdempotency-Key: {once}\r\n\
             Content-Type: application/vnd.posthaste.batch+json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            self.key,
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes())?;
        while self.control.hold.load(Relaxed) && !self.control.stop.load(Relaxed) {
            self.control.held.store(true, Relaxed);
            std::thread::sleep(Duration::from_millis(2)); // pace
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        read_answer(&answer).context("the answer was cut off")
    }

    /// Far more than is allowed; answers with what became of it, in words.
    pub(crate) async fn flood(self, stage: &Stage) -> anyhow::Result<String> {
        let (till, orders) = (stage.till(), stage.orders());
        let flooded = spawn_blocking(move || self.flood_now(&till, &orders));
        let limited = flooded.await.context("the tenant that floods panicked")??;
        Ok(format!(
            "Tenant {RUSH} may hand in {RUSH_BURST} orders, and tries {RUSH_TRIES}: {RUSH_BURST} are answered with 202, \
             {limited} with 429 and when to come again. Of those nothing is stored."
        ))
    }

    /// What is within the limit is taken; of the rest nothing is stored. Answers how much that was.
    fn flood_now(&self, till: &Path, orders: &Path) -> anyhow::Result<u32> {
        let mut till = connect(till)?;
        let (mut taken, mut limited) = (0, 0);
        for n in 1..=RUSH_TRIES {
            let id = format!("{RUSH}-{n:06}");
            let payload = json!({ "order": id, "customer": RUSH, "cents": 100 + n });
            let request = HandIn::new(&[json!({ "type": TOPICS[0], "key": id, "payload": payload })]);
            let answer = self.until_answered(&request, &NOT_NOW)?;
            let tx = till.transaction_with_behavior(TransactionBehavior::Immediate)?;
            match answer.status {
                202 => {
                    write_order(&tx, &id, RUSH, 1)?;
                    note_answer(&tx, &answer)?;
                    taken += 1;
                }
                429 => {
                    ensure!(answer.retry_after, "429 does not say when to come again");
                    note_refused(&tx, &request.once, answer.status)?;
                    limited += 1;
                }
                _ => bail!("{answer:?} to a tenant that floods"),
            }
            tx.commit()?;
        }
        let stored = format!("select count(*) from posthaste_outbox where key like '{RUSH}:%'");
        let stored: u32 = connect(orders)?.query_row(&stored, [], |row| row.get(0))?;
        ensure!(
            (taken, stored) == (RUSH_BURST, RUSH_BURST),
            "{RUSH} may hand in {RUSH_BURST} orders; {taken} were taken, and {stored} are stored"
        );
        Ok(limited)
    }
}

/// The event as one of a batch. A payload that is no JSON is no JSON's business: the relay refuses it.
fn as_json(step: &OrderStep, spoil: bool) -> Value {
    let Event { topic, payload, .. } = &step.event;
    let bytes = payload.as_deref().unwrap_or_default();
    let mut event = json!({ "type": topic, "key": step.order.id });
    match serde_json::from_slice::<Value>(bytes) {
        Ok(payload) => event["payload"] = payload,
        Err(_) => event["payload_base64"] = STANDARD.encode(bytes).into(),
    }
    if spoil {
        event["headers"] = json!({ "tenant_id": "somebody-else" });
    }
    event
}

/// `None`: it is not all there.
fn read_answer(text: &str) -> Option<TenantAnswer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let header = |name: &str| {
        let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let length: usize = header("content-length")?.parse().ok()?;
    let body: Value = serde_json::from_str(body.get(..length)?).ok()?;
    let ids = body["ids"].as_array().into_iter().flatten();
    Some(TenantAnswer {
        status,
        ids: ids.filter_map(|id| id.as_str().map(ToOwned::to_owned)).collect(),
        replayed: header("idempotency-replayed") == Some("true"),
        retry_after: header("retry-after").is_some(),
    })
}

fn note_answer(tx: &Transaction<'_>, answer: &TenantAnswer) -> anyhow::Result<()> {
    for id in &answer.ids {
        let sql = "insert into handed_in (event_id, replayed) values (?1, ?2)";
        tx.prepare_cached(sql)?.execute(params![id, answer.replayed])?;
    }
    Ok(())
}

fn note_refused(tx: &Transaction<'_>, once: &str, status: u16) -> anyhow::Result<()> {
    tx.execute("insert into rolled_back (tx, event_id) values (?1, ?2)", params![status, once])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        let text = "HTTP/1.1 202 Accepted\r\nIdempotency-Replayed: true\r\ncontent-length: 13\r\n\r\n{\"ids\":[\"a\"]}";
        let whole =
            TenantAnswer { status: 202, ids: vec!["a".to_owned()], replayed: true, retry_after: false };
        assert_eq!(read_answer(text), Some(whole));
        for end in 0..text.len() {
            assert_eq!(read_answer(&text[..end]), None, "{end}");
        }
    }
}
