//! Words that cannot be used: exit code 2, and a message that helps.

use crate::binary::{Scratch, finish, posthaste, run};

#[test]
fn wrong_usage_ends_with_2() {
    let cases: [&[&str]; 14] = [
        &["frobnicate"],
        &["run", "--no-such-flag"],
        &["status", "--config", "/nonexistent/posthaste.toml"],
        &["status"],
        &["append", "t", "--url", "postgres://h/d"],
        &["init", "--url", "sqlite:x.db", "--sink", "stdout", "--topic", "orders.>"],
        &["events", "list", "--topic", "orders .*", "--url", "postgres://h/d"],
        &["append", "t", "--payload", "x", "--tombstone", "--url", "postgres://h/d"],
        &["append", "t", "--payload", "x", "--deliver-at", "soon", "--url", "postgres://h/d"],
        &["dead", "replay", "--reason", "x", "--url", "postgres://h/d"],
        &["dead", "replay", "--all", "--url", "postgres://h/d"],
        &["pause", "--reason", "x", "--url", "postgres://h/d"],
        &["lanes", "rewind", "--sink", "s", "--to", "yesterday", "--reason", "x", "--url", "postgres://h/d"],
        &["run", "--url", "postgres://h/d", "--config", "x.toml"],
    ];
    for case in cases {
        let ended = run(case);
        assert_eq!(ended.code, 2, "{case:?}: {}", ended.err);
        assert!(ended.out.is_empty() && ended.err.starts_with("error: "), "{case:?}: {}", ended.err);
    }
}

/// The default build has no broker's client. Whoever meets that is told which feature is missing.
#[cfg(not(feature = "nats"))]
#[test]
fn a_sink_that_was_left_out_of_the_build_is_named_with_its_feature() {
    let scratch = Scratch::new(
        "outbox.url = \"postgres://h/d\"\n[sinks.n]\ntype = \"nats\"\nurl = \"nats://h\"\n\
         [[route]]\ntopic = \"*\"\nsink = \"n\"",
    );
    let slip = Scratch::new("outbox.url = \"postgres://h/d\"\n[sinks.n]\ntype = \"natz\"");
    let nothing = Scratch::new("outbox.url = \"postgres://h/d\"");
    let cases: [&[&str]; 5] = [
        &["run", "--url", "postgres://h/d", "--sink", "nats://h"],
        &["init", "--url", "postgres://h/d", "--sink", "tls://h", "--file", "/nonexistent/posthaste.toml"],
        &["config", "check", "--config", scratch.path()],
        &["config", "check", "--config", slip.path()],
        &["config", "check", "--config", nothing.path()],
    ];
    for case in cases {
        let ended = run(case);
        assert_eq!(ended.code, 2, "{case:?}: {}", ended.err);
        assert!(ended.err.contains("built without `nats`: build it with `--features nats`"), "{}", ended.err);
        assert!(ended.err.contains("`--features full`"), "{}", ended.err);
    }
    for help in [&["--help"][..], &["init", "--help"], &["run", "--help"]] {
        let words = run(help).ok().out;
        assert!(words.contains("It was built") && words.contains("nats"), "{words}");
        assert!(words.contains("`--features full`"), "{words}");
    }
}

#[test]
fn help_teaches_with_examples() {
    let commands = [
        "",
        "init",
        "run",
        "migrate",
        "migrate up",
        "migrate status",
        "migrate sql",
        "adopt",
        "adopt inspect",
        "adopt sql",
        "adopt migrate",
        "adopt migrate start",
        "adopt migrate finish",
        "adopt migrate stop",
        "adopt migrate sql",
        "append",
        "status",
        "events",
        "events list",
        "events show",
        "events tail",
        "events replay",
        "dead",
        "dead list",
        "dead show",
        "dead causes",
        "deferred",
        "deferred list",
        "deferred causes",
        "deferred retry",
        "audit",
        "dead replay",
        "dead discard",
        "consumers",
        "consumers status",
        "consumers sql",
        "consumers seek",
        "consumers replay",
        "trace",
        "pause",
        "resume",
        "rate",
        "tune",
        "tune show",
        "tune set",
        "tune clear",
        "lanes",
        "lanes list",
        "lanes set",
        "lanes rewind",
        "lanes repair",
        "doctor",
        "health",
        "jobs",
        "jobs list",
        "jobs show",
        "jobs pause",
        "jobs resume",
        "jobs cancel",
        "token",
        "token new",
        "ui",
        "config",
        "config check",
        "config show",
        "config example",
        "config schema",
        "completions",
    ];
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let ended = run(&words).ok();
        assert!(ended.out.contains("Examples:\n  "), "{command}");
        assert!(ended.out.contains(&format!("posthaste {command}")), "{command} shows itself: {}", ended.out);
        for line in ended.out.lines() {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
    }
}

