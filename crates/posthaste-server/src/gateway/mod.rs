//! The gateway: tenants hand in events over HTTP, each within its rate, and 202 means that they are kept.
//!
//! ```text
//! section.rs   what the file says            request.rs   what a client says about an event
//! door.rs      one request, check by check   batch.rs     many events of one request
//! roll.rs      who is known                  answer.rs    202, or a problem
//! room.rs      how much may be under way     openapi.rs   what a client reads about all of it
//! gauge.rs     metrics                       life.rs      looks at the database, tells how it is
//! ```
//!
//! It appends to the outbox, and never to a broker: order by key, retries, dead letters and replay are the
//! relay's, and a broker that is away is no outage here. How requests of many tenants share a commit is the
//! intake's affair (`posthaste::intake`).
//!
//! Its listener is its own. What stands on the administration's listener is for other people, and neither
//! must be able to fill the other's places.

mod answer;
mod batch;
mod door;
mod gauge;
mod life;
mod openapi;
mod request;
mod roll;
mod room;
mod section;

pub(crate) use life::{Gateway, GatewayHealth};
pub(crate) use section::{GatewaySection, GatewaySetting, gateway};

use answer::GatewayProblem;
use axum::Router;
use axum::routing::{any, get};
use door::{Door, hand_in};
use std::sync::Arc;

/// All paths.
fn router(door: Arc<Door>) -> Router {
    Router::new()
        .route("/v1/topics/{topic}", any(hand_in))
        .route("/v1/openapi.json", get(openapi::show).fallback(async || GatewayProblem::method("GET")))
        .fallback(async || GatewayProblem::no_page())
        .with_state(door)
}
