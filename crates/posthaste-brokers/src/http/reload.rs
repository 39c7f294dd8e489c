//! What every request needs: connections, secrets, fixed headers; and their files, read again when they
//! change.
//!
//! Files are looked at once a second at most, when something is published. A new certificate, or a new
//! password of the proxy, makes a new dialler and an empty pool. Requests in flight end on the old
//! connections, and nobody takes those again. New secrets leave connections alone. A file that cannot be
//! read, or a certificate without its new key, changes nothing, because rotation takes a moment and the old
//! files worked until now. The log and `posthaste doctor` tell of it.

use super::client::Client;
use super::client::guard::Guarded;
use super::config::HttpConfig;
use super::entry::Keys;
use crate::BuildError;
use crate::lock::locked;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a request needs.
pub(super) struct Current {
    pub(super) client: Arc<Client>,
    pub(super) keys: Keys,
    /// The files of TLS, in words.
    pub(super) files: String,
}

/// Keeps [`Current`] up to date.
pub(super) struct Reload {
    config: HttpConfig,
    pub(super) resolver: Guarded,
    name: String,
    state: Mutex<LoadedFiles>,
}

struct LoadedFiles {
    /// `None`: closed.
    current: Option<Arc<Current>>,
    client_files: Vec<Stamp>,
    secret_files: Vec<Stamp>,
    looked: Instant,
    trouble: Option<String>,
}

/// What changes when a file does: the time of writing, the length, the inode.
type Stamp = Option<(SystemTime, u64, u64)>;

fn stamps<const N: usize>(files: [Option<&PathBuf>; N]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    };
    files.into_iter().map(|file| file.and_then(stamp)).collect()
}

impl std::fmt::Debug for Reload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reload").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Reload {
    pub(super) fn start(config: &HttpConfig, resolver: Guarded, name: &str) -> Result<Self, BuildError> {
        // The stamps are taken before the files are read, so a change in between is seen at the next look.
        let (client_files, secret_files) = (stamps(client_files(config)), stamps(config.secret_files()));
        let client = client(config, &resolver)?;
        let files = config.options.tls().in_words();
        let current = Some(Arc::new(Current { client, keys: config.keys()?, files }));
        let state =
            LoadedFiles { current, client_files, secret_files, looked: Instant::now(), trouble: None };
        Ok(Self { config: config.clone(), resolver, name: name.to_owned(), state: Mutex::new(state) })
    }

    /// What is to be used now. It is `None` when the sink was closed.
    pub(super) fn current(&self) -> Option<Arc<Current>> {
        let mut state = locked(&self.state);
        let current = state.current.clone()?;
        let now = Instant::now();
        if now < state.looked + LOOK_INTERVAL {
            return Some(current);
        }
        state.looked = now;
        Some(self.look(&mut state, current))
    }

    /// Looks at the files now, and says what is wrong with them.
    pub(super) fn trouble(&self) -> Option<String> {
        let mut state = locked(&self.state);
        let current = state.current.clone()?;
        self.look(&mut state, current);
        state.trouble.clone()
    }

    fn look(&self, state: &mut LoadedFiles, current: Arc<Current>) -> Arc<Current> {
        let (client_stamps, secrets) =
            (stamps(client_files(&self.config)), stamps(self.config.secret_files()));
        let (same_client, same_secrets) =
            (client_stamps == state.client_files, secrets == state.secret_files);
        if same_client && same_secrets {
            state.trouble = None;
            return current;
        }
        let fresh = || {
            let client =
                if same_client { Arc::clone(&current.client) } else { client(&self.config, &self.resolver)? };
            Ok::<_, BuildError>(Arc::new(Current {
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
                state.current = Some(Arc::clone(&fresh));
                (state.client_files, state.secret_files, state.trouble) = (client_stamps, secrets, None);
                fresh
            }
            Err(error) => {
                // The files are tried again at each look.
                let text = error.to_string();
                if state.trouble.as_ref() != Some(&text) {
                    tracing::warn!(
                        sink = self.name,
                        error = text,
                        "files have changed and cannot be used; the old ones are kept"
                    );
                }
                state.trouble = Some(text);
                current
            }
        }
    }

    /// Gives the connections back.
    pub(super) fn close(&self) {
        locked(&self.state).current = None;
    }
}

fn client_files(config: &HttpConfig) -> [Option<&PathBuf>; 4] {
    let files = config.options.tls();
    [files.ca, files.certificate, files.key, config.proxy_password_file.as_ref()]
}

fn client(config: &HttpConfig, resolver: &Guarded) -> Result<Arc<Client>, BuildError> {
    let options = &config.options;
    let (resolver, proxies) = (resolver.clone(), config.proxies()?);
    Client::new(options.tls(), resolver, proxies, options.delivery_timeout(), options.max_in_flight)
        .map(Arc::new)
}
