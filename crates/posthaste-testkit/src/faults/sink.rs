//! A sink whose calls go wrong.

use super::{Fault, Faults, Op};
use async_trait::async_trait;
use posthaste::sink::{Capabilities, Failure, Finding, Message, Sink, Verdict};
use std::sync::Arc;

/// Any sink under faults. A refusal is told as `Retry`, a failure after the effect as `Unknown`.
///
/// These are faults of whole calls, above the sink. A sink that keeps a key's order over overlapping
/// calls no longer does so when one of them fails up here and the next does not: where order matters, use
/// faults that last ([`Faults::always`]), or those of [`RecordingSink`](super::RecordingSink), which lie
/// below.
pub struct FaultySink {
    inner: Arc<dyn Sink>,
    faults: Faults,
}

impl FaultySink {
    /// Wraps a sink. Failures are told as the whole sink's fault.
    #[must_use]
    pub fn new(inner: Arc<dyn Sink>, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

fn failure(code: &'static str) -> Failure {
    Failure::of_sink(code, "failed on purpose")
}

#[async_trait]
impl Sink for FaultySink {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let (fault, after) = self.faults.before(Op::Publish).await;
        if fault == Fault::Refuse {
            return vec![Verdict::Retry(failure("fault.refused")); messages.len()];
        }
        let verdicts = self.inner.publish(messages).await;
        if fault == Fault::Duplicate && verdicts.iter().all(|verdict| *verdict == Verdict::Delivered) {
            // Only where nothing failed: a client's own retry never lets a message pass a failed one.
            self.inner.publish(messages).await;
        }
        self.faults.after(fault, after).await;
        if fault == Fault::DoThenFail {
            let unknown = |verdict| match verdict {
                Verdict::Delivered => Verdict::Unknown(failure("fault.no_answer")),
                other => other,
            };
            return verdicts.into_iter().map(unknown).collect();
        }
        verdicts
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        self.inner.examine(destinations).await
    }

    async fn dedup_window(&self, destination: &str) -> Option<std::time::Duration> {
        self.inner.dedup_window(destination).await
    }
}
