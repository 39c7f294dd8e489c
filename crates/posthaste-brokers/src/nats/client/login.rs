//! The client's options: who we are, whom we trust, and how much may be under way.
//!
//! Files are read anew for each connection, so that a rotated password or key is used at the next one. A key
//! never leaves this process: the server sends a nonce, and the client sends it back signed.

use super::super::NatsConfig;
use crate::secret::read_text;
use crate::{BuildError, Secret};
use async_nats::ConnectOptions;
use std::time::Duration;

/// How often a silent server is asked for a sign of life. The client gives a connection up at the third time
/// without an answer. So a silent connection lasts 4 to 6 s, which is less than the delivery timeout.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Messages of a subscription that may wait to be read. The client drops more, and for a dropped
/// acknowledgement an event is sent twice. So this is far above what a window can have under way.
const UNREAD_MAX: usize = 1 << 16;
/// Commands beside messages: questions, flushes.
const SPARE_COMMANDS: usize = 1_024;

/// The client's options, with all files read anew.
pub(super) fn options(config: &NatsConfig, name: &str) -> Result<ConnectOptions, BuildError> {
    let window = config.options.max_in_flight;
    let options = ConnectOptions::new()
        .name(format!("posthaste {name}"))
        .ping_interval(PING_INTERVAL)
        .custom_inbox_prefix(&config.inbox_prefix)
        .client_capacity(window + SPARE_COMMANDS)
        .subscription_capacity(UNREAD_MAX.max(2 * window))
        .require_tls(config.wants_tls())
        .tls_client_config(config.options.tls().client_config()?)
        // The caller decides where else to connect, as it decides about all reconnecting.
        .ignore_discovered_servers()
        // We check subjects ourselves, more strictly.
        .skip_subject_validation(true);
    log_in(config, if config.tls_first { options.tls_first() } else { options })
}

fn log_in(config: &NatsConfig, options: ConnectOptions) -> Result<ConnectOptions, BuildError> {
    let password = config.options.read_password()?;
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
    if let (Some(user), Some(password)) = (&config.options.user, password) {
        return Ok(options.user_and_password(user.clone(), password.expose().to_owned()));
    }
    match token {
        Some(token) => Ok(options.token(token.expose().to_owned())),
        None => log_in_with_key(config, options),
    }
}

fn log_in_with_key(config: &NatsConfig, options: ConnectOptions) -> Result<ConnectOptions, BuildError> {
    if let Some(path) = &config.creds_file {
        let text = read_text("creds_file", path)?;
        let bad = |_| BuildError::file("creds_file", path, "it holds no JWT with a key");
        return options.credentials(&text).map_err(bad);
    }
    let Some(path) = &config.nkey_file else { return Ok(options) };
    let text = read_text("nkey_file", path)?;
    let seed = text.split_whitespace().find(|word| is_user_seed(word));
    let seed = seed.ok_or_else(|| BuildError::file("nkey_file", path, "it holds no seed of a user"))?;
    Ok(options.nkey(seed.to_owned()))
}

/// Whether the word looks like the seed of a user: base32 of a fixed length. The client checks the rest when
/// it signs.
fn is_user_seed(word: &str) -> bool {
    let is_base32 = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
    word.starts_with("SU") && word.len() == 58 && word.bytes().all(is_base32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds() {
        let seed = "SUAIO3FHUX5PNV2LQIIP7TZ3N4L7TX3W53MQGEIVYFIGA635OZCKEYHFLM";
        assert!(is_user_seed(seed));
        for other in ["", "SU", &seed[1..], &seed.replace("SU", "SA"), &seed.replace('3', "1")] {
            assert!(!is_user_seed(other), "{other}");
        }
    }
}
