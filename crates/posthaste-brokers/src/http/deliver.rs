//! One request and its answer.
//!
//! The status is the verdict. The body after it is read only for the words of a failure, and so that the
//! connection can be used again; a receiver that promised 200 and then stumbles over its own body has
//! promised all the same.

use super::headers::headers;
use super::hosts::Reach;
use super::kit::Kit;
use super::snippet;
use super::verdict::{self, Silence, Statuses};
use posthaste::sink::{Failure, Message, Scope, Verdict};
use reqwest::header::RETRY_AFTER;
use reqwest::{Method, Request, Response, Url};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, timeout, timeout_at};

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
pub(super) fn request(kit: &Kit, message: &Message, url: Url) -> Result<Request, Verdict> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut request = Request::new(Method::POST, url);
    *request.headers_mut() = headers(message, &kit.keys.headers, &kit.keys.signer, now)
        .map_err(|name| verdict::bad_header(&name))?;
    *request.body_mut() = Some(message.payload.clone().unwrap_or_default().into());
    Ok(request)
}

/// Sends a message's request and waits for the status until `deadline`.
pub(super) async fn deliver(
    kit: &Kit,
    message: &Message,
    request: Request,
    origin: &str,
    statuses: &Statuses,
    deadline: Instant,
) -> Outcome {
    let began = Instant::now();
    match timeout_at(deadline, kit.client.execute(request)).await {
        Ok(Ok(response)) => Outcome::answered(answered(kit, message, response, statuses, origin).await),
        Ok(Err(error)) => Outcome::silent(Silence::error(origin, &kit.files, &error)),
        Err(_) => Outcome::silent(Silence::timeout(origin, began.elapsed())),
    }
}

async fn answered(
    kit: &Kit,
    message: &Message,
    mut response: Response,
    statuses: &Statuses,
    origin: &str,
) -> Verdict {
    let status = response.status();
    let body = read(&mut response).await;
    if status.is_success() {
        return Verdict::Delivered;
    }
    let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let wait = asked.and_then(|value| verdict::retry_after(value, SystemTime::now()));
    let payload = message.payload.as_deref().unwrap_or_default();
    let said = snippet::snippet(&body, &kit.keys.hidden, payload);
    let words = verdict::words(origin, status, &said);
    statuses.verdict(status, words, wait)
}

/// The beginning of the body. The rest is read and dropped, within bounds.
async fn read(response: &mut Response) -> Vec<u8> {
    let (mut kept, mut total) = (Vec::new(), 0);
    let reading = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            total += chunk.len();
            let room = snippet::BYTES.saturating_sub(kept.len());
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
