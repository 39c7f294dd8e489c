//! TLS at the gateway: its certificate changes under load, what is not TLS gets nothing, and an answer that
//! comes before the body has arrived is read.

use crate::rig::{Answered, DEADLINE, Rig, directory, exchange_on, request_of};
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
fn client<const N: usize>(authorities: [&std::path::Path; N]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(first(authority)).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(client.expect("versions").with_root_certificates(roots).with_no_client_auth())
}

/// One request: its answer, and the certificate that the server showed.
fn ask(rig: &Rig, client: &Arc<ClientConfig>, key: &str, body: &[u8]) -> (Answered, CertificateDer<'static>) {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::clone(client), name).expect("a client");
    let stream = TcpStream::connect(&rig.address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
    let mut stream = StreamOwned::new(connection, stream);
    let head = [("authorization", &*format!("Bearer {key}"))];
    let request = request_of("localhost", "POST", "/v1/topics/raw", &head, body);
    let answer = exchange_on(&mut stream, &request).expect("an answer");
    let shown = stream.conn.peer_certificates().and_then(|all| all.first()).expect("a certificate");
    (answer, shown.clone().into_owned())
}

#[test]
fn a_certificate_changes_under_load_and_no_request_is_lost() {
    let (old, new) = (Certs::make().expect("certificates"), Certs::make().expect("certificates"));
    let dir = directory();
    let (cert, key_file) = (dir.join("cert.pem"), dir.join("key.pem"));
    let install = |certs: &Certs| {
        std::fs::copy(&certs.server().certificate, &cert).expect("copied");
        std::fs::copy(&certs.server().key, &key_file).expect("copied");
    };
    install(&old);
    let limit = "limit = { rate_per_s = 0.001, burst = 1000000 }";
    let rig = Rig::start(&format!("cert_file = {cert:?}\nkey_file = {key_file:?}\n{limit}\n"));
    let client = client([old.ca(), new.ca()]);
    let key = rig.new_key("acme", &[]);
    rig.until("the key opens", || ask(&rig, &client, &key, b"1").0.status == 202);
    let wanted = first(&new.server().certificate);
    let asked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut renewed = 0;
                while renewed < 5 {
                    let (answer, shown) = ask(&rig, &client, &key, b"payload");
                    assert_eq!(answer.status, 202, "{}", answer.text);
                    asked.fetch_add(1, Ordering::Relaxed);
                    renewed += usize::from(shown == wanted);
                }
            });
        }
        rig.until("they ask", || asked.load(Ordering::Relaxed) >= 10);
        // A key without its certificate changes nothing.
        std::fs::copy(&new.server().key, &key_file).expect("copied");
        rig.daemon.signal(Signal::HUP);
        rig.daemon.says("the gateway's certificate of before stays in force");
        install(&new);
        rig.daemon.signal(Signal::HUP);
    });
    let _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn what_is_not_tls_gets_nothing_and_an_early_answer_is_read() {
    const LARGE: usize = 1 << 20;
    let certs = Certs::make().expect("certificates");
    let (cert, key_file) = (&certs.server().certificate, &certs.server().key);
    let more = "limit = { rate_per_s = 0.001, burst = 1 }\nbounds = { body_bytes_max = 100000 }\n";
    let rig = Rig::start(&format!("cert_file = {cert:?}\nkey_file = {key_file:?}\n{more}"));
    let client = client([certs.ca()]);
    let key = rig.new_key("acme", &[]);
    rig.until("the key opens", || ask(&rig, &client, &key, b"1").0.status == 202);
    let large = vec![b' '; LARGE];
    for _ in 0..5 {
        let (answer, _) = ask(&rig, &client, "phk_no", &large);
        assert_eq!((answer.status, answer.code().as_str()), (401, "gateway.key"));
        let (answer, _) = ask(&rig, &client, &key, &large);
        assert_eq!((answer.status, answer.code().as_str()), (413, "gateway.too_large"));
        let (answer, _) = ask(&rig, &client, &key, &large[..90_000]);
        assert_eq!((answer.status, answer.code().as_str()), (429, "gateway.limited"));
    }
    // A request in clear, and a body behind it.
    let plain = TcpStream::connect(&rig.address).expect("it listens");
    plain.set_read_timeout(Some(DEADLINE)).expect("a timeout can be set");
    let head = [("authorization", &*format!("Bearer {key}"))];
    let _ = (&plain).write_all(&request_of("localhost", "POST", "/v1/topics/raw", &head, &large[..1_000]));
    let mut answer = Vec::new();
    let _ = (&plain).read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(rig.events().len(), 1);
    assert!(!rig.daemon.said().contains("panicked"), "{}", rig.daemon.said());
}
