//! HTTP: webhooks.
//!
//! An event becomes a `POST` whose body is the payload, signed as [Standard
//! Webhooks](https://www.standardwebhooks.com) asks for: `webhook-id` is the event's id, `webhook-timestamp`
//! the second of this attempt, and `webhook-signature` holds one signature for each secret, so that a secret
//! can be changed without a moment at which none is valid (F47). `Idempotency-Key` is the event's id once
//! more, for receivers that know that header. The method is not an option: a webhook is a `POST`, and another
//! request is an adapter's work.
//!
//! # Where to
//!
//! With `url`, a destination is a **path below it**: `https://shop.example/hooks` and the destination
//! `orders.placed` make `https://shop.example/hooks/orders.placed`; the destination `/` is the URL itself. A
//! destination is text, not URL syntax: `?`, `#` and `%` are encoded, and `..` is refused. So whatever an
//! event's header puts into a template, the host and the path above it stay what the configuration says.
//!
//! Without `url`, a destination is a **whole URL**, for services that deliver to their customers
//! (`destination = "{header:webhook_url}"`). Which of the two it is never depends on the destination's text.
//! Credentials need `url`, because with whole URLs they would go to whatever host the event names.
//!
//! # Whom we talk to
//!
//! A URL that others choose is a way into our own network (SSRF, F47). So addresses that are not public are
//! refused, unless `allow_private` or `allow_networks` opens them. `guard` looks at the very addresses that
//! are connected to, so a name that changes between two look-ups gains nothing. Redirects are not followed.
//! With `proxy` nobody here sees the address, and the proxy has to be the guard. Proxies of the environment
//! are used only where the configuration says so.
//!
//! # Headers
//!
//! Ours and the event's own travel as they are. HTTP carries printable ASCII and trims white space, so any
//! other value is percent-encoded (`%` too), and its name is listed in `posthaste-encoded`. Nothing is lost,
//! and nothing is ambiguous. The alternative was to refuse such events, and a key in Cyrillic would have been
//! a dead letter. A header of the event's whose name means something to HTTP itself (`host`, `authorization`,
//! `webhook-signature` and their like) travels as `x-event-NAME`. A tombstone is an empty body with
//! `posthaste-tombstone: true`.
//!
//! # How it is built
//!
//! `config` has the options. `client` knows no events: it makes connections, keeps them, and bounds how
//! many a host gets. `reload` holds the client and the secrets and reads their files again when they change.
//! `entry` makes a request of a message. `sink` runs a call by the engine of all brokers (`crate::call`),
//! with one message in flight for each key. It makes requests and puts them into the queue of their host.
//! Each `sender` takes them from there, one after another, with a slot of the host and a connection.
//! `verdict` is the table below in code. `examine` looks at receivers for `posthaste doctor`. `handler` asks
//! one to handle the messages of a consumer.
//!
//! # What an answer is worth
//!
//! 2xx is the receiver's promise, and nobody can look behind it. Receivers should answer when they have
//! stored the event. They should drop ids that they know, because an attempt without an answer is repeated.
//!
//! # Verdicts
//!
//! Each host is another party, so nearly every failure is its destination's. `statuses` changes rows:
//! `reject`, `retry` (an attempt of the event), `wait` (an outage of the destination, and no attempt is
//! counted). `Retry-After` is a lower bound for both, up to an hour.
//!
//! | what happened | verdict | scope | code |
//! |---|---|---|---|
//! | 2xx, and the whole request was written | `Delivered` | | |
//! | 2xx, but the rest of the request cannot be written | `Unknown` | destination | as without an answer |
//! | 400, 410, 413, 414, 415, 422, 431 | `Rejected` | event | `http.STATUS` |
//! | 408, 429, 502, 503, 504, 507, 520 to 530 | `Retry` | destination | `http.STATUS` |
//! | 401, 402, 403, 404, 405, 407, 421, 451: set up wrongly | `Retry` | destination | `http.STATUS` |
//! | 3xx: redirects are not followed; the URL must be corrected | `Retry` | destination | `http.STATUS` |
//! | 409, 425, 500, every other status | `Retry` | event | `http.STATUS` |
//! | no answer in time, after the connection had the request | `Unknown` | destination | `http.timeout` |
//! | connection lost without an answer, or not HTTP | `Unknown` | destination | `http.connection_lost` |
//! | no address, connection refused or not made in time | `Retry` | destination | `http.unreachable` |
//! | TLS refused: authority, name, expiry, client certificate | `Retry` | destination | `http.tls` |
//! | the address is not public | `Retry` | destination | `http.private_address` |
//! | the proxy is not reached, or refuses our credentials | `Retry` | sink | `http.proxy` |
//! | the proxy refuses or does not reach this host | `Retry` | destination | `http.unreachable` |
//! | not tried, the host has just failed for others | `Retry` | destination | as theirs |
//! | not begun in the first half of the delivery timeout: other messages had all slots | `Held` | | |
//! | the destination makes no URL, or one without the required TLS | `Rejected` | event | `http.bad_url` |
//! | a header that HTTP cannot carry | `Rejected` | event | `http.bad_header` |
//! | a header of the configuration cannot travel; refused at the start | `Retry` | sink | `http.config` |
//! | the sink was closed | `Retry` | sink | `http.closed` |
//!
//! Why 500 is the event's and 503 the destination's: a handler that stumbles over one event answers 500 for
//! ever. If that were an outage, it would close the destination for all other events, and no attempt would
//! ever be spent on finding out. A receiver whose 500 means "down" gets `statuses = { 500 = "wait" }`.

mod client;
mod config;
mod entry;
mod examine;
pub(crate) mod handler;
mod reload;
mod sender;
mod sink;
mod verdict;

pub use config::HttpConfig;
pub use examine::CHECKS;
pub use sink::HttpSink;
pub use verdict::OnStatus;
