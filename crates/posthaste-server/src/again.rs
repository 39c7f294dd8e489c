//! What is sent again, in words: what the command line and the API say of a rewind.

use crate::output::plural;
use posthaste::admin::Count;

/// Whether a sink is rewound, or only would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgainTense {
    IsDone,
    WouldBe,
}

/// How many events go again, and that a broker may drop them. Without a count only that they do.
pub(crate) fn say_again(sink: &str, counted: Option<Count>, tense: AgainTense) -> String {
    let (reads, is, are) = match tense {
        AgainTense::IsDone => ("reads", "is", "are"),
        AgainTense::WouldBe => ("would read", "would be", "would be"),
    };
    let what = match counted {
        None => format!("what it delivered since {is} sent again"),
        Some(Count { count, exact: false }) => format!("about {} {are} sent again", plural(count, "event")),
        Some(Count { count: 0, .. }) => "there is nothing to send again".to_owned(),
        Some(Count { count: 1, .. }) => format!("1 event {is} sent again"),
        Some(Count { count, .. }) => format!("{} {are} sent again", plural(count, "event")),
    };
    format!(
        "sink {sink} {reads} again from there: {what}.\nA broker that drops duplicates drops those whose ids it remembers: \
         JetStream within the\nstream's duplicate_window, two minutes by default"
    )
}
