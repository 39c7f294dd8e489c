//! A consumer's handler behind HTTP: one `POST` for each message.
//!
//! The request is the one that the sink would make of the message, by the same code: headers, encoding,
//! signatures. Beside them stands who asks, and for which place: `posthaste-consumer`, `-id`,
//! `-topic`, `-partition`, `-position`, `-attempt`. The address is the operator's own, so addresses that are
//! not public are no danger.
//!
//! # Answers
//!
//! `statuses` changes rows: `reject` is the row of 400, `retry` that of 500, `wait` that of 503.
//!
//! | what happened | is |
//! |---|---|
//! | 2xx | handled; its body may have events (`answer`) |
//! | 400, 410, 422 | a dead letter at once |
//! | 401, 403, 429, 503; no connection, TLS refused | the receiver is away: its breaker, no attempt |
//! | any other status, 404 and redirects too; no answer in time; a connection lost without one | an attempt |
//! | 2xx with a body of events that cannot be read, or is larger than 1 MiB | an attempt |
//!
//! After an answer with `Retry-After` nobody is asked before that time, up to an hour.
//!
//! Why 404 is an attempt here, and an outage for the sink: a sink's path is made of the event, a handler's is
//! one line of the configuration. A receiver that says 404 for one kind of message would stop all others.

mod answer;

use super::client::Request;
use super::client::connection::{Connection, ResponseHead};
use super::client::dial::Unreached;
use super::client::endpoint::Endpoint;
use super::client::guard::{Guarded, System};
use super::config::{HttpConfig, Words};
use super::entry::{Adding, carried};
use super::reload::{Current, Reload};
use super::verdict::{self, NoResponse, OnStatus, Statuses};
use crate::BuildError;
use crate::lock::locked;
use crate::snippet::{masked, snippet};
use async_trait::async_trait;
use hyper::StatusCode;
use hyper::header::HeaderName;
use posthaste::consumer::{Disposition, Failure, FailureKind, Message};
use posthaste::event::Event;
use posthaste::inbox::remote::RemoteHandler;
use posthaste::sink::{Finding, Level, RETRY_AFTER_MAX};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, timeout};

/// Requests at once, unless it is said otherwise.
pub(crate) const CALLS_MAX: usize = 16;
/// Headers of a message that travel: usual servers take a hundred, with those that we add.
const HEADERS_MAX: usize = 64;
/// Bytes of them: usual servers take 8 KiB and more.
const HEADER_BYTES_MAX: usize = 6 << 10;
/// How much of an answer a dead letter keeps.
const WORDS_BYTES_MAX: usize = 4 << 10;

static ID: HeaderName = HeaderName::from_static("posthaste-id");
static CONSUMER: HeaderName = HeaderName::from_static("posthaste-consumer");
static TOPIC: HeaderName = HeaderName::from_static("posthaste-topic");
static ADDRESS: HeaderName = HeaderName::from_static("posthaste-address");
static PARTITION: HeaderName = HeaderName::from_static("posthaste-partition");
static POSITION: HeaderName = HeaderName::from_static("posthaste-position");
static ATTEMPT: HeaderName = HeaderName::from_static("posthaste-attempt");
static OMITTED: HeaderName = HeaderName::from_static("posthaste-omitted");
static KEY: HeaderName = HeaderName::from_static("key");

/// Asks a receiver to handle messages.
pub(crate) struct HttpHandler {
    endpoint: Endpoint,
    reload: Reload,
    statuses: Statuses,
    calls_max: usize,
    /// The receiver's name among the dependencies: host and port.
    dependency: Arc<str>,
    /// Until when the receiver wants to be left alone, and what it said.
    rest: Mutex<Option<(Instant, Failure)>>,
}

impl HttpHandler {
    /// Checks the configuration. Connections are made when there is something to handle.
    pub(crate) fn start(config: &HttpConfig, name: &str) -> Result<Self, BuildError> {
        let Words { addresses, guard, mut statuses } = config.words()?;
        statuses.usual = usual;
        let bad = |why: &str| BuildError::option("http", why);
        let url = addresses.find("/").map_err(bad)?;
        let endpoint = Endpoint::new("/", &url).map_err(bad)?;
        let resolver = Guarded { guard: Arc::new(guard), lookup: Arc::new(System::default()) };
        let dependency = endpoint.host.to_str().unwrap_or("http").into();
        let calls_max = config.options.max_in_flight;
        let reload = Reload::start(config, resolver, name)?;
        Ok(Self { endpoint, reload, statuses, calls_max, dependency, rest: Mutex::default() })
    }

