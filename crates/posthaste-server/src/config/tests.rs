//! The configuration as its users meet it: a file, flags, an example, and what is shown of them.
//!
//! ```text
//! wrong.rs      what is said when something is wrong    variables.rs  the environment
//! consumers.rs  consumers and their sources             reference.rs  schema and documents
//! timeouts.rs   two bounds of a publish call              schemas.rs    schemas of payloads
//! gateway.rs    what a gateway may not be
//! ```

#[cfg(feature = "sqlite")]
mod consumers;
mod gateway;
mod reference;
mod schemas;
mod timeouts;
mod variables;
mod wrong;

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file in a directory of its own, removed at the end.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("posthaste-config-{}-{n}.toml", std::process::id()));
        std::fs::write(&path, text).expect("the temporary directory can be written to");
        Self(path)
    }

    fn load(&self, variables: &[(&str, &str)]) -> Result<Config, String> {
        let flags = Flags { config: Some(self.0.clone()), ..Flags::default() };
        load(&flags, variables)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn load(flags: &Flags, variables: &[(&str, &str)]) -> Result<Config, String> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::load_with(flags, variables).map_err(|error| error.to_string())
}

pub(super) fn ok(text: &str) -> Config {
    File::new(text).load(&[]).unwrap_or_else(|error| panic!("{error}"))
}

fn wrong(text: &str) -> String {
    match File::new(text).load(&[]) {
        Ok(_) => panic!("this must be refused:\n{text}"),
        Err(error) => error,
    }
}

const FULL: &str = r#"
service = "shop"

[relay]
poll_min_ms = 7

[http]
listen = "off"

[log]
format = "json"

[[outbox]]
name = "orders"
url = "postgres://relay:hunter2@db/orders"
schema = "ph"
pooled = true
lanes = 4
retention = { events_hours = 8, dead_letter_days = 30 }
limits = { payload_bytes_max = 100 }
[outbox.roles]
app = "orders_app"

[[outbox]]
name = "users"
service = "people"
url = "postgres://db/users"

[sinks.nats]
type = "nats"
url = "nats://broker:4222"
token = "hunter2"
start_at = "earliest"
classes = { "nats.no_stream" = "permanent" }
rate_limit_per_s = 50

[sinks.out]
type = "stdout"
start_at = 17

[[route]]
topics = ["orders.*", "carts.*"]
sinks = ["nats", "out"]
destination = "ev.{topic}"
order = "none"
on_dead = "hold"
retry = { max_attempts = 5, curve = "linear" }
outboxes = ["orders"]

