//! However the demo ends, nothing is left running; and unless it is killed, no file is left either.

use crate::ground::{FEW, Ground, eventually};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

/// Starts the demo and reads until it has said this.
fn start(ground: &Ground, until: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    start_with(ground, &FEW, until)
}

fn start_with(ground: &Ground, args: &[&str], until: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = ground.demo(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = command.spawn().expect("the binary starts");
    let mut out = BufReader::new(demo.stdout.take().expect("piped"));
    let mut said = String::new();
    while !said.contains(until) {
        assert!(out.read_line(&mut said).expect("readable") > 0, "it ended before {until:?}:\n{said}");
    }
    (demo, out)
}

fn send(demo: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(demo.id().cast_signed()).expect("a process");
    rustix::process::kill_process(pid, signal).expect("it runs");
}

#[test]
fn an_interrupt_ends_everything() {
    use rustix::process::Signal;
    let cases = [
        ("relay: process", Signal::INT, 130),
        ("The broker goes away", Signal::INT, 130),
        ("A new relay", Signal::TERM, 143),
    ];
    for (until, signal, code) in cases {
        let ground = Ground::new();
        let (demo, _out) = start(&ground, until);
        // The consumer may be dead just then: that is part of the demo.
        assert!(!ground.children().is_empty(), "{until}: something runs");
        send(&demo, signal);
        let ended = demo.wait_with_output().expect("it ends");
        assert_eq!(ended.status.code(), Some(code), "{until}");
        assert_eq!(ground.children(), [0u32; 0], "{until}: nothing is left running");
        assert_eq!(ground.files(), [""; 0], "{until}: no file is left");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains("nothing is left running, the files are removed"), "{said}");
    }
}

/// With the dashboard orders go on until somebody has seen enough: that is its ordinary end, and the ledger
/// counts what came until then.
#[test]
fn an_interrupt_ends_the_orders_of_the_dashboard_and_the_ledger_is_counted() {
    let ground = Ground::new();
    let (demo, mut out) = start_with(&ground, &[&FEW[..], &["--ui"]].concat(), "#code=");
    send(&demo, rustix::process::Signal::INT);
    let mut said = String::new();
    out.read_to_string(&mut said).expect("readable");
    let ended = demo.wait_with_output().expect("it ends");
    let complaint = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{said}{complaint}");
    assert!(said.contains("No more orders.") && said.contains("It balances."), "{said}{complaint}");
    assert_eq!((ground.children().len(), ground.files().len()), (0, 0), "nothing is left");
}

/// Nobody can clean up after SIGKILL: the children see their lifeline cut.
#[test]
fn children_do_not_outlive_a_demo_that_is_killed() {
    for until in ["relay: process", "The broker goes away"] {
        let ground = Ground::new();
        let (mut demo, _out) = start(&ground, until);
        eventually("relay and consumer to run", || ground.children().len() >= 2);
        send(&demo, rustix::process::Signal::KILL);
        demo.wait().expect("it is gone");
        eventually("the children to end by themselves", || ground.children().is_empty());
    }
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let ground = Ground::new();
    let (demo, out) = start(&ground, "relay: process");
    drop(out);
    let ended = demo.wait_with_output().expect("it ends");
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), b"".as_slice()));
    assert_eq!((ground.children().len(), ground.files().len()), (0, 0), "nothing is left");
}
