//! How a connection begins: start, tune, open.
//!
//! The broker says who it is and how one may log in, and we say who we are. Then the broker says what a
//! connection may have, and we name the virtual host. A refusal comes in the broker's own words, which name
//! the user or the host.

use super::ConnectOptions;
use super::answer::Close;
use super::channel::CHANNELS;
use super::connection::FAREWELL;
use super::frames::{self, Heard};
use super::session::Terms;
use super::transport::{FRAME_MAX, Transport};
use crate::BuildError;
use crate::options::Options;
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// The smallest frame that a peer may ask for, by the protocol.
const FRAME_MIN: u32 = 4_096;
/// RabbitMQ's own first user. It is let in from the broker's machine only.
const GUEST: &str = "guest";

/// A mechanism of SASL, and its first response.
pub(crate) struct SaslLogin {
    pub(crate) mechanism: &'static str,
    pub(crate) response: Vec<u8>,
}

impl SaslLogin {
    /// How we log in, with the password read anew.
    pub(crate) fn read(options: &Options) -> Result<Self, BuildError> {
        let password = options.read_password()?;
        let plain = |user: &str, password: &str| Self {
            mechanism: "PLAIN",
            response: format!("\0{user}\0{password}").into_bytes(),
        };
        Ok(match (&options.user, password) {
            (Some(user), Some(password)) => plain(user, password.expose()),
            _ if options.cert_file.is_some() => Self { mechanism: "EXTERNAL", response: Vec::new() },
            _ => plain(GUEST, GUEST),
        })
    }
}

/// As whom we log in, in words that hold no secret.
pub(super) fn identity(options: &Options) -> String {
    options.identity(&format!("the default user {GUEST:?}"))
}

/// Why there is no connection.
pub(super) enum HandshakeError {
    /// Before the broker has said anything.
    Unheard(io::Error),
    Broken(io::Error),
    Closed(Close),
    Said(&'static str, String),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Start, tune, open. After this there is a connection.
pub(super) async fn shake_hands(
    transport: &mut Transport,
    vhost: &str,
    login: &SaslLogin,
    client: ConnectOptions<'_>,
) -> Result<Terms, HandshakeError> {
    transport.out.extend_from_slice(frames::PROTOCOL);
    let greeting = answer(transport).await.map_err(|refusal| match refusal {
        HandshakeError::Broken(error) => HandshakeError::Unheard(error),
        other => other,
    });
    let Heard::Start { product, mechanisms } = greeting? else { return Err(out_of_turn()) };
    if !mechanisms.split(' ').any(|mechanism| mechanism == login.mechanism) {
        let text = format!("the broker offers no {} login, only {mechanisms}", login.mechanism);
        return Err(HandshakeError::Said("rabbitmq.auth", text));
    }
    frames::start_ok(&mut transport.out, client.name, login.mechanism, &login.response);
    let Heard::Tune { channel_max, frame_max, heartbeat } = answer(transport).await? else {
        return Err(out_of_turn());
    };
    if (1..FRAME_MIN).contains(&frame_max) {
        // With smaller frames no message would fit, and every event would be too large.
        let text =
            format!("the broker takes frames of {frame_max} bytes, and AMQP asks for {FRAME_MIN} at least");
        return Err(HandshakeError::Said("rabbitmq.unreachable", text));
    }
    // Zero means "no limit" and "no heartbeats". Then our values hold.
    let channels = if channel_max == 0 { CHANNELS } else { CHANNELS.min(channel_max) };
    let frame_max = if frame_max == 0 { FRAME_MAX } else { FRAME_MAX.min(frame_max as usize) };
    let heartbeat = if heartbeat == 0 { client.heartbeat_secs } else { client.heartbeat_secs.min(heartbeat) };
    frames::tune_ok(&mut transport.out, channels, frame_max as u32, heartbeat);
    frames::open(&mut transport.out, vhost);
    let Heard::OpenOk = answer(transport).await? else { return Err(out_of_turn()) };
    transport.frame_max = frame_max;
    Ok(Terms {
        product,
        channels,
        frame_max,
        heartbeat: Duration::from_secs(heartbeat.into()),
        encrypted: transport.is_encrypted(),
        local: transport.is_local(),
    })
}

async fn answer(transport: &mut Transport) -> Result<Heard, HandshakeError> {
    match transport.converse().await? {
        (_, Heard::ConnectionClose(close)) => {
            frames::connection_close_ok(&mut transport.out);
            // The broker hangs up now, with or without our answer.
            let _ = timeout(FAREWELL, transport.flush()).await;
            Err(HandshakeError::Closed(close))
        }
        (_, heard) => Ok(heard),
    }
}

fn out_of_turn() -> HandshakeError {
    HandshakeError::Said("rabbitmq.unreachable", "the broker's greeting is not that of AMQP 0-9-1".to_owned())
}
