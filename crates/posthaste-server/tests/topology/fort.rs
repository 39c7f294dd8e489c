//! A cluster as it is run: three nodes, certificates, an authorizer. One for all tests here, which take
//! turns. Each has names of its own.

use crate::desk::Desk;
use posthaste_testkit::services::{Certs, Kafka, KafkaOptions, KafkaSecurity, Pair, ServiceError};
use std::path::Path;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, OnceCell, RwLock};

/// Ends a hang; nothing is timed by it.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

pub(crate) struct Fort {
    pub(crate) certs: Certs,
    pub(crate) kafka: RwLock<Kafka>,
    turn: Mutex<()>,
}

impl Fort {
    pub(crate) async fn enter() -> Result<(&'static Self, MutexGuard<'static, ()>), ServiceError> {
        static FORT: OnceCell<Result<Fort, ServiceError>> = OnceCell::const_new();
        let fort = FORT.get_or_init(Self::build).await.as_ref().map_err(Clone::clone)?;
        Ok((fort, fort.turn.lock().await))
    }

    async fn build() -> Result<Self, ServiceError> {
        let certs = Certs::make()?;
        let mtls = KafkaSecurity::MutualTls(certs.server().clone(), certs.ca().to_owned());
        let options = KafkaOptions::default()
            .nodes(3)
            .listener("MTLS", mtls)
            .listener("EXPIRED", KafkaSecurity::Tls(certs.expired_server().clone()))
            .listener("ELSEWHERE", KafkaSecurity::Tls(certs.elsewhere().clone()))
            .listener("LINK", KafkaSecurity::Proxied)
            .authorizer()
            .setting("super.users=User:ANONYMOUS;User:admin");
        Ok(Self { kafka: RwLock::new(Kafka::start(&options).await?), certs, turn: Mutex::default() })
    }

    /// The keys of a broker's table: whom it trusts, and who it is.
    pub(crate) async fn table(&self, listener: &str, ca: Option<&Path>, pair: Option<&Pair>) -> String {
        let at = self.kafka.read().await.bootstrap_at(listener);
        let urls: Vec<&str> = at.split(',').collect();
        let mut lines = vec!["[brokers.kafka]".to_owned(), "type = \"kafka\"".to_owned()];
        lines.push(format!("url = {urls:?}"));
        lines.extend(ca.map(|ca| format!("ca_file = {ca:?}")));
        lines.extend(
            pair.map(|pair| format!("cert_file = {:?}\nkey_file = {:?}", pair.certificate, pair.key)),
        );
        lines.join("\n")
    }

    /// The example as it is, with this cluster's addresses and somebody's certificate laid over it.
    pub(crate) async fn desk(&self, who: &str) -> Desk {
        let pair = self.certs.client(who).expect("a certificate");
        let mut desk = Desk::new();
        let at = self.kafka.read().await.bootstrap_at("MTLS");
        let urls: Vec<String> = at.split(',').map(|at| format!("tls://{at}")).collect();
        desk.env("POSTHASTE_TOPOLOGY__BROKERS__KAFKA__URL", format!("{urls:?}"));
        desk.env("POSTHASTE_TOPOLOGY__BROKERS__KAFKA__CA_FILE", self.certs.ca());
        desk.env("POSTHASTE_TOPOLOGY__BROKERS__KAFKA__CERT_FILE", &pair.certificate);
        desk.env("POSTHASTE_TOPOLOGY__BROKERS__KAFKA__KEY_FILE", &pair.key);
        desk
    }
}
