//! The local broker through the binary: relay into it, look into it, send a group back.

use crate::binary::run;
use crate::daemon::Daemon;
use posthaste_sqlite::broker::{Broker, BrokerConfig};
use std::time::{Duration, Instant};

/// Nothing while the file is being made.
fn topics(file: &std::path::Path) -> serde_json::Value {
    let ended = run(&["local", "topics", "--json", "--path", file.to_str().expect("UTF-8")]);
    if ended.code == 0 { ended.json() } else { serde_json::Value::Null }
}

#[test]
fn relay_look_and_seek() {
    let dir = std::env::temp_dir().join(format!("posthaste-local-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let (config, broker) = (dir.join("posthaste.toml"), dir.join("broker.db"));
    let text = format!(
        "[http]\nlisten = \"off\"\n[outbox]\nurl = \"sqlite:{0}/shop.db\"\n[sinks.file]\ntype = \"local\"\npath = \"{0}/broker.db\"\n\
         partitions = 2\nstart_at = \"earliest\"\n[[route]]\ntopics = [\"*\"]\nsinks = [\"file\"]\n",
        dir.display()
    );
    std::fs::write(&config, text).expect("the config");
    let config = config.to_str().expect("UTF-8");
    let command = |args: &[&str]| run(&[args, &["--config", config]].concat());
    let missing = command(&["local", "topics"]);
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("no local broker here"), "{}", missing.err);
    command(&["migrate", "up"]).ok();
    for n in ["1", "2", "3"] {
        command(&["append", "orders.placed", "--key", n, "--payload", n]).ok();
    }
    let relay = Daemon::start(&["--config", config]);
    let end = Instant::now() + Duration::from_secs(90);
    let arrived = |topics: &serde_json::Value| {
        let parts = topics[0]["partitions"].as_array().cloned().unwrap_or_default();
        parts.iter().filter_map(|part| part[1].as_i64()).sum::<i64>()
    };
    while !broker.exists() || arrived(&topics(&broker)) < 3 {
        assert!(Instant::now() < end, "{}", relay.said());
        std::thread::sleep(Duration::from_millis(20)); // pace: nobody can signal us
    }
    let read = command(&["local", "read", "orders.placed", "--limit", "10"]).ok().out;
    let lines: Vec<serde_json::Value> =
        read.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut payloads: Vec<&str> = lines.iter().filter_map(|line| line["payload"].as_str()).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, ["1", "2", "3"]);
    assert!(lines.iter().all(|line| line["headers"]["Message-ID"] == line["id"] && line["id"].is_string()));
    let said = command(&["local", "seek", "billing", "orders.placed", "--to", "latest"]).ok().out;
    assert_eq!(said.lines().count(), 2, "{said}");
    let groups = command(&["local", "groups", "--json"]).json();
    assert!(
        groups.as_array().is_some_and(|groups| groups.iter().all(|g| g["committed"] == g["next"])),
        "{groups}"
    );
    assert_eq!(command(&["local", "read", "nope"]).code, 2);
    assert_eq!(command(&["local", "read", "orders.placed", "--partition", "2"]).code, 2);
    assert_eq!(command(&["local", "seek", "billing", "orders.placed", "--to", "nowhere"]).code, 2);
    drop(relay);
    drop(
        Broker::open(BrokerConfig { create: false, ..BrokerConfig::new(&broker) }).expect("a broker's file"),
    );
    let _ = std::fs::remove_dir_all(dir);
}
