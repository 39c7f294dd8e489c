//! A message in the words of the protocol, written once, into the bytes that go to the socket.
//!
//! ```text
//! HPUB <subject> <reply> <bytes of head> <bytes of head and payload>\r\n
//! NATS/1.0\r\n
//! Nats-Msg-Id: <event id>:<subject>\r\n
//! <name>: <value>\r\n ...
//! \r\n
//! <payload>\r\n
//! ```
//!
//! The line names lengths that are known after the headers are written, so those are written beside and copied: some
//! 300 bytes, cheaper than walking through the headers twice.
//!
//! `Nats-Msg-Id` is the id and the subject. A stream that takes several subjects remembers ids for all of them together:
//! with the id alone, an event that goes to two of them, or to another one when its destination was corrected, would be
//! acknowledged as a duplicate there and stored nowhere.
//!
//! It is the first header. A server looks for the first place where `Nats-Msg-Id` stands, and some give up when
//! that place is inside another header's value; and an event's own header of that name is left out, so it can neither
//! take another event's place nor give its own away.

use super::verdict;
use posthaste::sink::{Message, Verdict};
use uuid::Uuid;

const MESSAGE_ID: &str = "Nats-Msg-Id";
/// What tells a tombstone from an empty payload.
const TOMBSTONE: &str = "Posthaste-Tombstone";
/// Around subject, headers and payload: verb, lengths, line ends.
const AROUND: usize = 64;

/// Writes messages.
#[derive(Debug, Default)]
pub(super) struct Pen {
    head: Vec<u8>,
    /// The last subject that was found good: most messages of a call have the same.
    good: String,
}

impl Pen {
    /// Appends a message whose answer is to go to `reply` and this index, or says why it cannot travel: then nothing
    /// is appended.
    pub(super) fn write(
        &mut self,
        message: &Message,
        (reply, index): (&[u8], usize),
        bytes_max: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Verdict> {
        self.check_subject(&message.destination)?;
        self.write_head(message)?;
        let payload = message.payload.as_deref().unwrap_or_default();
        let (head, total) = (self.head.len(), self.head.len() + payload.len());
        if total > bytes_max {
            return Err(verdict::too_large(total, bytes_max));
        }
        bytes.reserve(total + message.destination.len() + reply.len() + AROUND);
        bytes.extend_from_slice(b"HPUB ");
        bytes.extend_from_slice(message.destination.as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(reply);
        number(index, 16, bytes);
        bytes.push(b' ');
        number(head, 10, bytes);
        bytes.push(b' ');
        number(total, 10, bytes);
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.head);
        bytes.extend_from_slice(payload);
        bytes.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn check_subject(&mut self, subject: &str) -> Result<(), Verdict> {
        if self.good != subject || subject.is_empty() {
            verdict::check_subject(subject).map_err(|why| verdict::bad_subject(subject, why))?;
            self.good.clear();
            self.good.push_str(subject);
        }
        Ok(())
    }

    fn write_head(&mut self, message: &Message) -> Result<(), Verdict> {
        let (head, mut bad) = (&mut self.head, None);
        head.clear();
        head.extend_from_slice(b"NATS/1.0\r\n");
        let mut id = Uuid::encode_buffer();
        let id = message.stored.event.id.hyphenated().encode_lower(&mut id);
        for part in [MESSAGE_ID, ": ", id, ":", &message.destination, "\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        let is_tombstone = message.payload.is_none();
        if is_tombstone {
            header(TOMBSTONE, "true", head);
        }
        message.each_header(|name, value| {
            if !can_travel(name, value) {
                bad = Some(verdict::bad_header(name));
            } else if name != MESSAGE_ID && !(is_tombstone && name == TOMBSTONE) {
                header(name, value, head);
            }
        });
        head.extend_from_slice(b"\r\n");
        bad.map_or(Ok(()), Err)
    }
}

fn header(name: &str, value: &str, head: &mut Vec<u8>) {
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value.as_bytes());
    head.extend_from_slice(b"\r\n");
}

fn can_travel(name: &str, value: &str) -> bool {
    // Without a way out in the middle: so the compiler makes a few wide comparisons of it.
    let bad_name = name.bytes().fold(name.is_empty(), |bad, b| bad | !b.is_ascii_graphic() | (b == b':'));
    let bad_value = value.bytes().fold(false, |bad, b| bad | (b == b'\r') | (b == b'\n'));
    !bad_name && !bad_value
}

/// Formatting is a good part of the work otherwise.
pub(super) fn number(mut number: usize, base: usize, bytes: &mut Vec<u8>) {
    let (mut digits, mut at) = ([0; 20], 20);
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[number % base];
        number /= base;
        if number == 0 {
            break;
        }
    }
    bytes.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::event::{Event, StoredEvent, Timestamp};

    fn message(event: Event) -> Message {
        let payload = event.payload.clone();
        let appended_at = Timestamp(1_700_000_000_000_000);
        Message {
            stored: StoredEvent { seq: 1, slot: 0, appended_at, event, defect: None },
            destination: "s.x".to_owned(),
            payload,
            ordered: true,
            source: "shop".into(),
            envelope: Default::default(),
            partition_key: None,
        }
    }

    /// The line, the headers in order, the payload.
    fn written(message: &Message) -> (String, Vec<(String, String)>, Vec<u8>) {
        let mut bytes = b"before".to_vec();
        Pen::default().write(message, (b"I.1-", 0x2f), 1 << 20, &mut bytes).expect("written");
        let text = String::from_utf8(bytes).expect("text");
        let (line, rest) =
            text.strip_prefix("before").and_then(|text| text.split_once("\r\n")).expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[..3], ["HPUB", "s.x", "I.1-2f"]);
        let (head, total): (usize, usize) = (words[3].parse().expect("n"), words[4].parse().expect("n"));
        assert_eq!(rest.len(), total + 2);
        let lines = rest[..head].strip_prefix("NATS/1.0\r\n").and_then(|text| text.strip_suffix("\r\n\r\n"));
        let pair =
            |line: &str| line.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a pair");
        let headers = lines.expect("headers").split("\r\n").map(pair).collect();
        (line.to_owned(), headers, rest.as_bytes()[head..total].to_vec())
    }

