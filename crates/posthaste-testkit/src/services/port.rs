//! Loopback ports that stay ours.
//!
//! The usual trick, binding port 0 and letting go, picks from the kernel's ephemeral range, and that has two
//! traps for tests that kill a server and start it again on the same port. While the server is down, any
//! outgoing connection may be given its port as the source port, and the restart fails. Worse, a client that
//! keeps trying to reconnect to a dead port of that range may connect *to itself* (a TCP simultaneous open),
//! and then the outage looks like a server that echoes. So a port is taken from below the ephemeral range,
//! and claimed against the other test processes of this machine by an abstract socket of its name: no file,
//! and the kernel frees it when the process dies.

use std::{
    io,
    net::TcpListener,
    ops::Range,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

use uuid::Uuid;

/// Below are well-known ports and those that people give to servers by hand.
const LOWEST: u16 = 10_240;
/// Fewer ports than this below the ephemeral range, and the range was configured by somebody with other
/// needs.
const ENOUGH: u16 = 1_000;
const TRIES: u16 = 500;

/// A loopback port that no other test process uses as long as this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    /// Claims a port that nobody listens on.
    ///
    /// # Errors
    ///
    /// When 500 ports in a row are taken.
    pub fn claim() -> io::Result<Self> {
        let range = candidates();
        let width = u32::from(range.end - range.start);
        // The low half of a version 7 UUID is random.
        let first = (Uuid::now_v7().as_u128() as u32) % width;
        for step in 0..u32::from(TRIES) {
            // Less than `width`, which came from a u16.
            let offset = ((first + step) % width) as u16;
            if let Some(port) = Self::take(range.start + offset) {
                return Ok(port);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free loopback port"))
    }

    fn take(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("posthaste-test-port-{number}")).ok()?;
        let claim = UnixListener::bind_addr(&name).ok()?;
        TcpListener::bind(("127.0.0.1", number)).ok()?;
        Some(Self { number, _claim: claim })
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The port on the loopback address.
    pub fn addr(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.number).into()
    }
}

fn candidates() -> Range<u16> {
    let ephemeral_from = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768);
    if ephemeral_from >= LOWEST + ENOUGH { LOWEST..ephemeral_from } else { LOWEST..u16::MAX }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn claimed_ports_are_distinct_and_outside_the_ephemeral_range() {
        let ports: Vec<_> = (0..50).map(|_| Port::claim().expect("a port")).collect();
        let numbers: HashSet<_> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), ports.len());
        assert!(numbers.iter().all(|number| candidates().contains(number)));
    }

    #[test]
    fn a_claim_ends_with_its_value() {
        let port = Port::claim().expect("a port");
        let number = port.number();
        assert!(Port::take(number).is_none(), "claimed twice");
        drop(port);
        // A process that another test starts just now has it until it is another program.
        let started = std::time::Instant::now();
        while Port::take(number).is_none() {
            assert!(started.elapsed() < std::time::Duration::from_secs(30), "still claimed");
            std::thread::sleep(std::time::Duration::from_millis(1)); // pace
        }
    }
}
