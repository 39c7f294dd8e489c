//! One relay process: started, spoken to by signals, read through its log, ended by all means.

use posthaste_testkit::conformance::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// Ends a hang; it times nothing.
pub(crate) const WAIT: Duration = Duration::from_secs(90);

pub(crate) struct Relay {
    child: Child,
    log: PathBuf,
}

impl Drop for Relay {
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

impl Relay {
    pub(crate) fn spawn(mut command: Command, log: PathBuf) -> Self {
        Self { child: command.spawn().expect("the binary starts"), log }
    }

    /// The most memory it has had at once, in megabytes. The pages of its own file are left out: a build for
    /// tests has many, and the kernel drops them at will.
    pub(crate) fn rss_peak_mb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let kilobytes = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            let number = value.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
            number.expect("the kernel says how much memory it has")
        };
        kilobytes("VmHWM:").saturating_sub(kilobytes("RssFile:")) / 1_024
    }

    /// As it appears in the name of the relay: `host:pid:random`.
    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub(crate) fn owns(&self, owner: &str) -> bool {
        owner.split(':').nth(1) == Some(&*self.pid())
    }

    /// Everything it has logged.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for a line of its log.
    pub(crate) async fn says(&self, text: &str) -> String {
        eventually(&format!("the relay says {text:?}"), WAIT, || async {
            self.said().lines().find(|line| line.contains(text)).map(str::to_owned)
        })
        .await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the relay is ours");
    }

    /// Dead at once, as if its host had lost power; and gone when this returns.
    pub(crate) fn kill9(&mut self) {
        self.child.kill().expect("the relay is ours");
        self.child.wait().expect("the relay is ours");
    }

    pub(crate) async fn ends(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("the relay ends", WAIT, || {
            let status = child.try_wait().expect("the relay is ours");
            async move { status }
        })
        .await
    }

    /// A drained shutdown, which must be clean (G8).
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.ends().await;
        assert!(status.success(), "G8: a drained shutdown exits with 0: {status:?}");
    }
}
