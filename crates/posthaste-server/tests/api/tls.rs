//! TLS: its certificate changes under load, and what is not TLS gets nothing.

use crate::rig::{Rig, answered};
use posthaste_testkit::services::Certs;
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn first(path: &std::path::Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).expect("a certificate")
}

/// A client that trusts these authorities.
fn client<'a>(authorities: impl IntoIterator<Item = &'a std::path::Path>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(first(authority)).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(client.expect("versions").with_root_certificates(roots).with_no_client_auth())
}

/// One request: its status, and the certificate that the server showed.
fn ask(rig: &Rig, client: &Arc<ClientConfig>) -> (u16, CertificateDer<'static>) {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::clone(client), name).expect("a client");
    let stream = TcpStream::connect(&rig.address).expect("it listens");
    let mut stream = StreamOwned::new(connection, stream);
    let head = format!(
        "GET /api/v1/me HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
        rig.read
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    let shown = stream.conn.peer_certificates().and_then(|all| all.first()).expect("a certificate");
    (answered(&answer).status, shown.clone().into_owned())
}

#[test]
fn a_certificate_changes_under_load_and_no_request_is_lost() {
    let (old, new) = (Certs::make().expect("certificates"), Certs::make().expect("certificates"));
    let dir = crate::rig::directory();
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let install = |certs: &Certs| {
        std::fs::copy(&certs.server().certificate, &cert).expect("copied");
        std::fs::copy(&certs.server().key, &key).expect("copied");
    };
    install(&old);
    let rig = Rig::start(&format!("cert_file = {cert:?}\nkey_file = {key:?}"));
    let client = client([old.ca(), new.ca()]);
    let wanted = first(&new.server().certificate);
    let asked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut renewed = 0;
                while renewed < 5 {
                    let (status, shown) = ask(&rig, &client);
                    assert_eq!(status, 200);
                    asked.fetch_add(1, Ordering::Relaxed);
                    renewed += usize::from(shown == wanted);
                }
            });
        }
        while asked.load(Ordering::Relaxed) < 10 {
            std::thread::yield_now();
        }
        // A key without its certificate changes nothing.
        std::fs::copy(&new.server().key, &key).expect("copied");
        rig.daemon.signal(Signal::HUP);
        rig.daemon.says("the certificate of before stays in force");
        install(&new);
        rig.daemon.signal(Signal::HUP);
    });
    // What is not TLS gets nothing.
    let mut plain = TcpStream::connect(&rig.address).expect("it listens");
    plain.write_all(b"GET /api/v1/me HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("it reads");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    std::fs::remove_dir_all(&dir).expect("it was there");
}

/// The first message of a client that speaks nothing newer than this minor version of TLS 1.
fn hello(minor: u8) -> Vec<u8> {
    // Version, random bytes, no session, two suites of that time, no compression, nothing else.
    let suites = [0, 4, 0xc0, 0x13, 0, 0x2f];
    let body = [&[3, minor][..], &[7; 32], &[0], &suites, &[1, 0]].concat();
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
    let message = [&[1, 0, 0, length(&body)][..], &body].concat();
    [&[0x16, 3, 1, 0, length(&message)][..], &message].concat()
}

#[test]
fn old_versions_and_clients_that_do_not_trust_it_get_nothing() {
    let certs = Certs::make().expect("certificates");
    let (cert, key) = (&certs.server().certificate, &certs.server().key);
    let rig = Rig::start(&format!("cert_file = {cert:?}\nkey_file = {key:?}"));
    for minor in [0, 1, 2] {
        let mut old = TcpStream::connect(&rig.address).expect("it listens");
        old.write_all(&hello(minor)).expect("it reads");
        let mut answer = Vec::new();
        let _ = old.read_to_end(&mut answer);
        // A fatal alert and nothing behind it: of the version (70), of what it offers (40).
        assert_eq!((answer.first(), answer.get(5), answer.len()), (Some(&0x15), Some(&2), 7), "{answer:?}");
        assert!(matches!(answer[6], 40 | 70), "TLS 1.{minor}: {answer:?}");
    }
    let shake = |client: Arc<ClientConfig>, name: &'static str| {
        let name = ServerName::try_from(name).expect("a name");
        let connection = ClientConnection::new(client, name).expect("a client");
        let stream = TcpStream::connect(&rig.address).expect("it listens");
        StreamOwned::new(connection, stream)
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .map_err(|error| error.to_string())
    };
    let stranger = shake(client([certs.other_ca()]), "localhost").expect_err("it does not know who signed");
    assert!(stranger.contains("UnknownIssuer"), "{stranger}");
    let elsewhere = shake(client([certs.ca()]), "elsewhere.example").expect_err("it asked for another one");
    assert!(elsewhere.contains("not valid for name"), "{elsewhere}");
    // Whoever trusts it is served all the same.
    assert_eq!(ask(&rig, &client([certs.ca()])).0, 200);
    assert!(!rig.daemon.said().contains("panicked"), "{}", rig.daemon.said());
}
