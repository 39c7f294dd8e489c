//! One connection: requests out, replies in, in the same order.
//!
//! The client crate's own connection was here before, and cost as much as all the rest of the sink: it copies each
//! argument three times on the way to the socket (into a command, a request, a buffer) and reads replies with a parser
//! for every kind of them. What we send is written once, by `entry`, into the bytes that go to the socket; what comes
//! back is mostly ids of entries. The crate still writes commands that are not events, and its types say what a
//! server answers.
//!
//! A task carries the connection, and everybody who waits is told when it ends. A request whose caller has gone away
//! before it was written is not written.

use ::redis::{Cmd, Pipeline, RedisError, Value, parse_redis_value};
use bytes::{Buf, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

/// Requests that wait to be written; calls wait for room after that.
const QUEUED_REQUESTS: usize = 64;
/// What is read at once.
const READ_BYTES: usize = 16 << 10;
/// No answer to what we ask is near this.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// Lists in lists.
const DEPTH_MAX: usize = 8;

/// The sending end. Clones share the connection.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    requests: mpsc::Sender<Request>,
}

#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
    waiting: Waiting,
}

/// Whom replies are for.
#[derive(Debug)]
struct Waiting {
    replies: Vec<Value>,
    wanted: usize,
    answer: oneshot::Sender<Result<Vec<Value>, RedisError>>,
}

impl Connection {
    /// A connection over this stream, and what carries it. It ends with the stream, or with the last clone.
    pub(super) fn over<S>(stream: S) -> (Self, impl Future<Output = ()> + Send)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, queue) = mpsc::channel(QUEUED_REQUESTS);
        (Self { requests }, carry(stream, queue))
    }

    /// Commands that are written already, and as many replies as they have.
    pub(super) async fn send(&self, bytes: Vec<u8>, commands: usize) -> Result<Vec<Value>, RedisError> {
        if commands == 0 {
            return Ok(Vec::new());
        }
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { replies: Vec::with_capacity(commands), wanted: commands, answer };
        self.requests.send(Request { bytes, waiting }).await.map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }

    /// A reply for each command.
    pub(super) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.send(commands.get_packed_pipeline(), commands.len()).await
    }

    /// One command.
    pub(super) async fn send_one(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut replies = self.send(command.get_packed_command(), 1).await?;
        replies.pop().ok_or_else(ended)
    }
}

fn ended() -> RedisError {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection has ended").into()
}

/// Requests that were written, or are being written, and have no answer yet.
type Open = Arc<Mutex<VecDeque<Waiting>>>;

fn lock(open: &Open) -> MutexGuard<'_, VecDeque<Waiting>> {
    // Nothing under the lock panics half way.
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn carry<S: AsyncRead + AsyncWrite + Send>(stream: S, mut queue: mpsc::Receiver<Request>) {
    let (mut from, mut to) = tokio::io::split(stream);
    let open = Open::default();
    let ended = tokio::select! {
        ended = read(&mut from, &open) => ended,
        ended = write(&mut to, &mut queue, &open) => match ended {
            Ok(()) => return,
            // An alert of TLS, or what a server says before it hangs up, is still to be read, and says why.
            Err(_) => read(&mut from, &open).await,
        },
    };
    let Err(error) = ended else { return };
    queue.close();
    let unwritten = std::iter::from_fn(|| queue.try_recv().ok()).map(|request| request.waiting);
    for waiting in std::mem::take(&mut *lock(&open)).into_iter().chain(unwritten) {
        // Nobody waits any more: then there is nobody to tell.
        let _ = waiting.answer.send(Err(error.clone()));
    }
}

/// Until nobody has anything to send any more.
async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    queue: &mut mpsc::Receiver<Request>,
    open: &Open,
) -> io::Result<()> {
    while let Some(Request { bytes, waiting }) = queue.recv().await {
        if waiting.answer.is_closed() {
            continue;
        }
        // First: the answer may be here before the last byte has left.
        lock(open).push_back(waiting);
        to.write_all(&bytes).await?;
        to.flush().await?;
    }
    Ok(())
}

/// Until the server ends the connection, or says what nobody asked for.
async fn read(from: &mut (impl AsyncRead + Unpin), open: &Open) -> Result<(), RedisError> {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    loop {
        hand_out(&mut buffer, open)?;
        buffer.reserve(READ_BYTES);
        if from.read_buf(&mut buffer).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

/// Gives the replies that are complete to those who wait for them.
fn hand_out(buffer: &mut BytesMut, open: &Open) -> Result<(), RedisError> {
    let (mut open, mut used) = (lock(open), 0);
    while let Some((reply, length)) = reply(&buffer[used..], DEPTH_MAX)? {
        used += length;
        let Some(first) = open.front_mut() else { return Err(strange("an answer without a question")) };
        first.replies.push(reply);
        if first.replies.len() == first.wanted
            && let Some(Waiting { replies, answer, .. }) = open.pop_front()
        {
            // The caller may have gone away.
            let _ = answer.send(Ok(replies));
        }
    }
    buffer.advance(used);
    if buffer.len() > REPLY_BYTES_MAX { Err(strange("an endless answer")) } else { Ok(()) }
}

fn strange(what: &str) -> RedisError {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server sends {what}")).into()
}

/// The reply at the front and its length, if it is complete.
fn reply(bytes: &[u8], depth: usize) -> Result<Option<(Value, usize)>, RedisError> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let (line, begin) = (bytes[..end].trim_ascii_end(), end + 1);
    match line {
        [b'$', number @ ..] => text(bytes, begin, number),
        [b'*', number @ ..] => list(bytes, begin, number, depth),
        b"+QUEUED" => Ok(Some((Value::SimpleString("QUEUED".to_owned()), begin))),
        [b'+' | b'-' | b':', ..] => Ok(Some((parse_redis_value(&bytes[..begin])?, begin))),
        _ => Err(strange("something that is no answer")),
    }
}

fn text(bytes: &[u8], begin: usize, number: &[u8]) -> Result<Option<(Value, usize)>, RedisError> {
    let Some(length) = size(number)? else { return Ok(Some((Value::Nil, begin))) };
    let end = begin + length;
    let whole = bytes.get(begin..end + 2).map(|_| (Value::BulkString(bytes[begin..end].to_vec()), end + 2));
    Ok(whole)
}

fn list(
    bytes: &[u8],
    begin: usize,
    number: &[u8],
    depth: usize,
) -> Result<Option<(Value, usize)>, RedisError> {
    let Some(length) = size(number)? else { return Ok(Some((Value::Nil, begin))) };
    let depth = depth.checked_sub(1).ok_or_else(|| strange("lists in lists without end"))?;
    // What is still to come takes at least four bytes each.
    let mut values = Vec::with_capacity(length.min(bytes.len() / 4));
    let mut used = begin;
    for _ in 0..length {
        let Some((value, length)) = reply(&bytes[used..], depth)? else { return Ok(None) };
        values.push(value);
        used += length;
    }
    Ok(Some((Value::Array(values), used)))
}

/// A length; `None` for `-1`, which is nothing at all.
fn size(number: &[u8]) -> Result<Option<usize>, RedisError> {
    if number == b"-1" {
        return Ok(None);
    }
    let length = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
    let length: Option<usize> = length.filter(|length| *length <= REPLY_BYTES_MAX);
    length.map(Some).ok_or_else(|| strange("an impossible length"))
}

#[cfg(test)]
mod tests;