/// A terminal has 80 columns.
#[test]
fn the_example_fits_a_terminal_and_append_says_what_it_needs() {
    for line in run(&["config", "example"]).ok().out.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let usage = run(&["append", "--help"]).ok().out;
    assert!(usage.contains("[OPTIONS] <--payload <TEXT|@FILE|->|--tombstone> <TOPIC>\n"), "{usage}");
}

#[test]
fn every_shell_gets_a_script_that_knows_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).ok().out;
        assert!(script.contains("rewind") && script.contains("allow-warnings"), "{shell}: {script}");
    }
    assert_eq!(run(&["completions", "cmd"]).code, 2);
}

/// The words are checked by every command, the files that outboxes and sinks name where somebody asks for it.
#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn files_that_are_named_are_looked_at_by_config_check() {
    let not_pem = Scratch::new("hunter2");
    let file = |outbox: &str| {
        Scratch::new(&format!(
            "[outbox]\nurl = \"postgres://h/d\"\ntls = \"verify-full\"\n{outbox}\n[sinks.nats]\ntype = \"nats\"\n\
             url = \"nats://h\"\ntoken_file = \"/nonexistent/token\"\n[[route]]\ntopic = \"*\"\nsink = \"nats\"\n"
        ))
    };
    let wrong = not_pem.path();
    for (keys, expected) in [
        (
            "ca_file = \"/nonexistent/ca\"".to_owned(),
            "line 4: outbox.ca_file /nonexistent/ca: No such file".to_owned(),
        ),
        (
            format!("ca_file = {wrong:?}"),
            format!("line 4: outbox.ca_file {wrong}: there is no PEM certificate in it"),
        ),
        (
            "ca_file = \"/nonexistent/ca\"\npassword_file = \"/nonexistent/p\"".to_owned(),
            "line 5: outbox.password_file /nonexistent/p: No such file".to_owned(),
        ),
    ] {
        let file = file(&keys);
        let checked = run(&["config", "check", "--config", file.path()]);
        assert_eq!(checked.code, 2);
        let [outbox, sink] = checked.err.lines().collect::<Vec<_>>()[..] else { panic!("{}", checked.err) };
        assert!(outbox.starts_with(&format!("error: {} {expected}", file.path())), "{outbox}");
        let line = 8 + keys.matches('\n').count();
        assert!(sink.contains(&format!("line {line}: sinks.nats.token_file /nonexistent/token: ")), "{sink}");
        assert!(!checked.err.contains("hunter2"), "{}", checked.err);
        run(&["config", "show", "--config", file.path()]).ok();
    }
}

#[test]
fn a_misspelt_key_is_named_with_its_line() {
    let file = Scratch::new("[outbox]\nurl = \"postgres://h/d\"\n[relay]\npoll_min_sm = 3\n");
    let ended = run(&["config", "check", "--config", file.path()]);
    assert_eq!(ended.code, 2);
    let expected = format!(
        "error: {} line 4: unknown key `relay.poll_min_sm`, did you mean `poll_min_ms`?\n",
        file.path()
    );
    assert_eq!(ended.err, expected);
}

