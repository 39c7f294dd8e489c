use super::*;
use futures_util::poll;
use std::io;
use std::sync::Mutex;
use std::task::Waker;
use tokio::io::{DuplexStream, ReadBuf};
use tokio::sync::Notify;
use url::Url;

#[tokio::test]
async fn a_body_is_taken_when_all_of_it_was_written() {
    let progress = Arc::<FlushProgress>::default();
    let (mut payload, taken) = Payload::new(Bytes::from_static(b"abc"), &progress);
    let mut taken = taken.expect("something to wait for");
    let frame = poll_fn(|context| Pin::new(&mut payload).poll_frame(context)).await;
    let mut piece = frame.expect("a piece").expect("whole").into_data().ok().expect("data");
    assert!(payload.is_end_stream(), "the end is in the same frame");
    piece.advance(2);
    assert!(taken.try_recv().is_err());
    piece.advance(1);
    assert_eq!(taken.await, Ok(progress.mark()));
    let (payload, taken) = Payload::new(Bytes::from_static(b"abc"), &progress);
    drop(payload);
    assert!(taken.expect("something to wait for").await.is_err(), "it was given up");
    assert!(Payload::new(Bytes::new(), &progress).1.is_none());
}

/// Takes everything, as TLS does, and keeps it back as long as somebody wants.
struct Slow {
    io: DuplexStream,
    kept: Vec<u8>,
    dam: Arc<Dam>,
}

#[derive(Default)]
struct Dam {
    /// `Some`: nothing passes, and this is who waits for it.
    closed: Mutex<Option<Waker>>,
    /// Something has been kept back.
    kept: Notify,
}

impl Dam {
    fn close(&self) {
        *self.closed.lock().expect("whole") = Some(Waker::noop().clone());
    }

    fn open(&self) {
        if let Some(waker) = self.closed.lock().expect("whole").take() {
            waker.wake();
        }
    }
}

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.kept.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(waker) = &mut *this.dam.closed.lock().expect("whole") {
            *waker = context.waker().clone();
            if !this.kept.is_empty() {
                this.dam.kept.notify_one();
                return Poll::Pending;
            }
        }
        while !this.kept.is_empty() {
            let written = ready!(Pin::new(&mut this.io).poll_write(context, &this.kept))?;
            this.kept.drain(..written);
        }
        Pin::new(&mut this.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// The body waits for the window of its stream, and the server answers before that.
#[tokio::test]
async fn g2_a_2xx_over_http2_counts_when_the_kernel_has_the_request() {
    for is_lost in [false, true] {
        let (near, far) = tokio::io::duplex(1 << 20);
        let dam = Arc::<Dam>::default();
        let stream = Box::new(Slow { io: near, kept: Vec::new(), dam: Arc::clone(&dam) });
        let (say, mut said) = tokio::sync::mpsc::channel::<()>(1);
        let server = spawn("server", async move {
            let mut builder = h2::server::Builder::new();
            let mut connection =
                builder.initial_window_size(0).handshake::<_, Bytes>(far).await.expect("HTTP/2");
            let (request, mut respond) = connection.accept().await.expect("a request").expect("whole");
            respond.send_response(Response::new(()), true).expect("sent");
            // Keeps what has come, and opens the window when it is told.
            let mut body = request.into_body();
            loop {
                tokio::select! {
                    ended = poll_fn(|context| connection.poll_closed(context)) => break drop(ended),
                    word = said.recv() => match word {
                        Some(()) => connection.set_initial_window_size(1 << 16).expect("a size"),
                        None => break,
                    },
                    Some(part) = body.data() => drop(part),
                }
            }
        });
        let mut connection = Connection::http2(stream).await.expect("HTTP/2");
        let endpoint = Endpoint::new("x", &Url::parse("https://h.example/x").expect("a URL")).expect("valid");
        let request = Request { headers: Default::default(), payload: Bytes::from_static(b"{}") };
        let room = connection.stream().await;
        let mut sending = Box::pin(connection.send(request, &endpoint, room));
        stays(&mut sending).await;
        dam.close();
        say.send(()).await.expect("a server");
        dam.kept.notified().await;
        stays(&mut sending).await;
        if is_lost {
            drop(say);
            server.await.expect("it has ended");
        }
        dam.open();
        let answer = sending.await;
        assert_eq!(answer.is_ok_and(|answer| answer.status == StatusCode::OK), !is_lost);
    }
}

/// One thread, and nobody waits for anything but the others.
async fn stays<F: Future + Unpin>(sending: &mut F) {
    for _ in 0..1_000 {
        assert!(poll!(&mut *sending).is_pending(), "the body has not left");
        tokio::task::yield_now().await;
    }
}
