//! Without a terminal: plain lines, every fault, every guarantee, and commands that work afterwards.

use crate::ground::{FEW, Ground};
use std::process::Command;

#[test]
fn every_fault_happens_and_the_ledger_balances() {
    let ground = Ground::new();
    let kept = ground.path("kept");
    let args = [&FEW[..], &["--seed", "3", "--keep", kept.to_str().expect("UTF-8")]].concat();
    let output = ground.demo(&args).output().expect("the binary starts");
    let out = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{out}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));

    // What happened, in this order; the guarantee stands in front of its line.
    let story = [
        "300 events, seed 3; files in",
        "[sinks.local]",
        "G1     Orders commit",
        "G2 G6  An event of order-",
        "(payload.not_json)",
        "G6     An event of order-",
        "(message.json)",
        "The broker goes away",
        "G2 G7  The relay's breaker is open. Orders commit as before:",
        "attempts counted: 0",
        "The broker is back",
        "G3 G5  Billing's handler failed twice",
        "deferred",
        "The bank that billing asks goes away",
        "G2 G7  The consumer's breaker is open",
        "attempts counted: 0",
        "The bank is back",
        "is killed by SIGKILL",
        "G2 G4  A new relay",
        "under epoch",
        "dies by SIGKILL",
        "G5     A new consumer",
        "G2     All 300 events",
        "G8     Relay and consumer drained",
        "Ledger",
        "committed 300 = delivered 299 + dead 1",
        "delivered 299 = applied 298 + dead in billing 1",
        "billing tried again 2, deferred",
        "gave up 1",
        "It balances.",
    ];
    let text = out.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = text.as_str();
    for words in story {
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let at = rest.find(&words).unwrap_or_else(|| panic!("{words:?} is not in its place:\n{out}"));
        rest = &rest[at + words.len()..];
    }
    // It is said because it was seen: orders were committed while the broker was away.
    let (_, since) = text.split_once("Orders commit as before: ").expect("it was said");
    let count = since.split(' ').next().and_then(|count| count.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count > 0) && since.contains("events since then."), "{since}");
    assert!(!out.contains('\x1b') && !out.contains('\r'), "plain lines:\n{out}");
    // Commands are as long as the paths in them.
    let (told, _) = out.split_once("The files are kept in").expect("it says how to look around");
    for line in told.lines().filter(|line| !line.contains(kept.to_str().expect("UTF-8"))) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_eq!(ground.children(), [0u32; 0], "nothing is left running");
    the_commands_work(&out);
}

/// The lines after the ledger, one after the other in one shell, as somebody would paste them.
fn the_commands_work(out: &str) {
    let (_, commands) = out.split_once("Look around:").expect("it says how to look around");
    let script = format!("set -e\ncd /\n{commands}");
    let output = Command::new("sh").arg("-c").arg(&script).env("NO_COLOR", "1").output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{script}\n{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let expected = [
        "no relay is running",
        "orders.placed  key order-000002",
        "payload.not_json",
        "billing  orders/0",
        "It balances.",
    ];
    for words in expected {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// On a busy machine the script looks late, and everything that the service may commit is handled by then.
#[test]
fn a_script_that_looks_late_comes_to_its_end() {
    let ground = Ground::new();
    let output = ground.demo(&["--events", "100", "--look-ms", "1500"]).output().expect("the binary starts");
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{said}");
    assert!(out.contains("It balances."), "{out}");
}

#[test]
fn a_program_gets_one_document() {
    let ground = Ground::new();
    let output = ground.demo(&["--json", "--events", "100"]).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let ledger: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(ledger["balances"], true);
    assert_eq!(ledger["counts"]["committed"], 100);
    for (count, least) in [("refused", 1), ("retried", 2), ("deferred", 1), ("buried", 1)] {
        assert!(ledger["counts"][count].as_u64().expect("a number") >= least, "{count}: {ledger}");
    }
    assert_eq!(ground.files(), [""; 0], "temporary files are removed");
}

#[test]
fn help_and_wrong_words() {
    let ground = Ground::new();
    let help = ground.demo(&["--help"]).output().expect("the binary starts");
    let text = String::from_utf8(help.stdout).expect("UTF-8");
    assert!(text.contains("Examples:\n  posthaste demo") && !text.contains("--die-after"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    std::fs::write(ground.path("mine"), "precious").expect("written");
    let dir = ground.path("").to_string_lossy().into_owned();
    for args in [&["--events", "5"] as &[&str], &["--keep", &dir], &["--audit", &dir]] {
        let output = ground.demo(args).output().expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.starts_with("error: ")), (Some(2), true), "{args:?}: {said}");
    }
    assert_eq!(ground.files(), ["mine"], "somebody's directory is left as it was");
}
