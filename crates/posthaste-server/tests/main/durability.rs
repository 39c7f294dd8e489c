//! What an acknowledgement is worth, and what is done about it; links without TLS.

use crate::binary::{Scratch, run};
use crate::daemon::Daemon;

/// An outbox and a local broker in files, with lines for the sink.
fn file(sink: &str) -> Scratch {
    let file = Scratch::new("");
    let dir = std::path::Path::new(file.path()).with_extension("files");
    std::fs::create_dir_all(&dir).expect("a directory");
    let at = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    let text = format!(
        "[outbox]\nurl = \"sqlite:{}\"\n[sinks.out]\ntype = \"local\"\npath = \"{}\"\n{sink}\n\
         [[route]]\ntopic = \"*\"\nsink = \"out\"\n",
        at("outbox.db"),
        at("broker.db")
    );
    std::fs::write(file.path(), text).expect("the file is written");
    run(&["migrate", "up", "--config", file.path()]).ok();
    file
}

#[test]
fn a_durable_sink_refuses_what_can_lose_acknowledged_events() {
    let risky = file("durability = \"durable\"\nsynchronous = \"normal\"");
    let refused = run(&["run", "--config", risky.path()]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    for word in ["sink `out`", "durability = \"durable\"", "power cut", "nothing was sent"] {
        assert!(refused.err.contains(word), "{word}: {}", refused.err);
    }
    let doctor = run(&["doctor", "--allow-warnings", "--config", risky.path()]);
    assert_eq!(doctor.code, 1, "it does not work so: {}", doctor.out);

    let safe = file("durability = \"durable\"");
    run(&["append", "t", "--payload", "x", "--config", safe.path()]).ok();
    let daemon = Daemon::start(&["--config", safe.path()]);
    daemon
        .page("/metrics", |_, body| body.contains("outbox_published_total{") && body.contains("\"out\"} 1"));
    let said = daemon.stop();
    assert!(!said.contains("can lose"), "{said}");
}

#[test]
fn a_relaxed_sink_is_warned_about_at_each_start() {
    let risky = file("synchronous = \"normal\"");
    run(&["append", "t", "--payload", "x", "--config", risky.path()]).ok();
    for _ in 0..2 {
        let daemon = Daemon::start(&["--config", risky.path()]);
        daemon.says("durability = \"relaxed\"");
        assert!(daemon.stop().contains("power cut"));
    }
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn a_link_without_tls_can_be_refused_as_a_whole() {
    let file = Scratch::new(
        "require_tls = true\n[outbox]\nurl = \"postgres://relay@db/shop\"\n\
         [sinks.nats]\ntype = \"nats\"\nurl = \"nats://h:4222\"\nrequire_tls = false\n\
         [[route]]\ntopic = \"*\"\nsink = \"nats\"\n",
    );
    let refused = run(&["config", "check", "--config", file.path()]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("outbox `default` is reached without TLS"), "{}", refused.err);
    assert!(refused.err.contains("require_tls = false contradicts"), "{}", refused.err);
}