    /// Whether there is anybody to ask, for `posthaste doctor`. Nothing is sent.
    pub(crate) async fn examine(&self) -> Finding {
        let finding = |level, text| Finding { check: "handlers".to_owned(), level, text };
        let origin = &self.endpoint.origin;
        let Some(current) = self.reload.current() else {
            return finding(Level::Fail, format!("{origin} was closed"));
        };
        match self.connect(&current, true).await {
            Ok(_) => finding(Level::Ok, format!("{origin} takes connections")),
            Err(missing) => {
                let why = &missing.failure().message;
                finding(Level::Fail, format!("{why}. Messages wait at the broker until it is there"))
            }
        }
    }

    /// A connection that can take a request: one of the pool, or a new one.
    async fn connect(&self, current: &Current, is_fresh: bool) -> Result<Connection, NoResponse> {
        let origin = &self.endpoint.origin;
        while !is_fresh && let Some(mut connection) = current.client.pool.take(origin) {
            if connection.is_ready().await {
                return Ok(connection);
            }
        }
        let dialled = current.client.dialler.dial(&self.endpoint.target).await;
        let connection =
            dialled.map_err(|unreached| NoResponse::unreached(origin, &current.files, &unreached))?;
        if let Some(shared) = connection.shared() {
            current.client.pool.put(origin, shared);
        }
        Ok(connection)
    }

    /// Sends the request, a second time only where nobody can have seen it.
    async fn exchange(
        &self,
        current: &Current,
        mut request: Request,
    ) -> Result<(Connection, ResponseHead), NoResponse> {
        let origin = &self.endpoint.origin;
        let mut is_repeated = false;
        loop {
            let mut connection = self.connect(current, is_repeated).await?;
            let stream = connection.stream().await;
            match connection.send(request, &self.endpoint, stream).await {
                Ok(head) => return Ok((connection, head)),
                Err(lost) => match lost.unsent {
                    Some(unsent) if !is_repeated => (is_repeated, request) = (true, unsent),
                    Some(_) => {
                        let unreached = Unreached::from(lost.error);
                        return Err(NoResponse::unreached(origin, &current.files, &unreached));
                    }
                    None => return Err(NoResponse::lost(origin, &current.files, &*lost.error)),
                },
            }
        }
    }

    async fn ask(&self, message: &Message<'_>) -> Result<Vec<Event>, Failure> {
        let closed = || self.away("http.closed", "the handler was closed".to_owned());
        let current = self.reload.current().ok_or_else(closed)?;
        let request = request(message, &self.endpoint, &current)?;
        let (mut connection, mut head) =
            self.exchange(&current, request).await.map_err(|missing| self.without_answer(&missing))?;
        let body = answer::read(&mut connection, &mut head).await;
        let (status, content_type) = (head.status, head.content_type.take());
        let retry_after = head.retry_after.take();
        drop(head);
        if body.is_ok() {
            current.client.pool.put(&self.endpoint.origin, connection);
        }
        if status.is_success() {
            return answer::events(message, content_type.as_ref(), body);
        }
        let words = body.unwrap_or_default();
        let retry_after = retry_after.and_then(|value| verdict::retry_after(&value, SystemTime::now()));
        Err(self.refused(&current, status, &words, retry_after))
    }

    fn refused(
        &self,
        current: &Current,
        status: StatusCode,
        body: &[u8],
        after: Option<Duration>,
    ) -> Failure {
        let hidden = &current.keys.hidden;
        let code = format!("http.{}", status.as_u16());
        let words = verdict::words(&self.endpoint.origin, status, &snippet(body, hidden));
        let kind = match self.statuses.meaning(status.as_u16()) {
            OnStatus::Reject => FailureKind::Poison(Disposition::Rejected),
            OnStatus::Retry => FailureKind::Error,
            OnStatus::Wait => FailureKind::Unavailable(Arc::clone(&self.dependency)),
        };
        let body = &body[..body.len().min(WORDS_BYTES_MAX)];
        let stack = (!body.is_empty()).then(|| masked(body, hidden));
        let failure = Failure::new(kind, code, words).with_stack(stack);
        if let (Some(after), FailureKind::Unavailable(_)) = (after, &failure.kind) {
            let until = Instant::now() + after.min(RETRY_AFTER_MAX);
            *locked(&self.rest) = Some((until, failure.clone()));
        }
        failure
    }

