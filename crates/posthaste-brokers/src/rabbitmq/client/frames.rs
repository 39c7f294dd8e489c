//! AMQP 0-9-1 on the wire, as far as a publisher needs it.
//!
//! A frame is a type, a channel, a length, that many bytes and an end mark. A method frame begins with its
//! class and number; arguments follow in the order of the specification. A publish is three kinds of frames
//! in a row: the method, a header with the properties, and the body in pieces. Here is only this syntax.
//! `table` says what a method means.

use super::answer::Close;
use bytes::{Buf, BufMut, Bytes, BytesMut};

const FRAME_METHOD: u8 = 1;
const FRAME_HEADER: u8 = 2;
const FRAME_BODY: u8 = 3;
const FRAME_HEARTBEAT: u8 = 8;
const FRAME_END: u8 = 0xce;
/// Type, channel and length before the bytes of a frame, and the mark behind them.
pub(super) const FRAME_OVERHEAD: usize = 8;
/// The longest short string: names and the like.
pub(crate) const SHORT_MAX: usize = 255;
/// The first bytes of a client.
pub(super) const PROTOCOL: &[u8] = b"AMQP\x00\x00\x09\x01";

const BASIC: u16 = 60;
const PERSISTENT: u8 = 2;
/// Bits of the properties that a message of ours may have.
const CONTENT_TYPE: u16 = 1 << 15;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
const TYPE: u16 = 1 << 5;
const APP_ID: u16 = 1 << 3;

/// The bytes are not AMQP, or break off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

type Parsed<T> = Result<T, Malformed>;

/// What a broker says to a publisher.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Heard {
    Start {
        product: Product,
        mechanisms: String,
    },
    Tune {
        channel_max: u16,
        frame_max: u32,
        heartbeat: u16,
    },
    OpenOk,
    ConnectionClose(Close),
    ConnectionCloseOk,
    Blocked(String),
    Unblocked,
    ChannelOpenOk,
    ChannelClose(Close),
    ChannelCloseOk,
    /// The broker's old way to slow a channel down. The broker wants an answer.
    Flow(bool),
    ExchangeDeclareOk,
    QueueDeclareOk,
    QosOk,
    SelectOk,
    Return(Close),
    /// The properties of a returned message, of which we read the message id.
    Header {
        size: u64,
        message_id: Option<String>,
    },
    Body(usize),
    Ack {
        tag: u64,
        multiple: bool,
    },
    Nack {
        tag: u64,
        multiple: bool,
    },
    Heartbeat,
    /// A method, by class and number, that does not concern a publisher.
    Other(u16, u16),
}

/// What the broker says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Product {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) cluster: String,
}

/// Takes the next whole frame out of the buffer. It is `None` if the frame is not complete yet.
pub(super) fn next_frame(buffer: &mut BytesMut, frame_max: usize) -> Parsed<Option<(u16, Heard)>> {
    if buffer.len() < FRAME_OVERHEAD {
        return Ok(None);
    }
    let size = u32::from_be_bytes([buffer[3], buffer[4], buffer[5], buffer[6]]) as usize;
    if size + FRAME_OVERHEAD > frame_max {
        return Err(Malformed);
    }
    if buffer.len() < size + FRAME_OVERHEAD {
        return Ok(None);
    }
    let mut frame = buffer.split_to(size + FRAME_OVERHEAD).freeze();
    if frame[size + FRAME_OVERHEAD - 1] != FRAME_END {
        return Err(Malformed);
    }
    let (kind, channel) = (frame.get_u8(), frame.get_u16());
    frame.advance(4);
    frame.truncate(size);
    let heard = match kind {
        FRAME_METHOD => method(&mut frame)?,
        FRAME_HEADER => content_header(&mut frame)?,
        FRAME_BODY => Heard::Body(size),
        FRAME_HEARTBEAT => Heard::Heartbeat,
        _ => return Err(Malformed),
    };
    Ok(Some((channel, heard)))
}

