//! The text of the file. Pure: what was asked for and what was found go in, TOML comes out.

use super::look::DatabaseState;
use crate::config::scrub;
use crate::output::escape;
use posthaste_brokers::{LoginOption, addresses, kind_of, login_comment, split_login};
use std::path::Path;

/// Where the file of a password is looked for, until somebody says otherwise.
const DATABASE_SECRET: &str = "/run/secrets/posthaste-database-url";
const BROKER_SECRET: &str = "/run/secrets/posthaste-broker";

/// What was asked for.
pub(super) struct InitPlan {
    pub(super) url: String,
    pub(super) schema: Option<String>,
    pub(super) service: String,
    pub(super) sink: SinkPlan,
    pub(super) topics: Vec<String>,
}

/// A sink by its word on the command line.
#[derive(Debug, PartialEq)]
pub(super) enum SinkPlan {
    /// A broker's address, perhaps with a user and a password or token in it.
    Broker(&'static str, String),
    /// The file.
    Local(String),
    /// `stdout` or `null`.
    Bare(String),
}

impl SinkPlan {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let wrong = || {
            let like = addresses().collect::<Vec<_>>().join(", ");
            let text = scrub(text);
            format!(
                "there is no sink {text:?}; write a broker's address ({like}), local:FILE, stdout or null"
            )
        };
        if text == "stdout" || text == "null" {
            return Ok(Self::Bare(text.to_owned()));
        }
        if let Some(kind) = kind_of(text) {
            return Ok(Self::Broker(kind, text.to_owned()));
        }
        let file = text.strip_prefix("local:").or_else(|| text.strip_prefix("sqlite:")).ok_or_else(wrong)?;
        let file = file.strip_prefix("//").unwrap_or(file);
        if file.is_empty() { Err(wrong()) } else { Ok(Self::Local(file.to_owned())) }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Broker(kind, _) => kind,
            Self::Local(_) => "local",
            Self::Bare(name) => name,
        }
    }

    fn section(&self, secrets: bool) -> String {
        match self {
            Self::Bare(name) => format!("[sinks.{name}]\ntype = \"{name}\"\n"),
            Self::Local(file) => [
                noted("[sinks.local]", "the local broker: messages in a SQLite file"),
                format!("type = \"local\"\npath = {}\n", quoted(file)),
                noted("# partitions = 8", "of a new topic"),
                noted("# retention_hours = 168", "messages are kept this long; 0 is for ever"),
            ]
            .concat(),
            Self::Broker(kind, url) => {
                let (bare, login) = split_login(url);
                let keys = login_keys(url, &login, secrets);
                format!("[sinks.{kind}]\ntype = \"{kind}\"\nurl = {}\n{keys}", quoted(&bare))
            }
        }
    }

    fn has_secret(&self) -> bool {
        matches!(self, Self::Broker(_, url) if split_login(url).1.iter().any(|option| option.is_secret))
    }
}

/// A login as keys of its own: the sink takes none in its address.
fn login_keys(url: &str, login: &[LoginOption<'_>], secrets: bool) -> String {
    if login.is_empty() {
        return login_comment(url).to_owned();
    }
    let key = |option: &LoginOption<'_>| match option.is_secret && !secrets {
        true => noted(&format!("{}_file = \"{BROKER_SECRET}\"", option.name), "it was in the address"),
        false => format!("{} = {}\n", option.name, quoted(option.value)),
    };
    login.iter().map(key).collect()
}

impl InitPlan {
    /// The file as it is written.
    pub(super) fn text(&self, state: &DatabaseState) -> String {
        self.render(false, Some(state))
    }

    /// The same for looking: with every secret in it.
    pub(super) fn text_with_secrets(&self) -> String {
        self.render(true, None)
    }

