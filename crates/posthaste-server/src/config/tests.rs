//! The configuration as its users meet it: files, variables, flags, and what is said when something is wrong.

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
fn an_unknown_key_is_refused_with_line_and_nearest_name() {
    let table = [
        ("[relay]\npoll_min_sm = 3", "line 2: unknown key `relay.poll_min_sm`, did you mean `poll_min_ms`?"),
        ("sevice = \"x\"", "line 1: unknown key `sevice`, did you mean `service`?"),
        (
            "[outbox]\nurl = \"x\"\nschem = \"y\"",
            "line 3: unknown key `outbox.schem`, did you mean `schema`?",
        ),
        (
            "[[outbox]]\nurl = \"x\"\nretention = { event_hours = 1 }",
            "line 3: unknown key `outbox[0].retention.event_hours`, did you mean `events_hours`?",
        ),
        (
            "[[route]]\ntopic = \"*\"\n[route.retry]\nmaximum = 5",
            "line 4: unknown key `route[0].retry.maximum`",
        ),
        (
            "[[route]]\ntopic = \"*\"\nreatry = { max_attempts = 1 }",
            "line 3: unknown key `route[0].reatry`, did you mean `retry`?",
        ),
        (
            "[sinks.s]\ntype = \"nats\"\nurl = \"h\"\ntokn = \"t\"",
            "line 4: unknown key `sinks.s.tokn`, did you mean `token`?",
        ),
        (
            "[sinks.s]\ntype = \"stdout\"\nstart_att = 1",
            "line 3: unknown key `sinks.s.start_att`, did you mean `start_at`?",
        ),
        ("[sinks.s]\ntype = \"natz\"", "line 2: `sinks.s.type` cannot be `natz`, did you mean `nats`?"),
        ("[sinks.s]\nurl = \"x\"", "`sinks.s.type` is missing"),
        (
            "[relay]\npoll_min_ms = \"soon\"",
            "line 2: `relay.poll_min_ms`: invalid type: string \"soon\", expected u64",
        ),
        ("[log]\nformat = \"jsn\"", "line 2: `log.format` cannot be `jsn`, did you mean `json`?"),
        (
            "[sinks.s]\ntype = \"null\"\nstart_at = \"yesterday\"",
            "line 3: `sinks.s.start_at`: must be \"auto\"",
        ),
    ];
    for (text, expected) in table {
        let error = wrong(text);
        assert!(error.contains(expected), "{text}\n gave: {error}\n want: {expected}");
    }
}

#[test]
fn checks_that_need_more_than_one_key_come_all_at_once() {
    let error = wrong(
        r#"
[relay]
poll_min_ms = 100
poll_max_ms = 5
[http]
listen = "nowhere"
[[outbox]]
url = "postgres://a"
tls = "verify-full"
[[outbox]]
ca_file = "/x"
connections_max = 0
[sinks.unrouted]
type = "null"
[[route]]
topics = ["a"]
sinks = ["natz"]
destination = "{tpic}"
[[route]]
topics = ["a"]
sinks = ["unrouted"]
outboxes = ["defalt"]
retry = { jitter = 7.0, max_attempts = 0 }
[[route]]
"#,
    );
    let expected = [
        "poll_min_ms must be",
        "http.listen = \"nowhere\"",
        "needs a `ca_file`",
        "outbox `default` has no `url`",
        "two outboxes are named `default`",
        "`ca_file` has no effect",
        "connections_max must be",
        "cannot be named `unrouted`",
        "there is no sink `natz`",
        "unknown placeholder {tpic}",
        "two routes are named `a`",
        "there is no outbox `defalt`, did you mean `default`?",
        "retry.jitter",
        "retry.max_attempts",
        "a route needs `topics`",
        "a route needs `sinks`",
    ];
    for part in expected {
        assert!(error.contains(part), "{part:?} is not in:\n{error}");
    }
    assert!(error.contains("line 17: there is no sink `natz`"), "{error}");
}

#[test]
fn a_sink_without_a_route_is_a_warning_and_nothing_at_all_is_an_error() {
    let config = ok("outbox.url = \"postgres://h/d\"\n[sinks.out]\ntype = \"stdout\"");
    assert!(config.warnings[0].contains("`out` is named by no route"));
    assert!(config.check_runnable().is_err());
    assert!(wrong("service = \"x\"").contains("no outbox is configured"));
    let nothing =
        Config::load_with(&Flags::default(), std::iter::empty()).err().expect("no outbox").to_string();
    assert!(nothing.contains("There is no ./posthaste.toml here"), "{nothing}");
    let single = wrong("outbox.url = \"postgres://h/d\"\n[route]\ntopics = [\"*\"]");
    assert!(single.contains("write [[route]] instead of [route]"), "{single}");
    assert!(ok("outbox.url = \"postgres://h/d\"").check_runnable().is_err());
}