fn method(bytes: &mut Bytes) -> Parsed<Heard> {
    Ok(match (u16_of(bytes)?, u16_of(bytes)?) {
        (10, 10) => {
            skip(bytes, 2)?;
            let product = product(bytes)?;
            Heard::Start { product, mechanisms: long(bytes)? }
        }
        (10, 30) => {
            Heard::Tune { channel_max: u16_of(bytes)?, frame_max: u32_of(bytes)?, heartbeat: u16_of(bytes)? }
        }
        (10, 41) => Heard::OpenOk,
        (10, 50) => Heard::ConnectionClose(close(bytes)?),
        (10, 51) => Heard::ConnectionCloseOk,
        (10, 60) => Heard::Blocked(short(bytes)?),
        (10, 61) => Heard::Unblocked,
        (20, 11) => Heard::ChannelOpenOk,
        (20, 20) => Heard::Flow(u8_of(bytes)? & 1 == 1),
        (20, 40) => Heard::ChannelClose(close(bytes)?),
        (20, 41) => Heard::ChannelCloseOk,
        (40, 11) => Heard::ExchangeDeclareOk,
        (50, 11) => Heard::QueueDeclareOk,
        (60, 11) => Heard::QosOk,
        (60, 50) => Heard::Return(close(bytes)?),
        (60, 80) => Heard::Ack { tag: u64_of(bytes)?, multiple: u8_of(bytes)? & 1 == 1 },
        (60, 120) => Heard::Nack { tag: u64_of(bytes)?, multiple: u8_of(bytes)? & 1 == 1 },
        (85, 11) => Heard::SelectOk,
        (class, number) => Heard::Other(class, number),
    })
}

/// A return begins like a close: a code and a text.
fn close(bytes: &mut Bytes) -> Parsed<Close> {
    Ok(Close { code: u16_of(bytes)?, text: short(bytes)? })
}

fn product(bytes: &mut Bytes) -> Parsed<Product> {
    let mut product = Product::default();
    each_field(bytes, |name, text| match name {
        "product" => product.name = text.to_owned(),
        "version" => product.version = text.to_owned(),
        "cluster_name" => product.cluster = text.to_owned(),
        _ => {}
    })?;
    Ok(product)
}

fn content_header(bytes: &mut Bytes) -> Parsed<Heard> {
    skip(bytes, 4)?;
    let (size, flags) = (u64_of(bytes)?, u16_of(bytes)?);
    if flags & CONTENT_TYPE != 0 {
        short(bytes)?;
    }
    if flags & HEADERS != 0 {
        each_field(bytes, |_, _| {})?;
    }
    if flags & DELIVERY_MODE != 0 {
        skip(bytes, 1)?;
    }
    // It is our own message that comes back, so no property stands in between that we never send.
    let message_id = if flags & MESSAGE_ID != 0 { Some(short(bytes)?) } else { None };
    Ok(Heard::Header { size, message_id })
}

/// Reads a table, and calls `field` for each text in it.
fn each_field(bytes: &mut Bytes, mut field: impl FnMut(&str, &str)) -> Parsed<()> {
    let size = u32_of(bytes)? as usize;
    let mut table = take(bytes, size)?;
    while table.has_remaining() {
        let name = short(&mut table)?;
        match u8_of(&mut table)? {
            b'S' => field(&name, &long(&mut table)?),
            kind => skip_value(kind, &mut table)?,
        }
    }
    Ok(())
}

fn skip_value(kind: u8, bytes: &mut Bytes) -> Parsed<()> {
    let size = match kind {
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'L' | b'l' | b'd' | b'T' => 8,
        b'F' | b'A' | b'x' | b'S' => u32_of(bytes)? as usize,
        _ => return Err(Malformed),
    };
    skip(bytes, size)
}

fn take(bytes: &mut Bytes, size: usize) -> Parsed<Bytes> {
    if bytes.len() < size { Err(Malformed) } else { Ok(bytes.split_to(size)) }
}

fn skip(bytes: &mut Bytes, size: usize) -> Parsed<()> {
    take(bytes, size).map(drop)
}

fn u8_of(bytes: &mut Bytes) -> Parsed<u8> {
    bytes.try_get_u8().map_err(|_| Malformed)
}

