//! An event as an entry of a stream.
//!
//! | field | value |
//! |---|---|
//! | `id` | the event's id; what consumers drop duplicates by |
//! | `key` | the event's key, if it has one |
//! | `payload` | the bytes; a tombstone has no such field |
//! | `h:NAME` | a header: `h:type`, `h:time`, `h:source`, `h:content-type`, then the event's own |
//!
//! Entries are flat lists of names and values, and most clients make a dictionary of them, in which the last
//! of two equal names wins. So every header has a prefix, and none of the event's own can take the place of
//! `id` or `payload`. A header that repeats one of ours is left out, because an author's own `time` must not
//! hide when the event was appended. `Message-ID` and `key`, which other brokers get as headers, are fields
//! already.
//!
//! One field with a JSON object in it was refused. It would have to escape payloads that are no text, and
//! consumers would parse what Redis has parsed already. A tombstone has no payload field, and no marker. So a
//! consumer that forgets the case fails at once, instead of taking it for an empty payload.

use super::Trim;
use ::redis::Cmd;
use posthaste::envelope::KAFKA_BINDING;
use posthaste::sink::Message;
use uuid::Uuid;

/// Headers that we write ourselves, with the prefix.
const OURS: [(&str, &str); 4] =
    [("type", "h:type"), ("time", "h:time"), ("source", "h:source"), ("content-type", "h:content-type")];
/// Bytes of names, lengths and headers around a payload. The guess spares most entries a second allocation.
const AROUND: usize = 320;

/// Most entries have fewer words.
const WORDS: usize = 24;

/// The `XADD` of a message.
pub(super) fn command(message: &Message, trim: Option<Trim>) -> Cmd {
    let event = &message.stored.event;
    let mut command = Cmd::with_capacity(WORDS, size(message));
    command.arg("XADD").arg(message.destination.as_str());
    if let Some(Trim { entries, exact }) = trim {
        command.arg("MAXLEN").arg(if exact { "=" } else { "~" }).arg(entries);
    }
    let mut id = Uuid::encode_buffer();
    command.arg("*").arg("id").arg(&*event.id.hyphenated().encode_lower(&mut id));
    if let Some(key) = &event.key {
        command.arg("key").arg(key.as_str());
    }
    if let Some(payload) = &message.payload {
        command.arg("payload").arg(&payload[..]);
    }
    headers(message, |name, value| {
        command.arg(name).arg(value);
    });
    command
}

/// About how many bytes the command of a message has.
pub(super) fn size(message: &Message) -> usize {
    let event = &message.stored.event;
    let own: usize = event.headers.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    let key = event.key.as_ref().map_or(0, String::len);
    message.payload.as_ref().map_or(0, bytes::Bytes::len) + message.destination.len() + key + own + AROUND
}

fn headers(message: &Message, mut field: impl FnMut(&str, &str)) {
    let has_key = message.stored.event.key.is_some();
    // The first headers of these names are ours and have fields of their own. Later ones are the event's.
    let (mut id_seen, mut key_seen, mut ours_seen) = (false, !has_key, [false; OURS.len()]);
    let mut prefixed = String::new();
    message.each_header_for(KAFKA_BINDING, |name, value| {
        if (name == "Message-ID" && !std::mem::replace(&mut id_seen, true))
            || (name == "key" && !std::mem::replace(&mut key_seen, true))
        {
            return;
        }
        if let Some(at) = OURS.iter().position(|(ours, _)| *ours == name) {
            if !std::mem::replace(&mut ours_seen[at], true) {
                field(OURS[at].1, value);
            }
            return;
        }
        prefixed.clear();
        prefixed.push_str("h:");
        prefixed.push_str(name);
        field(&prefixed, value);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::redis::Arg;
    use posthaste::event::Event;

    fn message(event: Event) -> Message {
        crate::testing::message("s", event)
    }

    fn words(message: &Message, trim: Option<Trim>) -> Vec<String> {
        let text = |word: Arg<&[u8]>| match word {
            Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).expect("text"),
            _ => panic!("a word without a value"),
        };
        command(message, trim).args_iter().map(text).collect()
    }

    #[test]
    fn no_header_of_an_event_takes_the_place_of_ours() {
        let mut event = Event::new("orders.placed", "body").with_key("k");
        for name in ["id", "payload", "key", "time", "source", "Message-ID", "x"] {
            event = event.with_header(name, "theirs");
        }
        let message = message(event);
        let words = words(&message, None);
        let fields: Vec<_> = words[3..].chunks(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
        let id = message.id();
        assert_eq!(fields[..3], [("id", id.as_str()), ("key", "k"), ("payload", "body")]);
        assert!(fields[3..].iter().all(|(name, _)| name.starts_with("h:")), "{fields:?}");
        let of = |name: &str| fields.iter().filter(|(n, _)| *n == name).map(|(_, v)| *v).collect::<Vec<_>>();
        assert_eq!((of("h:source"), of("h:time").len()), (vec!["shop"], 1));
        assert_eq!(
            (of("h:key"), of("h:Message-ID"), of("h:id")),
            (vec!["theirs"], vec!["theirs"], vec!["theirs"])
        );
        assert_eq!(of("h:x"), ["theirs"]);
    }

    #[test]
    fn a_tombstone_has_no_payload_and_trimming_is_only_what_was_asked_for() {
        assert!(!words(&message(Event::tombstone("t")), None).contains(&"payload".to_owned()));
        let empty = message(Event::new("t", ""));
        assert!(words(&empty, None).contains(&"payload".to_owned()));
        assert_eq!(words(&empty, None)[..3], ["XADD", "s", "*"]);
        let trim = |exact| Some(Trim { entries: 9, exact });
        assert_eq!(words(&empty, trim(false))[2..6], ["MAXLEN", "~", "9", "*"]);
        assert_eq!(words(&empty, trim(true))[2..6], ["MAXLEN", "=", "9", "*"]);
    }

    #[test]
    fn a_command_may_have_any_number_of_words() {
        for headers in [0, 39, 40, 41, 500] {
            let mut event = Event::new("t", "x".repeat(1_000)).with_key("k");
            for header in 0..headers {
                event = event.with_header(format!("n{header}"), "v");
            }
            let words = words(&message(event), None);
            assert_eq!(words.iter().filter(|word| word.starts_with("h:n")).count(), headers);
            assert_eq!(words[8].len(), 1_000);
        }
    }

    #[test]
    fn a_header_without_a_key_is_the_events_own() {
        let words = words(&message(Event::new("t", "").with_header("key", "v")), None);
        let at = words.iter().position(|word| word == "h:key").expect("there");
        assert_eq!(words[at + 1], "v");
    }
}
