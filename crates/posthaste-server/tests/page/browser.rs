//! Chromium by playwright: the scripts of `ui/tests`, beside the packages that `scripts/services page`
//! installs.

use posthaste_testkit::services::{self, ServiceError};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const UI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ui");

/// Browsers that may run beside each other share it; one that measures has it alone.
static TURN: RwLock<()> = RwLock::new(());

#[expect(dead_code, reason = "they are held, and nobody looks into them")]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// A directory with the scripts in it, from which Node finds the packages.
pub(crate) struct Browser(PathBuf, #[expect(dead_code, reason = "it is held")] Turn);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Browser {
    pub(crate) fn find() -> Result<Self, ServiceError> {
        Self::within(|| Turn::Shared(TURN.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The same for a test that measures: it waits for the others, and they wait for it.
    pub(crate) fn alone() -> Result<Self, ServiceError> {
        Self::within(|| Turn::Alone(TURN.write().unwrap_or_else(PoisonError::into_inner)))
    }

    fn within(turn: impl FnOnce() -> Turn) -> Result<Self, ServiceError> {
        let missing = |why: String| ServiceError::Missing { service: "a browser".to_owned(), why };
        let modules = services::services_dir().join("page/node_modules");
        for path in [&modules, Path::new("/usr/bin/chromium")] {
            if !path.exists() {
                return Err(missing(format!("no {} (scripts/services page installs it)", path.display())));
            }
        }
        if Command::new("node").arg("--version").output().is_err() {
            return Err(missing("no `node`".to_owned()));
        }
        let dir = crate::rig::directory();
        std::os::unix::fs::symlink(&modules, dir.join("node_modules")).expect("a link");
        for script in std::fs::read_dir(Path::new(UI).join("tests")).expect("ui/tests").flatten() {
            if script.path().extension().is_some_and(|extension| extension == "mjs") {
                std::fs::copy(script.path(), dir.join(script.file_name())).expect("a copy");
            }
        }
        Ok(Self(dir, turn()))
    }

    /// Runs a script, and shows all that it said if it failed.
    #[track_caller]
    pub(crate) fn runs(&self, script: &str, args: &[&str]) -> String {
        self.starts(script, args).ends()
    }

    /// Starts a script that asks for something on the way.
    pub(crate) fn starts(&self, script: &str, args: &[&str]) -> Script {
        let mut command = Command::new("node");
        command.current_dir(&self.0).arg(script).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("node");
        let said = BufReader::new(child.stdout.take().expect("it is piped"));
        let told = child.stdin.take().expect("it is piped");
        Script { name: script.to_owned(), child, told, said, heard: String::new() }
    }
}

/// A script that runs. Dropping it ends it, and the browser ends with it.
pub(crate) struct Script {
    name: String,
    child: Child,
    told: ChildStdin,
    said: BufReader<ChildStdout>,
    heard: String,
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Script {
    /// Waits until it says this in a line of its own.
    #[track_caller]
    pub(crate) fn asks(&mut self, word: &str) {
        loop {
            let mut line = String::new();
            let read = self.said.read_line(&mut line).expect("text");
            self.heard.push_str(&line);
            if line.trim() == word {
                return;
            }
            if read == 0 {
                let complaint = self.complaint();
                panic!("{}: {}{complaint}", self.name, self.heard);
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.told, "{line}").expect("it listens");
    }

    #[track_caller]
    pub(crate) fn ends(mut self) -> String {
        self.said.read_to_string(&mut self.heard).expect("text");
        let complaint = self.complaint();
        let status = self.child.wait().expect("it is ours");
        assert!(status.success(), "{}: {}{complaint}", self.name, self.heard);
        std::mem::take(&mut self.heard)
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        // What cannot be read is missing from a message, and from nothing else.
        let _ = self.child.stderr.take().map(|mut from| from.read_to_string(&mut text));
        text
    }
}

/// Where pictures go, if this is `./test browser`.
fn pictures() -> Option<PathBuf> {
    std::env::var_os("POSTHASTE_SCREENS").map(PathBuf::from)
}

/// Whether what takes long is wanted: `./test browser`. Anybody else is told that it was passed over.
pub(crate) fn takes_its_time(test: &str) -> bool {
    let is_wanted = pictures().is_some();
    if !is_wanted {
        eprintln!("{test} is a part of `./test browser`");
    }
    is_wanted
}

/// Looks at all pages of an outbox: with pictures in all widths and themes, or once.
#[track_caller]
pub(crate) fn looks_at_all_pages(browser: &Browser, of: &str, address: &str, token: &str, outbox: &str) {
    let out = pictures().unwrap_or_else(|| browser.0.join("screens")).join(of);
    let out = out.to_string_lossy();
    let mut args = vec![address, token, &out, "--outbox", outbox];
    args.extend(pictures().map(|_| "--all"));
    eprintln!("{of}: {}", browser.runs("pages.mjs", &args).trim());
}
