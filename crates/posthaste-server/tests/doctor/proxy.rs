//! A line to a server that changes what passes: what no server at hand would say can be said all the same.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Rewrites bytes of one direction, as they come.
pub(crate) type Rewrite = fn(&mut Vec<u8>);

/// Listens for as long as the test runs. `up` is for what clients say, `down` for what the server says.
pub(crate) fn between(server: SocketAddr, up: Rewrite, down: Rewrite) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(server) else { continue };
            let both = (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
            std::thread::spawn(move || pass(client, server, up));
            std::thread::spawn(move || pass(both.1, both.0, down));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, rewrite: Rewrite) {
    let mut buffer = vec![0; 1 << 16];
    // Whole messages only, or a change could fall on a boundary: the last byte of each ends a line or a
    // frame, and what is small arrives whole.
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..count].to_vec();
        rewrite(&mut bytes);
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Leaves everything as it is.
pub(crate) fn nothing(_: &mut Vec<u8>) {}

/// Replaces a text wherever it stands.
pub(crate) fn replace(bytes: &mut Vec<u8>, from: &str, to: &str) {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(from.len()).position(|window| window == from) {
        bytes.splice(at + found..at + found + from.len(), to.iter().copied());
        at += found + to.len();
    }
}

/// Takes notifications out of what PostgreSQL says: a type, four bytes of length, the rest.
pub(crate) fn without_notifications(bytes: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 5) {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize + 1;
        if head[0] == b'A' {
            bytes.drain(at..(at + length).min(bytes.len()));
        } else {
            at += length;
        }
    }
}
