//! The options of a Kafka sink, and what they make of the client's.
//!
//! There is no table of raw client settings. Four of them carry the guarantees: acknowledgement by all,
//! idempotence, gaps that are fatal, no timeout of the client's own. A dozen more decide about order or
//! memory. An option that silently breaks a promise is worse than a missing option.

use super::client::set;
use crate::options::{Options, between, has_options};
use crate::{BuildError, Urls};
use rdkafka::config::ClientConfig;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Twice what the relay leaves unsettled by default, so the relay never waits for the producer's room. An
/// event of 500 bytes takes about three times that in the client, so these are some 25 MB.
const MAX_IN_FLIGHT: usize = 16_384;
const MAX_IN_FLIGHT_LIMIT: usize = 262_144;
/// At 500 events/s a message goes out almost alone, and 1 ms is a sixth of the latency that we allow. Under
/// load batches fill by themselves, because a broker has one request under way at a time.
const LINGER_MS: u64 = 1;
/// Below the broker's default for max.message.bytes, so that no batch of small records is ever too large.
const BATCH_BYTES: usize = 1_000_000;
/// 1 MiB, the largest payload that an append takes by default, and 64 KiB for key and headers.
const MESSAGE_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// Bytes in a producer's queue. A full queue is back-pressure.
const QUEUE_KBYTES: usize = 32 << 10;
/// The end of the delivery timeout, in which the cause of a silence is looked for.
const INQUEST_MAX: Duration = Duration::from_millis(1_500);

/// How batches are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// Small, and slow.
    Gzip,
    /// Fast.
    Snappy,
    /// Fast.
    #[default]
    Lz4,
    /// Small, and faster than gzip.
    Zstd,
}

/// How user and password are shown to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SaslMechanism {
    /// The password itself: only over TLS.
    #[serde(rename = "plain")]
    Plain,
    /// A proof of it.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// A proof of it.
    #[default]
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

/// Options of a Kafka sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::options::with_default::<MAX_IN_FLIGHT>))]
#[serde(deny_unknown_fields)]
pub struct KafkaConfig {
    /// Brokers to begin with, one or several: `kafka://host:9092` or `host:9092`; `tls://` where TLS is
    /// required.
    #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
    pub url: Urls,
    /// How batches are compressed.
    #[serde(default)]
    pub compression: Compression,
    /// How long a batch waits for more messages.
    #[serde(default = "linger_ms")]
    pub linger_ms: u64,
    /// Largest batch, before compression. Not more than the topics' `max.message.bytes`.
    #[serde(default = "batch_bytes")]
    pub batch_bytes: usize,
    /// Largest message: payload, key and headers. What is larger is rejected without asking the broker.
    #[serde(default = "message_bytes_max")]
    pub message_bytes_max: usize,
    /// How user and password are shown to the broker.
    #[serde(default)]
    pub sasl_mechanism: SaslMechanism,
    /// What every broker has: delivery timeout, window, login and TLS.
    #[serde(flatten, skip_deserializing, default = "options")]
    #[cfg_attr(feature = "schema", schemars(flatten, !skip_deserializing))]
    pub options: Options,
}

fn options() -> Options {
    Options::new(MAX_IN_FLIGHT)
}

fn linger_ms() -> u64 {
    LINGER_MS
}

fn batch_bytes() -> usize {
    BATCH_BYTES
}

fn message_bytes_max() -> usize {
    MESSAGE_BYTES_MAX
}

has_options!(KafkaConfig);

