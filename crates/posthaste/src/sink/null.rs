//! A sink that takes everything and keeps nothing: for benchmarks and dry runs of a set-up.

use super::{Capabilities, Message, Ordering, Sink, Verdict};
use async_trait::async_trait;

/// Answers `Delivered` at once.
#[derive(Debug, Default)]
pub struct NullSink;

#[async_trait]
impl Sink for NullSink {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        vec![Verdict::Delivered; messages.len()]
    }
}
