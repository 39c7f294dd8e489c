//! How a JVM is started here.
//!
//! Small heaps and the quick compiler: a test server lives for seconds, and its start is most of what it
//! costs. An archive of loaded classes (`scripts/services` makes it) saves each node a third of its start,
//! and the console is compiled once for each version of its source, beside the jars.

use std::{
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

use uuid::Uuid;

use super::SERVICE;
use crate::services::{ServiceError, locate, services_dir};

const CONSOLE: &str = include_str!("Console.java");

/// A JVM that was found, and Kafka's jars.
#[derive(Clone, Debug)]
pub(super) struct Java {
    program: PathBuf,
    jars: PathBuf,
}

/// What a JVM may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jvm {
    pub(super) heap_mb: u32,
    /// With the compiler that takes its time. Without it a JVM is up sooner, and slower ever after.
    pub(super) optimises: bool,
}

impl Default for Jvm {
    fn default() -> Self {
        Self { heap_mb: 256, optimises: false }
    }
}

impl Java {
    pub(super) fn find() -> Result<Self, ServiceError> {
        let jars = locate(SERVICE, &[services_dir().join("kafka/jars")])?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        // With the compiler beside it, for the console.
        let compilers: Vec<_> = std::env::split_paths(&path).map(|dir| dir.join("javac")).collect();
        let program = locate("a JDK", &compilers)?.with_file_name("java");
        Ok(Self { program, jars })
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// The JVM's arguments before the class that is run. `dir` holds the logger's configuration.
    pub(super) fn args(&self, dir: &Path, jvm: Jvm) -> Vec<String> {
        let archive = self.jars.with_file_name("kafka.jsa");
        let mut args = vec![
            "-XX:+UseSerialGC".to_owned(),
            format!("-XX:TieredStopAtLevel={}", if jvm.optimises { 4 } else { 1 }),
            "-XX:-UsePerfData".to_owned(),
            format!("-Xmx{}m", jvm.heap_mb),
            format!("-Dlog4j2.configurationFile={}", dir.join("log4j2.properties").display()),
            "-cp".to_owned(),
            // Not a pattern for a shell: the JVM takes all jars of the directory. First, as when the archive
            // was made.
            format!("{}/*:{}", self.jars.display(), self.classes().display()),
        ];
        if archive.exists() {
            args.push(format!("-XX:SharedArchiveFile={}", archive.display()));
        }
        args
    }

    /// Compiles the console, if nobody has before.
    pub(super) fn compile(&self) -> std::io::Result<()> {
        let classes = self.classes();
        if classes.exists() {
            return Ok(());
        }
        let scratch = classes.with_file_name(format!("console-{}", Uuid::now_v7().simple()));
        std::fs::create_dir(&scratch)?;
        let source = scratch.join("Console.java");
        std::fs::write(&source, CONSOLE)?;
        let compiled = Command::new(self.program.with_file_name("javac"))
            .args(["-cp", &format!("{}/*", self.jars.display()), "-d"])
            .args([&scratch, &source])
            .output()?;
        if !compiled.status.success() {
            return Err(std::io::Error::other(String::from_utf8_lossy(&compiled.stderr).into_owned()));
        }
        // Complete or not at all. Another test process may have been quicker, with the same result.
        if std::fs::rename(&scratch, &classes).is_err() {
            std::fs::remove_dir_all(&scratch)?;
        }
        Ok(())
    }

    /// Where this version of the console is kept.
    fn classes(&self) -> PathBuf {
        let mut hasher = rustc_hash::FxHasher::default();
        CONSOLE.hash(&mut hasher);
        self.jars.with_file_name(format!("console-{:016x}", hasher.finish()))
    }
}