#[test]
fn every_slip_is_told_at_once() {
    let error = wrong(
        "servce = \"x\"\nlog.format = \"pretty\"\noutbox.url = \"postgres://h/d\"\noutbox.limits.topic = 3\n\
         [sinks.n]\ntype = \"natss\"\n[[route]]\ntopics = [\"*\"]\nsinks = [\"m\"]",
    );
    for part in [
        "line 1: unknown key `servce`",
        "line 2: `log.format` cannot be `pretty`",
        "`outbox.limits.topic`",
        "natss",
        "there is no sink `m`",
    ] {
        assert!(error.contains(part), "{part:?} is not in:\n{error}");
    }
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

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn variables_go_over_the_file() {
    let file = File::new(FULL);
    let config = file.load(&[
        ("POSTHASTE_RELAY__POLL_MIN_MS", "11"),
        ("POSTHASTE_OUTBOX__1__URL", "postgres://elsewhere/users"),
        ("POSTHASTE_OUTBOX__1__POOLED", "true"),
        ("POSTHASTE_SINKS__NATS__TOKEN", "12345"),
        ("POSTHASTE_SINKS__OUT__START_AT", "now"),
        ("POSTHASTE_ROUTE__1__TOPICS", "[\"a\", \"b\"]"),
        ("POSTHASTE_ROUTE__0__RETRY__JITTER", "0.5"),
        ("POSTHASTE_SERVICE", "\"2024\""),
        ("POSTHASTE_SERVICE_HOST", "10.0.0.1"),
        ("POSTHASTE_PORT_9187_TCP", "tcp://10.0.0.1:9187"),
        ("OTHER__X", "1"),
    ]);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.relay.poll_min_ms, 11);
    assert_eq!(config.outboxes[1].postgres().url, "postgres://elsewhere/users");
    assert!(config.outboxes[1].postgres().pooled);
    assert_eq!(&*config.outboxes[0].service, "2024");
    assert_eq!(config.sinks[1].start_at, StartAt::Now);
    assert_eq!(config.outboxes[0].routes.routes()[1].topics.len(), 3, "topic and topics add up");
    assert_eq!(config.effective["sinks"]["nats"]["token"], "12345");
}

#[test]
fn a_single_outbox_needs_no_number_and_no_file() {
    let config = load(&Flags { config: None, ..quick(&[]) }, &[("POSTHASTE_RELAY__POLL_MAX_MS", "700")]);
    assert_eq!(config.expect("flags alone").relay.poll_max_ms, 700);
    let file = File::new("[outbox]\nschema = \"s\"\n[sinks.my-sink]\ntype = \"stdout\"");
    let config = file.load(&[
        ("POSTHASTE_OUTBOX__URL", "postgres://h/d"),
        ("POSTHASTE_SINKS__MY_SINK__RATE_LIMIT_PER_S", "5"),
    ]);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        (config.outboxes[0].postgres().url.as_str(), config.outboxes[0].postgres().schema.as_str()),
        ("postgres://h/d", "s")
    );
    assert_eq!(config.sinks[0].rate_limit_per_s, Some(5.0));
}

