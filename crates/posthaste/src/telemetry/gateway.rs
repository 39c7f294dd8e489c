//! Metrics of the gateway.

/// Requests, by topic and status.
pub const REQUESTS: &str = "posthaste_gateway_requests_total";
/// Events that were stored, by tenant.
pub const EVENTS: &str = "posthaste_gateway_events_total";
/// Requests that were refused, by tenant and code.
pub const REFUSED: &str = "posthaste_gateway_refused_total";
/// How long requests took.
pub const REQUEST_SECONDS: &str = "posthaste_gateway_request_seconds";
/// Events that wait for a commit, or are in one.
pub const QUEUED_EVENTS: &str = "posthaste_gateway_queued_events";
/// Events in a commit.
pub const COMMIT_EVENTS: &str = "posthaste_gateway_commit_events";
/// Who counts events: 1 for the state in force.
pub const LIMITER_STATE: &str = "posthaste_gateway_limiter_state";
/// Questions that Redis did not answer.
pub const LIMITER_ERRORS: &str = "posthaste_gateway_limiter_errors_total";

/// What each of them means.
pub(super) const DESCRIPTIONS: [(&str, &str); 8] = [
    (REQUESTS, "requests to the gateway, by topic and status"),
    (EVENTS, "events that tenants have handed in and that are stored, by tenant"),
    (REFUSED, "requests to the gateway that were refused, by tenant and code"),
    (REQUEST_SECONDS, "seconds from the head of a request to its answer"),
    (QUEUED_EVENTS, "events that wait for a commit, or are in one"),
    (COMMIT_EVENTS, "events in a commit of the gateway"),
    (LIMITER_STATE, "1 for the way in which events are counted now: shared, local, open or closed"),
    (LIMITER_ERRORS, "questions of the gateway that Redis did not answer in time, or with an error"),
];
