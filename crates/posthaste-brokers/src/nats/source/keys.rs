//! The options of a NATS source: how to reach the servers, and how long a queue waits for a sign of life.

use crate::nats::{NatsConfig, ack_wait_ms, inbox_prefix};
use crate::options::source_keys;
use crate::{Secret, Urls};
use std::path::PathBuf;

source_keys! {
    /// Options of a NATS source. A sink has the same ones but one, and more.
    NatsSourceKeys, keys => NatsConfig: NatsConfig {
        url: keys.url,
        token: keys.token,
        token_file: keys.token_file,
        creds_file: keys.creds_file,
        nkey_file: keys.nkey_file,
        inbox_prefix: keys.inbox_prefix,
        tls_first: keys.tls_first,
        ack_wait_ms: keys.ack_wait_ms,
        ..NatsConfig::new("")
    },
    {
        /// One server or several, tried in this order: `nats://host:4222`, or `tls://` where TLS is required;
        /// `ws://` and `wss://` for a WebSocket.
        #[cfg_attr(feature = "schema", schemars(with = "crate::secret::OneOrMany"))]
        url: Urls,
        /// A token.
        #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
        token: Option<Secret>,
        /// A file with a token.
        token_file: Option<PathBuf>,
        /// A `.creds` file: JWT and key.
        creds_file: Option<PathBuf>,
        /// A file with an NKey seed.
        nkey_file: Option<PathBuf>,
        /// First part of the subjects that messages and answers come to; the user must be allowed to
        /// subscribe to `PREFIX.>`.
        #[serde(default = "inbox_prefix")]
        inbox_prefix: String,
        /// Without order: how long JetStream waits for a sign of a member before others get what it had in
        /// hand. It counts where the durable consumer is made.
        #[serde(default = "ack_wait_ms")]
        ack_wait_ms: u64,
        /// Begin with TLS, before the server has said anything.
        #[serde(default)]
        tls_first: bool,
    }
}
