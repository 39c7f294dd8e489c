//! What ends a server and removes its files when the test process can no longer do it.
//!
//! A process that exits drops no `static`, and one that is killed runs no code at all. So beside each server
//! there is a small shell that waits on a pipe of which only the test process holds the other end. The kernel
//! closes that pipe whatever the process dies of; the guard then ends the server and removes its directory.
//!
//! The alternatives: `PR_SET_PDEATHSIG` needs `unsafe` between fork and exec, and fires when the *thread*
//! ends that started the server, which in a test binary is the first test that used it; polling the parent's
//! pid is late, and fooled by a pid that is used again. Here the pid is safe: as long as the test process
//! lives it is told of no pid that was reaped, and only the test process can reap its children.
//!
//! The guard is a process group of its own and ignores the terminal's signals: it must not end before the
//! server.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

use rustix::process::Signal;

/// $1: the signal that ends the server. $2: its directory. Each line read is the pid to guard from then on,
/// or empty. A paused server must be continued to see the signal. A zombie counts as ended: in a container
/// there may be nobody who reaps it. What another child (`initdb`) is still writing to is removed a little
/// later.
const GUARD: &str = r#"
trap '' INT TERM HUP QUIT
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
  kill -s "$1" "$pid" && kill -s CONT "$pid"
  tries=0
  while grep -qs '^State:.[^ZX]' "/proc/$pid/status" && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
  kill -s KILL "$pid"
fi
rm -rf "$2" || { sleep 3; rm -rf "$2"; }
"#;

/// The signal by which a server is ended when nobody is interested in how.
#[derive(Clone, Copy, Debug)]
pub(super) enum LastSignal {
    /// PostgreSQL's immediate shutdown: the postmaster takes its children along, without a checkpoint.
    Quit,
    /// For a server that is one process.
    Kill,
}

impl LastSignal {
    fn name(self) -> &'static str {
        match self {
            Self::Quit => "QUIT",
            Self::Kill => "KILL",
        }
    }

    pub(super) fn signal(self) -> Signal {
        match self {
            Self::Quit => Signal::QUIT,
            Self::Kill => Signal::KILL,
        }
    }
}

/// The shell that outlives the test process for a moment.
#[derive(Debug)]
pub(super) struct Guard {
    shell: Child,
    line: Option<ChildStdin>,
}

impl Guard {
    /// A guard of the directory alone, until it is told of a process.
    pub(super) fn start(dir: &Path, last_signal: LastSignal) -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", GUARD, "posthaste-test-guard", last_signal.name()])
            .arg(dir)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            // Inherited, they would keep a reader of the test's output waiting for the guard.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let line = shell.stdin.take();
        Ok(Self { shell, line })
    }

    /// From now on this process is the one to end, or none.
    pub(super) fn watch(&mut self, pid: Option<u32>) {
        if let Some(line) = &mut self.line {
            let pid = pid.map(|pid| pid.to_string()).unwrap_or_default();
            // A guard that somebody killed guards nothing; the test itself does not depend on it.
            let _ = writeln!(line, "{pid}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.line = None;
        let _ = self.shell.wait();
    }
}
