//! Frames, whole and cut, from servers that are sane and from others.

use super::*;

/// What a frame said, kept.
fn shown(frame: &Frame<'_>) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match frame {
        Frame::Message(Message { subject, head, payload }) => {
            format!("{} [{}] {}", text(subject), text(head), text(payload))
        }
        Frame::Info(json) => format!("info{}", text(json)),
        Frame::Error(words) => format!("error {words}"),
        other => format!("{other:?}"),
    }
}

fn fill(reader: &mut Reader, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let room = reader.room();
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
        reader.filled(length);
        bytes = &bytes[length..];
    }
}

fn take(reader: &mut Reader, found: &mut Vec<String>) -> Result<(), Strange> {
    while let Some(frame) = reader.next()? {
        found.push(shown(&frame));
    }
    Ok(())
}

fn read_all(pieces: &[&[u8]]) -> Result<Vec<String>, Strange> {
    let (mut reader, mut found) = (Reader::default(), Vec::new());
    for piece in pieces {
        fill(&mut reader, piece);
        take(&mut reader, &mut found)?;
    }
    Ok(found)
}

const TALK: &[u8] = b"INFO {\"a\":1}\r\n+OK\r\nPING\r\nMSG I.1-0 1 5\r\na\r\nbc\r\nPONG\r\nHMSG I.1-1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n\
HMSG\tI.2-a  1 some.reply 12 14\r\nNATS/1.0\r\n\r\nxy\r\nMSG I.1-2 1 r 0\r\n\r\n-ERR 'Stale Connection'\r\nping \r\n";

fn expected() -> Vec<String> {
    [
        "info {\"a\":1}",
        "Ok",
        "Ping",
        "I.1-0 [] a\r\nbc",
        "Pong",
        "I.1-1 [NATS/1.0 503\r\n\r\n] ",
        "I.2-a [NATS/1.0\r\n\r\n] xy",
        "I.1-2 [] ",
        "error Stale Connection",
        "Ping",
    ]
    .map(str::to_owned)
    .into()
}

#[test]
fn everything_that_a_server_says() {
    assert_eq!(read_all(&[TALK]), Ok(expected()));
}

