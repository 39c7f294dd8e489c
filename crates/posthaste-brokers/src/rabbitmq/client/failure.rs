//! Why there is no connection, or none any more, in words that tell an operator where to look.

use super::answer::{ACCESS_REFUSED, Close, NOT_ALLOWED};
use crate::BuildError;
use crate::dial::tls_error;
use posthaste::sink::Failure;
use std::io;
use std::time::Duration;

/// The connection broke.
pub(super) fn lost(error: &io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the broker hung up".to_owned(),
        _ => error.to_string(),
    };
    connection_lost(format!("the connection to the broker was lost: {why}"))
}

/// The broker closed the connection and said why.
pub(super) fn closed(close: &Close) -> Failure {
    connection_lost(format!("the broker closed the connection: {} ({})", close.text, close.code))
}

pub(super) fn silent(time: Duration) -> Failure {
    connection_lost(format!("the broker has been silent for {} s, heartbeats included", time.as_secs()))
}

pub(super) fn too_many_unanswered() -> Failure {
    connection_lost("too many messages were never confirmed: the connection is renewed".to_owned())
}

fn connection_lost(text: String) -> Failure {
    Failure::of_sink("rabbitmq.connection_lost", text)
}

/// The broker refuses the login or the virtual host.
pub(super) fn refused(close: &Close, server: &str, identity: &str) -> Failure {
    let text = format!("{server} refuses {identity}: {}", close.text);
    match close.code {
        ACCESS_REFUSED => Failure::of_sink("rabbitmq.auth", text),
        NOT_ALLOWED => Failure::of_sink("rabbitmq.vhost", text),
        _ => unreachable(text),
    }
}

/// No connection, or one that broke before the broker had let us in.
pub(super) fn connect(error: &io::Error, server: &str, files: &str) -> Failure {
    match tls_error(error) {
        Some(tls) => self::tls(format!("{server}: no TLS connection: {tls} ({files})")),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            unreachable(format!("{server}: the broker hung up"))
        }
        None => unreachable(format!("{server}: {error}")),
    }
}

/// The broker hung up after TLS. With TLS 1.3 it looks at our certificate after the handshake is over for us,
/// and its alert may be lost when it hangs up at once.
pub(super) fn hung_up_after_tls(error: &io::Error, server: &str, files: &str) -> Failure {
    if tls_error(error).is_some() {
        return connect(error, server, files);
    }
    tls(format!(
        "{server}: no TLS connection: the broker hung up after the handshake: it refuses our certificate, or wants one ({files})"
    ))
}

pub(super) fn tls(text: String) -> Failure {
    Failure::of_sink("rabbitmq.tls", text)
}

pub(super) fn unreachable(text: String) -> Failure {
    Failure::of_sink("rabbitmq.unreachable", text)
}

/// A file of the configuration cannot be read.
pub(super) fn config(error: &BuildError) -> Failure {
    Failure::of_sink("rabbitmq.config", error.to_string())
}
