//! Metrics of the API.

/// Requests, by route and status.
pub const REQUESTS: &str = "posthaste_api_requests_total";
/// How long they took.
pub const SECONDS: &str = "posthaste_api_seconds";
/// Requests that were refused for want of a right.
pub const DENIED: &str = "posthaste_denied_total";
/// Whether the file of tokens could not be read the last time.
pub const TOKENS_BROKEN: &str = "posthaste_api_tokens_broken";

/// What each of them means.
pub(super) const DESCRIPTIONS: [(&str, &str); 4] = [
    (REQUESTS, "requests to the API, by route and status"),
    (SECONDS, "seconds of one request to the API"),
    (DENIED, "requests to the API that were refused for want of a token or a right"),
    (TOKENS_BROKEN, "1 while the file of tokens cannot be read, and the old tokens are in force"),
];