#[test]
fn frames_that_are_cut_anywhere() {
    for cut in 0..=TALK.len() {
        let (before, after) = TALK.split_at(cut);
        assert_eq!(read_all(&[before, after]), Ok(expected()), "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = TALK.chunks(1).collect();
    assert_eq!(read_all(&bytes), Ok(expected()));
    for size in [2, 3, 7, 64] {
        assert_eq!(read_all(&TALK.chunks(size).collect::<Vec<_>>()), Ok(expected()), "pieces of {size}");
    }
}

/// The buffer goes round many times, and frames lie over its end.
#[test]
fn a_long_talk_in_odd_pieces() {
    let talk = TALK.repeat(2_000);
    let found = read_all(&talk.chunks(4_999).collect::<Vec<_>>()).expect("read");
    assert_eq!(found.len(), 2_000 * expected().len());
    assert!(found.chunks(expected().len()).all(|part| part == expected()));
}

#[test]
fn what_is_no_frame_ends_it() {
    for bad in [
        "HTTP/1.1 400 Bad Request\r\n",
        "\r\n",
        "MSGX a 1 0\r\n\r\n",
        "MSG a 1\r\n",
        "MSG a 1 b c 0\r\n",
        "MSG a 1 b c d e f 0\r\n",
        "MSG a 1 -1\r\n",
        "MSG a 1 1x\r\n",
        "MSG a 1 99999999999999999999\r\n",
        "MSG a 1 9999999999\r\n",
        "HMSG a 1 5\r\n",
        "HMSG a 1 6 5\r\nhello\r\n",
        "MSG a 1 2\r\nabcd\r\n",
        "MSG a 1 2\r\nab\n\r",
        "\u{0}\u{0}\n",
    ] {
        assert!(read_all(&[bad.as_bytes()]).is_err(), "{bad:?}");
    }
}

#[test]
fn a_line_without_an_end_is_not_kept() {
    let mut reader = Reader::default();
    let sent: usize = (0..100)
        .take_while(|_| {
            fill(&mut reader, &[b'x'; 10_000]);
            reader.next().is_ok()
        })
        .map(|_| 10_000)
        .sum();
    assert!(sent <= LINE_BYTES_MAX, "{sent}");
    assert!(reader.buffer.len() <= 2 * LINE_BYTES_MAX + READ_BYTES);
}

/// A message that is promised takes no memory before it comes, and one beyond the bound none at all.
#[test]
fn a_message_beyond_the_bound_is_dropped_as_it_comes() {
    let (mut reader, mut found) = (Reader::default(), Vec::new());
    fill(&mut reader, b"MSG a 1 999999999\r\n");
    take(&mut reader, &mut found).expect("fine so far");
    for _ in 0..(999_999_999 / 50_000) {
        fill(&mut reader, &[b'\n'; 50_000]);
        take(&mut reader, &mut found).expect("dropped");
    }
    assert!(reader.buffer.len() <= READ_BYTES, "{}", reader.buffer.len());
    fill(&mut reader, &vec![b'\n'; 999_999_999 % 50_000]);
    fill(&mut reader, b"\r\nPING\r\n");
    take(&mut reader, &mut found).expect("back in step");
    assert_eq!(found, ["Ping"]);
}

#[test]
fn a_large_message_is_read_and_its_room_given_back() {
    let body = vec![b'b'; MESSAGE_BYTES_MAX];
    let mut bytes = format!("MSG a 1 {MESSAGE_BYTES_MAX}\r\n").into_bytes();
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(b"\r\nPONG\r\n");
    let (mut reader, mut found) = (Reader::default(), Vec::new());
    for piece in bytes.chunks(1_000) {
        fill(&mut reader, piece);
        take(&mut reader, &mut found).expect("read");
    }
    assert_eq!((found.len(), found[0].len(), found[1].as_str()), (2, body.len() + 5, "Pong"));
    reader.room();
    assert_eq!(reader.buffer.len(), READ_BYTES);
}

/// Byte by byte, a long line and a long message are each looked at once, not once for each byte.
#[test]
fn partial_frames_are_not_read_again_and_again() {
    let mut reader = Reader::default();
    for _ in 0..LINE_BYTES_MAX / 2 {
        fill(&mut reader, b"x");
        assert_eq!(reader.next(), Ok(None));
        assert_eq!(reader.searched, reader.end - reader.begin);
    }
    let mut reader = Reader::default();
    fill(&mut reader, b"MSG a 1 500000\r\n");
    for _ in 0..500_000 {
        assert_eq!(reader.next(), Ok(None));
        assert_eq!(reader.wanted, 16 + 500_000 + 2);
        fill(&mut reader, b"x");
    }
}

#[test]
fn a_status_is_three_digits_of_the_first_line() {
    let status = |head: &str| Message { subject: b"", head: head.as_bytes(), payload: b"" }.status();
    assert_eq!(status("NATS/1.0 503\r\n\r\n"), Some(503));
    assert_eq!(status("NATS/1.0 503 No Responders\r\nA: b\r\n\r\n"), Some(503));
    for none in ["", "NATS/1.0\r\n\r\n", "NATS/1.0\r\nA: 503\r\n\r\n", "NATS/1.0 50", "HTTP/1.1 503\r\n"] {
        assert_eq!(status(none), None, "{none:?}");
    }
}

#[test]
fn the_words_of_an_error_are_text_and_have_a_bound() {
    assert_eq!(read_all(&[b"-ERR 'a \xff b'\r\n"]), Ok(vec!["error a ".to_owned()]));
    let long = format!("-ERR '{}'\r\n", "ä".repeat(WORDS_BYTES_MAX));
    let found = read_all(&[long.as_bytes()]).expect("read");
    assert!(found[0].len() <= WORDS_BYTES_MAX + 6);
    assert_eq!(read_all(&[b"-ERR\r\n-ERR ''\r\n"]), Ok(vec!["error ".to_owned(), "error ".to_owned()]));
}
