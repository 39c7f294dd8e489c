//! A broker in a test's hand. It says what no real one can be made to say in that order: answers that do not
//! come, answers that come late, floods. It speaks as much of AMQP 0-9-1 as a publisher needs.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const END: u8 = 0xce;
const FRAME_MAX: u32 = 128 << 10;

/// A port where it listens.
pub(super) struct Fake {
    listener: TcpListener,
    addr: SocketAddr,
}

/// One client.
pub(super) struct Peer {
    stream: TcpStream,
    input: BytesMut,
    /// Channels on which a question behind a message is not answered.
    pub(super) mute: Vec<u16>,
    /// What the client has agreed to.
    pub(super) heartbeat_secs: u16,
}

/// A message that has come in whole.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) channel: u16,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    properties: Bytes,
    body: Bytes,
}

impl Fake {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        Self { listener, addr }
    }

    pub(super) fn url(&self) -> String {
        format!("amqp://{}", self.addr)
    }

    /// Lets the next client in.
    pub(super) async fn accept(&self) -> Peer {
        self.accept_with(60).await
    }

    /// Lets the next client in and asks for this heartbeat.
    pub(super) async fn accept_with(&self, heartbeat_secs: u16) -> Peer {
        let (stream, _) = self.listener.accept().await.expect("a client");
        let mut peer = Peer { stream, input: BytesMut::new(), mute: Vec::new(), heartbeat_secs: 0 };
        peer.take(8).await.expect("a greeting");
        let mut start = vec![0, 9];
        start.put_u32(0);
        start.put_u32(5);
        start.put_slice(b"PLAIN");
        start.put_u32(5);
        start.put_slice(b"en_US");
        peer.say(0, (10, 10), &start).await;
        peer.hears(10, 11).await;
        let mut tune = vec![0, 0];
        tune.put_u32(FRAME_MAX);
        tune.put_u16(heartbeat_secs);
        peer.say(0, (10, 30), &tune).await;
        let mut agreed = peer.hears(10, 31).await;
        agreed.advance(6);
        peer.heartbeat_secs = agreed.get_u16();
        peer.hears(10, 40).await;
        peer.say(0, (10, 41), &[0]).await;
        peer
    }
}

impl Peer {
    /// That many bytes, unless the client goes first.
    async fn take(&mut self, size: usize) -> Option<Bytes> {
        while self.input.len() < size {
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
        Some(self.input.split_to(size).freeze())
    }

    /// The next frame: its kind, its channel and its bytes.
    async fn frame(&mut self) -> Option<(u8, u16, Bytes)> {
        let mut head = self.take(7).await?;
        let (kind, channel, size) = (head.get_u8(), head.get_u16(), head.get_u32() as usize);
        let bytes = self.take(size + 1).await?;
        assert_eq!(bytes[size], END, "a frame ends where it should");
        Some((kind, channel, bytes.slice(..size)))
    }

    /// This method and no other: its arguments.
    async fn hears(&mut self, class: u16, method: u16) -> Bytes {
        let (kind, _, mut bytes) = self.frame().await.expect("a frame");
        assert_eq!((kind, bytes.get_u16(), bytes.get_u16()), (METHOD, class, method));
        bytes
    }

    async fn write(&mut self, kind: u8, channel: u16, bytes: &[u8]) {
        let mut frame = Vec::with_capacity(bytes.len() + 8);
        frame.put_u8(kind);
        frame.put_u16(channel);
        frame.put_u32(bytes.len() as u32);
        frame.put_slice(bytes);
        frame.put_u8(END);
        self.stream.write_all(&frame).await.expect("written");
    }

    pub(super) async fn say(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) {
        let mut bytes = Vec::with_capacity(arguments.len() + 4);
        bytes.put_u16(class);
        bytes.put_u16(method);
        bytes.put_slice(arguments);
        self.write(METHOD, channel, &bytes).await;
    }

    pub(super) async fn ack(&mut self, channel: u16, tag: u64, multiple: bool) {
        let mut arguments = tag.to_be_bytes().to_vec();
        arguments.put_u8(multiple.into());
        self.say(channel, (60, 80), &arguments).await;
    }

    /// No queue takes it.
    pub(super) async fn give_back(&mut self, message: &Published) {
        let mut arguments = 312_u16.to_be_bytes().to_vec();
        for text in ["NO_ROUTE", &message.exchange, &message.routing_key] {
            arguments.put_u8(text.len() as u8);
            arguments.put_slice(text.as_bytes());
        }
        self.say(message.channel, (60, 50), &arguments).await;
        let mut header = vec![0, 60, 0, 0];
        header.put_u64(message.body.len() as u64);
        header.put_slice(&message.properties);
        self.write(HEADER, message.channel, &header).await;
        if !message.body.is_empty() {
            self.write(BODY, message.channel, &message.body).await;
        }
    }

    /// Answers every question until a message begins: exchange, routing key and channel. `None`: the client
    /// is gone.
    pub(super) async fn until_publish(&mut self) -> Option<(u16, String, String)> {
        loop {
            let (kind, channel, mut bytes) = self.frame().await?;
            if kind != METHOD {
                continue;
            }
            let answer: &[u8] = match (bytes.get_u16(), bytes.get_u16()) {
                (10, 50) => {
                    self.say(0, (10, 51), &[]).await;
                    return None;
                }
                (20, 10) => {
                    self.say(channel, (20, 11), &[0; 4]).await;
                    continue;
                }
                (60, 10) if self.mute.contains(&channel) => continue,
                (60, 10) => &[0, 60, 0, 11],
                (85, 10) => &[0, 85, 0, 11],
                (60, 40) => {
                    bytes.advance(2);
                    return Some((channel, short(&mut bytes), short(&mut bytes)));
                }
                (class, method) => panic!("{class}.{method} is no publisher's"),
            };
            self.write(METHOD, channel, answer).await;
        }
    }

    /// The rest of a message that has begun.
    pub(super) async fn rest(&mut self, begun: (u16, String, String)) -> Option<Published> {
        let (channel, exchange, routing_key) = begun;
        let (kind, _, mut header) = self.frame().await?;
        assert_eq!(kind, HEADER);
        header.advance(4);
        let (size, mut body) = (header.get_u64() as usize, BytesMut::new());
        while body.len() < size {
            body.extend_from_slice(&self.frame().await?.2);
        }
        Some(Published { channel, exchange, routing_key, properties: header, body: body.freeze() })
    }

    pub(super) async fn published(&mut self) -> Option<Published> {
        let begun = self.until_publish().await?;
        self.rest(begun).await
    }

    /// Says nothing more, and waits until the client goes.
    pub(super) async fn until_gone(mut self) {
        while self.frame().await.is_some() {}
    }

    /// Confirms all that comes, until the client goes.
    pub(super) async fn confirm_all(mut self) {
        let mut tags = std::collections::HashMap::new();
        while let Some(message) = self.published().await {
            let tag = tags.entry(message.channel).or_insert(0);
            *tag += 1;
            self.ack(message.channel, *tag, false).await;
        }
    }
}

fn short(bytes: &mut Bytes) -> String {
    let size = usize::from(bytes.get_u8());
    String::from_utf8(bytes.split_to(size).to_vec()).expect("UTF-8")
}
