//! Why nobody answers, and whether a password is the right one.
//!
//! The client of the questions hears nothing of refused logins: complaints come to whoever polls the client,
//! and it is not polled. So a consumer that reads nothing asks the same brokers, and is polled.

use super::super::KafkaConfig;
use super::super::cause::{self, Causes};
use crate::{Secret, Urls};
use posthaste::sink::Failure;
use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use std::time::{Duration, Instant};

/// Between two looks at the complaints.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Ears(Causes);

impl ClientContext for Ears {
    fn log(&self, _: RDKafkaLogLevel, _: &str, text: &str) {
        self.0.hear_log(text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.0.hear(code, reason);
        }
    }
}

impl ConsumerContext for Ears {}

/// Asks the brokers for anything at all. The error says why they do not answer.
pub(super) async fn reach(config: &KafkaConfig, within: Duration) -> Result<(), Failure> {
    let asked = config.clone();
    let answer = tokio::task::spawn_blocking(move || ask(&asked, within)).await;
    answer.unwrap_or_else(|_| Err(cause::unreachable(config, "the question's thread panicked")))
}

fn ask(config: &KafkaConfig, within: Duration) -> Result<(), Failure> {
    let silent = |why: &str| cause::unreachable(config, why);
    let connection = config.connection("topology").map_err(|error| silent(&error.to_string()))?;
    let client: BaseConsumer<Ears> =
        FromClientConfigAndContext::from_config_and_context(&connection, Ears::default())
            .map_err(|error| silent(&error.to_string()))?;
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), LOOK * 10);
        if client.fetch_metadata(None, left).is_ok() {
            return Ok(());
        }
        client.poll(Duration::ZERO);
        // A refused login or certificate stays refused. That nobody is there may change.
        let cause = client.context().0.current(config);
        let is_settled = cause.as_ref().is_some_and(|cause| cause.code != "kafka.unreachable");
        if is_settled || Instant::now() >= until {
            return Err(cause.unwrap_or_else(|| silent("no broker answers")));
        }
    }
}

/// Whether a user's password is this one: by logging in with it.
pub(super) async fn try_password(
    config: &KafkaConfig,
    at: &Urls,
    user: &str,
    mechanism: &str,
    password: &Secret,
    within: Duration,
) -> Result<bool, String> {
    let mut login = config.clone();
    login.url = at.clone();
    login.options.user = Some(user.to_owned());
    (login.options.password, login.options.password_file) = (Some(password.clone()), None);
    // The listener for passwords need not know our certificate, and must not prefer it.
    (login.options.cert_file, login.options.key_file) = (None, None);
    login.sasl_mechanism = match mechanism {
        "scram-sha-256" => crate::kafka::SaslMechanism::ScramSha256,
        _ => crate::kafka::SaslMechanism::ScramSha512,
    };
    match reach(&login, within).await {
        Ok(()) => Ok(true),
        Err(failure) if failure.code == "kafka.auth" => Ok(false),
        Err(failure) => Err(failure.message),
    }
}