/// What could never work is refused when it is read, not when it is used.
#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn an_address_of_something_else_is_refused_with_its_key() {
    let sink =
        "[sinks.nats]\ntype = \"nats\"\nurl = \"nats://h\"\n[[route]]\ntopic = \"*\"\nsink = \"nats\"\n";
    let cases = [
        ("postgres://h/d", "nats://h", "http://h:4222", "line 5: sinks.nats.url: must"),
        (
            "postgres://h/d",
            "url = \"nats://h\"",
            "url = \"nats://h\"\nmax_in_flight = 0",
            "line 6: sinks.nats.max_in_flight: must",
        ),
        (
            "mysql://u:hunter2@h/d",
            "",
            "",
            "line 2: `outbox.url` begins with mysql://, an outbox lives in PostgreSQL",
        ),
        ("postgres://h:port/d", "", "", "line 2: `outbox.url` is not a database's address"),
        ("hunter2", "", "", "line 2: `outbox.url` is not a database's address"),
        ("user=x dbname=d", "", "", "(no host)"),
    ];
    for (url, from, to, expected) in cases {
        let file = Scratch::new(&format!("[outbox]\nurl = \"{url}\"\n{}", sink.replacen(from, to, 1)));
        for command in [&["config", "check"] as &[&str], &["status"], &["run"]] {
            let ended = run(&[command, &["--config", file.path()]].concat());
            assert_eq!(ended.code, 2, "{command:?} {url}: {}", ended.err);
            assert!(ended.err.contains(expected), "{command:?} {url}: {}", ended.err);
            assert!(!ended.err.contains("hunter2"), "{}", ended.err);
        }
    }
    let flag = run(&["status", "--url", "mysql://h/d"]);
    assert!(flag.code == 2 && flag.err.starts_with("error: flag --url: `outbox.url` begins"), "{}", flag.err);
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn config_is_checked_and_shown_without_secrets() {
    let file = Scratch::new(
        "[outbox]\nurl = \"postgres://u:hunter2@h/d\"\n[sinks.nats]\ntype = \"nats\"\nurl = \"nats://h\"\n\
         token = \"hunter2\"\n[[route]]\ntopics = [\"*\"]\nsinks = [\"nats\"]\n",
    );
    let checked = run(&["config", "check", "--config", file.path()]).ok();
    assert!(checked.out.contains("1 outbox, 1 sink, 1 route"), "{}", checked.out);
    let mut command = posthaste(&["config", "show", "--json", "--config", file.path()]);
    let shown = finish(command.env("POSTHASTE_RELAY__POLL_MAX_MS", "444")).ok();
    assert_eq!(shown.json()["relay"]["poll_max_ms"], 444);
    assert_eq!(shown.json()["outbox"][0]["url"], "postgres://u:***@h/d");
    let toml = run(&["config", "show", "--config", file.path()]).ok().out;
    let again = Scratch::new(&toml);
    run(&["config", "check", "--config", again.path()]).ok();
    assert!(!format!("{}{toml}", shown.out).contains("hunter2"));
}

#[test]
fn the_file_may_come_from_the_environment_and_url_goes_before_it() {
    let file = Scratch::new("[outbox]\nurl = \"postgres://h/d\"\nschema = \"from_file\"\n");
    let show = |args: &[&str]| {
        let mut command = posthaste(args);
        finish(command.env("POSTHASTE_CONFIG", file.path())).ok().json()["outbox"][0]["schema"].clone()
    };
    assert_eq!(show(&["config", "show", "--json"]), "from_file");
    assert_eq!(show(&["config", "show", "--json", "--url", "postgres://h/e"]), "posthaste");
}

#[test]
fn a_run_without_sinks_or_routes_is_refused_before_it_starts() {
    let ended = run(&["run", "--url", "postgres://127.0.0.1:1/d"]);
    assert_eq!(ended.code, 2);
    assert!(
        ended.err.contains("no sink is configured") && ended.err.contains("--sink stdout"),
        "{}",
        ended.err
    );
}

#[test]
fn a_closed_pipe_ends_quietly() {
    use std::process::Stdio;
    let mut child = posthaste(&["config", "show", "--url", "postgres://h/d"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}

/// The relay would cut every call of a slow broker, and make no progress.
#[cfg(feature = "http")]
#[test]
fn a_sink_that_would_outlast_the_relay_is_refused_by_check_and_run() {
    let file = Scratch::new(
        "outbox.url = \"postgres://h/d\"\nrelay.publish_timeout_ms = 10000\n[sinks.hook]\ntype = \"http\"\n\
         url = \"https://h.example/\"\ndelivery_timeout_ms = 15000\n[[route]]\ntopics = [\"*\"]\nsinks = [\"hook\"]\n",
    );
    for command in [&["config", "check"] as &[&str], &["run"]] {
        let ended = run(&[command, &["--config", file.path()]].concat());
        assert_eq!(ended.code, 2, "{}{}", ended.out, ended.err);
        let words = format!(
            "{} line 6: sinks.hook.delivery_timeout_ms = 15000 must be below relay.publish_timeout_ms = 10000",
            file.path()
        );
        assert!(ended.err.contains(&words), "{}", ended.err);
    }
}
