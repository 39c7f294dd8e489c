//! What every request needs: connections, the secrets, the fixed headers; and their files, read again when
//! they change.
//!
//! Files are looked at once a second at most, when something is published. A new certificate makes a new dialler and an
//! empty pool: what is in flight ends on the old connections, and nobody takes them again. New secrets leave connections alone. A file that cannot be
//! read, or a certificate without its new key, changes nothing: rotation takes a moment, and what worked
//! until now works better than nothing. It is said in the log and by `posthaste doctor`.

use super::config::{HttpConfig, Keys};
use super::dial::Dialer;
use super::guard::{Guarded, Lookup};
use super::pool::Pool;
use crate::BuildError;
use posthaste::sink::Verdict;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// For name, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How connections are made, and those that wait.
pub(super) struct Client {
    pub(super) dialer: Dialer,
    pub(super) pool: Arc<Pool>,
}

/// What a request needs.
pub(super) struct Kit {
    pub(super) client: Arc<Client>,
    pub(super) keys: Keys,
    /// Whom it trusts and who it is, in words.
    pub(super) files: String,
}

/// Keeps the kit up to date.
pub(super) struct Keeper {
    config: HttpConfig,
    pub(super) resolver: Guarded,
    name: String,
    state: Mutex<State>,
}

struct State {
    /// `None`: closed.
    kit: Option<Arc<Kit>>,
    tls_files: Vec<Stamp>,
    secret_files: Vec<Stamp>,
    looked: Instant,
    trouble: Option<String>,
}

/// What changes when a file does: when it was written, its length, which file it is.
type Stamp = Option<(SystemTime, u64, u64)>;

fn stamps(files: [Option<&PathBuf>; 3]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    };
    files.into_iter().map(|file| file.and_then(stamp)).collect()
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Keeper {
    pub(super) fn start(
        config: &HttpConfig,
        guard: Arc<super::guard::Guard>,
        lookup: Arc<dyn Lookup>,
        name: &str,
    ) -> Result<Self, BuildError> {
        let resolver = Guarded { guard, lookup };
        // Before the files are read: a change in between is seen at the next look.
        let (tls_files, secret_files) = (stamps(tls_files(config)), stamps(config.secret_files()));
        let client = client(config, &resolver)?;
        let kit =
            Some(Arc::new(Kit { client, keys: config.keys()?, files: config.options.tls().in_words() }));
        let state = State { kit, tls_files, secret_files, looked: Instant::now(), trouble: None };
        Ok(Self { config: config.clone(), resolver, name: name.to_owned(), state: Mutex::new(state) })
    }

    /// The kit of now, or the verdict of a closed sink.
    pub(super) fn kit(&self) -> Result<Arc<Kit>, Verdict> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kit) = state.kit.clone() else { return Err(super::verdict::closed()) };
        let now = Instant::now();
        if now < state.looked + LOOK_INTERVAL {
            return Ok(kit);
        }
        state.looked = now;
        Ok(self.look(&mut state, kit))
    }

    /// Looks at the files now, and says what is wrong with them.
    pub(super) fn trouble(&self) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let kit = state.kit.clone()?;
        self.look(&mut state, kit);
        state.trouble.clone()
    }

    fn look(&self, state: &mut State, kit: Arc<Kit>) -> Arc<Kit> {
        let (tls, secrets) = (stamps(tls_files(&self.config)), stamps(self.config.secret_files()));
        let (same_tls, same_secrets) = (tls == state.tls_files, secrets == state.secret_files);
        if same_tls && same_secrets {
            state.trouble = None;
            return kit;
        }
        let fresh = || {
            let client =
                if same_tls { Arc::clone(&kit.client) } else { client(&self.config, &self.resolver)? };
            Ok::<_, BuildError>(Arc::new(Kit {
                client,
                keys: self.config.keys()?,
                files: self.config.options.tls().in_words(),
            }))
        };
        match fresh() {
            Ok(fresh) => {
                tracing::info!(
                    sink = self.name,
                    "certificates or secrets have changed: the new ones are used"
                );
                state.kit = Some(Arc::clone(&fresh));
                (state.tls_files, state.secret_files, state.trouble) = (tls, secrets, None);
                fresh
            }
            Err(error) => {
                // Tried again at each look.
                let text = error.to_string();
                if state.trouble.as_ref() != Some(&text) {
                    tracing::warn!(
                        sink = self.name,
                        error = text,
                        "files have changed and cannot be used; the old ones are kept"
                    );
                }
                state.trouble = Some(text);
                kit
            }
        }
    }

    /// Gives the connections back.
    pub(super) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).kit = None;
    }
}

fn tls_files(config: &HttpConfig) -> [Option<&PathBuf>; 3] {
    let files = config.options.tls();
    [files.ca, files.certificate, files.key]
}

fn client(config: &HttpConfig, resolver: &Guarded) -> Result<Arc<Client>, BuildError> {
    let mut tls = config.options.tls().client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let patience = CONNECT_TIMEOUT.min(config.options.delivery_timeout() / 2);
    let dialer = Dialer { resolver: resolver.clone(), tls: Arc::new(tls), patience };
    Ok(Arc::new(Client { dialer, pool: Pool::new(config.options.max_in_flight) }))
}
