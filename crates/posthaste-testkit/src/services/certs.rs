//! Certificates for the TLS tests: the good ones, and the ones that must be refused.
//!
//! Made anew for each test that asks (some milliseconds with elliptic curves) instead of kept in the
//! repository: a certificate in a repository expires one day, and the test suite with it.

use std::{
    io,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use super::{
    ServiceError,
    dir::PrivateDir,
    guard::{Guard, LastSignal},
};

/// A certificate and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub certificate: PathBuf,
    /// The private key (PKCS#8, not encrypted).
    pub key: PathBuf,
}

/// A set of certificates in a directory that is removed when this value is dropped.
#[derive(Debug)]
pub struct Certs {
    ca: Authority,
    other: Authority,
    server: Pair,
    expired_server: Pair,
    elsewhere: Pair,
    dir: PrivateDir,
    _guard: Guard,
}

impl Certs {
    /// Makes two unrelated authorities, a server certificate, one that has expired, and one for another name.
    ///
    /// # Errors
    ///
    /// `Failed` if the files cannot be written.
    pub fn make() -> Result<Self, ServiceError> {
        Self::try_make().map_err(|error| ServiceError::failed("certificates", error))
    }

    fn try_make() -> io::Result<Self> {
        let dir = PrivateDir::create("certs", None)?;
        let guard = Guard::start(dir.path(), LastSignal::Kill)?;
        let ca = Authority::make(&dir, "ca", "Posthaste test authority")?;
        let other = Authority::make(&dir, "other-ca", "Unrelated test authority")?;
        let server = ca.issue(&dir, "server", server_params(2_000, 4_000)?)?;
        let expired_server = ca.issue(&dir, "expired-server", server_params(2_000, 2_001)?)?;
        let name = "elsewhere.example";
        let elsewhere = leaf_params(name, &[name], ExtendedKeyUsagePurpose::ServerAuth)?;
        let elsewhere = ca.issue(&dir, "elsewhere", elsewhere)?;
        Ok(Self { ca, other, server, expired_server, elsewhere, dir, _guard: guard })
    }

    /// The authority that signed everything here but what [`stranger`](Self::stranger) makes.
    pub fn ca(&self) -> &Path {
        &self.ca.certificate
    }

    /// An authority that signed nothing of a server's.
    pub fn other_ca(&self) -> &Path {
        &self.other.certificate
    }

    /// A server's certificate for `127.0.0.1` and `localhost`.
    pub fn server(&self) -> &Pair {
        &self.server
    }

    /// The same, but it has expired.
    pub fn expired_server(&self) -> &Pair {
        &self.expired_server
    }

    /// A server's certificate for another name, `elsewhere.example`.
    pub fn elsewhere(&self) -> &Pair {
        &self.elsewhere
    }

    /// A client's certificate with this common name.
    ///
    /// # Errors
    ///
    /// `Failed` if the files cannot be written.
    pub fn client(&self, common_name: &str) -> Result<Pair, ServiceError> {
        self.issue_client(&self.ca, "client", common_name)
    }

    /// A client's certificate with this common name, signed by the other authority.
    ///
    /// # Errors
    ///
    /// `Failed` if the files cannot be written.
    pub fn stranger(&self, common_name: &str) -> Result<Pair, ServiceError> {
        self.issue_client(&self.other, "stranger", common_name)
    }

    /// A client's certificate with this common name, but it has expired.
    ///
    /// # Errors
    ///
    /// `Failed` if the files cannot be written.
    pub fn expired_client(&self, common_name: &str) -> Result<Pair, ServiceError> {
        let pair =
            leaf_params(common_name, &[], ExtendedKeyUsagePurpose::ClientAuth).and_then(|mut params| {
                params.not_before = date_time_ymd(2_000, 1, 1);
                params.not_after = date_time_ymd(2_001, 1, 1);
                self.ca.issue(&self.dir, &format!("expired-client-{common_name}"), params)
            });
        pair.map_err(|error| ServiceError::failed("certificates", error))
    }

    fn issue_client(&self, ca: &Authority, file: &str, common_name: &str) -> Result<Pair, ServiceError> {
        let pair = leaf_params(common_name, &[], ExtendedKeyUsagePurpose::ClientAuth)
            .and_then(|params| ca.issue(&self.dir, &format!("{file}-{common_name}"), params));
        pair.map_err(|error| ServiceError::failed("certificates", error))
    }
}

#[derive(Debug)]
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: PathBuf,
}

impl Authority {
    fn make(dir: &PrivateDir, file: &str, common_name: &str) -> io::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let certificate = dir.write(&format!("{file}.pem"), certificate.pem())?;
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    fn issue(&self, dir: &PrivateDir, file: &str, params: CertificateParams) -> io::Result<Pair> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?;
        Ok(Pair {
            certificate: dir.write(&format!("{file}.pem"), certificate.pem())?,
            key: dir.write(&format!("{file}.key"), key.serialize_pem())?,
        })
    }
}

fn server_params(from_year: i32, to_year: i32) -> io::Result<CertificateParams> {
    let mut params =
        leaf_params("localhost", &["localhost", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth)?;
    params.not_before = date_time_ymd(from_year, 1, 1);
    params.not_after = date_time_ymd(to_year, 1, 1);
    Ok(params)
}

fn leaf_params(
    common_name: &str,
    names: &[&str],
    usage: ExtendedKeyUsagePurpose,
) -> io::Result<CertificateParams> {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
    params.distinguished_name = named(common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    Ok(params)
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}
