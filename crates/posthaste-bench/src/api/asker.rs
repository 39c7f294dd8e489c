//! Requests to the API, on connections that are kept.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use std::time::Duration;

/// A request without an answer is one that failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody with a token.
#[derive(Clone)]
pub(super) struct Asker {
    client: Client,
    root: String,
    authorization: String,
}

/// A page that stays open is read for longer than anything here takes.
const STREAM_PATIENCE: Duration = Duration::from_secs(3_600);

/// One request: a look, or with a body an act.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) path: String,
    pub(super) body: Option<String>,
}

impl Ask {
    pub(super) fn look(path: impl Into<String>) -> Self {
        Self { path: path.into(), body: None }
    }

    pub(super) fn act(path: impl Into<String>, body: &Value) -> Self {
        Self { path: path.into(), body: Some(body.to_string()) }
    }
}

impl Asker {
    pub(super) fn new(url: &str, token: &str) -> anyhow::Result<Self> {
        // Connections that nobody uses stay open: a page that is open has one, too.
        let client = Client::builder().no_proxy().pool_idle_timeout(None).timeout(PATIENCE).build()?;
        let root = format!("{}/api/v1", url.trim_end_matches("/api/v1").trim_end_matches('/'));
        Ok(Self { client, root, authorization: format!("Bearer {token}") })
    }

    /// All bytes of the answer.
    pub(super) async fn send(&self, ask: &Ask) -> anyhow::Result<Bytes> {
        let method = if ask.body.is_some() { Method::POST } else { Method::GET };
        let request = self.request(method, &ask.path, ask.body.clone());
        Ok(answered(request, &ask.path).await?.bytes().await?)
    }

    fn request(&self, method: Method, path: &str, body: Option<String>) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.root));
        let request = request.header(AUTHORIZATION, &self.authorization);
        match body {
            None => request,
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(body),
        }
    }

    /// The answer as JSON.
    pub(super) async fn json(&self, ask: &Ask) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.send(ask).await?)?)
    }

    /// A page.
    pub(super) async fn look(&self, path: &str) -> anyhow::Result<Value> {
        self.json(&Ask::look(path)).await
    }

    /// An answer that goes on.
    pub(super) async fn stream(&self, path: &str) -> anyhow::Result<StreamReader> {
        let request = self.request(Method::GET, path, None).timeout(STREAM_PATIENCE);
        Ok(StreamReader(answered(request, path).await?))
    }

    /// An act that sets something, with the reason that the audit wants.
    pub(super) async fn put(&self, path: &str, mut body: Value) -> anyhow::Result<()> {
        body["reason"] = json!("a measurement");
        answered(self.request(Method::PUT, path, Some(body.to_string())), path).await?;
        Ok(())
    }

    /// An act, with the reason that the audit wants.
    pub(super) async fn act(&self, path: &str, mut body: Value) -> anyhow::Result<Value> {
        body["reason"] = json!("a measurement");
        self.json(&Ask::act(path, &body)).await
    }
}

/// A page's stream.
pub(super) struct StreamReader(Response);

impl StreamReader {
    /// How many messages have come since; nothing when the stream has ended.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<u64>> {
        let chunk = self.0.chunk().await?;
        Ok(chunk.map(|bytes| {
            bytes.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"data:")).count() as u64
        }))
    }
}

/// The answer to a request that was not refused.
async fn answered(request: RequestBuilder, path: &str) -> anyhow::Result<Response> {
    let answer = request.send().await.with_context(|| path.to_owned())?;
    let status = answer.status();
    if !status.is_success() {
        bail!("{path}: {status} {}", String::from_utf8_lossy(&answer.bytes().await?));
    }
    Ok(answer)
}
