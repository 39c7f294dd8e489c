//! Log lines: for people or as JSON, on standard error, without payloads.
//!
//! Standard output belongs to data (and to the `stdout` sink). The drivers below us write through the `log`
//! crate, which is not connected on purpose: PostgreSQL's prints statement parameters, and those are
//! payloads.
//!
//! A line for people may quote a broker or a database. What a terminal would obey is shown instead:
//! [`escape`].

use crate::config::{ConfigError, LogFormat};
use crate::output::escape;
use posthaste::telemetry::HANDLER_TARGET;
use std::fmt::Debug;
use std::io::IsTerminal;
use tracing::field::Field;
use tracing_subscriber::Layer;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// What decides the level, strongest first: the flag, `RUST_LOG`, the configuration.
pub(crate) fn start(format: LogFormat, flag: Option<&str>, configured: &str) -> Result<(), ConfigError> {
    let from_env = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let level = flag.map(str::to_owned).or(from_env).unwrap_or_else(|| configured.to_owned());
    let filter = filter(&level)?;
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Human => lines.with_ansi(ansi).with_target(false).fmt_fields(fields()).boxed(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
        }
    };
    let started = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    started.map_err(|error| ConfigError::new(format!("cannot start logging: {error}")))
}

/// The message, and `name=value` for everything else. A message may have lines of its own.
fn fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    let write = |writer: &mut Writer<'_>, field: &Field, value: &dyn Debug| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => write!(writer, "{}", escape::text(&value)),
            name if writer.has_ansi_escapes() => {
                write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{}", escape::line(&value))
            }
            name => write!(writer, "{name}={}", escape::line(&value)),
        }
    };
    debug_fn(write).delimited(" ")
}

/// A bare level is meant for Posthaste; other crates speak from warnings up. The clients of NATS and RabbitMQ
/// do not: they log an error at every try of an outage and for each refused channel, and we say it once.
fn filter(level: &str) -> Result<Targets, ConfigError> {
    let level = level.trim();
    let is_level =
        ["off", "error", "warn", "info", "debug", "trace"].contains(&level.to_ascii_lowercase().as_str());
    // A span for each message is worth its price to whoever looks closely. No line of ours is inside one.
    let is_close = ["debug", "trace"].contains(&level.to_ascii_lowercase().as_str());
    let spans = if is_close { String::new() } else { format!(",{HANDLER_TARGET}=off") };
    let directives = match level {
        _ if !is_level => level.to_owned(),
        "off" | "error" => level.to_owned(),
        _ => format!(
            "warn,async_nats=off,lapin=off,posthaste={level},posthaste_postgres={level},posthaste_sqlite={level},posthaste_brokers={level}{spans}"
        ),
    };
    if !is_level && !directives.contains('=') && !directives.contains(',') {
        return Err(wrong(level, "it is no level"));
    }
    directives.parse::<Targets>().map_err(|error| wrong(level, &error.to_string()))
}

fn wrong(level: &str, why: &str) -> ConfigError {
    ConfigError::new(format!(
        "log level {level:?}: {why}. Use error, warn, info, debug or trace, or directives like \
         posthaste=debug,rustls=warn"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_crates_speak_from_warnings_up_unless_they_are_asked_for() {
        let speaks = |level: &str, target: &str, at: tracing::Level| {
            filter(level).expect("a level").would_enable(target, &at)
        };
        assert!(speaks("info", "posthaste::relay", tracing::Level::INFO));
        assert!(speaks("info", "rustls", tracing::Level::WARN));
        assert!(!speaks("info", "rustls", tracing::Level::INFO));
        assert!(speaks("info,rustls=debug", "rustls::client", tracing::Level::DEBUG));
        assert!(!speaks("info", HANDLER_TARGET, tracing::Level::INFO), "a span for each message");
        assert!(speaks("debug", HANDLER_TARGET, tracing::Level::INFO));
        assert!(!speaks("info", "async_nats::connector", tracing::Level::ERROR));
        assert!(speaks("info,async_nats=debug", "async_nats::connector", tracing::Level::ERROR));
    }

    #[test]
    fn a_level_or_directives_and_nothing_else() {
        for good in ["info", "DEBUG", "off", "posthaste=trace", "warn,rustls=warn"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["verbose", "posthaste=loud"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