    fn render(&self, secrets: bool, state: Option<&DatabaseState>) -> String {
        let mut text = "# Written by `posthaste init`. `posthaste config example` prints every key,\n\
             # `posthaste config schema` makes editors complete this file, and\n\
             # `posthaste config check` checks it. Each key can be set by the environment\n\
             # too: POSTHASTE_RELAY__POLL_MIN_MS=10.\n\n"
            .to_owned();
        let service = format!("service = {}", quoted(&self.service));
        text.push_str(&noted(&service, "label of metrics, `source` of messages"));
        text.push_str("\n[outbox]\n");
        if secrets || !self.url_has_secret() {
            text.push_str(&format!("url = {}\n", quoted(&self.url)));
        } else {
            let file = format!("url_file = \"{DATABASE_SECRET}\"");
            text.push_str(&noted(&file, &escape::line(&scrub(&self.url))));
        }
        self.outbox_keys(&mut text);
        for table in state.map_or(&[] as &[String], |state| &state.tables) {
            text.push_str(&format!("# Found here, and not touched:\n#   {}\n", escape::line(table)));
        }
        text.push_str(&format!("\n{}", self.sink.section(secrets)));
        let start = "where a new sink begins: auto, now, a number";
        text.push_str(&noted("# start_at = \"earliest\"", start));
        text.push_str(&noted("# rate_limit_per_s = 500", "over all relays"));
        self.route(&mut text);
        text.push_str("\n[http]\n");
        text.push_str(&noted("listen = \"127.0.0.1:7678\"", "/metrics, /livez, /readyz; or \"off\""));
        text.push_str("\n[log]\n");
        text.push_str(&noted("format = \"human\"", "or \"json\""));
        text
    }

    fn outbox_keys(&self, text: &mut String) {
        if self.is_file() {
            text.push_str("# The file belongs to the application: it appends in its own transactions.\n");
        } else {
            let schema = self.schema.as_deref().unwrap_or("posthaste");
            text.push_str(&noted(&format!("schema = {}", quoted(schema)), "where the outbox's tables are"));
            text.push_str(&noted("# pooled = true", "behind a pooler in transaction mode"));
            text.push_str(&noted("# tls = \"verify-full\"", "with ca_file = \"/path/to/ca.pem\""));
        }
        text.push_str(&noted("# retention.events_hours = 72", "how long events stay in the log"));
    }

    fn route(&self, text: &mut String) {
        let topics: Vec<String> = self.topics.iter().map(|topic| quoted(topic)).collect();
        let topics = format!("topics = [{}]", topics.join(", "));
        text.push_str("\n[[route]]\n");
        text.push_str(&noted(&topics, "* stands for any run of characters"));
        text.push_str(&format!("sinks = [\"{}\"]\n", self.sink.name()));
        for (key, note) in [
            ("# destination = \"{topic}\"", "{topic}, {key}, {type}, {header:NAME}, text"),
            ("# envelope = \"cloudevents\"", "or \"cloudevents-json\", \"message-id\""),
            ("# on_dead = \"hold\"", "later events of a dead one's key wait"),
        ] {
            text.push_str(&noted(key, note));
        }
        text.push_str("# retry = { max_attempts = 15, max_ms = 300000 }\n");
    }

