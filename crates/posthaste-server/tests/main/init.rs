//! `posthaste init`: a file from what is there, and never over another one.

use crate::binary::{finish, posthaste, run};
use crate::daemon::Daemon;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions, TestDatabase};
use serde_json::Value;
use std::path::PathBuf;

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("posthaste-init-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&path).expect("the temporary directory can be written to");
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Runs a command in it.
    fn run(&self, args: &[&str]) -> crate::binary::Ended {
        finish(posthaste(args).current_dir(&self.0))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn texts(answer: &Value) -> String {
    answer["findings"].as_array().expect("findings").iter().map(|finding| format!("{finding}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_for_postgres_is_made_after_a_look_and_works() {
    let database = require_service!(TestDatabase::create().await);
    let client = database.connect().await.expect("connects");
    let sql = "create table public.order_outbox (id uuid primary key, payload jsonb, created_at timestamptz)";
    client.batch_execute(sql).await.expect("a table");
    let (place, url) = (Place::new(), database.url());
    let made = place.run(&["init", "--url", &url, "--sink", "stdout", "--json"]).ok().json();
    let seen = texts(&made);
    assert!(seen.contains("no outbox yet") && seen.contains("connected as"), "{seen}");
    assert!(seen.contains("public.order_outbox (id, payload, created_at)"), "{seen}");
    let steps = made["next"].to_string();
    assert!(steps.contains("posthaste migrate up") && steps.contains("posthaste run"), "{steps}");
    // Not over what is there, unless it is said.
    let before = std::fs::read(place.file("posthaste.toml")).expect("written");
    let again = place.run(&["init", "--url", &url, "--sink", "null"]);
    assert!(again.code == 2 && again.err.contains("--force"), "{}", again.err);
    assert_eq!(std::fs::read(place.file("posthaste.toml")).expect("there"), before);
    // The steps, as they are told.
    place.run(&["migrate", "up"]).ok();
    place.run(&["append", "hello", "--payload", "hello"]).ok();
    let mut relay = posthaste(&["run", "--listen", "127.0.0.1:0"]);
    relay.current_dir(&place.0);
    let daemon = Daemon::spawn(relay);
    assert_eq!(daemon.events(1)[0]["payload"], "hello");
    daemon.stop();
    let text = place.run(&["init", "--url", &url, "--sink", "stdout", "--force"]).ok().out;
    assert!(text.contains("the outbox is set up") && !text.contains("migrate up"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn a_stream_that_is_missing_is_told() {
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    let place = Place::new();
    let init = ["init", "--url", "sqlite:shop.db", "--sink", &nats.url(), "--topic", "orders.*", "--json"];
    let made = place.run(&init).ok().json();
    let seen = texts(&made);
    assert!(seen.contains("orders.example") && seen.contains("\"fail\""), "{seen}");
    assert!(seen.contains("shop.db is not there yet"), "{seen}");
    assert!(made["next"].to_string().contains("mend what fails"), "{made}");
    assert!(!PathBuf::from(place.file("shop.db")).exists(), "looking makes no file");
    place.run(&["config", "check"]).ok();
}

/// Every command that is told can be pasted into a shell.
#[test]
fn the_next_steps_can_be_pasted() {
    let (place, file) = (Place::new(), "it's a file with a name that is much too long for a line.toml");
    let init = ["init", "--url", "sqlite:shop.db", "--sink", "stdout", "--topic", "a&b.*", "--file", file];
    let told = place.run(&init).ok().out;
    let command = |line: &str| line.find("posthaste ").map(|at| line[at..].to_owned());
    let next = told.split("Next:\n").nth(1).expect("steps");
    let commands: Vec<String> = next.lines().filter_map(command).collect();
    assert_eq!(commands.len(), 4, "{told}");
    let (binary, words) = (env!("CARGO_BIN_EXE_posthaste"), "posthaste run");
    for command in commands.iter().filter(|command| !command.starts_with(words)) {
        let mut shell = std::process::Command::new("sh");
        let script = format!("posthaste() {{ {binary} \"$@\"; }}; {command}");
        let ended = finish(shell.current_dir(&place.0).args(["-c", &script]));
        assert!(ended.code != 2 && !ended.err.contains("sh:"), "{command}: {}{}", ended.out, ended.err);
    }
    let listed = place.run(&["events", "list", "--json", "--config", file]).ok().json();
    assert_eq!(listed["events"][0]["topic"], "a&b.example", "{listed}");
}

#[test]
fn a_file_for_sqlite_and_the_local_broker_works() {
    let place = Place::new();
    place.run(&["init", "--url", "sqlite:shop.db", "--sink", "local:broker.db", "--file", "relay.toml"]).ok();
    let text = std::fs::read_to_string(place.file("relay.toml")).expect("written");
    assert!(text.contains("service = \"shop\"") && text.contains("path = \"broker.db\""), "{text}");
    for step in [["migrate", "up"], ["config", "check"]] {
        place.run(&[step.as_slice(), &["--config", "relay.toml"]].concat()).ok();
    }
}

#[test]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
fn what_is_down_or_secret_does_not_keep_the_file_from_being_right() {
    let place = Place::new();
    let url = "postgres://relay:hunter2@127.0.0.1:1/shop";
    let made = place.run(&["init", "--url", url, "--sink", "nats://me:hunter2@127.0.0.1:1", "--json"]).ok();
    let file = std::fs::read_to_string(place.file("posthaste.toml")).expect("written");
    assert!(!format!("{file}{}{}", made.out, made.err).contains("hunter2"), "{file}{}", made.out);
    assert!(file.contains("url_file = ") && file.contains("password_file = "), "{file}");
    let answer = made.json();
    assert!(texts(&answer).matches("\"fail\"").count() >= 2, "{answer}");
    assert!(answer["next"][0].as_str().is_some_and(|step| step.contains("url_file")), "{answer}");
    assert_eq!(run(&["init", "--url", "sqlite:x.db", "--sink", "mqtt://h"]).code, 2);
    assert_eq!(run(&["init", "--sink", "stdout"]).code, 2);
}
