//! A process of the demo: this binary with other words, which cannot outlive us.
//!
//! Its standard input is a pipe from us, its lifeline: when this process ends, even by SIGKILL, the pipe
//! closes, and the child drains and ends by itself. It is in a process group of its own, so that Ctrl-C
//! reaches us alone and we decide in which order things end.

use crate::demo::stage::Stage;
use crate::output::thousands;
use anyhow::{Context as _, bail};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child as Process, ChildStdin, Command};
use tokio::time::timeout;

/// A drained end has a deadline of its own; whatever needs longer is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// How much of a log is looked at.
const LOG_BYTES_MAX: u64 = 1 << 20;

pub(super) struct Child {
    name: &'static str,
    number: u32,
    process: Process,
    lifeline: Option<ChildStdin>,
    log: PathBuf,
    /// Where its log begins: earlier processes of this name wrote before it.
    log_start: u64,
}

impl Child {
    /// `posthaste run`, as anybody would start it.
    pub(super) fn relay(stage: &Stage) -> anyhow::Result<Self> {
        let mut command = Self::command()?;
        command.arg("run").arg("--lifeline").arg("--config").arg(stage.config());
        Self::start("relay", command, stage)
    }

    /// The consumer, which may have to die after so many messages.
    pub(super) fn consumer(stage: &Stage, die_after: Option<u64>) -> anyhow::Result<Self> {
        let mut command = Self::command()?;
        command.arg("demo").arg("--consumer").arg(stage.dir());
        if let Some(messages) = die_after {
            command.arg("--die-after").arg(messages.to_string());
        }
        Self::start("consumer", command, stage)
    }

    fn command() -> anyhow::Result<Command> {
        let program = std::env::current_exe().context("cannot find this program on disk")?;
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            // What this process is told is not meant for the demo's.
            if name.to_string_lossy().starts_with("POSTHASTE_") || name == "RUST_LOG" {
                command.env_remove(&name);
            }
        }
        Ok(command)
    }

    fn start(name: &'static str, mut command: Command, stage: &Stage) -> anyhow::Result<Self> {
        let log = stage.log(name);
        let errors = std::fs::OpenOptions::new().append(true).create(true).open(&log)?;
        let log_start = errors.metadata()?.len();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(errors);
        command.process_group(0).kill_on_drop(true);
        let mut process = command.spawn().with_context(|| format!("the {name} could not be started"))?;
        let number = process.id().with_context(|| format!("the {name} ended at once"))?;
        let lifeline = process.stdin.take();
        Ok(Self { name, number, process, lifeline, log, log_start })
    }

    /// For people: `process 4711`. It has this name also when it is gone.
    pub(super) fn title(&self) -> String {
        format!("process {}", self.number)
    }

    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.process.try_wait()?)
    }

    /// Whether it was killed by SIGKILL. Any other end is an error, with its last words.
    pub(super) fn was_killed(&mut self) -> anyhow::Result<bool> {
        match self.ended()? {
            None => Ok(false),
            Some(status) if status.signal() == Some(9) => Ok(true),
            Some(status) => bail!("the {} ended by itself ({status}):\n{}", self.name, self.last_words()),
        }
    }

    /// An error if it is gone.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => bail!("the {} ended by itself ({status}):\n{}", self.name, self.last_words()),
        }
    }

    /// Whether it has written this line part.
    pub(super) fn has_said(&self, words: &str) -> bool {
        self.said().contains(words)
    }

    fn said(&self) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = std::fs::File::open(&self.log)?;
            file.seek(SeekFrom::Start(self.log_start))?;
            let mut bytes = Vec::new();
            file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let said = self.said();
        let lines: Vec<&str> = said.lines().collect();
        if lines.is_empty() {
            return format!("it wrote nothing into {}; is the disk full?", self.log.display());
        }
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    /// kill -9, and waits until it is gone.
    pub(super) async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await.with_context(|| format!("the {} could not be killed", self.name))
    }

    /// A drained end, asked for as an operator does: SIGTERM.
    pub(super) async fn terminate(&mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.process.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        self.finish().await
    }

    /// The same by its lifeline.
    pub(super) async fn let_go(&mut self) -> anyhow::Result<()> {
        self.lifeline = None;
        self.finish().await
    }

    async fn finish(&mut self) -> anyhow::Result<()> {
        let waited = timeout(PATIENCE, self.process.wait()).await;
        let patience = thousands(PATIENCE.as_secs());
        let status =
            waited.with_context(|| format!("the {} did not end within {patience} s", self.name))??;
        if !status.success() {
            bail!("the {} did not drain ({status}):\n{}", self.name, self.last_words());
        }
        Ok(())
    }
}
