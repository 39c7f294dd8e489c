//! TLS for every broker: which authorities are trusted, and who we are.
//!
//! There is no option to skip verification (F29), because a broker with a private authority needs just one
//! line, `ca_file`. With it only that authority is trusted, and without it those of the system. The crypto
//! provider is named here and not taken from the process, because a process with two of them in its
//! dependencies and none installed would panic at the first handshake.
//!
//! Files are read at every connection, so that a rotated certificate is used at the next one. They are also
//! read once when the sink is built, so that a wrong path is an error at the start and not an outage.

use crate::BuildError;
use posthaste::sink::Failure;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The files of a TLS connection, as a broker's configuration names them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    pub(crate) ca: Option<&'a PathBuf>,
    pub(crate) certificate: Option<&'a PathBuf>,
    pub(crate) key: Option<&'a PathBuf>,
}

impl Files<'_> {
    /// The files in words: whom we trust, and who we are.
    pub(crate) fn in_words(&self) -> String {
        let ca = match self.ca {
            Some(path) => format!("ca_file {}", path.display()),
            None => "the system's authorities".to_owned(),
        };
        match self.certificate {
            Some(path) => format!("{ca}, cert_file {}", path.display()),
            None => ca,
        }
    }

    /// Adds the files to a refusal by TLS.
    pub(crate) fn name_in(&self, mut failure: Failure) -> Failure {
        if failure.code.ends_with(".tls") {
            failure.message = format!("{} ({})", failure.message, self.in_words());
        }
        failure
    }

    /// Reads them.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, BuildError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| BuildError::option("ca_file", error.to_string()))?
            .with_root_certificates(self.roots()?);
        let (Some(certificate), Some(key)) = (self.certificate, self.key) else {
            if self.certificate.is_some() || self.key.is_some() {
                return Err(BuildError::option("cert_file", "cert_file and key_file belong together"));
            }
            return Ok(builder.with_no_client_auth());
        };
        let chain = certificates("cert_file", certificate)?;
        let secret_key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| BuildError::file("key_file", key, pem_error(error)))?;
        builder
            .with_client_auth_cert(chain, secret_key)
            .map_err(|error| BuildError::file("cert_file", certificate, error))
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, BuildError> {
        let mut roots = RootCertStore::empty();
        match self.ca {
            Some(path) => {
                for certificate in certificates("ca_file", path)? {
                    roots.add(certificate).map_err(|error| BuildError::file("ca_file", path, error))?;
                }
            }
            // A system without authorities is no error: a broker without TLS needs none, and with TLS
            // the handshake says that the issuer is unknown.
            None => return Ok(native_roots()),
        }
        Ok(Arc::new(roots))
    }
}

/// The system's authorities. They are read once, because there are more than a hundred of them, and a broker
/// that is down is dialled every second.
fn native_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let load = || {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    };
    Arc::clone(ROOTS.get_or_init(load))
}

fn certificates(option: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, BuildError> {
    let bad = |why: String| BuildError::file(option, path, why);
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| bad(pem_error(error)))?;
    if found.is_empty() { Err(bad("there is no PEM certificate in it".to_owned())) } else { Ok(found) }
}

fn pem_error(error: rustls_pki_types::pem::Error) -> String {
    match error {
        rustls_pki_types::pem::Error::Io(error) => error.to_string(),
        // The parser's own words quote the file, and the file may be a key.
        _ => "it is not valid PEM".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Files<'_> = Files { ca: None, certificate: None, key: None };

    #[test]
    fn a_bad_file_is_named() {
        let missing = PathBuf::from("/nonexistent/ca.pem");
        let error = Files { ca: Some(&missing), ..NONE }.client_config().expect_err("missing");
        assert!(error.to_string().starts_with("ca_file /nonexistent/ca.pem: "), "{error}");
        let not_pem = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let error = Files { ca: Some(&not_pem), ..NONE }.client_config().expect_err("not PEM");
        assert!(error.to_string().ends_with("there is no PEM certificate in it"), "{error}");
        let error = Files { key: Some(&not_pem), ..NONE }.client_config().expect_err("half a pair");
        assert!(error.to_string().contains("belong together"), "{error}");
    }

    #[test]
    fn the_systems_authorities_are_the_default() {
        assert!(NONE.client_config().is_ok());
    }
}
