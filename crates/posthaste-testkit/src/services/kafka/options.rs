//! What a test wants of its Kafka, and the `server.properties` that follow from it.

use std::{fmt::Write, net::SocketAddr, path::PathBuf};

use super::java::Jvm;
use crate::services::Pair;

/// The listener that is always there: plaintext, for the brokers among themselves and for the test's own
/// admin work.
pub(super) const INTERNAL: &str = "INTERNAL";
const CONTROLLER: &str = "CONTROLLER";

/// How clients are let in at a listener.
#[derive(Clone, Debug)]
pub enum Security {
    /// Everybody, as `User:ANONYMOUS`.
    Plain,
    /// Everybody, by way of a [`Proxy`](crate::services::Proxy) that the brokers advertise instead of
    /// themselves.
    Proxied,
    /// Everybody, with this certificate of the server.
    Tls(Pair),
    /// Clients with a certificate that this authority signed, as `User:` and its common name.
    MutualTls(Pair, PathBuf),
    /// SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN, without TLS.
    Sasl,
    /// The same with TLS.
    SaslTls(Pair),
}

impl Security {
    fn protocol(&self) -> &'static str {
        match self {
            Self::Plain | Self::Proxied => "PLAINTEXT",
            Self::Tls(_) | Self::MutualTls(..) => "SSL",
            Self::Sasl => "SASL_PLAINTEXT",
            Self::SaslTls(_) => "SASL_SSL",
        }
    }

    pub(super) fn server_pair(&self) -> Option<&Pair> {
        match self {
            Self::Tls(pair) | Self::MutualTls(pair, _) | Self::SaslTls(pair) => Some(pair),
            Self::Plain | Self::Proxied | Self::Sasl => None,
        }
    }
}

/// What a test wants otherwise than the defaults: one node with one plaintext listener, and no topic that was
/// not created.
#[derive(Clone, Debug, Default)]
pub struct KafkaOptions {
    more_nodes: u32,
    pub(super) first_controls: bool,
    pub(super) listeners: Vec<(String, Security)>,
    scram_users: Vec<(String, String)>,
    plain_users: Vec<(String, String)>,
    authorizer: bool,
    settings: Vec<String>,
    jvm: Jvm,
}

