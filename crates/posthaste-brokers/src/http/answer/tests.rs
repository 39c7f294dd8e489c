use super::*;

fn read(text: &str) -> (u16, Framing, bool) {
    let (head, length) = head(text.as_bytes()).expect("an answer").expect("complete");
    assert_eq!(length, text.len(), "{text:?}");
    (head.status.as_u16(), head.framing, head.keeps)
}

#[test]
fn where_a_body_ends() {
    let rows = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", (200, Framing::Length(5), true)),
        ("HTTP/1.1 200\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\n", (200, Framing::Length(5), true)),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n", (200, Framing::Length(5), true)),
        ("HTTP/1.1 200 OK\r\n\r\n", (200, Framing::Close, false)),
        ("HTTP/1.1 204 No\r\n\r\n", (204, Framing::Length(0), true)),
        ("HTTP/1.1 204 No\r\ncontent-length: 0\r\n\r\n", (204, Framing::Length(0), true)),
        ("HTTP/1.1 204 No\r\ncontent-length: 9\r\n\r\n", (204, Framing::Length(0), false)),
        ("HTTP/1.1 204 No\r\ntransfer-encoding: chunked\r\n\r\n", (204, Framing::Length(0), false)),
        ("HTTP/1.1 304 No\r\ncontent-length: 9\r\n\r\n", (304, Framing::Length(0), false)),
        ("HTTP/1.1 103 Hint\r\n\r\n", (103, Framing::Length(0), true)),
        ("HTTP/1.1 101 Switch\r\n\r\n", (101, Framing::Length(0), false)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", (200, Framing::Chunked, true)),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", (200, Framing::Chunked, true)),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\n", (200, Framing::Close, false)),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\n", (200, Framing::Close, false)),
        // Somebody between here and there may have believed the other one.
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
            (200, Framing::Chunked, false),
        ),
        (
            "HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 0\r\n\r\n",
            (200, Framing::Length(0), false),
        ),
        ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", (200, Framing::Length(0), false)),
        ("HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n", (999, Framing::Length(0), true)),
    ];
    for (text, expected) in rows {
        assert_eq!(read(text), expected, "{text:?}");
    }
}

#[test]
fn what_is_no_answer() {
    for text in [
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "SSH-2.0-hello\r\n",
    ] {
        assert!(head(text.as_bytes()).is_err(), "{text:?}");
    }
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
    assert_eq!(head(many.as_bytes()), Err(NoAnswer::Head(httparse::Error::TooManyHeaders)));
}

#[test]
fn a_head_may_come_in_pieces() {
    let text = b"HTTP/1.1 429 Slow\r\nRetry-After: 30\r\ncontent-length: 0\r\n\r\nrest";
    for end in 0..text.len() - 4 {
        assert_eq!(head(&text[..end]), Ok(None), "{end}");
    }
    let (head, length) = head(text).expect("an answer").expect("complete");
    assert_eq!((length, head.retry_after.as_deref()), (text.len() - 4, Some("30")));
}

fn parts(text: &str, framing: Framing) -> (Part, String) {
    let mut data = Vec::new();
    let part = body(text.as_bytes(), framing, &mut data);
    (part, String::from_utf8(data).expect("text"))
}

#[test]
fn bodies() {
    let rows = [
        ("abcd", Framing::Length(3), Part::Whole(3), "abc"),
        ("ab", Framing::Length(3), Part::More, "ab"),
        ("", Framing::Length(0), Part::Whole(0), ""),
        ("ab", Framing::Length(u64::MAX), Part::More, "ab"),
        ("ab", Framing::Close, Part::More, "ab"),
        ("3\r\nabc\r\n0\r\n\r\nx", Framing::Chunked, Part::Whole(13), "abc"),
        ("3;x=1\r\nabc\r\n2\r\nde\r\n0\r\nsum: 1\r\n\r\n", Framing::Chunked, Part::Whole(32), "abcde"),
        ("3\r\nab", Framing::Chunked, Part::More, "ab"),
        ("3\r\nabc\r", Framing::Chunked, Part::More, "abc"),
        ("3\r\nabc\r\n0\r\n", Framing::Chunked, Part::More, "abc"),
        ("fffffffffffffff0\r\nab", Framing::Chunked, Part::More, "ab"),
        ("fffffffffffffffe\r\nab", Framing::Chunked, Part::More, "ab"),
        ("ffffffffffffffff\r\nab", Framing::Chunked, Part::More, "ab"),
        ("3\r\nabcd\r\n", Framing::Chunked, Part::Broken, "abc"),
        ("what\r\n", Framing::Chunked, Part::Broken, ""),
        ("ffffffffffffffffff\r\n", Framing::Chunked, Part::Broken, ""),
        ("0\r\nbad trailer\r\n\r\n", Framing::Chunked, Part::Broken, ""),
    ];
    for (text, framing, part, data) in rows {
        assert_eq!(parts(text, framing), (part, data.to_owned()), "{text:?}");
    }
}
