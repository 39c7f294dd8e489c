//! Equal looks are one look. Twenty pages that show the same outbox cost its database what one costs.
//!
//! Whoever asks while somebody is looking waits for that answer, and for half a second it is told again.
//! Masking comes afterwards and is each token's own. An act that was done by this process forgets
//! everything: whoever acted sees what they did (`ApiCall::act`).

use crate::access::PayloadRight;
use crate::http::ApiProblem;
use axum::http::{StatusCode, Uri};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// For so long an answer is told again.
const FRESH: Duration = Duration::from_millis(500);
/// Longest wait for somebody else's look.
const WAIT: Duration = Duration::from_secs(8);
/// Different looks that are remembered; beyond that all are forgotten.
const LOOKS_MAX: usize = 256;

type SharedAnswer = Arc<tokio::sync::Mutex<Option<(Instant, Value)>>>;

/// What was asked lately.
#[derive(Default)]
pub(crate) struct SharedLooks(Mutex<HashMap<String, SharedAnswer>>);

impl SharedLooks {
    /// The answer of somebody who asked the same, or that of this look. What a token may ask depends on its
    /// right to see payloads and on the outboxes that it is for, so only those who have the same share.
    pub(crate) async fn ask(
        &self,
        (right, outboxes): (PayloadRight, &[String]),
        uri: &Uri,
        look: impl Future<Output = Result<Value, ApiProblem>>,
    ) -> Result<Value, ApiProblem> {
        let answer = self.place(format!("{right:?} {outboxes:?} {uri}"));
        let Ok(mut last) = timeout(WAIT, answer.lock()).await else {
            let why = format!("others who asked the same have waited for {} s already", WAIT.as_secs());
            let advice = "Look at the database's load, and at what holds locks there.";
            return Err(ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, "api.slow", why, advice));
        };
        if let Some((at, value)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(value.clone());
        }
        let value = look.await?;
        *last = Some((Instant::now(), value.clone()));
        Ok(value)
    }

    /// Something was changed from here.
    pub(crate) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn place(&self, of: String) -> SharedAnswer {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= LOOKS_MAX {
            all.clear();
        }
        Arc::clone(all.entry(of).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[tokio::test(start_paused = true)]
    async fn equal_looks_are_one_until_somebody_acts() {
        let (shared, asked) = (SharedLooks::default(), AtomicU64::new(0));
        let look = || async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(Value::from(asked.fetch_add(1, Ordering::Relaxed)))
        };
        let uri = Uri::from_static("/api/v1/outboxes/a");
        let all = ["*".to_owned()];
        let ask = |right| shared.ask((right, &all), &uri, look());
        let (one, two) = tokio::join!(ask(PayloadRight::Shown), ask(PayloadRight::Shown));
        assert_eq!((one.ok(), two.ok()), (Some(0.into()), Some(0.into())));
        assert_eq!(ask(PayloadRight::Hidden).await.ok(), Some(1.into()), "it may ask less");
        let some = ["a".to_owned()];
        let others = shared.ask((PayloadRight::Shown, &some), &uri, look());
        assert_eq!(others.await.ok(), Some(2.into()), "it is for others");
        shared.forget();
        assert_eq!(ask(PayloadRight::Shown).await.ok(), Some(3.into()));
        let other = Uri::from_static("/other");
        let refused = async { Err(ApiProblem::bad("x.no", "no", "Nothing.")) };
        assert!(shared.ask((PayloadRight::Shown, &all), &other, refused).await.is_err());
        for n in 0..2 * LOOKS_MAX {
            let uri: Uri = format!("/{n}").parse().expect("a path");
            shared.ask((PayloadRight::Shown, &all), &uri, look()).await.expect("a look");
        }
        assert!(shared.0.lock().expect("not poisoned").len() <= LOOKS_MAX);
    }
}
