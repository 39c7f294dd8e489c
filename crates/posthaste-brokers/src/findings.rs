//! What the examinations of several brokers say in the same words.

use posthaste::sink::{Failure, Finding, Level};

/// There is no session. `refusals` are the codes of a server that answers and does not let us in.
pub(crate) fn no_session(failure: &Failure, refusals: &[&str]) -> Vec<Finding> {
    let finding = |check: &str, level, text: String| Finding { check: check.to_owned(), level, text };
    let text = format!("{}. Events for this sink wait in the log", failure.message);
    if refusals.contains(&&*failure.code) {
        let answers = finding("reachable", Level::Ok, "the server answers".to_owned());
        return vec![answers, finding("authenticated", Level::Fail, text)];
    }
    vec![finding("reachable", Level::Fail, text)]
}
