//! HTTP: webhooks.

mod calls;
mod charset;
mod conformance;
mod dead_host;
mod early;
mod examine;
mod guard;
mod hostile;
mod outage;
mod proxy;
mod reuse;
mod rotation;
mod signature;
mod streams;
mod tls;
mod verdicts;

use crate::ground::load::{Account, Copy, Load};
use crate::ground::login::*;
use crate::ground::*;
use posthaste::event::Event;
use posthaste::sink::{Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_brokers::http::HttpConfig;
use posthaste_testkit::services::{Receiver, ReceiverOptions};
use std::sync::Arc;
use std::time::Duration;

/// A receiver without TLS. It runs in this process: there is nothing to be missing.
async fn receiver() -> Receiver {
    Receiver::start(&ReceiverOptions::default()).await.expect("a receiver")
}

/// Options for a receiver on loopback.
fn near(receiver: &Receiver) -> HttpConfig {
    HttpConfig { allow_private: true, ..HttpConfig::new(&receiver.url()) }
}

async fn build(config: HttpConfig) -> Arc<dyn Sink> {
    SinkConfig::Http(Box::new(config)).build("test").await.expect("a valid configuration")
}
