//! What a server sends, read in place.
//!
//! The protocol is lines, some followed by as many bytes as they say. [`Reader`] keeps what has come, hands out
//! frames that point into it, and copies none of them: 100,000 acknowledgements a second are read without an
//! allocation.
//!
//! The network cuts anywhere, and a server may be mad. What was looked at is not looked at again: the reader knows
//! how far it has searched for the end of a line, and how many bytes a message needs before it is worth another look.
//! A line and a message that are kept have a bound. A message beyond it is nobody's acknowledgement, so its bytes are
//! dropped as they come: somebody who answers on our inbox with a file must not end the connection of everybody else.
//! Anything else that is no frame does end it, because nobody knows where the next one begins.

use std::ops::Range;

/// Read at once; the buffer's usual size.
const READ_BYTES: usize = 64 << 10;
/// Less room than this at the end of the buffer, and what is unread moves to its front.
const ROOM_BYTES: usize = 16 << 10;
/// `INFO` names every server of a cluster.
const LINE_BYTES_MAX: usize = 256 << 10;
/// Nothing that we ask for is near this.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// An error is kept and shown; it names a subject at most.
const WORDS_BYTES_MAX: usize = 8 << 10;
/// As many digits as a server takes itself.
const DIGITS_MAX: usize = 9;

/// One thing that the server says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    Message(Message<'a>),
    /// JSON.
    Info(&'a [u8]),
    /// Without its quotes; a very long one is cut.
    Error(&'a str),
    Ping,
    Pong,
    Ok,
}

/// A message of our inbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) subject: &'a [u8],
    /// Headers as they came; empty if there are none.
    pub(super) head: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl Message<'_> {
    /// The number in the first line of the headers, as in `NATS/1.0 503`.
    pub(super) fn status(&self) -> Option<u16> {
        let rest = self.head.strip_prefix(b"NATS/1.0")?.trim_ascii_start();
        let digits = rest.get(..3)?;
        // Letters or a line's end: then it is a header's name that begins here, or nothing.
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0, |n, d| n * 10 + u16::from(d - b'0')))
    }
}

/// It does not speak our protocol, or no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server sends {0}")]
pub(super) struct Strange(&'static str);

/// What has come and is not understood yet.
pub(super) struct Reader {
    /// Initialised to its end; unread is `begin..end`.
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    /// From `begin` on, there is no end of a line in as many bytes.
    searched: usize,
    /// From `begin` on, another look is worth it with as many bytes.
    wanted: usize,
    /// To be dropped.
    skip: usize,
}

/// A line, with places in it.
enum Line {
    Message { subject: Range<usize>, head: usize, total: usize },
    Info(Range<usize>),
    Error(Range<usize>),
    Ping,
    Pong,
    Ok,
}

impl Default for Reader {
    fn default() -> Self {
        Self { buffer: vec![0; READ_BYTES], begin: 0, end: 0, searched: 0, wanted: 0, skip: 0 }
    }
}

impl Reader {
    /// Where the next bytes go. Never empty.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
            if self.buffer.len() > READ_BYTES {
                self.buffer = vec![0; READ_BYTES];
            }
        }
        if self.buffer.len() - self.end < ROOM_BYTES && self.begin > 0 {
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.buffer.len() - self.end < ROOM_BYTES {
            // Both are bounded: see `line_end` and `next`.
            let size = (self.buffer.len() * 2).max(self.wanted + ROOM_BYTES);
            self.buffer.resize(size, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// As many bytes of [`room`](Self::room) are filled now.
    pub(super) fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.buffer.len());
    }

    /// Whether nothing is left: what came before a handshake of TLS must not be taken for what comes after it.
    pub(super) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// The next frame, if it is all there.
    pub(super) fn next(&mut self) -> Result<Option<Frame<'_>>, Strange> {
        loop {
            self.drop_skipped();
            if self.end - self.begin < self.wanted {
                return Ok(None);
            }
            let Some(line_end) = self.line_end()? else { return Ok(None) };
            let begin = self.begin;
            match read_line(&self.buffer[begin..begin + line_end])? {
                Line::Message { total, .. } if total > MESSAGE_BYTES_MAX => {
                    self.skip = line_end + 1 + total + 2;
                    self.consume(0);
                }
                Line::Message { subject, head, total } => {
                    let (body, size) = (begin + line_end + 1, line_end + 1 + total + 2);
                    if self.end - begin < size {
                        self.wanted = size;
                        return Ok(None);
                    }
                    if self.buffer[body + total..body + total + 2] != *b"\r\n" {
                        return Err(Strange("a message of another length than it says"));
                    }
                    self.consume(size);
                    let bytes = &self.buffer;
                    return Ok(Some(Frame::Message(Message {
                        subject: &bytes[begin + subject.start..begin + subject.end],
                        head: &bytes[body..body + head],
                        payload: &bytes[body + head..body + total],
                    })));
                }
                line => {
                    self.consume(line_end + 1);
                    return Ok(Some(line.frame(&self.buffer[begin..])));
                }
            }
        }
    }

    fn consume(&mut self, bytes: usize) {
        self.begin += bytes;
        (self.searched, self.wanted) = (0, 0);
    }

    fn drop_skipped(&mut self) {
        let dropped = self.skip.min(self.end - self.begin);
        self.begin += dropped;
        self.skip -= dropped;
    }

    /// Where the first line ends, from `begin` on.
    fn line_end(&mut self) -> Result<Option<usize>, Strange> {
        let unread = &self.buffer[self.begin..self.end];
        let found = unread[self.searched..].iter().position(|byte| *byte == b'\n');
        self.searched += found.unwrap_or(unread.len() - self.searched);
        if self.searched > LINE_BYTES_MAX {
            return Err(Strange("a line without an end"));
        }
        Ok(found.map(|_| self.searched))
    }
}