    pub(super) fn is_file(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    fn url_has_secret(&self) -> bool {
        scrub(&self.url) != self.url
    }

    /// Where to put what was left out.
    pub(super) fn secrets_to_keep(&self) -> Vec<String> {
        let mut steps = Vec::new();
        if self.url_has_secret() {
            steps.push(format!(
                "write the database's URL, with its password, into {DATABASE_SECRET} (or change url_file, or set \
                 POSTHASTE_OUTBOX__URL)"
            ));
        }
        if self.sink.has_secret() {
            steps.push(format!(
                "write the broker's password or token into {BROKER_SECRET} (or change the file's name)"
            ));
        }
        steps
    }

    /// A topic that the routes take.
    pub(super) fn sample_topic(&self) -> String {
        let first = self.topics.first().map_or("*", String::as_str);
        crate::daemon::example(first).unwrap_or_else(|| "hello".to_owned())
    }
}

/// A line and what it means, in a column of its own, or above it where there is no room.
fn noted(line: &str, note: &str) -> String {
    let whole = format!("{line:<31} # {note}\n");
    if whole.chars().count() <= 81 { whole } else { format!("# {note}\n{line}\n") }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A name for the service: the database's, as far as it can be one.
pub(super) fn service_of(url: &str) -> String {
    let bare = url.split(['?', '#']).next().unwrap_or(url);
    let last = bare.rsplit(['/', ':']).next().unwrap_or_default();
    let stem = if url.starts_with("sqlite:") {
        Path::new(last).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    } else if url.split_once("://").is_some_and(|(_, rest)| rest.contains('/')) {
        last.to_owned()
    } else {
        String::new()
    };
    let fit: String = stem.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
    if fit.is_empty() { "my-service".to_owned() } else { fit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn plan(url: &str, sink: &str) -> InitPlan {
        InitPlan {
            url: url.to_owned(),
            schema: None,
            service: service_of(url),
            sink: SinkPlan::read(sink).expect("a sink"),
            topics: vec!["orders.*".to_owned(), "paid.\"x\"".to_owned()],
        }
    }

    /// Whatever is written is a configuration that is accepted, also with every comment taken away.
    #[test]
    #[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
    fn what_is_written_can_be_read() {
        for url in ["postgres://relay@db/shop", "sqlite:shop.db", "postgres://u:hunter2@db/shop"] {
            for sink in
                ["nats://h:4222", "nats://u:hunter2@h", "nats://hunter2@h", "local:b.db", "stdout", "null"]
            {
                let plan = plan(url, sink);
                let state =
                    DatabaseState { set_up: false, tables: vec!["public.outbox (id, payload)".to_owned()] };
                let text = plan.text(&state);
                assert!(!text.contains("hunter2"), "{text}");
                assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
                if !url.contains("hunter2") && !sink.contains("hunter2") {
                    let config =
                        Config::parse(Path::new("x.toml"), &text).map_err(|e| e.to_string()).expect("read");
                    assert_eq!((&*config.outboxes[0].service, config.sinks.len()), ("shop", 1));
                    let found = config.outboxes[0].routes.find(plan.sink.name(), "orders.x");
                    assert!(found.is_some(), "{text}");
                }
                Config::parse(Path::new("x.toml"), &plan.text_with_secrets())
                    .map_err(|e| e.to_string())
                    .expect("read");
            }
        }
    }

    /// The login of every kind becomes keys that the kind has.
    #[test]
    fn a_login_is_written_as_keys_of_its_sink() {
        let kinds: Vec<&str> = posthaste_brokers::built_in().collect();
        for address in addresses().filter(|url| kind_of(url).is_some_and(|kind| kinds.contains(&kind))) {
            let sink = address.replace("HOST", "me:hunter2@h");
            let plan = plan("sqlite:shop.db", &sink);
            let text = plan.text(&DatabaseState::default());
            assert!(!text.contains("hunter2") && text.contains("\npassword_file = "), "{text}");
            for text in [text, plan.text_with_secrets()] {
                let read = Config::parse(Path::new("x.toml"), &text);
                read.map_err(|error| format!("{sink}: {error}")).expect("read");
            }
        }
    }

    #[test]
    #[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
    fn keys_in_comments_are_real_ones() {
        for (url, sink) in [("postgres://relay@db/shop", "nats://h"), ("sqlite:shop.db", "local:b.db")] {
            let text = plan(url, sink).text(&DatabaseState::default());
            let bare: Vec<&str> = text
                .lines()
                .map(|line| {
                    line.strip_prefix("# ").filter(|rest| rest.split(' ').nth(1) == Some("=")).unwrap_or(line)
                })
                // These two need files that are not there, or exclude others.
                .filter(|line| !line.starts_with("creds_file") && !line.starts_with("tls"))
                .collect();
            let text = bare.join("\n");
            assert!(text.contains("\nenvelope = \"cloudevents\""), "{text}");
            Config::parse(Path::new("x.toml"), &text).map_err(|e| e.to_string()).expect("every key is known");
        }
    }

    #[test]
    fn a_service_is_named_after_its_database() {
        let table = [
            ("postgres://u@h:5432/shop?sslmode=x", "shop"),
            ("sqlite:data/shop.db", "shop"),
            ("postgres://h", "my-service"),
            ("host=db dbname=shop", "my-service"),
        ];
        for (url, name) in table {
            assert_eq!(service_of(url), name, "{url}");
        }
    }

    #[test]
    fn sinks_have_words() {
        assert_eq!(SinkPlan::read("sqlite:///a/b.db"), Ok(SinkPlan::Local("/a/b.db".to_owned())));
        assert!(SinkPlan::read("mqtt://x").is_err_and(|why| why.contains("nats://HOST")));
    }
}
