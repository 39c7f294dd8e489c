//! What a page watches: `GET /stream`, server-sent events about everything that its token is for.
//!
//! ```text
//! sight.rs   one look a second at an outbox, for all who watch it        series.rs  its last hour
//! viewer.rs  one page: scope, masks, and only what is new to it          feed.rs    the body that it reads
//! ```
//!
//! The page asks by `fetch`, with its session in `Authorization`: the `EventSource` of a browser can send no
//! header, and a token in an address ends in a log. Nobody watching means no look: a viewer's own clock asks
//! for one, and whoever asks within the same second gets the same answer.
//!
//! A stream ends with its connection's time, with its token, and when its reader is slow. It is no error:
//! the page asks again and goes on.

mod feed;
mod series;
mod sight;
mod viewer;

pub(crate) use series::{OutboxSeries, SeriesBook};
pub(crate) use sight::take_over;

use super::call::ApiCall;
use crate::api::spec::NoQuery;
use crate::http::ApiProblem;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use posthaste::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;
use sight::Sights;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use viewer::Viewer;

/// Streams at once.
const STREAMS_MAX: usize = 64;
/// Of one token or session.
const STREAMS_OF_ONE_MAX: usize = 4;

/// What is shared by all who watch.
#[derive(Default)]
pub(crate) struct Live {
    sights: Sights,
    pub(crate) series: Arc<SeriesBook>,
    /// Open streams, by the token's id.
    open: Mutex<HashMap<String, usize>>,
}

/// The place of one stream.
struct StreamPlace {
    live: Arc<Live>,
    of: String,
}

impl Live {
    fn counts(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more stream of this token.
    fn enter(self: &Arc<Self>, of: &str) -> Result<StreamPlace, ApiProblem> {
        let mut open = self.counts();
        let full = |who: &str, most: usize| {
            let why = format!("{who} {most} streams open already");
            let advice = "Close another page. What it shows can be asked for without a stream, too.";
            ApiProblem::new(StatusCode::TOO_MANY_REQUESTS, "api.too_many_streams", why, advice)
        };
        if open.values().sum::<usize>() >= STREAMS_MAX {
            return Err(full("this process has", STREAMS_MAX));
        }
        let mine = open.entry(of.to_owned()).or_default();
        if *mine >= STREAMS_OF_ONE_MAX {
            return Err(full("this token has", STREAMS_OF_ONE_MAX));
        }
        *mine += 1;
        Ok(StreamPlace { live: Arc::clone(self), of: of.to_owned() })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = self.live.counts();
        if let Some(mine) = open.get_mut(&self.of) {
            *mine -= 1;
            if *mine == 0 {
                open.remove(&self.of);
            }
        }
    }
}

/// What to watch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamQuery {
    /// The outbox that the page shows.
    outbox: Option<String>,
    /// New events of its log, too.
    #[serde(default)]
    tail: bool,
    /// Those behind this place, which a stream before told as `tail_at`; without it from now on.
    tail_after: Option<u64>,
    /// Of its series only what is behind this instant; without it the last hour.
    since: Option<Timestamp>,
}

pub(crate) async fn stream(call: ApiCall, query: StreamQuery) -> Result<Response, ApiProblem> {
    let outbox = query.outbox.as_deref().map(|name| call.desk_named(name)).transpose()?;
    let place = call.api.live.enter(call.grant.id())?;
    let body = Viewer::start(call, outbox, query, place);
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // It ends with its connection. The next one begins with a connection of its own, and lasts as long.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    // A proxy that collects an answer before it passes it on would show nothing.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

pub(crate) async fn series(call: ApiCall, _: NoQuery) -> Result<OutboxSeries, ApiProblem> {
    let desk = call.desk()?;
    Ok(call.api.live.series.of(desk.name(), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_four_streams_and_all_have_sixty_four() {
        let live = Arc::new(Live::default());
        let mut places: Vec<_> =
            (0..STREAMS_OF_ONE_MAX).map(|_| live.enter("ann").map_err(|why| why.code)).collect();
        assert!(places.iter().all(Result::is_ok) && live.enter("ann").is_err());
        drop(places.pop());
        places.push(live.enter("ann").map_err(|why| why.code));
        for n in STREAMS_OF_ONE_MAX..STREAMS_MAX {
            places.push(live.enter(&format!("token-{n}")).map_err(|why| why.code));
        }
        assert!(places.iter().all(Result::is_ok) && live.enter("bo").is_err());
        drop(places);
        assert!(live.counts().is_empty(), "nobody is remembered");
    }
}