    #[test]
    fn the_id_is_first_and_alone_whatever_the_event_says() {
        let event = Event::new("orders.placed", "body").with_key("k: \t\u{1f600}");
        let event = event.with_header("Nats-Msg-Id", "theirs").with_header("x", "a Nats-Msg-Id: b");
        let (_, headers, payload) = written(&message(event.clone()));
        assert_eq!(headers[0], ("Nats-Msg-Id".to_owned(), format!("{}:s.x", event.id)));
        assert_eq!(headers[1], ("Message-ID".to_owned(), event.id.to_string()));
        assert_eq!(headers.iter().filter(|(name, _)| name == "Nats-Msg-Id").count(), 1);
        let of = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert_eq!(of("key"), Some("k: \t\u{1f600}"));
        assert_eq!(of("x"), Some("a Nats-Msg-Id: b"));
        assert_eq!((of("Posthaste-Tombstone"), payload.as_slice()), (None, b"body".as_slice()));
    }

    #[test]
    fn a_tombstone_says_so_once() {
        let event = Event::tombstone("orders.placed").with_header("Posthaste-Tombstone", "no");
        let (_, headers, payload) = written(&message(event));
        let said: Vec<_> = headers.iter().filter(|(name, _)| name == "Posthaste-Tombstone").collect();
        assert_eq!((said.len(), said[0].1.as_str(), payload.len()), (1, "true", 0));
    }

    #[test]
    fn what_cannot_travel_leaves_nothing_behind() {
        let code = |message: &Message, most: usize| {
            let mut bytes = b"before".to_vec();
            let verdict = Pen::default().write(message, (b"I.", 0), most, &mut bytes).expect_err("refused");
            assert_eq!(bytes, b"before");
            match verdict {
                Verdict::Rejected(failure) => failure.code.to_string(),
                other => panic!("{other:?}"),
            }
        };
        let plain = || Event::new("orders.placed", "body");
        for (name, value) in [("a b", "x"), ("a:b", "x"), ("ä", "x"), ("", "x"), ("a", "x\ny"), ("a", "\r")]
        {
            let message = message(plain().with_header(name, value));
            assert_eq!(code(&message, 9_999), "nats.bad_header", "{name:?} {value:?}");
        }
        assert_eq!(code(&message(plain().with_key("k\r\nNats-Msg-Id: x")), 9_999), "nats.bad_header");
        assert_eq!(code(&message(plain()), 20), "nats.too_large");
        let to = |subject: &str| Message { destination: subject.to_owned(), ..message(plain()) };
        for subject in ["", "a b", "a..b", "$JS.API.X", "a\r\nPUB x 0"] {
            assert_eq!(code(&to(subject), 9_999), "nats.bad_subject", "{subject:?}");
        }
    }

    #[test]
    fn numbers() {
        let written = |n, base| {
            let mut bytes = Vec::new();
            number(n, base, &mut bytes);
            String::from_utf8(bytes).expect("text")
        };
        for n in [0, 1, 9, 10, 255, 4_096, usize::MAX] {
            assert_eq!((written(n, 10), written(n, 16)), (n.to_string(), format!("{n:x}")));
        }
    }
}
