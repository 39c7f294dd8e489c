//! How a connection begins: start, tune, open.
//!
//! The broker says who it is and how one may log in; we say who we are; it says what a connection may have; we
//! name the virtual host. A refusal comes in the broker's own words, which name the user or the host.

use super::address::Server;
use super::session::Terms;
use super::table::CHANNELS;
use super::transport::{FRAME_MAX, Transport};
use super::wire::{self, Heard};
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// Heartbeats come at half of this time; two of them are waited for. A silent connection lasts 6 s, less than
/// the delivery timeout.
const HEARTBEAT_SECS: u16 = 3;
/// The smallest frame that a peer may ask for, by the protocol.
const FRAME_MIN: u32 = 4_096;
/// For saying goodbye.
pub(super) const FAREWELL: Duration = Duration::from_millis(200);

/// A mechanism and what it says first.
pub(super) struct Login {
    pub(super) mechanism: &'static str,
    pub(super) response: Vec<u8>,
}

/// Why there is no connection.
pub(super) enum Refusal {
    /// Before the broker has said anything.
    Unheard(io::Error),
    Broken(io::Error),
    Closed(wire::Close),
    Said(&'static str, String),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Start, tune, open: after this there is a connection.
pub(super) async fn greet(
    transport: &mut Transport,
    server: &Server,
    login: &Login,
    name: &str,
) -> Result<Terms, Refusal> {
    transport.out.extend_from_slice(wire::PROTOCOL);
    let greeting = answer(transport).await.map_err(|refusal| match refusal {
        Refusal::Broken(error) => Refusal::Unheard(error),
        other => other,
    });
    let Heard::Start { server: says, mechanisms } = greeting? else { return Err(out_of_turn()) };
    if !mechanisms.split(' ').any(|mechanism| mechanism == login.mechanism) {
        let text = format!("the broker offers no {} login, only {mechanisms}", login.mechanism);
        return Err(Refusal::Said("rabbitmq.auth", text));
    }
    wire::start_ok(&mut transport.out, name, login.mechanism, &login.response);
    let Heard::Tune { channel_max, frame_max, heartbeat } = answer(transport).await? else {
        return Err(out_of_turn());
    };
    if (1..FRAME_MIN).contains(&frame_max) {
        // No message would fit, and every event would be too large.
        let text =
            format!("the broker takes frames of {frame_max} bytes, and AMQP asks for {FRAME_MIN} at least");
        return Err(Refusal::Said("rabbitmq.unreachable", text));
    }
    // Zero means "no limit" and "no heartbeats": ours hold then.
    let channels = if channel_max == 0 { CHANNELS } else { CHANNELS.min(channel_max) };
    let frame_max = if frame_max == 0 { FRAME_MAX } else { FRAME_MAX.min(frame_max as usize) };
    let heartbeat = if heartbeat == 0 { HEARTBEAT_SECS } else { HEARTBEAT_SECS.min(heartbeat) };
    wire::tune_ok(&mut transport.out, channels, frame_max as u32, heartbeat);
    wire::open(&mut transport.out, &server.vhost);
    let Heard::OpenOk = answer(transport).await? else { return Err(out_of_turn()) };
    transport.frame_max = frame_max;
    Ok(Terms {
        server: says,
        channels,
        frame_max,
        heartbeat: Duration::from_secs(heartbeat.into()),
        encrypted: transport.is_encrypted(),
        local: transport.is_local(),
    })
}

async fn answer(transport: &mut Transport) -> Result<Heard, Refusal> {
    match transport.converse().await? {
        (_, Heard::ConnectionClose(close)) => {
            wire::connection_close_ok(&mut transport.out);
            // It hangs up now, with or without our word.
            let _ = timeout(FAREWELL, transport.flush()).await;
            Err(Refusal::Closed(close))
        }
        (_, heard) => Ok(heard),
    }
}

fn out_of_turn() -> Refusal {
    Refusal::Said("rabbitmq.unreachable", "the broker's greeting is not that of AMQP 0-9-1".to_owned())
}
