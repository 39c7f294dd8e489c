//! Acts of an operator that take long: they are stopped between two chunks, the same command takes the rest,
//! and they go as fast as they were told to.

use crate::rig::Rig;
use posthaste_testkit::require_service;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::Child;
use std::time::{Duration, Instant};

const EFFECTS: &str = "select count(*) from trial.effects";
const LETTERS: &str = "select count(*) from posthaste.inbox_dead_letters";
const LETTER_ACT: [&str; 9] =
    ["dead", "replay", "--consumer", "billing", "--all", "--reason", "mended", "--yes", "--json"];
/// Slower than any machine handles what was replayed: there is one chunk before the signal comes.
const SLOW: [&str; 2] = ["--rate", "0.02/s"];

/// Ctrl-C, and what the command says then.
fn interrupted(child: Child) -> Value {
    kill_process(Pid::from_child(&child), Signal::INT).expect("the process is ours");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&said).expect("JSON")
}

/// Runs it to its end, with the time that it took.
fn timed(rig: &Rig, args: &[&str]) -> (Value, Duration) {
    let began = Instant::now();
    let said = rig.cli(args).ok();
    (serde_json::from_str(&said).expect("JSON"), began.elapsed())
}

/// G6: what was replayed before the stop is done and audited, and nothing is replayed twice.
#[tokio::test(flavor = "multi_thread")]
async fn g6_a_replay_of_letters_stops_between_chunks_and_goes_on() {
    let rig = require_service!(Rig::set("").await);
    rig.publish(50, "reject").await;
    let member = rig.start();
    rig.until(LETTERS, 50).await;
    rig.run("update trial.mood set fixed = true").await;
    let replay = rig.spawn(&[&LETTER_ACT[..], &SLOW].concat());
    rig.until(EFFECTS, 1).await;
    let stopped = interrupted(replay);
    assert_eq!((&stopped["stopped"], &stopped["matched"]), (&true.into(), &50.into()), "{stopped}");
    let done = stopped["done"].as_i64().expect("a number");
    assert_eq!(rig.count(LETTERS).await, 50 - done, "what is done is done: {stopped}");

    // The rest, in chunks of 20 at most, each of them a second's worth.
    let (rest, took) = timed(&rig, &[&LETTER_ACT[..], &["--rate", "20/s"]].concat());
    assert_eq!((&rest["done"], &rest["stopped"]), (&(50 - done).into(), &false.into()), "{rest}");
    assert!(took >= Duration::from_secs(2), "{} letters at 20 a second took {took:?}", 50 - done);
    rig.until(EFFECTS, 50).await;
    let audited =
        "select coalesce(sum((detail ->> 'count')::int), 0) from posthaste.audit where action = 'replay'";
    assert_eq!(rig.count(audited).await, 50, "each of them once");
    rig.finish(member, "after a replay in two parts").await;
}

/// The same for a range of a topic. It says where it was, and has copied no message twice.
#[tokio::test(flavor = "multi_thread")]
async fn g6_a_replay_of_a_range_stops_between_chunks_and_goes_on() {
    let rig = require_service!(Rig::set("").await);
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let base =
        ["consumers", "replay", "billing", "--topic", &rig.topic, "--json", "--reason", "they are lost"];
    // What nobody remembers is handled once more, and nothing else.
    rig.run("delete from posthaste.inbox; delete from trial.effects").await;
    let replay = rig.spawn(&[&base[..], &["--from", "earliest"], &SLOW].concat());
    rig.until(EFFECTS, 1).await;
    let stopped = interrupted(replay);
    assert_eq!(stopped["stopped"], true, "{stopped}");
    let copied = stopped["copied"].as_i64().expect("a number");
    assert!((1..40).contains(&copied), "{stopped}");
    rig.until(EFFECTS, copied).await;

    let (rest, took) = timed(&rig, &[&base[..], &["--from", "earliest", "--rate", "20/s"]].concat());
    assert_eq!((&rest["copied"], &rest["stopped"]), (&(40 - copied).into(), &false.into()), "{rest}");
    assert!(took >= Duration::from_secs(1), "{} messages at 20 a second took {took:?}", 40 - copied);
    rig.until(EFFECTS, 40).await;
    assert_eq!(rig.count("select count(distinct id) from trial.effects").await, 40, "each of them once");
    rig.finish(member, "after a range in two parts").await;
}
