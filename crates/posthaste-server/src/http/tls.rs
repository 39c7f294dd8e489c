//! TLS of a listener, with a certificate that can be changed under load.
//!
//! Each handshake takes the setting of its moment. Connections that are open keep theirs, so a new
//! certificate costs nobody a request. A certificate that cannot be used changes nothing: the old one goes
//! on, and whoever asked is told why.

use anyhow::Context as _;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;

/// Where a certificate and its key are, and what is in force of them.
pub(crate) struct Certificate {
    cert_file: PathBuf,
    key_file: PathBuf,
    current: RwLock<Arc<ServerConfig>>,
}

impl Certificate {
    /// Reads both files.
    pub(crate) fn read(cert_file: &Path, key_file: &Path) -> anyhow::Result<Self> {
        let current = RwLock::new(Arc::new(load(cert_file, key_file)?));
        Ok(Self { cert_file: cert_file.to_owned(), key_file: key_file.to_owned(), current })
    }

    /// Reads both files again.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        let new = Arc::new(load(&self.cert_file, &self.key_file)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// For the next handshake.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// TLS 1.2 and 1.3 are what rustls speaks; anything older is refused by it.
fn load(cert_file: &Path, key_file: &Path) -> anyhow::Result<ServerConfig> {
    let shown = |path: &Path| path.display().to_string();
    let chain = CertificateDer::pem_file_iter(cert_file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("cannot read the certificate {}", shown(cert_file)))?;
    let key = PrivateKeyDer::from_pem_file(key_file)
        .with_context(|| format!("cannot read the key {}", shown(key_file)))?;
    let mut config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).with_context(|| {
            format!(
                "the certificate {} and the key {} do not belong together",
                shown(cert_file),
                shown(key_file)
            )
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
