//! A running `posthaste run`: its lines are collected, its pages fetched, its end awaited.

use crate::binary::posthaste;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; a test that works never waits for it.
const DEADLINE: Duration = Duration::from_secs(60);

/// Lines that a thread collects and a test waits for.
#[derive(Clone, Default)]
struct Lines(Arc<(Mutex<Heard>, Condvar)>);

#[derive(Default)]
struct Heard {
    lines: Vec<String>,
    /// Nothing comes any more: the process has closed it.
    ended: bool,
}

impl Lines {
    fn collect(&self, from: impl Read + Send + 'static) {
        let lines = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                lines.note(|heard| heard.lines.push(line));
            }
            lines.note(|heard| heard.ended = true);
        });
    }

    fn note(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.0.0.lock().expect("no test panics under the lock"));
        self.0.1.notify_all();
    }

    fn wait(&self, what: &str, mut found: impl FnMut(&[String]) -> bool) -> Vec<String> {
        self.wait_for(what, |heard| found(&heard.lines))
    }

    fn wait_for(&self, what: &str, mut found: impl FnMut(&Heard) -> bool) -> Vec<String> {
        let heard = self.0.0.lock().expect("no test panics under the lock");
        let waited = self.0.1.wait_timeout_while(heard, DEADLINE, |heard| !found(heard));
        let (heard, timeout) = waited.expect("no test panics under the lock");
        let lines = heard.lines.clone();
        drop(heard); // whoever drops the process asks for its last words, also in a panic
        assert!(!timeout.timed_out(), "{what} did not come; there was: {lines:#?}");
        lines
    }
}

/// The process. Dropping it kills it.
pub(crate) struct Daemon {
    child: Child,
    out: Lines,
    err: Lines,
}

impl Daemon {
    /// Starts `posthaste run` with these arguments, on a free port.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::spawn(posthaste(&[&["run", "--listen", "127.0.0.1:0"], args].concat()))
    }

    /// Starts a prepared command.
    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let (out, err) = (Lines::default(), Lines::default());
        out.collect(child.stdout.take().expect("it is piped"));
        err.collect(child.stderr.take().expect("it is piped"));
        Self { child, out, err }
    }

    /// Waits for this many events on standard output.
    pub(crate) fn events(&self, count: usize) -> Vec<serde_json::Value> {
        let lines = self.out.wait(&format!("{count} events"), |lines| lines.len() >= count);
        lines.iter().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
    }

    /// Waits for a log line with this text in it.
    pub(crate) fn says(&self, text: &str) -> String {
        let lines = self.err.wait(text, |lines| lines.iter().any(|line| line.contains(text)));
        lines.into_iter().find(|line| line.contains(text)).unwrap_or_default()
    }

    /// Everything it has said.
    pub(crate) fn said(&self) -> String {
        self.err.0.0.lock().expect("no test panics under the lock").lines.join("\n")
    }

    /// Where its pages are.
    pub(crate) fn address(&self) -> String {
        let line = self.says("metrics and health http://");
        line.rsplit("http://").next().unwrap_or_default().trim().to_owned()
    }

    /// Fetches a page: status and body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        request(&self.address(), &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"))
    }

    /// Waits for a page to say something.
    pub(crate) fn page(&self, path: &str, found: impl Fn(u16, &str) -> bool) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            let (status, body) = self.get(path);
            if found(status, &body) {
                return body;
            }
            assert!(Instant::now() < end, "{path} says {status} {body}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(50)); // pace: a page cannot call when it changes
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child has a pid");
        kill_process(pid, signal).expect("the child is ours");
    }

    /// Waits for its end: both its outputs are closed, and read to the last line.
    pub(crate) fn ends(mut self) -> (i32, String) {
        self.out.wait_for("the end", |heard| heard.ended);
        let said = self.err.wait_for("the end", |heard| heard.ended).join("\n");
        let status = self.child.wait().expect("the child is ours");
        (status.code().unwrap_or(-1), said)
    }

    /// SIGTERM and a clean end.
    pub(crate) fn stop(self) -> String {
        self.signal(Signal::TERM);
        let (code, said) = self.ends();
        assert_eq!(code, 0, "{said}");
        said
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = self.said();
            let last: Vec<&str> = said.lines().rev().take(25).collect();
            eprintln!("the relay's last words:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
    }
}

/// A raw request.
pub(crate) fn request(address: &str, text: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
    stream.write_all(text.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}
