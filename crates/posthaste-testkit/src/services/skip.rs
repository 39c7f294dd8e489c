//! Skips that are counted and named.
//!
//! libtest knows "passed", "failed" and a static "ignored". A test that finds out at run time that its server
//! is not installed can only return, and then counts as passed: the machine on which nothing is installed
//! would be the greenest of all. So a skip leaves two traces: a line on the real standard error (not through
//! `print!`, which libtest swallows for a test that passes), and a line in the file named by
//! `POSTHASTE_SKIPS`, which `./test` counts and prints at the end.

use std::{
    fs::OpenOptions,
    io::{self, Write},
};

use super::ServiceError;

/// The service, or `None` after recording a skip of the running test, if it cannot be had on this machine.
///
/// # Panics
///
/// If the service is installed and failed: that is a failure of the test, never a skip.
pub fn require<T>(service: Result<T, ServiceError>) -> Option<T> {
    match service {
        Ok(service) => Some(service),
        Err(missing @ ServiceError::Missing { .. }) => {
            skip(&running_test(), &missing.to_string());
            None
        }
        Err(failed @ ServiceError::Failed { .. }) => panic!("{failed}"),
    }
}

/// The service, or a recorded skip and `return` (with the second argument, if the test returns something).
///
/// ```no_run
/// # use posthaste_testkit::{require_service, services::{Postgres, PostgresOptions, Version}};
/// async fn a_test() {
///     let server = require_service!(Postgres::start(Version::V18, &PostgresOptions::default()).await);
///     println!("{}", server.url());
/// }
/// ```
#[macro_export]
macro_rules! require_service {
    ($service:expr $(, $otherwise:expr)?) => {
        match $crate::services::require($service) {
            Some(service) => service,
            None => return $($otherwise)?,
        }
    };
}

/// Records that `name` is skipped and why, where it is seen and where it is counted.
///
/// # Panics
///
/// If `POSTHASTE_SKIPS` names a file that cannot be written: a skip that nobody counts would be a silent
/// pass.
pub fn skip(name: &str, why: &str) {
    let why = why.replace('\n', " ");
    // A closed standard error is no reason to fail; the file below is what counts.
    let _ = writeln!(io::stderr(), "SKIP {name}: {why}");
    if let Some(file) = std::env::var_os("POSTHASTE_SKIPS") {
        // One write of one line in append mode: lines of tests that run side by side do not mix.
        let line = format!("{name}: {why}\n");
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&file)
            .and_then(|mut f| f.write_all(line.as_bytes()));
        if let Err(error) = written {
            panic!("cannot record the skip of {name} in {}: {error}", file.display());
        }
    }
}

/// libtest runs each test on a thread with the test's name; with `--test-threads=1` on the main one, which
/// leaves the name of the binary.
fn running_test() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => {
            let exe = std::env::current_exe().unwrap_or_default();
            format!("a test of {}", exe.file_stem().unwrap_or_default().display())
        }
    }
}
