//! Names that stand for several servers, and what is said before TLS.

use super::*;
use posthaste_testkit::services::Certs;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const GREETING: &str = "INFO {\"headers\":true}\r\n";

/// Greets everybody, and answers to the login with this.
async fn server(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(GREETING.as_bytes()).await.expect("taken");
            let mut login = [0; 1_024];
            let _ = stream.read(&mut login).await;
            stream.write_all(answer.as_bytes()).await.expect("taken");
            // Until the client goes.
            let _ = stream.read(&mut login).await;
        }
    });
    address
}

/// What comes of trying these, in their order.
async fn tried(addresses: &[SocketAddr]) -> Result<(), String> {
    let (config, server) =
        (NatsConfig::new("nats://n"), crate::nats::SHAPE.parse("nats://n").expect("an address").0);
    let tls = Arc::new(config.options.tls().client_config().expect("no files"));
    let call =
        DialledBy { config: &config, server: &server, login: &Login::Nobody, tls, name: String::new() };
    let end = Instant::now() + Duration::from_secs(60);
    let opened = call.try_addresses(addresses.iter().copied(), end).await;
    opened.map(drop).map_err(|failure| failure.code.to_string())
}

#[tokio::test]
async fn one_bad_server_of_a_name_does_not_hide_the_good_ones() {
    let (good, refuses) = (server("PONG\r\n").await, server("-ERR 'Authorization Violation'\r\n").await);
    let gone = SocketAddr::from(([127, 0, 0, 1], 1));
    for before in [vec![], vec![refuses], vec![gone], vec![gone, refuses]] {
        assert_eq!(tried(&[before, vec![good]].concat()).await, Ok(()));
    }
    for all in [vec![refuses], vec![refuses, gone], vec![gone, refuses]] {
        assert_eq!(tried(&all).await, Err("nats.auth".to_owned()), "what says more");
    }
    for all in [vec![], vec![gone]] {
        assert_eq!(tried(&all).await, Err("nats.unreachable".to_owned()));
    }
}

#[tokio::test]
async fn a_server_that_is_about_to_stop_is_none() {
    let leaving = server("INFO {\"headers\":true,\"ldm\":true}\r\nPONG\r\n").await;
    assert_eq!(tried(&[leaving]).await, Err("nats.unreachable".to_owned()));
}

/// Whether the limit is only known from before TLS, after this was said under TLS.
async fn limit_is_hearsay(under_tls: &'static str) -> bool {
    let certs = Certs::make().expect("certificates");
    let chain = CertificateDer::pem_file_iter(&certs.server().certificate).expect("a chain");
    let key = PrivateKeyDer::from_pem_file(&certs.server().key).expect("a key");
    let tls = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain.collect::<Result<_, _>>().expect("certificates"), key)
        .expect("a pair");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("tls://{}", listener.local_addr().expect("an address"));
    let config = NatsConfig::new(&url).with(|options| options.ca_file = Some(certs.ca().to_owned()));
    let address = crate::nats::SHAPE.parse(&url).expect("an address").0;
    let serve = async {
        let (mut stream, _) = listener.accept().await.expect("somebody");
        let greeting = b"INFO {\"headers\":true,\"tls_required\":true,\"max_payload\":20}\r\n";
        stream.write_all(greeting).await.expect("taken");
        let mut stream = TlsAcceptor::from(Arc::new(tls)).accept(stream).await.expect("a handshake");
        stream.write_all(format!("{under_tls}PONG\r\n").as_bytes()).await.expect("taken");
        stream.flush().await.expect("taken");
        stream
    };
    let (opened, _stream) = tokio::join!(open(&config, &address, "test"), serve);
    let (session, _) = opened.expect("a session");
    session.info().is_hearsay
}

#[tokio::test]
async fn a_limit_counts_when_it_was_said_under_tls() {
    assert!(limit_is_hearsay("").await);
    assert!(!limit_is_hearsay("INFO {\"max_payload\":20}\r\n").await);
}
