//! Running the binary: to its end, or as a daemon that is waited for and stopped.

use std::path::PathBuf;
use std::process::{Command, Output};

/// The binary, without any configuration of the surroundings.
pub(crate) fn posthaste(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("POSTHASTE_") {
            command.env_remove(&name);
        }
    }
    // A crash or a stray posthaste.toml of the surroundings must not decide a test.
    command.env_remove("RUST_LOG").current_dir(std::env::temp_dir()).args(args);
    command
}

/// How a run ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// What it printed, as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {:?} {:?}", self.out, self.err))
    }

    /// The same, if it did what it was asked.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }
}

/// Runs to the end.
pub(crate) fn run(args: &[&str]) -> Ended {
    finish(&mut posthaste(args))
}

/// The same for a prepared command.
pub(crate) fn finish(command: &mut Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().expect("the binary starts");
    Ended {
        code: status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// A file that is removed at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(text: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("posthaste-test-{}.toml", uuid::Uuid::now_v7().simple()));
        std::fs::write(&path, text).expect("the temporary directory can be written to");
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("temporary paths are UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
