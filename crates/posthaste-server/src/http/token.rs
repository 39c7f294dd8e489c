//! Tokens: how they look, and how they are compared. Operators have `pht_…`, sessions of a page `phs_…`,
//! tenants of the gateway `phk_…`.
//!
//! A token is `PREFIX_ID_SECRET`: the id finds it in a list, the secret is 256 bits in 43 characters. Files
//! hold the SHA-256 of the whole text and never the text. A slow hash protects words that people think of;
//! nobody guesses 256 bits, so a fast one is right. Two hashes are compared in constant time, here and
//! nowhere else.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use subtle::ConstantTimeEq as _;

/// What keys of the gateway's tenants begin with.
pub(crate) const TENANT_PREFIX: &str = "phk";

/// Characters of a secret.
const SECRET_CHARS: usize = 43;
/// Bytes of an id: enough to tell tokens apart, short enough to read out.
const ID_BYTES: usize = 6;

/// The hash of a token.
#[derive(Clone, Copy)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    /// Of a token.
    pub(crate) fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// As it is kept in a database.
    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// From 64 hex digits.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// As 64 hex digits.
    pub(crate) fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            // A text takes everything.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Whether it is the same, in a time that does not depend on where they differ.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl From<[u8; 32]> for TokenHash {
    fn from(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

/// A new token: its id, and all of it.
pub(crate) fn mint(prefix: &str) -> anyhow::Result<(String, String)> {
    let mut bytes = [0; ID_BYTES + 32];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
    let id = bytes[..ID_BYTES].iter().fold(String::new(), |mut id, byte| {
        let _ = write!(id, "{byte:02x}");
        id
    });
    let token = format!("{prefix}_{id}_{}", URL_SAFE_NO_PAD.encode(&bytes[ID_BYTES..]));
    Ok((id, token))
}

/// The id of a text that looks like a token of this prefix.
pub(crate) fn id_of<'a>(prefix: &str, token: &'a str) -> Option<&'a str> {
    let (id, secret) = token.strip_prefix(prefix)?.strip_prefix('_')?.split_once('_')?;
    let is_id = !id.is_empty() && id.len() <= 32 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (is_id && secret.len() == SECRET_CHARS && secret.bytes().all(fits)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_new_token_is_read_and_its_hash_comes_back() {
        let (id, token) = mint("pht").expect("random numbers");
        assert_eq!(id_of("pht", &token), Some(id.as_str()));
        assert_eq!(id_of("phs", &token), None);
        let hash = TokenHash::of(&token);
        assert!(TokenHash::read(&hash.text()).is_some_and(|read| read.is(&hash)));
        assert!(!TokenHash::of("another").is(&hash));
        assert_ne!(mint("pht").expect("random numbers").1, token);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,80}") {
            let _ = id_of("pht", &text);
            let _ = id_of("pht", &format!("pht_{text}"));
            let _ = TokenHash::read(&text);
        }
    }
}