impl KafkaConfig {
    /// A sink for this broker, or these, separated by commas, with every default.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: Urls::new(url),
            options: options(),
            compression: Compression::default(),
            linger_ms: LINGER_MS,
            batch_bytes: BATCH_BYTES,
            message_bytes_max: MESSAGE_BYTES_MAX,
            sasl_mechanism: SaslMechanism::default(),
        }
    }

    /// Checks what can be checked without a broker.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        self.check_words()?;
        self.producer("check", false).map(drop)
    }

    /// Checks what can be checked without a broker and without the files it names.
    pub(crate) fn check_words(&self) -> Result<(), BuildError> {
        between("delivery_timeout_ms", self.options.delivery_timeout_ms, 500, 600_000)?;
        self.options.check_words(MAX_IN_FLIGHT_LIMIT)?;
        self.options.check_user()?;
        between("linger_ms", self.linger_ms, 0, 1_000)?;
        between("batch_bytes", self.batch_bytes as u64, 1_000, 64 << 20)?;
        between("message_bytes_max", self.message_bytes_max as u64, 1_000, 256 << 20)?;
        self.servers().map(drop)
    }

    /// A producer's options, with all files read anew. On the trial line each request holds one message, and
    /// the client itself gives up what is not answered. On the main line the client never gives anything up.
    pub(super) fn producer(&self, name: &str, trial: bool) -> Result<ClientConfig, BuildError> {
        let mut client = self.connection(name)?;
        set(&mut client, CONSTANTS);
        client
            .set("compression.type", self.compression.name())
            .set("linger.ms", if trial { 0 } else { self.linger_ms }.to_string())
            .set("batch.size", self.batch_bytes.to_string())
            .set("message.max.bytes", self.message_bytes_max.to_string())
            .set("queue.buffering.max.messages", self.options.max_in_flight.to_string())
            .set("queue.buffering.max.kbytes", self.queue_kbytes().to_string());
        if trial {
            client
                .set("batch.num.messages", "1")
                .set("message.timeout.ms", self.trial_timeout().as_millis().to_string())
                .set("request.timeout.ms", self.trial_timeout().as_millis().to_string());
        } else {
            set(&mut client, &[("enable.gapless.guarantee", "true"), ("message.timeout.ms", "0")]);
        }
        Ok(client)
    }

    /// One message of the largest size must fit.
    fn queue_kbytes(&self) -> usize {
        QUEUE_KBYTES.max(4 * self.message_bytes_max / 1_024)
    }

    /// As whom we log in, in words that hold no secret.
    pub(super) fn identity(&self) -> String {
        self.options.identity("a client without credentials")
    }

    /// The files of TLS, in words.
    pub(super) fn tls_words(&self) -> String {
        let authority = match &self.options.ca_file {
            Some(path) => format!("ca_file {}", path.display()),
            None => "the system's authorities".to_owned(),
        };
        let own = match &self.options.cert_file {
            Some(path) => format!("cert_file {}", path.display()),
            None => "no cert_file".to_owned(),
        };
        if self.wants_tls() { format!("{authority}, {own}") } else { "TLS is not asked for".to_owned() }
    }

    /// Whether a secret goes over the wire as it is.
    pub(super) fn sends_secret(&self) -> bool {
        self.options.user.is_some() && self.sasl_mechanism == SaslMechanism::Plain
    }

    /// What is left of the delivery timeout for finding out why there was no answer.
    pub(super) fn inquest(&self) -> Duration {
        INQUEST_MAX.min(self.options.delivery_timeout() / 3)
    }

    fn trial_timeout(&self) -> Duration {
        // This is a little earlier than the call's own end, so that the client's report comes first.
        (self.options.delivery_timeout() - self.inquest()).mul_f64(0.95)
    }

    /// The contents of the files, to see whether they have changed.
    pub(super) fn read_files(&self) -> Vec<Option<String>> {
        let files = [
            &self.options.ca_file,
            &self.options.cert_file,
            &self.options.key_file,
            &self.options.password_file,
        ];
        files.iter().map(|path| std::fs::read_to_string(path.as_ref()?).ok()).collect()
    }
}

/// A producer's settings that no option changes.
const CONSTANTS: &[(&str, &str)] = &[
    // The promises: see the essay of the module.
    ("acks", "all"),
    ("enable.idempotence", "true"),
    ("max.in.flight.requests.per.connection", "1"),
    ("retries", "2147483647"),
    // A key goes where the Java client puts it (F34). Events without a key are spread.
    ("partitioner", "murmur2_random"),
    ("allow.auto.create.topics", "false"),
    // A missing topic is known after a second instead of thirty.
    ("topic.metadata.propagation.max.ms", "1000"),
];

impl Compression {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::HasOptions;

    #[test]
    fn brokers() {
        let servers = |text: &str| KafkaConfig::new(text).servers();
        assert_eq!(servers("kafka://a:1, b:2,tls://c,d/").expect("valid"), "a:1,b:2,c:9092,d:9092");
        for bad in ["", "kafka://", "kafka://u:p@h:1", "a:b", "http://a:1", "a:1/x", "a:99999"] {
            let error = servers(bad).expect_err(bad).to_string();
            assert!(!error.contains("u:p"), "{error}");
        }
        assert!(KafkaConfig::new("tls://a").wants_tls());
    }

    #[test]
    fn f33_nothing_that_carries_a_promise_can_be_set() {
        let config = KafkaConfig::new("h:1");
        let main = config.producer("x", false).expect("valid");
        let trial = config.producer("x", true).expect("valid");
        for client in [&main, &trial] {
            assert_eq!(client.get("acks"), Some("all"));
            assert_eq!(client.get("enable.idempotence"), Some("true"));
            assert_eq!(client.get("max.in.flight.requests.per.connection"), Some("1"));
            assert_eq!(client.get("partitioner"), Some("murmur2_random"));
        }
        assert_eq!(main.get("message.timeout.ms"), Some("0"));
        assert_eq!(main.get("enable.gapless.guarantee"), Some("true"));
        let timeout: u64 =
            trial.get("message.timeout.ms").and_then(|text| text.parse().ok()).expect("a number");
        assert!(timeout < config.options.delivery_timeout_ms);
    }

    #[test]
    fn options_are_read_and_shown_without_secrets() {
        let text = r#"{"url":["kafka://a:1","b:2"],"user":"u","password":"hunter2","sasl_mechanism":"scram-sha-256",
            "compression":"zstd","require_tls":true}"#;
        let read = |text| serde_json::from_str(text).and_then(KafkaConfig::read);
        let config = read(text).expect("valid");
        config.check_words().expect("valid");
        let shown = serde_json::to_string(&config).expect("serializes");
        assert!(!format!("{config:?}{shown}{}", config.identity()).contains("hunter2"));
        for bad in [
            r#"{"url":"h","acks":"1"}"#,
            r#"{"url":"h","compression":"rar"}"#,
            r#"{"url":"h","sasl_mechanism":"gssapi"}"#,
            r#"{}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        for bad in [
            r#"{"url":"h","user":"u"}"#,
            r#"{"url":"h","password":"p"}"#,
            r#"{"url":"h","cert_file":"c"}"#,
            r#"{"url":"h","delivery_timeout_ms":1}"#,
            r#"{"url":"h","max_in_flight":0}"#,
        ] {
            let config = read(bad).expect("the words are known");
            assert!(config.check_words().is_err(), "{bad}");
        }
    }
}
