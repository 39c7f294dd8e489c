//! How a JVM is started here.
//!
//! Small heaps and the quick compiler: a test server lives for seconds, and its start is most of what it costs.

use std::path::{Path, PathBuf};

use super::SERVICE;
use crate::services::{ServiceError, locate, services_dir};

/// A JVM that was found, and Kafka's jars.
#[derive(Clone, Debug)]
pub(super) struct Java {
    program: PathBuf,
    jars: PathBuf,
}

impl Java {
    pub(super) fn find() -> Result<Self, ServiceError> {
        let jars = locate(SERVICE, &[services_dir().join("kafka/jars")])?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        // The compiler beside it: the console is run from its source.
        let compilers: Vec<_> = std::env::split_paths(&path).map(|dir| dir.join("javac")).collect();
        let program = locate("a JDK", &compilers)?.with_file_name("java");
        Ok(Self { program, jars })
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// The JVM's arguments before the class or source that is run. `dir` holds the logger's configuration.
    pub(super) fn args(&self, dir: &Path, heap_mb: u32) -> Vec<String> {
        let archive = self.jars.with_file_name("kafka.jsa");
        let mut args = vec![
            "-XX:+UseSerialGC".to_owned(),
            "-XX:TieredStopAtLevel=1".to_owned(),
            "-XX:-UsePerfData".to_owned(),
            format!("-Xmx{heap_mb}m"),
            format!("-Dlog4j2.configurationFile={}", dir.join("log4j2.properties").display()),
            "-cp".to_owned(),
            // Not a pattern for a shell: the JVM takes all jars of the directory.
            format!("{}/*", self.jars.display()),
        ];
        if archive.exists() {
            args.push(format!("-XX:SharedArchiveFile={}", archive.display()));
        }
        args
    }
}
