//! `posthaste jobs`: what is under way is listed, shown, paused and cancelled by somebody else.

use crate::binary::{posthaste, run};
use crate::daemon::Daemon;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; a test that works never waits for it.
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn a_job_is_listed_shown_paused_and_cancelled() {
    let place = std::env::temp_dir().join(format!("posthaste-jobs-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir(&place).expect("the temporary directory can be written to");
    let url = format!("sqlite:{}", place.join("shop.db").display());
    let cli = |args: &[&str]| run(&[args, &["--url", &url]].concat());
    cli(&["migrate", "up"]).ok();
    assert_eq!(cli(&["jobs"]).ok().out.trim(), "no jobs");
    for _ in 0..4 {
        cli(&["append", "t", "--payload", "x"]).ok();
    }
    let relay = Daemon::start(&["--url", &url, "--sink", "stdout"]);
    relay.events(4);
    relay.stop();
    // Slower than any machine looks.
    let filter =
        ["events", "replay", "--sink", "stdout", "--from-seq", "1", "--yes", "--json", "--url", &url];
    let slow = [&filter[..], &["--rate", "0.05/s", "--reason", "lost there"]].concat();
    let replay = Daemon::spawn(posthaste(&slow));
    let begun = Instant::now();
    let job = loop {
        let open = cli(&["jobs", "list", "--open", "--json"]).ok().json();
        if open["jobs"][0]["done"].as_i64() > Some(0) {
            break open["jobs"][0].clone();
        }
        assert!(begun.elapsed() < DEADLINE, "{open}");
    };
    let number = job["job"].to_string();
    assert_eq!(
        (&job["kind"], &job["state"], &job["total"]),
        (&"events.replay".into(), &"running".into(), &4.into())
    );
    let list = cli(&["jobs", "list"]).ok().out;
    assert!(list.contains("events.replay") && list.contains("running"), "{list}");
    let shown = cli(&["jobs", "show", &number]).ok().out;
    for words in ["lost there", "0.05/s", "as they say", "running"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(list.lines().chain(shown.lines()).all(|line| line.chars().count() <= 80), "{list}{shown}");
    // By somebody else: whoever runs it lets go.
    let act = |what: &str, args: &[&str]| cli(&[&["jobs", what, &number], args].concat());
    assert_eq!(act("pause", &[]).code, 2, "a reason is needed");
    let paused = act("pause", &["--reason", "the warehouse is slow", "--json"]).ok().json();
    assert_eq!(paused["state"], "paused", "{paused}");
    assert_eq!(replay.ends().0, 1, "it did not do all of it");
    let done = |job: &Value| job["done"].as_i64();
    let left = cli(&["jobs", "show", &number, "--json"]).ok().json();
    assert_eq!((done(&left), &left["owner"]), (done(&paused), &Value::Null), "{left}");
    let cancelled = act("cancel", &["--reason", "wrong filter"]).ok().out;
    assert!(cancelled.contains(&format!("job {number} (events.replay): cancelled")), "{cancelled}");
    assert_eq!(act("cancel", &["--reason", "x"]).code, 0, "the same again changes nothing");
    for what in ["resume", "pause"] {
        let over = act(what, &["--reason", "x"]);
        assert_eq!(over.code, 1, "{what}: {}{}", over.out, over.err);
        assert!(over.err.contains("job 1 is over, cancelled"), "{what}: {}", over.err);
    }
    assert_eq!(cli(&["jobs", "show", "999"]).code, 1);
    assert_eq!(cli(&["jobs", "list", "--open", "--json"]).ok().json()["jobs"], Value::Array(Vec::new()));
    let trail = cli(&["audit", "--json"]).ok().json().to_string();
    assert!(trail.contains("the warehouse is slow") && trail.contains("wrong filter"), "{trail}");
    std::fs::remove_dir_all(&place).expect("it was there");
}
