//! What is written is read again, and what is no AMQP is refused.

use super::*;

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
    let found = server(&mut Bytes::from(bytes)).expect("well-formed");
    assert_eq!(found.version, "3.10.8");
}

/// Whatever a server sends: an answer, a refusal, or a wait for more; never a panic.
#[test]
fn garbage_is_no_panic() {
    let mut whole = Vec::new();
    let properties = Properties { message_id: "id", ..Properties::default() };
    let encoded = properties.encode(|out| put_field(out, "key", "value"));
    publish(&mut whole, 7, ("ex", "rk"), &encoded, b"body", 4_096);
    start_ok(&mut whole, "name", "PLAIN", b"secret");
    // A random walk with a fixed seed.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..20_000 {
        let mut bytes = BytesMut::from(whole.as_slice());
        for _ in 0..=random(6) {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        bytes.truncate(random(whole.len()) + 1);
        while let Ok(Some(_)) = next_frame(&mut bytes, 4_096) {}
        // The inside of a frame, without the lengths around it that would be refused first.
        let from = random(whole.len());
        let _ = method(&mut Bytes::copy_from_slice(&whole[from..]));
        let _ = content_header(&mut Bytes::copy_from_slice(&whole[from..]));
    }
}
