//! Which dead letters: the flags of `posthaste dead`, for those of sinks and of consumers.

use crate::cli::time;
use clap::Args;
use posthaste::Timestamp;
use posthaste::admin::{DeadFilter, fingerprint_of_text};
use uuid::Uuid;

/// Which dead letters.
#[derive(Debug, Clone, Args)]
pub(crate) struct FilterArgs {
    /// Of this sink
    #[arg(long, value_name = "NAME", conflicts_with = "consumer")]
    sink: Option<String>,
    /// Of this consumer, instead of sinks
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) consumer: Option<String>,
    /// Of these topics; * stands for any run of characters
    #[arg(long, value_name = "PATTERN")]
    topic: Option<String>,
    /// Of this key
    #[arg(long)]
    key: Option<String>,
    /// By this route
    #[arg(long, value_name = "NAME", conflicts_with = "consumer")]
    route: Option<String>,
    /// With this error code, like payload.not_json
    #[arg(long)]
    code: Option<String>,
    /// Of this class of errors, like permanent
    #[arg(long)]
    class: Option<String>,
    /// With this text somewhere in the error
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// With this header, or with this value of it
    #[arg(long, value_name = "NAME[=VALUE]")]
    header: Option<String>,
    /// Those that later ones of their key wait for; =false: the others
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    holds_key: Option<bool>,
    /// Those that were replayed before; =false: the others
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    replayed: Option<bool>,
    /// Of this cause, by its number in `dead causes`
    #[arg(long, value_name = "NUMBER", value_parser = fingerprint)]
    fingerprint: Option<i64>,
    /// Died at or after this time: RFC 3339, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = time::earlier)]
    since: Option<Timestamp>,
    /// Died before this time
    #[arg(long, value_name = "TIME", value_parser = time::earlier)]
    until: Option<Timestamp>,
    /// With this event id, or of a consumer this letter's own; may be repeated
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<Uuid>,
    /// Everything
    #[arg(long)]
    all: bool,
}

/// The number of a cause, as a flag says it.
fn fingerprint(text: &str) -> Result<i64, String> {
    fingerprint_of_text(text).ok_or_else(|| "must be a cause's number, up to 16 hex digits".to_owned())
}

impl FilterArgs {
    pub(in crate::cli) fn filter(self) -> DeadFilter {
        let (header, header_value) =
            self.header.map_or((None, None), |header| match header.split_once('=') {
                Some((name, value)) => (Some(name.to_owned()), Some(value.to_owned())),
                None => (Some(header), None),
            });
        DeadFilter {
            all: self.all,
            ids: self.ids,
            sink: self.sink,
            topic: self.topic,
            key: self.key,
            route: self.route,
            code: self.code,
            class: self.class,
            error: self.error,
            header,
            header_value,
            holds_key: self.holds_key,
            replayed: self.replayed,
            fingerprint: self.fingerprint,
            since: self.since,
            until: self.until,
        }
    }
}
