//! What is written is read again, and what is no AMQP is refused.

use super::*;
use proptest::prelude::*;

fn read(bytes: &[u8]) -> Parsed<Vec<(u16, Heard)>> {
    let mut buffer = BytesMut::from(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = next_frame(&mut buffer, 4_096)? {
        frames.push(frame);
    }
    assert!(buffer.is_empty(), "{} bytes are left", buffer.len());
    Ok(frames)
}

#[test]
fn a_message_that_comes_back_is_known_by_its_id() {
    let properties = Properties {
        content_type: Some("text/plain"),
        message_id: "id-1",
        timestamp: 1,
        kind: Some("Placed"),
        app_id: None,
    };
    let encoded = properties.encode(|out| put_field(out, "key", "ключ"));
    let mut out = Vec::new();
    publish(&mut out, 7, ("ex", "rk"), &encoded, &[b'x'; 9_000], 4_096);
    let frames = read(&out).expect("well-formed");
    assert!(frames.iter().all(|(channel, _)| *channel == 7));
    assert_eq!(frames[1].1, Heard::Header { size: 9_000, message_id: Some("id-1".to_owned()) });
    assert_eq!(frames.len(), 5);
    assert_eq!([&frames[2].1, &frames[4].1], [&Heard::Body(4_088), &Heard::Body(824)]);
    // The header frame's size is what it is checked for; the method before it has 17 bytes.
    let mut header = Vec::new();
    publish(&mut header, 7, ("", ""), &encoded, &[], 4_096);
    assert_eq!(header.len() - 17, header_frame_size(&encoded));
}

#[test]
fn what_is_no_frame_is_refused_and_half_a_frame_waits() {
    let mut out = Vec::new();
    heartbeat(&mut out);
    assert_eq!(read(&out), Ok(vec![(0, Heard::Heartbeat)]));
    let mut half = BytesMut::from(&out[..5]);
    assert_eq!(next_frame(&mut half, 4_096), Ok(None));
    *out.last_mut().expect("a byte") = 0;
    assert_eq!(read(&out), Err(Malformed));
    // "AMQP" 0 0 9 1: how a broker says that it speaks another version.
    assert_eq!(next_frame(&mut BytesMut::from(PROTOCOL), 4_096), Err(Malformed));
}

#[test]
fn a_broken_off_method_is_no_panic() {
    let mut whole = Vec::new();
    method_frame(&mut whole, 3, 20, 40, |out| {
        out.put_u16(404);
        put_short(out, "NOT_FOUND");
        out.put_u32(0);
    });
    let close = Close { code: 404, text: "NOT_FOUND".to_owned() };
    assert_eq!(read(&whole), Ok(vec![(3, Heard::ChannelClose(close))]));
    let mut broken = Vec::new();
    method_frame(&mut broken, 3, 20, 40, |out| out.put_u16(404));
    assert_eq!(read(&broken), Err(Malformed));
}

#[test]
fn a_table_with_every_kind_of_value_is_read_over() {
    let mut bytes = Vec::new();
    put_table(&mut bytes, |out| {
        for (kind, size) in [
            (b't', 1),
            (b'b', 1),
            (b's', 2),
            (b'I', 4),
            (b'D', 5),
            (b'l', 8),
            (b'd', 8),
            (b'T', 8),
            (b'V', 0),
        ] {
            put_short(out, "x");
            out.put_u8(kind);
            out.put_bytes(0, size);
        }
        put_short(out, "nested");
        out.put_u8(b'F');
        put_table(out, |out| put_field(out, "version", "not this one"));
        put_field(out, "version", "3.10.8");
    });
    let found = product(&mut Bytes::from(bytes)).expect("well-formed");
    assert_eq!(found.version, "3.10.8");
}

/// What a client of ours may write and a broker may answer.
fn one_of_each() -> Vec<u8> {
    let mut whole = Vec::new();
    let properties = Properties { message_id: "id", kind: Some("Placed"), ..Properties::default() };
    let encoded = properties.encode(|out| put_field(out, "key", "value"));
    publish(&mut whole, 7, ("ex", "rk"), &encoded, b"body", 4_096);
    start_ok(&mut whole, "name", "PLAIN", b"secret");
    tune_ok(&mut whole, 12, 4_096, 10);
    connection_close(&mut whole);
    method_frame(&mut whole, 0, 10, 10, |out| {
        out.put_u16(9);
        put_table(out, |out| put_field(out, "version", "3.10.8"));
        put_long(out, b"PLAIN");
        put_long(out, b"en_US");
    });
    for method in [20, 50, 80, 120] {
        method_frame(&mut whole, 7, BASIC, method, |out| out.put_slice(&[0, 1, 0, 0, 0, 0, 0, 0, 1, 0]));
    }
    heartbeat(&mut whole);
    whole
}

/// Whatever a server sends: an answer, a refusal, or a wait for more; never a panic, and never more than it
/// sent. For a second, with a seed that is printed.
#[test]
fn garbage_is_no_panic() {
    let started = std::time::Instant::now();
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64) | 1;
    println!("seed {seed}");
    let mut state = seed;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let whole = one_of_each();
    while started.elapsed() < std::time::Duration::from_secs(1) {
        let mut bytes = BytesMut::from(whole.as_slice());
        for _ in 0..=random(6) {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        bytes.truncate(random(whole.len()) + 1);
        let mut before = bytes.len();
        while let Ok(Some(_)) = next_frame(&mut bytes, 4_096) {
            assert!(bytes.len() + FRAME_OVERHEAD <= before, "a frame has bytes");
            before = bytes.len();
        }
        // The inside of a frame, without the lengths around it that would be refused first.
        let from = random(whole.len());
        let mut inside = BytesMut::from(&whole[from..]);
        let at = random(inside.len());
        inside[at] = random(256) as u8;
        let inside = inside.freeze();
        let _ = method(&mut inside.clone());
        let _ = content_header(&mut inside.clone());
        let _ = each_field(&mut inside.clone(), |_, _| {});
    }
}

proptest! {
    /// In whatever pieces bytes come, the frames are the same.
    #[test]
    fn pieces_do_not_matter(cuts in prop::collection::vec(1..40_usize, 0..200)) {
        let whole = one_of_each();
        let (mut buffer, mut frames, mut rest) = (BytesMut::new(), Vec::new(), whole.as_slice());
        for cut in cuts.into_iter().chain([whole.len()]) {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            rest = behind;
            buffer.extend_from_slice(piece);
            while let Some(frame) = next_frame(&mut buffer, 4_096).expect("well-formed") {
                frames.push(frame);
            }
        }
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(frames, read(&whole).expect("well-formed"));
    }

    /// Any message: the frames keep to their size, the body is whole, and the id can be read again.
    #[test]
    fn a_message_keeps_its_id_and_its_body(
        id in "[a-zA-Z0-9-]{1,255}",
        texts in prop::array::uniform3(prop::option::of("\\PC{1,60}")),
        fields in prop::collection::vec(("\\PC{0,60}", "\\PC{0,200}"), 0..6),
        timestamp in any::<u64>(),
        size in 0..20_000_usize,
        frame_max in 4_096..8_192_usize,
    ) {
        let [content_type, kind, app_id] = &texts;
        let properties = Properties {
            content_type: content_type.as_deref(),
            message_id: &id,
            timestamp,
            kind: kind.as_deref(),
            app_id: app_id.as_deref(),
        };
        let encoded =
            properties.encode(|out| fields.iter().for_each(|(name, value)| put_field(out, name, value)));
        let mut out = Vec::new();
        publish(&mut out, 3, ("ex", "rk"), &encoded, &vec![b'x'; size], frame_max);
        let mut buffer = BytesMut::from(out.as_slice());
        // A larger limit for the header alone: whoever builds a message checks its size.
        let limit = frame_max.max(header_frame_size(&encoded));
        let mut body = 0;
        let mut ids = Vec::new();
        while let Some((channel, heard)) = next_frame(&mut buffer, limit).expect("well-formed") {
            prop_assert_eq!(channel, 3);
            match heard {
                Heard::Header { size: announced, message_id } => {
                    prop_assert_eq!(announced, size as u64);
                    ids.extend(message_id);
                }
                Heard::Body(bytes) => {
                    prop_assert!(bytes + FRAME_OVERHEAD <= frame_max);
                    body += bytes;
                }
                other => prop_assert_eq!(other, Heard::Other(BASIC, 40)),
            }
        }
        prop_assert_eq!((buffer.len(), body, ids), (0, size, vec![id]));
    }

    /// Any bytes at all.
    #[test]
    fn any_bytes_are_frames_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut buffer = BytesMut::from(bytes.as_slice());
        while let Ok(Some(_)) = next_frame(&mut buffer, 256) {}
        prop_assert!(buffer.len() <= bytes.len());
        let mut inside = Bytes::from(bytes);
        let _ = method(&mut inside.clone());
        let _ = content_header(&mut inside);
    }
}