impl KafkaOptions {
    /// That many nodes, each a broker and a controller. With more than one, topics that ask for nothing else
    /// have a replica on each of three, and two of them must be in sync.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.more_nodes = nodes.saturating_sub(1);
        self
    }

    /// Only the first node is a controller: the others may all die, and the cluster still knows who is in
    /// sync.
    #[must_use]
    pub fn first_controls(mut self) -> Self {
        self.first_controls = true;
        self
    }

    /// One more listener on each node.
    #[must_use]
    pub fn listener(mut self, name: &str, security: Security) -> Self {
        self.listeners.push((name.to_owned(), security));
        self
    }

    /// A user for SCRAM-SHA-256 and SCRAM-SHA-512.
    #[must_use]
    pub fn scram_user(mut self, name: &str, password: &str) -> Self {
        self.scram_users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// A user for PLAIN.
    #[must_use]
    pub fn plain_user(mut self, name: &str, password: &str) -> Self {
        self.plain_users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Nobody may do anything without an ACL, but for those who come without a name: the brokers themselves,
    /// and the test's own admin work.
    #[must_use]
    pub fn authorizer(mut self) -> Self {
        self.authorizer = true;
        self
    }

    /// A line of `server.properties`, such as `message.max.bytes=4096`. It wins over what is there.
    #[must_use]
    pub fn setting(mut self, line: &str) -> Self {
        self.settings.push(line.to_owned());
        self
    }

    /// Made for throughput, as a broker in production is, and not for starting many of them quickly.
    #[must_use]
    pub fn for_throughput(mut self) -> Self {
        self.jvm = Jvm { heap_mb: 512, optimises: true };
        self
    }

    pub(super) fn node_ids(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.more_nodes + 1
    }

    pub(super) fn jvm(&self) -> Jvm {
        self.jvm
    }

    /// Arguments of the storage tool that make the SCRAM users before the first start.
    pub(super) fn scram_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        for (name, password) in &self.scram_users {
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                let user = format!("{mechanism}=[name={name},password={password}]");
                arguments.extend(["--add-scram".to_owned(), user]);
            }
        }
        arguments
    }

    /// A node's `server.properties`.
    pub(super) fn properties(&self, node: &NodePlace<'_>) -> String {
        let mut lines = self.roles(node);
        lines.extend(self.listener_lines(node));
        if self.authorizer {
            lines.push(
                "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned(),
            );
            lines.push("super.users=User:ANONYMOUS".to_owned());
        }
        lines.extend(self.modesty());
        lines.extend(self.settings.iter().cloned());
        lines.join("\n")
    }

    fn roles(&self, node: &NodePlace<'_>) -> Vec<String> {
        let voters: Vec<_> = node.controllers.iter().map(|(id, addr)| format!("{id}@{addr}")).collect();
        let roles = if node.controller().is_some() { "broker,controller" } else { "broker" };
        vec![
            format!("node.id={}", node.id),
            format!("process.roles={roles}"),
            format!("controller.quorum.voters={}", voters.join(",")),
            format!("controller.listener.names={CONTROLLER}"),
            format!("log.dirs={}", node.data.display()),
        ]
    }

    fn listener_lines(&self, node: &NodePlace<'_>) -> Vec<String> {
        let (mut bound, mut advertised) = (String::new(), String::new());
        let mut protocols = format!("{INTERNAL}:PLAINTEXT,{CONTROLLER}:PLAINTEXT");
        for listener in &node.listeners {
            let _ = write!(bound, "{}://{},", listener.name, listener.bound);
            let _ = write!(advertised, "{}://{},", listener.name, listener.advertised);
        }
        for (name, security) in &self.listeners {
            let _ = write!(protocols, ",{name}:{}", security.protocol());
        }
        if let Some(addr) = node.controller() {
            let _ = write!(bound, "{CONTROLLER}://{addr}");
        }
        let mut lines = vec![
            format!("listeners={}", bound.trim_end_matches(',')),
            format!("advertised.listeners={}", advertised.trim_end_matches(',')),
            format!("listener.security.protocol.map={protocols}"),
            format!("inter.broker.listener.name={INTERNAL}"),
            "ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/,DEFAULT".to_owned(),
        ];
        lines.extend(self.listeners.iter().flat_map(|(name, security)| self.secured(name, security, node)));
        lines
    }

    fn secured(&self, name: &str, security: &Security, node: &NodePlace<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        let mut line = |setting: &str, value: &str| {
            lines.push(format!("listener.name.{}.{setting}={value}", name.to_lowercase()));
        };
        if security.server_pair().is_some() {
            line("ssl.keystore.type", "PEM");
            line("ssl.keystore.location", &node.keystore(name).display().to_string());
        }
        if let Security::MutualTls(_, ca) = security {
            line("ssl.client.auth", "required");
            line("ssl.truststore.type", "PEM");
            line("ssl.truststore.location", &ca.display().to_string());
        }
        if matches!(security, Security::Sasl | Security::SaslTls(_)) {
            line("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512");
            let package = "org.apache.kafka.common.security";
            for mechanism in ["scram-sha-256", "scram-sha-512"] {
                let login = format!("{package}.scram.ScramLoginModule required;");
                line(&format!("{mechanism}.sasl.jaas.config"), &login);
            }
            let users =
                self.plain_users.iter().map(|(user, password)| format!(" user_{user}=\"{password}\""));
            let login = format!("{package}.plain.PlainLoginModule required{};", users.collect::<String>());
            line("plain.sasl.jaas.config", &login);
        }
        lines
    }

    /// A server for a test: small, quick to notice a dead broker, and without surprises.
    fn modesty(&self) -> Vec<String> {
        let (replicas, in_sync) = if self.more_nodes >= 2 { (3, 2) } else { (1, 1) };
        let mut lines: Vec<String> = [
            "auto.create.topics.enable=false",
            "num.partitions=1",
            "group.initial.rebalance.delay.ms=0",
            "num.network.threads=1",
            "num.io.threads=2",
            // A broker that was killed is believed alive until its session ends, and cannot come back before.
            "broker.session.timeout.ms=3000",
            "broker.heartbeat.interval.ms=500",
            // 128 MB by default, taken at the start.
            "log.cleaner.dedupe.buffer.size=4194304",
        ]
        .map(str::to_owned)
        .to_vec();
        lines.push(format!("default.replication.factor={replicas}"));
        lines.push(format!("min.insync.replicas={in_sync}"));
        for (topic, in_sync_setting) in [
            ("offsets.topic", None),
            ("transaction.state.log", Some("transaction.state.log.min.isr")),
            ("share.coordinator.state.topic", Some("share.coordinator.state.topic.min.isr")),
        ] {
            lines.push(format!("{topic}.num.partitions=1"));
            lines.push(format!("{topic}.replication.factor={replicas}"));
            lines.extend(in_sync_setting.map(|setting| format!("{setting}={in_sync}")));
        }
        lines
    }
}

/// Where a node lives.
#[derive(Debug)]
pub(super) struct NodePlace<'a> {
    pub(super) id: u32,
    pub(super) data: PathBuf,
    pub(super) listeners: Vec<Bound<'a>>,
    /// All controllers of the cluster.
    pub(super) controllers: Vec<(u32, SocketAddr)>,
}

/// A listener's two addresses: where the broker listens, and where it tells clients to go.
#[derive(Debug)]
pub(super) struct Bound<'a> {
    pub(super) name: &'a str,
    pub(super) bound: SocketAddr,
    pub(super) advertised: SocketAddr,
}

impl NodePlace<'_> {
    fn controller(&self) -> Option<SocketAddr> {
        self.controllers.iter().find(|(id, _)| *id == self.id).map(|(_, addr)| *addr)
    }

    /// Key, certificate and no password in one file, beside the data.
    pub(super) fn keystore(&self, listener: &str) -> PathBuf {
        self.data.with_file_name(format!("{listener}.pem"))
    }
}
