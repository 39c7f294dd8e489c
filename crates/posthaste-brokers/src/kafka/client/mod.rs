//! The connection to the brokers: addresses, login, TLS, and the questions that can be asked over it.
//!
//! librdkafka keeps connections and reconnects by itself. Its idempotent protocol bounds what it sends again
//! (see [`super`]). It takes certificates and passwords when it is made, so `watch` reads their files again
//! and says when they have changed.

pub(super) mod admin;
pub(super) mod version;
pub(super) mod watch;

use super::{KafkaConfig, SaslMechanism};
use crate::BuildError;
use crate::address::{Address, Scheme, Shape};
use crate::secret::read_text;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;

/// How addresses look.
const SHAPE: Shape = Shape {
    schemes: &[
        Scheme { name: "kafka", tls: false, port: 9092 },
        Scheme { name: "tls", tls: true, port: 9092 },
    ],
    needs_scheme: false,
    has_path: false,
    example: "kafka://host:9092",
    credentials: "user with password_file",
};

/// Settings of every client that no option changes.
const CONSTANTS: &[(&str, &str)] = &[
    // The client is back at once after an outage. Measured: 5 s, instead of 21 s with the defaults.
    ("reconnect.backoff.ms", "50"),
    ("reconnect.backoff.max.ms", "500"),
    ("retry.backoff.ms", "50"),
    ("retry.backoff.max.ms", "500"),
    ("socket.connection.setup.timeout.ms", "3000"),
    // A silent broker is left for another one. The time is shorter than a delivery.
    ("socket.timeout.ms", "5000"),
    ("socket.keepalive.enable", "true"),
    ("socket.nagle.disable", "true"),
    ("statistics.interval.ms", "0"),
    // A client without TLS at a port with TLS is told so only in the log, when the connection closes.
    ("log.connection.close", "true"),
    ("ssl.endpoint.identification.algorithm", "https"),
    ("enable.ssl.certificate.verification", "true"),
];

/// Sets all of these.
pub(super) fn set(client: &mut ClientConfig, settings: &[(&str, &str)]) {
    for (setting, value) in settings {
        client.set(*setting, *value);
    }
}

impl KafkaConfig {
    /// The options of every client: where the brokers are, who we are, whom we trust. Files are read anew.
    pub(super) fn connection(&self, name: &str) -> Result<ClientConfig, BuildError> {
        let mut client = ClientConfig::new();
        // `cause` reads the client's log, and ours shows it at the level of debug.
        client.set_log_level(RDKafkaLogLevel::Info);
        set(&mut client, CONSTANTS);
        client.set("bootstrap.servers", self.servers()?).set("client.id", format!("posthaste {name}"));
        self.secure(&mut client)?;
        Ok(client)
    }

    /// `host:port`, with commas between them.
    pub(super) fn servers(&self) -> Result<String, BuildError> {
        let servers: Vec<_> = self.addresses()?.iter().map(Address::authority).collect();
        Ok(servers.join(","))
    }

    fn addresses(&self) -> Result<Vec<Address>, BuildError> {
        let bad = |why: String| BuildError::option("url", why);
        let parse = |url| SHAPE.parse(url).map(|(address, _)| address);
        let addresses: Vec<_> = self.url.iter().map(parse).collect::<Result<_, _>>().map_err(bad)?;
        if addresses.is_empty() { Err(bad("there is no broker".to_owned())) } else { Ok(addresses) }
    }

    fn secure(&self, client: &mut ClientConfig) -> Result<(), BuildError> {
        let protocol = match (self.wants_tls(), self.options.user.is_some()) {
            (false, false) => "plaintext",
            (true, false) => "ssl",
            (false, true) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        };
        client.set("security.protocol", protocol);
        let files = [
            ("ca_file", &self.options.ca_file, "ssl.ca.pem", "CERTIFICATE-----"),
            ("cert_file", &self.options.cert_file, "ssl.certificate.pem", "CERTIFICATE-----"),
            ("key_file", &self.options.key_file, "ssl.key.pem", "PRIVATE KEY-----"),
        ];
        for (option, path, name, kind) in files {
            let Some(path) = path else { continue };
            let text = read_text(option, path)?;
            if !text.contains(kind) {
                let what = kind.trim_end_matches('-').to_lowercase();
                return Err(BuildError::file(option, path, format!("it holds no {what} (PEM)")));
            }
            client.set(name, text);
        }
        if let Some(user) = &self.options.user {
            let password = self.options.read_password()?;
            let missing = || BuildError::option("user", "needs password or password_file");
            client
                .set("sasl.mechanisms", self.sasl_mechanism.name())
                .set("sasl.username", user)
                .set("sasl.password", password.ok_or_else(missing)?.expose());
        }
        Ok(())
    }

    pub(in crate::kafka) fn wants_tls(&self) -> bool {
        // A text that is no address has been refused before.
        let by_url = self.addresses().is_ok_and(|addresses| addresses.iter().any(|address| address.tls));
        by_url || self.options.wants_tls()
    }
}

impl SaslMechanism {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// The error for files that the client cannot use.
pub(super) fn refusal(config: &KafkaConfig, error: &KafkaError) -> BuildError {
    let why = error.to_string();
    let files = [
        ("ca_file", &config.options.ca_file, "ssl.ca"),
        ("key_file", &config.options.key_file, "ssl.key"),
        ("cert_file", &config.options.cert_file, "ssl.certificate"),
    ];
    for (option, path, name) in files {
        if let Some(path) = path.as_ref().filter(|_| why.contains(name)) {
            return BuildError::file(option, path, &why);
        }
    }
    // The client's words name neither file when the key does not belong to the certificate.
    match &config.options.cert_file {
        Some(path) if why.to_lowercase().contains("key") => BuildError::file("cert_file", path, &why),
        _ => BuildError::option("url", why),
    }
}