fn u16_of(bytes: &mut Bytes) -> Parsed<u16> {
    bytes.try_get_u16().map_err(|_| Malformed)
}

fn u32_of(bytes: &mut Bytes) -> Parsed<u32> {
    bytes.try_get_u32().map_err(|_| Malformed)
}

fn u64_of(bytes: &mut Bytes) -> Parsed<u64> {
    bytes.try_get_u64().map_err(|_| Malformed)
}

/// Texts are for people and for comparison, so what is not UTF-8 is replaced.
fn short(bytes: &mut Bytes) -> Parsed<String> {
    let size = usize::from(u8_of(bytes)?);
    Ok(String::from_utf8_lossy(&take(bytes, size)?).into_owned())
}

fn long(bytes: &mut Bytes) -> Parsed<String> {
    let size = u32_of(bytes)? as usize;
    Ok(String::from_utf8_lossy(&take(bytes, size)?).into_owned())
}

/// Appends a frame whose bytes `fill` writes.
fn frame(out: &mut Vec<u8>, kind: u8, channel: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    out.put_u8(kind);
    out.put_u16(channel);
    let at = out.len();
    out.put_u32(0);
    fill(out);
    let size = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&size.to_be_bytes());
    out.put_u8(FRAME_END);
}

fn method_frame(out: &mut Vec<u8>, channel: u16, class: u16, number: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    frame(out, FRAME_METHOD, channel, |out| {
        out.put_u16(class);
        out.put_u16(number);
        fill(out);
    });
}

/// The text must fit. Whoever builds a message has checked that.
fn put_short(out: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() <= SHORT_MAX);
    out.put_u8(text.len().min(SHORT_MAX) as u8);
    out.put_slice(&text.as_bytes()[..text.len().min(SHORT_MAX)]);
}

fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

/// A table whose fields `fill` writes.
fn put_table(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.put_u32(0);
    fill(out);
    let size = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&size.to_be_bytes());
}

/// A text field of a table.
pub(crate) fn put_field(out: &mut Vec<u8>, name: &str, text: &str) {
    put_short(out, name);
    out.put_u8(b'S');
    put_long(out, text.as_bytes());
}

/// How we introduce ourselves. `response` holds the secret.
pub(super) fn start_ok(out: &mut Vec<u8>, name: &str, mechanism: &str, response: &[u8]) {
    method_frame(out, 0, 10, 11, |out| {
        put_table(out, |out| {
            put_field(out, "product", "Posthaste");
            put_field(out, "version", env!("CARGO_PKG_VERSION"));
            put_field(out, "platform", "Rust");
            put_field(out, "connection_name", name);
            put_short(out, "capabilities");
            out.put_u8(b'F');
            put_table(out, |out| {
                // Without the last one a broker answers a wrong password by hanging up.
                for what in
                    ["publisher_confirms", "basic.nack", "connection.blocked", "authentication_failure_close"]
                {
                    put_short(out, what);
                    out.put_slice(b"t\x01");
                }
            });
        });
        put_short(out, mechanism);
        put_long(out, response);
        put_short(out, "en_US");
    });
}

pub(super) fn tune_ok(out: &mut Vec<u8>, channel_max: u16, frame_max: u32, heartbeat: u16) {
    method_frame(out, 0, 10, 31, |out| {
        out.put_u16(channel_max);
        out.put_u32(frame_max);
        out.put_u16(heartbeat);
    });
}

pub(super) fn open(out: &mut Vec<u8>, vhost: &str) {
    method_frame(out, 0, 10, 40, |out| {
        put_short(out, vhost);
        out.put_slice(&[0, 0]);
    });
}

pub(super) fn connection_close(out: &mut Vec<u8>) {
    method_frame(out, 0, 10, 50, |out| {
        out.put_u16(200);
        put_short(out, "closed");
        out.put_u32(0);
    });
}

pub(super) fn connection_close_ok(out: &mut Vec<u8>) {
    method_frame(out, 0, 10, 51, |_| {});
}

pub(super) fn channel_open(out: &mut Vec<u8>, channel: u16) {
    method_frame(out, channel, 20, 10, |out| put_short(out, ""));
}