    fn without_answer(&self, missing: &NoResponse) -> Failure {
        let failure = missing.failure();
        match &*failure.code {
            verdict::CONNECTION_LOST => {
                Failure::new(FailureKind::Error, failure.code.clone(), failure.message.clone())
            }
            _ => self.away(failure.code.clone(), failure.message.clone()),
        }
    }

    fn away(&self, code: impl Into<std::borrow::Cow<'static, str>>, why: String) -> Failure {
        Failure::new(FailureKind::Unavailable(Arc::clone(&self.dependency)), code, why)
    }

    /// What the receiver said when it asked to be left alone, while it does.
    fn resting(&self) -> Option<Failure> {
        let mut rest = locked(&self.rest);
        rest.take_if(|(until, _)| *until <= Instant::now());
        rest.as_ref().map(|(_, failure)| failure.clone())
    }
}

#[async_trait]
impl RemoteHandler for HttpHandler {
    async fn call(&self, message: &Message<'_>, within: Duration) -> Result<Vec<Event>, Failure> {
        if let Some(failure) = self.resting() {
            return Err(failure);
        }
        timeout(within, self.ask(message)).await.unwrap_or_else(|_| {
            let failure = NoResponse::timeout(&self.endpoint.origin, within);
            let (code, words) = (failure.failure().code.clone(), failure.failure().message.clone());
            Err(Failure::new(FailureKind::Timeout, code, words))
        })
    }

    fn calls_max(&self) -> usize {
        self.calls_max
    }
}

fn usual(status: u16) -> OnStatus {
    match status {
        400 | 410 | 422 => OnStatus::Reject,
        401 | 403 | 429 | 503 => OnStatus::Wait,
        _ => OnStatus::Retry,
    }
}

/// The request of a message. What HTTP cannot carry of somebody else's headers is left out, and counted.
fn request(message: &Message<'_>, to: &Endpoint, current: &Current) -> Result<Request, Failure> {
    let received = &message.message;
    let mut adding = Adding::new(&to.host, &current.keys);
    let (mut omitted, mut bytes, mut count) = (0_usize, 0, 0);
    for (name, value) in &received.headers {
        (count, bytes) = (count + 1, bytes + name.len() + value.len());
        // The key of the message itself is told below.
        let is_ours = name.eq_ignore_ascii_case(KEY.as_str());
        if is_ours && received.key.is_some() {
            continue;
        }
        if count > HEADERS_MAX || bytes > HEADER_BYTES_MAX || adding.add(name, value).is_none() {
            omitted += 1;
        }
    }
    let partition = message.partition();
    let numbers = [
        (&PARTITION, Some(partition.number.to_string())),
        (&POSITION, message.position.map(|position| position.to_string())),
        (&ATTEMPT, Some(message.attempt().to_string())),
        (&OMITTED, (omitted > 0).then(|| omitted.to_string())),
    ];
    let texts = [
        (&KEY, received.key.as_deref()),
        (&ID, Some(message.id().as_bytes())),
        (&CONSUMER, Some(message.consumer().as_bytes())),
        (&TOPIC, Some(partition.topic.as_bytes())),
        (&ADDRESS, message.address.as_deref().map(str::as_bytes)),
    ];
    let numbers = numbers.iter().map(|(name, value)| (*name, value.as_deref().map(str::as_bytes)));
    for (name, value) in texts.into_iter().chain(numbers) {
        let added = value.map(|value| adding.put(name.clone(), value));
        if added == Some(None) {
            return Err(unfit(name.as_str()));
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let id = String::from_utf8_lossy(&carried(message.id().as_bytes())).into_owned();
    let payload = received.payload.clone();
    let headers = adding.finish(id, payload.as_deref(), &current.keys.signer, now);
    let headers = headers.ok_or_else(|| unfit("webhook-id"))?;
    Ok(Request { headers, payload: payload.unwrap_or_default() })
}

fn unfit(name: &str) -> Failure {
    let why = format!("header {name:?} cannot travel with HTTP");
    Failure::new(FailureKind::Poison(Disposition::Unfit), "http.bad_header", why)
}