[[route]]
name = "rest"
topic = "*"
sink = "out"
"#;

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn a_full_file_becomes_what_the_engine_takes() {
    let config = ok(FULL);
    assert_eq!(config.relay.poll_min_ms, 7);
    assert!(config.listen.is_none() && config.warnings.is_empty());
    assert_eq!(config.log_format, LogFormat::Json);
    let [orders, users] = config.outboxes.as_slice() else { panic!("two outboxes") };
    assert_eq!((&*orders.name, &*orders.service, &*users.service), ("orders", "shop", "people"));
    assert_eq!(
        (orders.lanes, orders.postgres().pooled, orders.postgres().schema.as_str()),
        (Some(4), true, "ph")
    );
    assert_eq!(orders.postgres().retention.events.as_secs(), 8 * 3600);
    assert_eq!(orders.postgres().retention.turn_after.as_secs(), 2 * 3600);
    assert_eq!(orders.postgres().retention.dead_letters.map(|d| d.as_secs()), Some(30 * 86_400));
    assert_eq!(
        (users.postgres().retention.dead_letters, orders.postgres().limits.payload_bytes_max),
        (None, 100)
    );
    assert_eq!(
        (orders.roles().app.as_str(), orders.roles().relay.as_str()),
        ("orders_app", "posthaste_relay")
    );
    assert_eq!((orders.routes.routes().len(), users.routes.routes().len()), (2, 1));
    let route = &orders.routes.routes()[0];
    assert_eq!((&*route.name, route.retry.max_attempts, route.retry.initial_ms), ("orders.*,carts.*", 5, 50));
    assert_eq!(config.sinks[0].start_at, StartAt::Earliest);
    assert_eq!(config.sinks[1].start_at, StartAt::Seq(17));
    assert_eq!(config.sinks[0].rate_limit_per_s, Some(50.0));
    assert_eq!(users.sinks(&config).len(), 1, "users feeds only `out`");
    config.check_runnable().expect("it can run");
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn defaults_of_sinks_are_shown() {
    let shown = ok(
        "outbox.url = \"postgres://h/d\"\n[sinks.n]\ntype = \"nats\"\nurl = \"nats://h\"\nmax_in_flight = 7",
    )
    .shown();
    let nats = &shown["sinks"]["n"];
    assert_eq!((&nats["max_in_flight"], &nats["delivery_timeout_ms"]), (&7.into(), &8000.into()), "{nats}");
    assert_eq!((&nats["durability"], &nats["start_at"]), (&"relaxed".into(), &"auto".into()), "{nats}");
}

fn quick(sinks: &[&str]) -> Flags {
    let sinks = sinks.iter().map(|sink| (*sink).to_owned()).collect();
    Flags {
        url: Some("postgres://u:hunter2@h/d".to_owned()),
        schema: Some("s".to_owned()),
        sinks,
        ..Flags::default()
    }
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn flags_alone_are_enough_to_start() {
    let flags = quick(&["stdout", "nats://broker:4222", "nats://other:4222"]);
    let config = load(&flags, &[("POSTHASTE_OUTBOX__URL", "postgres://loses")]).expect("flags alone");
    config.check_runnable().expect("it can run");
    let names: Vec<&str> = config.sinks.iter().map(|sink| &*sink.name).collect();
    assert_eq!(names, ["nats", "nats2", "stdout"]);
    assert_eq!(config.outboxes[0].postgres().url, "postgres://u:hunter2@h/d");
    assert_eq!(config.outboxes[0].postgres().schema, "s");
    assert!(config.outboxes[0].routes.is_total());
    let error = load(&quick(&["kafak"]), &[]).map(|_| ()).expect_err("no such sink");
    assert!(error.starts_with("flag --sink: "), "{error}");
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn the_example_holds_every_key_with_its_default() {
    let config = ok(EXAMPLE);
    assert!(config.warnings.is_empty());
    let bare = ok(
        "outbox.url = \"postgres://h/d\"\n[sinks.nats]\ntype = \"nats\"\nurl = \"nats://h\"\n[[route]]\ntopic = \"a\"\nsink = \"nats\"",
    );
    for section in ["relay", "http", "log"] {
        assert_eq!(config.effective[section], bare.effective[section], "{section}");
    }
    let own_words =
        ["name", "url", "url_file", "password_file", "service", "ca_file", "cert_file", "key_file", "lanes"];
    let defaults = [
        ("outbox", own_words.as_slice()),
        ("route", &["name", "topic", "topics", "sink", "sinks", "outboxes"]),
    ];
    for (section, free) in defaults {
        let (shown, bare) = (&config.effective[section][0], &bare.effective[section][0]);
        for key in bare.as_object().into_iter().flatten().map(|(key, _)| key.as_str()) {
            assert!(EXAMPLE.contains(key), "{section}.{key} is not in the example");
            let is_turn = key == "retention";
            assert!(
                is_turn || free.contains(&key) || shown[key] == bare[key],
                "{section}.{key}: {} {}",
                shown[key],
                bare[key]
            );
        }
    }
    for key in section::SINK_OWN {
        assert!(EXAMPLE.contains(key), "{key}");
    }
    let schema = schema();
    let consumer = &schema["properties"]["consumers"]["additionalProperties"]["properties"];
    for (key, about) in consumer.as_object().into_iter().flatten() {
        assert!(EXAMPLE.contains(key), "consumers.{key} is not in the example");
        let default =
            about.get("default").filter(|default| !default.is_null()).map(|default| match default {
                Value::Array(_) | Value::Object(_) => format!("{key} = "),
                plain => format!("{key} = {plain}"),
            });
        let free = ["source", "topics", "handle"].contains(&key.as_str());
        assert!(free || default.is_none_or(|line| EXAMPLE.contains(&line)), "consumers.{key}: {about}");
    }
}

impl super::Outbox {
    fn postgres(&self) -> &posthaste_postgres::PostgresConfig {
        self.database.postgres().expect("a server").0
    }

    fn roles(&self) -> &posthaste_postgres::migrate::Roles {
        self.database.postgres().expect("a server").1
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn an_outbox_may_be_a_sqlite_file() {
    let text = "[outbox]\nurl = \"sqlite:orders.db?synchronous=normal\"\nretention.events_hours = 2\nlimits.payload_bytes_max = 99";
    let config = ok(text);
    let crate::database::Database::Sqlite(sqlite) = &config.outboxes[0].database else { panic!("no file") };
    assert_eq!(sqlite.path, std::path::Path::new("orders.db"));
    assert_eq!(sqlite.synchronous, posthaste_sqlite::Synchronous::Normal);
    assert_eq!((sqlite.retention.events.as_secs(), sqlite.limits.payload_bytes_max), (7_200, 99));
    assert_eq!(config.outboxes[0].database.address(), "sqlite:orders.db");
    for (text, words) in [
        ("outbox.url = \"sqlite:\"", "names no file"),
        ("outbox.url = \"sqlite:a.db?cache=shared\"", "synchronous=full"),
        ("[outbox]\nurl = \"sqlite:a.db\"\npooled = true", "`pooled` has no effect on a SQLite file"),
    ] {
        let problem = wrong(text);
        assert!(problem.contains(words), "{problem}");
    }
}
