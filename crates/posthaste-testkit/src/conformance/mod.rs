//! Conformance suites: what a store and a sink must do, written once, run on every one of them.
//!
//! A case is an async function over a fixture. It knows only the seam, and its name says which guarantee it
//! defends. The list of cases stands once, in a macro; a store or sink runs all of it with one line:
//!
//! ```text
//! async fn fixture() -> Option<MyFixture> { … }          // None: a skip, counted by whoever says so
//! posthaste_testkit::store_suite!(mine, fixture);         // one #[tokio::test] for each case
//! posthaste_testkit::sink_suite!(my_sink, sink_fixture);
//! ```
//!
//! Each case gets a fresh fixture: a fresh database, a fresh destination. Cases never sleep for luck: they
//! wait for a state with a deadline ([`eventually`]), so they run on real time and, for the model, on
//! tokio's paused clock alike.
//!
//! What a fixture cannot do (crash its server, read a null sink back) it says, and the case ends early:
//! chosen by declared capability, never by name.

pub mod consumer;
pub mod inbox;
pub use crate::jobs;
pub use crate::looks;
pub mod leases;
pub mod sink;
pub mod source;
pub mod store;

pub use crate::memory::MemoryFixture;

use std::future::Future;
use std::time::Duration;

/// Longest wait of a case. Far above anything a healthy machine needs: it ends a hang, it times nothing.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Asks again and again until there is an answer, and panics with `what` at the deadline.
pub async fn eventually<T, F, A>(what: &str, deadline: Duration, mut ask: F) -> T
where
    F: FnMut() -> A,
    A: Future<Output = Option<T>>,
{
    let end = tokio::time::Instant::now() + deadline;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < end, "not within {deadline:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await; // pace
    }
}

/// One test for each case. The suites' own macros call it, and whoever needs a part of one.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ($cases:ident, [$make:expr, $test:meta], $($case:ident)*) => {
        $(
            #[$test]
            async fn $case() {
                if let Some(fixture) = ($make)().await {
                    $crate::conformance::$cases::cases::$case(&fixture).await;
                }
            }
        )*
    };
    ($cases:ident, [$make:expr], $($case:ident)*) => {
        $crate::__conformance_tests!($cases, [$make, ::tokio::test], $($case)*);
    };
}