pub(super) fn flow_ok(out: &mut Vec<u8>, channel: u16, active: bool) {
    method_frame(out, channel, 20, 21, |out| out.put_u8(u8::from(active)));
}

pub(super) fn channel_close_ok(out: &mut Vec<u8>, channel: u16) {
    method_frame(out, channel, 20, 41, |_| {});
}

pub(super) fn confirm_select(out: &mut Vec<u8>, channel: u16) {
    method_frame(out, channel, 85, 10, |out| out.put_u8(0));
}

/// A ping, and a barrier. It changes nothing, needs no right, and is answered after everything before it.
pub(super) fn qos(out: &mut Vec<u8>, channel: u16) {
    method_frame(out, channel, BASIC, 10, |out| out.put_slice(&[0; 7]));
}

/// Asks whether an exchange is there.
pub(super) fn exchange_declare_passive(out: &mut Vec<u8>, channel: u16, exchange: &str) {
    method_frame(out, channel, 40, 10, |out| {
        out.put_u16(0);
        put_short(out, exchange);
        put_short(out, "direct");
        out.put_u8(1);
        out.put_u32(0);
    });
}

/// Asks whether a queue is there.
pub(super) fn queue_declare_passive(out: &mut Vec<u8>, channel: u16, queue: &str) {
    method_frame(out, channel, 50, 10, |out| {
        out.put_u16(0);
        put_short(out, queue);
        out.put_u8(1);
        out.put_u32(0);
    });
}

pub(super) fn heartbeat(out: &mut Vec<u8>) {
    frame(out, FRAME_HEARTBEAT, 0, |_| {});
}

/// The properties of a message. Whoever fills them leaves out texts that are too long for their place.
#[derive(Debug, Default)]
pub(crate) struct Properties<'a> {
    pub(crate) content_type: Option<&'a str>,
    pub(crate) message_id: &'a str,
    pub(crate) timestamp: u64,
    pub(crate) kind: Option<&'a str>,
    pub(crate) app_id: Option<&'a str>,
}

impl Properties<'_> {
    /// The flags and the values, in the order of the bits. `fill` writes the fields of the headers.
    pub(crate) fn encode(&self, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        let bit = |there: bool, bit: u16| if there { bit } else { 0 };
        let flags = HEADERS | DELIVERY_MODE | MESSAGE_ID | TIMESTAMP;
        let texts = [(self.content_type, CONTENT_TYPE), (self.kind, TYPE), (self.app_id, APP_ID)];
        out.put_u16(texts.iter().fold(flags, |flags, (text, one)| flags | bit(text.is_some(), *one)));
        if let Some(text) = self.content_type {
            put_short(&mut out, text);
        }
        put_table(&mut out, fill);
        out.put_u8(PERSISTENT);
        put_short(&mut out, self.message_id);
        out.put_u64(self.timestamp);
        for text in [self.kind, self.app_id].into_iter().flatten() {
            put_short(&mut out, text);
        }
        out
    }
}

/// Size of a content header's frame with these properties.
pub(crate) fn header_frame_size(properties: &[u8]) -> usize {
    properties.len() + 12 + FRAME_OVERHEAD
}

/// A whole publish. It is `mandatory`, so that a message that no queue takes comes back.
pub(super) fn publish(
    out: &mut Vec<u8>,
    channel: u16,
    place: (&str, &str),
    properties: &[u8],
    body: &[u8],
    frame_max: usize,
) {
    method_frame(out, channel, BASIC, 40, |out| {
        out.put_u16(0);
        put_short(out, place.0);
        put_short(out, place.1);
        out.put_u8(1);
    });
    frame(out, FRAME_HEADER, channel, |out| {
        out.put_u16(BASIC);
        out.put_u16(0);
        out.put_u64(body.len() as u64);
        out.put_slice(properties);
    });
    for piece in body.chunks(frame_max - FRAME_OVERHEAD) {
        frame(out, FRAME_BODY, channel, |out| out.put_slice(piece));
    }
}

#[cfg(test)]
mod tests;