#[test]
fn wrong_variables_are_named() {
    let file = File::new(FULL);
    let table = [
        ("POSTHASTE_REALY__X", "1", "POSTHASTE_REALY__X: unknown key `realy`, did you mean `relay`?"),
        (
            "POSTHASTE_RELAY__POLL_MIN_SM",
            "1",
            "environment variable POSTHASTE_RELAY__POLL_MIN_SM: unknown key",
        ),
        (
            "POSTHASTE_RELAY__POLL_MIN_MS",
            "soon",
            "environment variable POSTHASTE_RELAY__POLL_MIN_MS: `relay.poll_min_ms`",
        ),
        ("POSTHASTE_OUTBOX__URL", "x", "there are 2 outboxes; say which one"),
        ("POSTHASTE_OUTBOX__7__URL", "x", "7 is not the next number"),
        ("POSTHASTE_SERVICE__X", "1", "is below a plain value"),
        ("POSTHASTE_SINKS__NATS__URL_FILE", "/nonexistent/x", "cannot read /nonexistent/x"),
    ];
    for (name, value, expected) in table {
        let error = file.load(&[(name, value)]).map(|_| ()).expect_err(name);
        assert!(error.contains(expected), "{error}");
    }
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
fn secrets_are_never_shown() {
    let shown = ok(FULL).shown().to_string();
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("postgres://relay:***@db/orders"), "{shown}");
    for text in [
        "[outbox]\nurl = \"postgres://u:hunter2@h/d\"\nurl_file = \"/x\"",
        "[outbox]\nurl = [\"postgres://u:hunter2@h/d\"]",
        "[outbox]\nconnections_max = \"postgres://u:hunter2@h/d\"",
        "[sinks.n]\ntype = \"nats\"\nurl = \"nats://h\"\ntoken = [\"hunter2\"]",
        "[sinks.n]\ntype = \"nats\"\npassword = \"hunter2",
        "password = hunter2",
    ] {
        let error = wrong(text);
        assert!(!error.contains("hunter2"), "{error}");
    }
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

/// A relay and a sink with these keys, and what they come to: the sink's bound, the relay's and the lease.
fn timeouts(relay: &str, sink: &str) -> Result<(Option<u64>, u64, u64), String> {
    let text = format!(
        "[outbox]\nurl = \"postgres://h/d\"\n[relay]\n{relay}\n[sinks.n]\ntype = \"nats\"\nurl = \"nats://h\"\n{sink}\n\
         [[route]]\ntopics = [\"*\"]\nsinks = [\"n\"]\n"
    );
    let config = File::new(&text).load(&[])?;
    // What is shown is what holds.
    let shown = config.shown();
    assert_eq!(shown["sinks"]["n"]["delivery_timeout_ms"].as_u64(), config.sinks[0].delivery_timeout_ms);
    assert_eq!(shown["relay"]["publish_timeout_ms"], config.relay.publish_timeout_ms);
    Ok((config.sinks[0].delivery_timeout_ms, config.relay.publish_timeout_ms, config.relay.lease_ttl_ms))
}

#[test]
fn an_option_of_the_wrong_type_is_named_at_its_line() {
    let error = timeouts("", "delivery_timeout_ms = \"8s\"").expect_err("no number");
    assert!(error.contains("line 8: `sinks.n.delivery_timeout_ms`: invalid type: string"), "{error}");
}

#[test]
fn a_sink_gives_up_before_the_relay_does() {
    let table = [
        ("publish_timeout_ms = 10000", "delivery_timeout_ms = 15000", "line 8", "15000", "10000"),
        ("publish_timeout_ms = 5000", "delivery_timeout_ms = 5000", "line 8", "5000", "5000"),
    ];
    for (relay, sink, place, delivery, publish) in table {
        let error = timeouts(relay, sink).expect_err("refused");
        let words = format!(
            "{place}: sinks.n.delivery_timeout_ms = {delivery} must be below relay.publish_timeout_ms = {publish}:"
        );
        assert!(error.contains(&words), "{error}");
    }
    assert_eq!(
        timeouts("publish_timeout_ms = 5000", "delivery_timeout_ms = 4999"),
        Ok((Some(4_999), 5_000, 20_000))
    );
}

#[test]
fn one_bound_of_a_call_follows_the_other() {
    assert_eq!(timeouts("", ""), Ok((Some(8_000), 10_000, 20_000)));
    // Down.
    assert_eq!(timeouts("publish_timeout_ms = 1000", ""), Ok((Some(800), 1_000, 20_000)));
    assert_eq!(timeouts("publish_timeout_ms = 14000", ""), Ok((Some(8_000), 14_000, 20_000)));
    // Up; and the lease must outlive a call.
    assert_eq!(timeouts("", "delivery_timeout_ms = 11000"), Ok((Some(11_000), 13_750, 20_000)));
    let (_, publish, lease) = timeouts("", "delivery_timeout_ms = 600000").expect("it is taken");
    assert!(publish == 750_000 && lease > publish, "{publish} {lease}");
    // What somebody wrote stays as it is.
    let error = timeouts("lease_ttl_ms = 20000", "delivery_timeout_ms = 60000").expect_err("refused");
    assert!(error.contains("lease_ttl_ms"), "{error}");
    // A bound that nobody wrote is not blamed.
    let error = timeouts("publish_timeout_ms = 100", "").expect_err("refused");
    assert!(error.contains("line 4: relay.publish_timeout_ms = 100 is too short for sink `n`"), "{error}");
    let error = timeouts("", "delivery_timeout_ms = 9000000").expect_err("refused");
    assert!(error.contains("line 8: sinks.n.delivery_timeout_ms: must be between"), "{error}");
}
