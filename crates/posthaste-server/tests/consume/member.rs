//! One `posthaste run`: started, spoken to by signals, read through its log and its pages, ended by all
//! means.

use posthaste_testkit::conformance::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// Ends a hang; it times nothing.
pub(crate) const WAIT: Duration = Duration::from_secs(90);

pub(crate) struct Member {
    child: Child,
    log: PathBuf,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = self.said();
            let last: Vec<&str> = said.lines().rev().take(25).collect();
            eprintln!("a member's last words:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
    }
}

impl Member {
    pub(crate) fn spawn(mut command: Command, log: PathBuf) -> Self {
        Self { child: command.spawn().expect("the binary starts"), log }
    }

    /// Whether this is the process in the name `host:pid:random…` of an owner.
    pub(crate) fn is(&self, owner: &str) -> bool {
        owner.split(':').nth(1) == Some(&*self.child.id().to_string())
    }

    /// Everything it has logged.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for a line of its log.
    pub(crate) async fn says(&self, text: &str) -> String {
        eventually(&format!("it says {text:?}"), WAIT, || async {
            self.said().lines().find(|line| line.contains(text)).map(str::to_owned)
        })
        .await
    }

    /// A page: status and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let line = self.says("metrics and health http://").await;
        let address = line.rsplit("http://").next().unwrap_or_default().trim();
        let Ok(mut stream) = TcpStream::connect(address) else { return (0, String::new()) };
        let mut answer = String::new();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        stream.read_to_string(&mut answer).expect("it answers");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        (status, answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned())
    }

    /// Waits for a page to say something.
    pub(crate) async fn page(&self, path: &str, what: &str, found: impl Fn(u16, &str) -> bool) -> String {
        eventually(&format!("{path} says: {what}"), WAIT, || async {
            let (status, body) = self.get(path).await;
            found(status, &body).then_some(body)
        })
        .await
    }

    /// A metric, added up over its labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        self.sum(|labelled| labelled.split('{').next() == Some(name)).await
    }

    /// Messages that this process settled in this way.
    pub(crate) async fn handled(&self, outcome: &str) -> f64 {
        let outcome = format!("outcome=\"{outcome}\"");
        self.sum(|labelled| {
            labelled.starts_with("posthaste_consumer_handled_total{") && labelled.contains(&outcome)
        })
        .await
    }

    async fn sum(&self, is_meant: impl Fn(&str) -> bool) -> f64 {
        let (_, body) = self.get("/metrics").await;
        let values = body.lines().filter_map(|line| {
            let (labelled, value) = line.rsplit_once(' ')?;
            is_meant(labelled).then(|| value.parse::<f64>().ok()).flatten()
        });
        values.sum()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is ours");
    }

    /// Dead at once, as if its host had lost power; and gone when this returns.
    pub(crate) fn kill9(&mut self) {
        self.child.kill().expect("the process is ours");
        self.child.wait().expect("the process is ours");
    }

    /// Waits for its end.
    pub(crate) async fn ends(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("it ends", WAIT, || {
            let status = child.try_wait().expect("the process is ours");
            async move { status }
        })
        .await
    }

    /// How it ended, if it has: the signal.
    pub(crate) fn died(&mut self) -> Option<i32> {
        self.child.try_wait().expect("the process is ours").map(|status| status.signal().unwrap_or(0))
    }

    /// A drained shutdown, which must be clean (G8).
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.ends().await;
        assert!(status.success(), "G8: a drained shutdown exits with 0: {status:?}");
    }
}
