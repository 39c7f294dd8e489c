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