impl Line {
    fn frame(self, bytes: &[u8]) -> Frame<'_> {
        match self {
            Self::Info(place) => Frame::Info(&bytes[place]),
            Self::Error(place) => Frame::Error(words(&bytes[place])),
            Self::Ping => Frame::Ping,
            Self::Pong => Frame::Pong,
            Self::Ok | Self::Message { .. } => Frame::Ok,
        }
    }
}

/// As much of it as is text.
fn words(bytes: &[u8]) -> &str {
    let bytes = &bytes[..bytes.len().min(WORDS_BYTES_MAX)];
    std::str::from_utf8(bytes)
        .or_else(|error| std::str::from_utf8(&bytes[..error.valid_up_to()]))
        .unwrap_or_default()
}

/// Reads a line without its `\n`.
fn read_line(line: &[u8]) -> Result<Line, Strange> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let verb_end = line.iter().position(|byte| is_space(*byte)).unwrap_or(line.len());
    let (verb, rest) = (&line[..verb_end], verb_end..line.len());
    let is = |name: &[u8]| verb.eq_ignore_ascii_case(name);
    if is(b"MSG") {
        message(line, rest, false)
    } else if is(b"HMSG") {
        message(line, rest, true)
    } else if is(b"PING") {
        Ok(Line::Ping)
    } else if is(b"PONG") {
        Ok(Line::Pong)
    } else if is(b"+OK") {
        Ok(Line::Ok)
    } else if is(b"INFO") {
        Ok(Line::Info(rest))
    } else if is(b"-ERR") {
        Ok(Line::Error(unquoted(line, rest)))
    } else {
        Err(Strange("something that is not NATS"))
    }
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// `subject sid [reply] bytes`, or `subject sid [reply] head total`.
fn message(line: &[u8], rest: Range<usize>, has_head: bool) -> Result<Line, Strange> {
    let (mut words, mut count) = ([const { 0..0 }; 5], 0);
    let mut at = rest.start;
    while at < rest.end {
        let length = line[at..rest.end].iter().position(|byte| is_space(*byte)).unwrap_or(rest.end - at);
        if length > 0 {
            *words.get_mut(count).ok_or(Strange("a message with too many words"))? = at..at + length;
            count += 1;
        }
        at += length + 1;
    }
    let sizes = 1 + usize::from(has_head);
    if !(2 + sizes..=3 + sizes).contains(&count) {
        return Err(Strange("a message with too few words"));
    }
    let total = number(&line[words[count - 1].clone()])?;
    let head = if has_head { number(&line[words[count - 2].clone()])? } else { 0 };
    if head > total {
        return Err(Strange("a message that is shorter than its headers"));
    }
    Ok(Line::Message { subject: words[0].clone(), head, total })
}

fn number(digits: &[u8]) -> Result<usize, Strange> {
    if digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Strange("an impossible length"));
    }
    Ok(digits.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

/// The place of an error's words: `'Stale Connection'`.
fn unquoted(line: &[u8], mut place: Range<usize>) -> Range<usize> {
    let odd = |byte: u8| is_space(byte) || byte == b'\'';
    while place.start < place.end && odd(line[place.start]) {
        place.start += 1;
    }
    while place.start < place.end && odd(line[place.end - 1]) {
        place.end -= 1;
    }
    place
}

#[cfg(test)]
mod tests;
