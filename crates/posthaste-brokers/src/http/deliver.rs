//! One request and its answer.
//!
//! The status is the verdict. The body after it is read only for the words of a failure, and so that the
//! connection can be used again; a receiver that promised 200 and then stumbles over its own body has
//! promised all the same.

use super::address::origin;
use super::headers::headers;
use super::hosts::Reach;
use super::kit::Kit;
use super::verdict::{self, Silence, Statuses};
use posthaste::sink::{Failure, Message, Scope, Verdict};
use reqwest::header::RETRY_AFTER;
use reqwest::{Method, Request, Response, Url};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, timeout, timeout_at};

/// Characters of an answer's body that are kept for the operator.
const SNIPPET_CHARS: usize = 200;
/// A body that is longer is not read to its end: a new connection is cheaper.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Nor is one that takes longer than this.
pub(super) const BODY_WAIT: Duration = Duration::from_millis(250);

/// What came of a request.
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// For whom the host does not work.
    pub(super) failed: Option<(Reach, Failure)>,
}

impl Outcome {
    /// Silence is the host's, as far as it can be told from here.
    fn silent(silence: Silence) -> Self {
        let failed = silence.reach().map(|reach| (reach, silence.failure().clone()));
        Self { failed, verdict: silence.verdict() }
    }

    /// An answer is the destination's own.
    fn answered(verdict: Verdict) -> Self {
        let failed = match &verdict {
            Verdict::Retry(failure) if failure.scope == Scope::Destination => {
                Some((Reach::Place, failure.clone()))
            }
            _ => None,
        };
        Self { verdict, failed }
    }
}

/// The request of a message, or the verdict if it can have none.
pub(super) fn request(kit: &Kit, message: &Message, url: &Url) -> Result<Request, Verdict> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut request = Request::new(Method::POST, url.clone());
    *request.headers_mut() = headers(message, &kit.keys.headers, &kit.keys.signer, now)
        .map_err(|name| verdict::bad_header(&name))?;
    *request.body_mut() = Some(message.payload.clone().unwrap_or_default().into());
    Ok(request)
}

/// Sends it and waits for the status until `deadline`.
pub(super) async fn deliver(kit: &Kit, request: Request, statuses: &Statuses, deadline: Instant) -> Outcome {
    let (origin, began) = (origin(request.url()), Instant::now());
    match timeout_at(deadline, kit.client.execute(request)).await {
        Ok(Ok(response)) => Outcome::answered(answered(kit, response, statuses, &origin).await),
        Ok(Err(error)) => Outcome::silent(Silence::error(&origin, &error)),
        Err(_) => Outcome::silent(Silence::timeout(&origin, began.elapsed())),
    }
}

async fn answered(kit: &Kit, mut response: Response, statuses: &Statuses, origin: &str) -> Verdict {
    let status = response.status();
    let body = read(&mut response).await;
    if status.is_success() {
        return Verdict::Delivered;
    }
    let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let wait = asked.and_then(|value| verdict::retry_after(value, SystemTime::now()));
    let words = verdict::words(origin, status, &snippet(&body, &kit.keys.hidden));
    statuses.verdict(status, words, wait)
}

/// The beginning of the body. The rest is read and dropped, within bounds.
async fn read(response: &mut Response) -> Vec<u8> {
    let (mut kept, mut total) = (Vec::new(), 0);
    let reading = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            total += chunk.len();
            let room = (4 * SNIPPET_CHARS).saturating_sub(kept.len());
            kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if total > BODY_BYTES_MAX {
                break;
            }
        }
    };
    // Too slow: what has come is enough.
    let _ = timeout(BODY_WAIT, reading).await;
    kept
}

/// A receiver's words, fit for a log: no control characters, none of our secrets, not many.
fn snippet(body: &[u8], hidden: &[String]) -> String {
    let mut text = String::from_utf8_lossy(body).into_owned();
    for secret in hidden {
        text = text.replace(secret, "***");
    }
    let clean = |c: char| if c.is_control() || c == char::REPLACEMENT_CHARACTER { ' ' } else { c };
    let text: String = text.chars().map(clean).take(SNIPPET_CHARS).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snippet_is_short_clean_and_without_secrets() {
        let hidden = ["hunter2".to_owned()];
        assert_eq!(snippet(b"no\r\n\x1b[31m\0 way\xff", &hidden), "no [31m way");
        assert_eq!(snippet(b"you sent hunter2!", &hidden), "you sent ***!");
        assert_eq!(snippet("ü".repeat(500).as_bytes(), &hidden).chars().count(), SNIPPET_CHARS);
        assert_eq!(snippet(b"", &hidden), "");
    }
}
