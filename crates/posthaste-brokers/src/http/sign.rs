//! Signatures as [Standard Webhooks](https://www.standardwebhooks.com) writes them down.
//!
//! `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`, one for each secret with a space between.
//! A receiver accepts the request when one of them fits, so a secret is replaced in three steps: add the new
//! one here, change the receiver, take the old one away.

use crate::{BuildError, Secret};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Shorter keys can be guessed.
const KEY_BYTES_MIN: usize = 16;

/// The secrets, ready for use.
pub(super) struct Signer {
    keys: Vec<Hmac<Sha256>>,
}

impl Signer {
    pub(super) fn new(secrets: &[Secret]) -> Result<Self, BuildError> {
        let keys = secrets.iter().map(key).collect::<Result<_, _>>()?;
        Ok(Self { keys })
    }

    /// The value of `webhook-signature`; `None` without secrets.
    pub(super) fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> Option<String> {
        let mut text = String::with_capacity(self.keys.len() * 48);
        for key in &self.keys {
            let mut mac = key.clone();
            for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
                mac.update(part);
            }
            text.push_str(if text.is_empty() { "v1," } else { " v1," });
            STANDARD.encode_string(mac.finalize().into_bytes(), &mut text);
        }
        (!text.is_empty()).then_some(text)
    }
}

fn key(secret: &Secret) -> Result<Hmac<Sha256>, BuildError> {
    let bad = |why: &str| BuildError::option("secrets", why);
    let text = secret.expose();
    let encoded = text.strip_prefix("whsec_").unwrap_or(text);
    // Not the decoder's own words: they quote the secret.
    let bytes = STANDARD.decode(encoded).map_err(|_| bad("a secret must be whsec_ and base64"))?;
    if bytes.len() < KEY_BYTES_MIN {
        return Err(bad("a secret must have at least 16 bytes, better 24 (openssl rand -base64 24)"));
    }
    Hmac::new_from_slice(&bytes).map_err(|_| bad("a secret cannot be used"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;

    fn signer(secrets: &[&str]) -> Signer {
        let secrets: Vec<_> = secrets.iter().map(|text| Secret::new(*text)).collect();
        Signer::new(&secrets).expect("secrets")
    }

    /// The vector that the specification's libraries are tested with.
    #[test]
    fn f47_the_published_vector() {
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signer(&[SECRET]).sign(ID, "1614265330", BODY).as_deref(), Some(expected));
        let bare = SECRET.trim_start_matches("whsec_");
        assert_eq!(signer(&[bare]).sign(ID, "1614265330", BODY).as_deref(), Some(expected));
    }

    #[test]
    fn f47_every_secret_signs() {
        let other = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0";
        let one = |secret| signer(&[secret]).sign(ID, "1", BODY).expect("signed");
        let both = signer(&[SECRET, other]).sign(ID, "1", BODY).expect("signed");
        assert_eq!(both, format!("{} {}", one(SECRET), one(other)));
        assert_eq!(signer(&[]).sign(ID, "1", BODY), None);
    }

    #[test]
    fn bad_secrets_are_refused_without_being_shown() {
        for bad in ["whsec_", "whsec_c2hvcnQ=", "whsec_not base64", "hunter2-hunter2"] {
            let error = Signer::new(&[Secret::new(bad)]).err().expect(bad).to_string();
            assert!(!error.contains("hunter") && !error.contains("not base64"), "{error}");
        }
    }
}
