//! The body of a stream: what a viewer's task writes, its reader gets. It ends with the task, and the task
//! ends with it.

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame};
use posthaste::task::Task;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Messages that may wait for the reader (G7).
const UNREAD_MAX: usize = 16;
/// A reader that takes nothing for so long is cut off.
const READ_TIME: Duration = Duration::from_secs(10);

/// Where a viewer writes.
pub(crate) struct Feed(mpsc::Sender<Bytes>);

/// The reader is gone or does not read.
pub(crate) struct ReaderGone;

struct FeedBody {
    messages: mpsc::Receiver<Bytes>,
    /// Whoever writes. Ends when the reader does.
    _writer: Task<()>,
}

impl Feed {
    /// A body, and whoever writes it.
    pub(crate) fn body<F>(write: impl FnOnce(Self) -> F) -> Body
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, messages) = mpsc::channel(UNREAD_MAX);
        let writer = posthaste::task::spawn("stream", write(Self(sender)));
        Body::new(FeedBody { messages, _writer: writer })
    }

    /// One event. Its data has no line break: JSON writes them out.
    pub(crate) async fn event(&self, name: &str, data: &str) -> Result<(), ReaderGone> {
        let mut text = String::with_capacity(name.len() + data.len() + 16);
        // Writing into a text does not fail.
        let _ = write!(text, "event: {name}\ndata: {data}\n\n");
        self.send(text).await
    }

    /// A line that means nothing but that the stream is alive.
    pub(crate) async fn heartbeat(&self) -> Result<(), ReaderGone> {
        self.send(":\n\n".to_owned()).await
    }

    async fn send(&self, text: String) -> Result<(), ReaderGone> {
        match timeout(READ_TIME, self.0.send(text.into())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ReaderGone),
        }
    }
}

impl HttpBody for FeedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.messages.poll_recv(context).map(|message| message.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    #[tokio::test(start_paused = true)]
    async fn it_is_read_as_written_and_a_reader_that_sleeps_is_cut_off() {
        let body = Feed::body(async |feed| {
            let _ = feed.event("jobs", "{\"a\":1}").await;
            let _ = feed.heartbeat().await;
        });
        let text = body.collect().await.expect("it cannot fail").to_bytes();
        assert_eq!(text, "event: jobs\ndata: {\"a\":1}\n\n:\n\n");

        let (told, heard) = tokio::sync::oneshot::channel();
        let body = Feed::body(async move |feed| {
            let mut written = 0;
            while feed.event("x", "1").await.is_ok() {
                written += 1;
            }
            let _ = told.send(written);
        });
        assert_eq!(heard.await, Ok(UNREAD_MAX));
        drop(body);
    }
}
