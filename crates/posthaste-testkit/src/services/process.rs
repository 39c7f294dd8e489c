//! A server as a child process that cannot outlive the test process.
//!
//! A test that returns or panics drops the value, and [`Process`] ends its child. For the test process that
//! drops nothing, because it exits with a server in a `static` or is killed, there is the [`Guard`].
//!
//! The server is a process group of its own, so that an interrupt from the terminal does not reach it
//! directly: it must not end before the test does.

use std::{
    fs::OpenOptions,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    ServiceError,
    dir::PrivateDir,
    guard::{Guard, LastSignal},
    tree::is_stopped,
};

/// Ends a hang; nothing is timed by it. A server needs a second or so, RabbitMQ six of two processors; beside
/// builds and other tests that was more than a minute once.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(180);
/// For a server that was told to end. A shutdown checkpoint on a busy disk takes seconds, not a minute.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(60);
/// For one look at a server that is starting.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a condition is looked at that the kernel gives no signal for.
const PACE: Duration = Duration::from_millis(5);
/// For a process that was told to stand still. It takes a moment for each thread that is on a processor just
/// now.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const LOG_TAIL_LINES: usize = 30;

/// A server process, its directory and its guard. It can be ended and launched again any number of times.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    last_signal: LastSignal,
    child: Option<Child>,
    log_from: u64,
    // Dropped in this order: the guard removes the directory too, and must not race with a later owner of the
    // name.
    guard: Guard,
    dir: PrivateDir,
}

impl Process {
    pub(super) fn new(name: String, dir: PrivateDir, last_signal: LastSignal) -> Result<Self, ServiceError> {
        let guard =
            Guard::start(dir.path(), last_signal).map_err(|error| ServiceError::failed(&name, error))?;
        Ok(Self { name, last_signal, child: None, log_from: 0, guard, dir })
    }

    pub(super) fn dir(&self) -> &PrivateDir {
        &self.dir
    }

    /// Starts the program as the directory's owner, with its output appended to the log.
    pub(super) fn launch(&mut self, program: &Path, args: &[String]) -> Result<(), ServiceError> {
        assert!(self.child.is_none(), "{} is running already", self.name);
        let child = self.spawn(program, args).map_err(|error| self.not_started(program, &error))?;
        self.guard.watch(Some(child.id()));
        self.child = Some(child);
        Ok(())
    }

    fn spawn(&mut self, program: &Path, args: &[String]) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        self.log_from = log.metadata()?.len();
        let mut command = Command::new(program);
        command.args(args).current_dir(self.dir.path()).env("LC_ALL", "C").process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some(user) = self.dir.owner() {
            command.uid(user.uid).gid(user.gid);
        }
        command.spawn()
    }

    /// A binary that the servers' user may not execute is as good as none.
    fn not_started(&self, program: &Path, error: &io::Error) -> ServiceError {
        let user = self.dir.owner().map_or("the current user", |user| user.name.as_str());
        let why = format!("{} cannot be started as {user}: {error}", program.display());
        match error.kind() {
            io::ErrorKind::PermissionDenied => ServiceError::Missing {
                service: self.name.clone(),
                why: format!("{why}; POSTHASTE_SERVICES names another place"),
            },
            _ => ServiceError::failed(&self.name, why),
        }
    }

    /// Waits until `ready` says so, or the process has exited, or the ready-timeout has passed.
    pub(super) async fn until_ready(
        &mut self,
        mut ready: impl AsyncFnMut() -> bool,
    ) -> Result<(), ServiceError> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            if let Some(child) = &mut self.child
                && let Ok(Some(status)) = child.try_wait()
            {
                self.reaped();
                return Err(self.failed(format!("exited at start ({status})")));
            }
            // A look that hangs is a no: a server may take a connection long before it says a word.
            if tokio::time::timeout(LOOK_TIMEOUT, ready()).await == Ok(true) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.failed(format!("not ready after {READY_TIMEOUT:?}")));
            }
            tokio::time::sleep(PACE).await; // pace
        }
    }

    /// What the server writes from its last launch on, for [`logged`].
    pub(super) fn log(&self) -> (PathBuf, u64) {
        (self.dir.join("log"), self.log_from)
    }

    /// The running child's pid.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // The child is not reaped yet, so the pid is still its own; at worst it is a zombie and does not
            // mind.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Stops the process without ending it, and returns when no thread of it runs any more.
    ///
    /// # Panics
    ///
    /// If one still runs after ten seconds: what a test shows about a silent server would be chance.
    pub(super) fn pause(&self) {
        let Some(pid) = self.pid() else { return };
        self.signal(Signal::STOP);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !is_stopped(pid) {
            assert!(Instant::now() < deadline, "{} still runs after SIGSTOP", self.name);
            std::thread::sleep(Duration::from_micros(200)); // pace
        }
    }

    /// Sends the signal and waits until the process has ended.
    pub(super) async fn end(&mut self, signal: Signal) -> Result<(), ServiceError> {
        self.signal(signal);
        let ended = until(END_TIMEOUT, || self.has_ended()).await;
        if ended {
            Ok(())
        } else {
            Err(self.failed(format!("still running {END_TIMEOUT:?} after {signal:?}")))
        }
    }

    /// Reaps the child if it has exited.
    fn has_ended(&mut self) -> bool {
        match &mut self.child {
            None => true,
            Some(child) => {
                let ended = !matches!(child.try_wait(), Ok(None));
                if ended {
                    self.reaped();
                }
                ended
            }
        }
    }

    /// From here on the pid may be somebody else's.
    fn reaped(&mut self) {
        self.child = None;
        self.guard.watch(None);
    }

    /// A failure with the end of what the server wrote since its last launch.
    pub(super) fn failed(&self, why: impl std::fmt::Display) -> ServiceError {
        let log = std::fs::read(self.dir.join("log")).unwrap_or_default();
        let from = usize::try_from(self.log_from).unwrap_or(0).min(log.len());
        let text = String::from_utf8_lossy(&log[from..]);
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
        ServiceError::failed(&self.name, format!("{why}; its log ends with:\n{tail}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(self.last_signal.signal());
        self.signal(Signal::CONT);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.has_ended() {
            if Instant::now() >= deadline {
                self.signal(Signal::KILL);
            }
            std::thread::sleep(PACE); // pace
        }
    }
}

/// Whether a line with `text` was written to the log.
pub(super) fn logged((log, from): &(PathBuf, u64), text: &str) -> bool {
    let log = std::fs::read(log).unwrap_or_default();
    let from = usize::try_from(*from).unwrap_or(0).min(log.len());
    String::from_utf8_lossy(&log[from..]).contains(text)
}

/// Looks every few milliseconds of real time whether `done`, for at most `patience`. The test's own clock may
/// be paused, the server's is not.
pub(super) async fn until(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !done() {
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(PACE).await; // pace
    }
    true
}
