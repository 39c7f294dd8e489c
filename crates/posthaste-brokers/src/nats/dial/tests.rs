//! Names that stand for several servers.

use super::*;
use tokio::net::TcpListener;

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
    let (config, server) = (NatsConfig::new("nats://n"), Address::parse("nats://n").expect("an address"));
    let tls = Arc::new(config.tls().client_config().expect("no files"));
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
