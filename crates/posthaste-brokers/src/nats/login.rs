//! Who we are, in the words of the protocol.
//!
//! Files are read anew for each connection, so that a rotated password or key is used at the next one. A key never
//! leaves: the server sends a nonce, and we send it back signed. A password and a token do leave, in `CONNECT`, after
//! TLS if there is any; nothing that holds one of them can be printed.

use super::NatsConfig;
use crate::secret::read_text;
use crate::{BuildError, Secret};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::{KeyPair, KeyPairType};
use serde::Serialize;

/// One way to log in.
pub(super) enum Login {
    Nobody,
    User(String, Secret),
    Token(Secret),
    Key(KeyPair),
    Credentials(Secret, KeyPair),
}

/// What a client says first.
#[derive(Default, Serialize)]
struct Connect<'a> {
    verbose: bool,
    pedantic: bool,
    tls_required: bool,
    name: &'a str,
    lang: &'static str,
    version: &'static str,
    /// 1: the server may tell what changes, such as that it is about to stop.
    protocol: u8,
    echo: bool,
    headers: bool,
    /// A subject without a stream is answered, and not with silence.
    no_responders: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pass: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    auth_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nkey: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sig: Option<String>,
}

impl Login {
    /// Reads what the configuration names.
    pub(super) fn read(config: &NatsConfig) -> Result<Self, BuildError> {
        let password = Secret::read(
            config.options.password.as_ref(),
            config.options.password_file.as_ref(),
            "password_file",
        )?;
        let token = Secret::read(config.token.as_ref(), config.token_file.as_ref(), "token_file")?;
        let ways = [
            config.options.user.is_some(),
            token.is_some(),
            config.creds_file.is_some(),
            config.nkey_file.is_some(),
        ];
        if ways.iter().filter(|given| **given).count() > 1 {
            let why = "only one of user, token, creds_file, nkey_file can be used";
            return Err(BuildError::option("user", why));
        }
        match (&config.options.user, password) {
            (Some(user), Some(password)) => return Ok(Self::User(user.clone(), password)),
            (None, None) => {}
            (Some(_), None) => return Err(BuildError::option("user", "needs password or password_file")),
            (None, Some(_)) => return Err(BuildError::option("password", "needs user")),
        }
        match token {
            Some(token) => Ok(Self::Token(token)),
            None => Self::read_key(config),
        }
    }

    fn read_key(config: &NatsConfig) -> Result<Self, BuildError> {
        if let Some(path) = &config.creds_file {
            let text = read_text("creds_file", path)?;
            let found = credentials(&text);
            return found.ok_or_else(|| BuildError::file("creds_file", path, "it holds no JWT with a key"));
        }
        let Some(path) = &config.nkey_file else { return Ok(Self::Nobody) };
        let text = read_text("nkey_file", path)?;
        let key = text.split_whitespace().find_map(user_key);
        key.map(Self::Key).ok_or_else(|| BuildError::file("nkey_file", path, "it holds no seed of a user"))
    }

    /// Appends the line that logs in. The error holds nothing secret.
    pub(super) fn write_connect(
        &self,
        name: &str,
        nonce: &str,
        tls_required: bool,
        bytes: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut connect = Connect {
            tls_required,
            name,
            lang: "posthaste",
            version: env!("CARGO_PKG_VERSION"),
            protocol: 1,
            echo: true,
            headers: true,
            no_responders: true,
            ..Connect::default()
        };
        match self {
            Self::Nobody => {}
            Self::User(user, password) => {
                (connect.user, connect.pass) = (Some(user.as_str()), Some(password.expose()));
            }
            Self::Token(token) => connect.auth_token = Some(token.expose()),
            Self::Key(key) => {
                (connect.nkey, connect.sig) = (Some(key.public_key()), Some(signed(key, nonce)?));
            }
            Self::Credentials(jwt, key) => {
                (connect.jwt, connect.sig) = (Some(jwt.expose()), Some(signed(key, nonce)?));
            }
        }
        bytes.extend_from_slice(b"CONNECT ");
        serde_json::to_writer(&mut *bytes, &connect).map_err(|_| "the login cannot be written".to_owned())?;
        bytes.extend_from_slice(b"\r\n");
        Ok(())
    }
}

fn signed(key: &KeyPair, nonce: &str) -> Result<String, String> {
    let signature = key.sign(nonce.as_bytes()).map_err(|error| format!("the key does not sign: {error}"))?;
    Ok(URL_SAFE_NO_PAD.encode(signature))
}

fn user_key(seed: &str) -> Option<KeyPair> {
    let key = KeyPair::from_seed(seed).ok()?;
    (key.key_pair_type() == KeyPairType::User).then_some(key)
}

/// A `.creds` file: two words, each on a line between two lines of dashes. The first is the JWT, the second the seed.
fn credentials(text: &str) -> Option<Login> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let dashes = |line: &str| line.trim_start().starts_with("---") && line.ends_with("---");
    let word = |line: &str| {
        !line.is_empty() && line.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.=".contains(&b))
    };
    let mut words = lines.windows(3).filter(|w| dashes(w[0]) && word(w[1]) && dashes(w[2])).map(|w| w[1]);
    let (jwt, seed) = (words.next()?, words.next()?);
    Some(Login::Credentials(Secret::new(jwt), KeyPair::from_seed(seed).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(login: &Login, nonce: &str) -> serde_json::Value {
        let mut bytes = Vec::new();
        login.write_connect("posthaste test", nonce, false, &mut bytes).expect("written");
        let text = String::from_utf8(bytes).expect("text");
        let json = text.strip_prefix("CONNECT ").and_then(|text| text.strip_suffix("\r\n"));
        serde_json::from_str(json.expect("a line")).expect("JSON")
    }

    #[test]
    fn a_password_with_quotes_is_escaped() {
        let said = line(&Login::User("o\"x".into(), Secret::new("a\"\\\r\nPUB")), "");
        assert_eq!((said["user"].as_str(), said["pass"].as_str()), (Some("o\"x"), Some("a\"\\\r\nPUB")));
        assert_eq!(
            (&said["jwt"], &said["verbose"], &said["headers"]),
            (&().into(), &false.into(), &true.into())
        );
    }

    #[test]
    fn a_nonce_is_signed() {
        let key = KeyPair::new_user();
        let said = line(&Login::Key(key.clone()), "nonce");
        assert_eq!(said["nkey"].as_str(), Some(key.public_key().as_str()));
        let signature = URL_SAFE_NO_PAD.decode(said["sig"].as_str().expect("signed")).expect("base64");
        assert!(key.verify(b"nonce", &signature).is_ok());
    }

    #[test]
    fn a_credentials_file() {
        let seed = KeyPair::new_user().seed().expect("a seed");
        let file = |jwt: &str, seed: &str| {
            format!(
                "-----BEGIN NATS USER JWT-----\r\n{jwt}\r\n------END NATS USER JWT------\r\n\r\n*** IMPORTANT ***\r\n\r\n-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
            )
        };
        let Some(login) = credentials(&file("a.b-_=.c", &seed)) else { panic!("none found") };
        assert_eq!(line(&login, "n")["jwt"], "a.b-_=.c");
        assert!(credentials(&file("a.b", "SUNOSEED")).is_none());
        assert!(credentials(&file("a b", &seed)).is_none());
        assert!(credentials("").is_none() && credentials(&seed).is_none());
    }
}
