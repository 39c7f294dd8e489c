//! HTTP: webhooks.
