//! A connection of lapin over bytes of our own: the sink's way to the broker, its TLS and its login.
//!
//! **A connection is cut, never closed.** lapin says `basic.cancel` and `channel.close` when its handles are
//! dropped. A queue with a single active consumer then gives the next message to the next member, while those
//! before it are still in our hands (3.10): a key would be out of order. A connection that is gone gives back
//! everything at once, in order. So the socket is taken out from under lapin first, and whatever it says
//! afterwards reaches nobody.

use crate::lock::locked;
use crate::rabbitmq::RabbitmqConfig;
use crate::rabbitmq::client::{self, ByteStream, ConnectOptions, SaslLogin, Server};
use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::Task;
use async_rs::{Runtime, Tokio};
use futures_io::{AsyncRead, AsyncWrite};
use lapin::auth::AuthProvider;
use lapin::types::{LongString, ShortString};
use lapin::uri::{AMQPQueryString, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use posthaste::sink::Failure;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead as TokioRead, AsyncWrite as TokioWrite, ReadBuf};
use tokio::time::timeout;

/// For lapin's own handshake. The server has just answered one.
const OPEN_WAIT: Duration = Duration::from_secs(3);

/// One connection. Dropping it cuts it.
pub(super) struct Wire {
    pub(super) connection: Connection,
    /// The server's version.
    pub(super) version: String,
    cutter: Cutter,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.cutter.cut();
    }
}

/// Opens a connection. Our own client knocks first: it knows how to say why nobody lets us in, in the sink's
/// words, and hears the server's version, which lapin keeps to itself.
pub(super) async fn open(server: &Server, config: &RabbitmqConfig, name: &str) -> Result<Wire, Failure> {
    let options = ConnectOptions { options: &config.options, heartbeat_secs: config.heartbeat_secs, name };
    let knock = client::connect(server, options).await?;
    let version = knock.session().terms().product.version.clone();
    knock.close("the server lets us in").await;
    let unreachable = |why: String| Failure::of_sink("rabbitmq.unreachable", format!("{server}: {why}"));
    let login = SaslLogin::read(&config.options)
        .map_err(|error| Failure::of_sink("rabbitmq.config", error.to_string()))?;
    let cutter = Cutter::new(client::dial(server, &config.options).await?);
    let query = AMQPQueryString { heartbeat: Some(config.heartbeat_secs), ..Default::default() };
    let uri = AMQPUri { vhost: server.vhost.clone(), query, ..Default::default() };
    let properties = ConnectionProperties::default()
        .with_connection_name(name.into())
        .with_auth_provider(LapinLogin(login));
    let stream = Mutex::new(Some(cutter.stream()));
    let connect = async move |_, _| {
        let stream = locked(&stream).take();
        stream.map(AsyncTcpStream::Plain).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
    };
    let kit = Runtime::new(WireKit(Tokio::current()));
    let opened = timeout(OPEN_WAIT, Connection::connector(uri, kit, connect, properties)).await;
    match opened {
        Ok(Ok(connection)) => Ok(Wire { connection, version, cutter }),
        Ok(Err(error)) => {
            cutter.cut();
            Err(unreachable(error.to_string()))
        }
        Err(_) => {
            cutter.cut();
            Err(unreachable(format!("no connection within {} s", OPEN_WAIT.as_secs())))
        }
    }
}

/// The sink's login, as lapin asks for it.
struct LapinLogin(SaslLogin);

impl AuthProvider for LapinLogin {
    fn mechanism(&self) -> ShortString {
        self.0.mechanism.into()
    }

    fn auth_starter(&self) -> Result<LongString, String> {
        Ok(self.0.response.clone().into())
    }
}

/// Takes the socket out from under lapin.
#[derive(Clone)]
struct Cutter(Arc<Mutex<Socket>>);

struct Socket {
    /// `None`: it was cut.
    bytes: Option<Box<dyn ByteStream>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Cutter {
    fn new(bytes: Box<dyn ByteStream>) -> Self {
        Self(Arc::new(Mutex::new(Socket { bytes: Some(bytes), reader: None, writer: None })))
    }

    fn stream(&self) -> WireStream {
        WireStream(Arc::clone(&self.0))
    }

    fn cut(&self) {
        let mut socket = locked(&self.0);
        drop(socket.bytes.take());
        let wakers = [socket.reader.take(), socket.writer.take()];
        drop(socket);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// What lapin reads from and writes to.
struct WireStream(Arc<Mutex<Socket>>);

fn cut() -> Poll<io::Result<usize>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
}

impl AsyncRead for WireStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut socket = locked(&self.0);
        socket.reader = Some(context.waker().clone());
        let Some(bytes) = &mut socket.bytes else { return cut() };
        let mut buffer = ReadBuf::new(buffer);
        let read = TokioRead::poll_read(Pin::new(bytes), context, &mut buffer);
        read.map_ok(|()| buffer.filled().len())
    }
}

impl AsyncWrite for WireStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let mut socket = locked(&self.0);
        socket.writer = Some(context.waker().clone());
        let Some(bytes) = &mut socket.bytes else { return cut() };
        TokioWrite::poll_write(Pin::new(bytes), context, buffer)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = locked(&self.0);
        socket.writer = Some(context.waker().clone());
        let Some(bytes) = &mut socket.bytes else { return cut().map_ok(drop) };
        TokioWrite::poll_flush(Pin::new(bytes), context)
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        drop(locked(&self.0).bytes.take());
        Poll::Ready(Ok(()))
    }
}

/// The runtime that lapin asks for: this one, with streams that are ours.
#[derive(Debug, Clone)]
struct WireKit(Tokio);

impl RuntimeKit for WireKit {}

impl Executor for WireKit {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(work)
    }
}

impl Reactor for WireKit {
    type TcpStream = WireStream;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl futures_util::Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    /// The stream is there already. lapin does not dial.
    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
