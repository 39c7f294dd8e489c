//! What is said when a file cannot be used.

use super::*;

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
            "line 2: `relay.poll_min_ms` must be a whole number, not a string",
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
fn an_audit_topic_needs_a_route_and_an_exact_name() {
    let file = |topic: &str, takes: &str| {
        format!(
            "[audit]\ntopic = \"{topic}\"\n[outbox]\nurl = \"postgres://u@h/d\"\n[sinks.s]\ntype = \"stdout\"\n\
             [[route]]\ntopic = \"{takes}\"\nsink = \"s\""
        )
    };
    let fine = ok(&file("sys.audit.v1", "sys.*"));
    assert_eq!(fine.outboxes[0].database.audit_topic(), Some("sys.audit.v1"));
    let cases = [
        (
            file("sys.audit.v1", "orders.*"),
            "line 2: no route of outbox `default` takes the topic `sys.audit.v1`",
        ),
        (file("sys.*", "*"), "line 2: audit.topic must be the exact name of a topic"),
        (file("", "*"), "line 2: audit.topic must be the exact name of a topic"),
        (file(&"x".repeat(256), "*"), "takes no such event: topic has 256 bytes, at most 255 are allowed"),
        (
            file("sys audit", "*"),
            "line 2: audit.topic cannot be sent to; outbox `default` takes no such event",
        ),
        (file("sys\\u00a0audit", "*"), "topic holds white space or a control character"),
        (file("sys.audit\\n", "*"), "topic holds white space or a control character"),
        (file("sys.audit\\u0000", "*"), "topic holds white space or a control character"),
    ];
    for (text, expected) in cases {
        let error = wrong(&text);
        assert!(error.contains(expected), "{text}\n gave: {error}");
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
fn types_are_told_in_words_of_toml() {
    let table = [
        (
            "relay.poll_min_ms = 1.5",
            "`relay.poll_min_ms` must be a whole number, not a number with a fraction",
        ),
        ("relay.poll_min_ms = -1", "`relay.poll_min_ms` must be a whole number, 0 or above"),
        ("outbox.lanes = 70000", "`outbox.lanes` must be a whole number from 0 to 65535"),
        ("outbox.pooled = \"yes\"", "`outbox.pooled` must be true or false, not a string"),
        (
            "outbox.retention.events_hours = \"8h\"",
            "`outbox.retention.events_hours` must be a number, not a string",
        ),
        ("outbox.ca_file = 5", "`outbox.ca_file` must be a string, not a whole number"),
        ("outbox.limits = 5", "`outbox.limits` must be a table, not a whole number"),
        ("outbox.tls = true", "`outbox.tls` must be a string, not true or false"),
        ("service = [\"a\"]", "`service` must be a string, not a list"),
        ("[[route]]\ntopics = \"orders.*\"", "`route[0].topics` must be a list of strings, not a string"),
        ("[[route]]\ntopics = [7]", "`route[0].topics[0]` must be a string, not a whole number"),
        ("[sinks.n]\ntype = 7", "`sinks.n.type` must be a string, not a whole number"),
        (
            "[sinks.n]\ntype = \"nats\"\nurl = 7",
            "line 3: `sinks.n.url`: must be a string, or a list of strings",
        ),
        (
            "[sinks.n]\ntype = \"nats\"\nurl = \"nats://h\"\ninbox_prefix = 7",
            "line 4: `sinks.n.inbox_prefix` must be a string, not a whole number",
        ),
        (
            "[sinks.n]\ntype = \"nats\"\nurl = \"nats://h\"\nmax_in_flight = \"many\"",
            "`sinks.n.max_in_flight` must be a whole number, not a string",
        ),
        (
            "[sinks.n]\ntype = \"nats\"\nurl = \"nats://h\"\nrate_limit_per_s = \"5\"",
            "`sinks.n.rate_limit_per_s` must be a number, not a string",
        ),
    ];
    for (text, expected) in table {
        let error = wrong(text);
        assert!(error.contains(expected), "{text}\n gave: {error}\n want: {expected}");
    }
}

#[test]
fn what_is_written_twice_is_named_with_both_lines() {
    let table = [
        ("[sinks.n]\ntype = \"null\"\n\n[sinks.n]\n", "line 4: `sinks.n` is written twice, first on line 1"),
        ("[outbox]\nurl = \"a\"\n[outbox]\n", "line 3: `outbox` is written twice, first on line 1"),
        (
            "[relay]\npoll_min_ms = 1\npoll_min_ms = 2",
            "line 3: `relay.poll_min_ms` is written twice, first on line 2",
        ),
        (
            "[outbox]\n[outbox.roles]\n[outbox.roles]",
            "line 3: `outbox.roles` is written twice, first on line 2",
        ),
        (
            "[[route]]\ntopic = \"a\"\n[[route]]\ntopic = \"b\"\n\"topic\" = \"c\"",
            "line 5: `route[1].topic` is written twice, first on line 4",
        ),
        ("[sinks.n]\n[[sinks]]", "line 2: `sinks` is written twice, first on line 1"),
        (
            "outbox.roles = { app = \"a\", app = \"b\" }",
            "line 1: `outbox.roles.app` is written twice, first on line 1",
        ),
        (
            "[sinks.n]\npassword = \"hunter2\"\npassword = \"hunter2\"",
            "line 3: `sinks.n.password` is written twice",
        ),
    ];
    for (text, expected) in table {
        let error = wrong(text);
        assert!(
            error.contains(expected) && !error.contains("hunter2"),
            "{text}\n gave: {error}\n want: {expected}"
        );
    }
}

/// Such a route would take nothing, and every event would be a dead letter `route.none`.
#[test]
fn a_pattern_that_no_topic_matches_is_refused_with_what_to_write() {
    let route = |topics: &str| {
        wrong(&format!(
            "outbox.url = \"postgres://h/d\"\n[sinks.s]\ntype = \"null\"\n[[route]]\nsink = \"s\"\n{topics}"
        ))
    };
    for (topics, instead) in [
        ("topics = [\"orders.>\"]", "line 6: topics[0]: the pattern \"orders.>\" holds `>`"),
        (
            "topics = [\n\"a\",\n\"orders .*\"]",
            "line 8: topics[1]: the pattern \"orders .*\" holds white space",
        ),
        ("topic = \"orders.#\"", "line 6: topic: the pattern \"orders.#\" holds `#`"),
    ] {
        let error = route(topics);
        assert!(error.contains(instead) && error.ends_with("Write \"orders.*\""), "{error}");
    }
}

/// The same functions judge that would make dead letters of the events.
#[test]
fn a_destination_that_can_never_be_one_is_refused_with_its_line() {
    let table = [
        ("nats", "type = \"nats\"\nurl = \"nats://h\"", "orders.>", "holds a wildcard. Write a subject"),
        ("nats", "type = \"nats\"\nurl = \"nats://h\"", "orders placed", "holds a space"),
        ("kafka", "type = \"kafka\"\nurl = \"kafka://h\"", "orders/placed", "letters, digits"),
        (
            "rabbitmq",
            "type = \"rabbitmq\"\nurl = \"amqp://h\"",
            "/",
            "names neither an exchange nor a queue. Write",
        ),
        (
            "http",
            "type = \"http\"\nrequire_tls = true",
            "http://h/x",
            "must begin with https://: TLS is required",
        ),
        ("http", "type = \"http\"", "orders", "is no URL: it must look like https://host/path"),
        ("http", "type = \"http\"\nurl = \"https://h\"", "a/../b", "in its path"),
        #[cfg(feature = "sqlite")]
        ("local", "type = \"local\"\npath = \"b.db\"", "a\\nb", "is no topic"),
    ];
    let built = || posthaste_brokers::built_in().chain(["local"]);
    for (kind, sink, destination, expected) in
        table.into_iter().filter(|row| built().any(|kind| kind == row.0))
    {
        let text = format!(
            "outbox.url = \"postgres://h/d\"\n[[route]]\ntopic = \"*\"\nsink = \"s\"\ndestination = \"{destination}\"\n\
             [sinks.s]\n{sink}\n"
        );
        let error = wrong(&text);
        let place = "line 5: `destination` is none for sink `s`: it ";
        assert!(error.contains(place) && error.contains(expected), "{kind}: {error}");
        // The path of a webhook may be a secret.
        assert!(!error.contains(&format!("{destination:?}")), "{kind}: {error}");
        // What an event decides is left to the event.
        ok(&text.replace(&format!("\"{destination}\""), "\"{topic}\""));
    }
}
