//! A directory for one test's demo, and the processes that belong to it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Few events, so that a run takes some seconds.
pub(crate) const FEW: [&str; 2] = ["--events", "300"];

/// How long anything may take, with other tests on the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A directory of the test's own, removed at the end. The demo makes its temporary files below it.
pub(crate) struct Ground(PathBuf);

impl Ground {
    pub(crate) fn new() -> Self {
        // Short: paths are part of what must fit into a terminal.
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let dir = std::env::temp_dir().join(format!("phd-{:08x}", random >> 32));
        std::fs::create_dir(&dir).expect("the temporary directory can be written to");
        Self(dir)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// `posthaste demo`, without any configuration of the surroundings.
    pub(crate) fn demo(&self, args: &[&str]) -> Command {
        self.prepare(Command::new(env!("CARGO_BIN_EXE_posthaste")), args)
    }

    /// The same as the leader of a session on the terminal that is its standard input.
    pub(crate) fn demo_on_terminal(&self, args: &[&str]) -> Command {
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(env!("CARGO_BIN_EXE_posthaste"));
        self.prepare(command, args)
    }

    fn prepare(&self, mut command: Command, args: &[&str]) -> Command {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("POSTHASTE_") {
                command.env_remove(&name);
            }
        }
        for name in ["RUST_LOG", "NO_COLOR"] {
            command.env_remove(name);
        }
        command.env("TMPDIR", &self.0).env("TERM", "xterm").arg("demo").args(args);
        command
    }

    /// What is in it.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the directory is there");
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Processes whose command line names this directory: the demo's children.
    pub(crate) fn children(&self) -> Vec<u32> {
        let dir = self.0.to_string_lossy().into_owned();
        let entries = std::fs::read_dir("/proc").expect("Linux").flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbers.filter(|number| command_line(*number).contains(&dir)).collect()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn command_line(process: u32) -> String {
    let bytes = std::fs::read(Path::new("/proc").join(process.to_string()).join("cmdline"));
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

/// Waits for something that nobody can signal: files and processes of others.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20)); // pace
    }
}
