//! Where an administrator works: a directory with files, and the command.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) struct Desk {
    dir: PathBuf,
    environment: Vec<(String, String)>,
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn ends(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        self.out + &self.err
    }
}

impl Desk {
    pub(crate) fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-topology-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Self { dir, environment: Vec::new() }
    }

    /// A broker by its plain address, and what else is in the file.
    pub(crate) fn with_file(bootstrap: &str, text: &str) -> Self {
        let desk = Self::new();
        desk.file(bootstrap, text);
        desk
    }

    pub(crate) fn file(&self, bootstrap: &str, text: &str) {
        let url: Vec<&str> = bootstrap.split(',').collect();
        self.write("topology.toml", &format!("{text}\n[brokers.kafka]\ntype = \"kafka\"\nurl = {url:?}\n"));
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join(name), text).expect("a file");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(name)).expect("a file")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn env(&mut self, name: &str, value: impl AsRef<Path>) {
        self.environment.push((name.to_owned(), value.as_ref().display().to_string()));
    }

    pub(crate) fn topology(&self, args: &[&str]) -> Ended {
        self.dying("", args)
    }

    /// The same, and it dies at a crash point.
    pub(crate) fn dying(&self, crash: &str, args: &[&str]) -> Ended {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.current_dir(&self.dir).arg("topology").args(args).stdin(Stdio::null());
        command.env_remove("POSTHASTE_CONFIG").envs(self.environment.iter().cloned());
        if !crash.is_empty() {
            command.env("POSTHASTE_CRASH", crash);
        }
        let output = command.output().expect("the binary starts");
        Ended {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
