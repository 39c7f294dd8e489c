//! What `posthaste doctor` says about receivers.
//!
//! It connects and says goodbye: name, address, TCP, TLS. No request is made, not even a `HEAD`: nobody
//! knows what a stranger's handler does with one.

use super::address::origin;
use super::guard::{Forbidden, literal};
use super::sink::HttpSink;
use posthaste::sink::{Finding, Level, shown};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use url::Url;

/// For the name, for a connection, and for each step of a handshake.
const PATIENCE: Duration = Duration::from_secs(3);
/// For all addresses of a host together: who asks waits 10 s.
const VISIT: Duration = Duration::from_secs(6);

/// Names of all checks. Each finding bears one of them.
pub const CHECKS: &[&str] =
    &["destination", "reachable", "address", "transport", "signature", "files", "durability"];

pub(super) async fn examine(sink: &HttpSink, destinations: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Routes by pattern name no destination, but all of them are below the base.
    let base = sink.addresses.base().map(|url| (origin(url), url.clone()));
    let mut origins: BTreeMap<String, Url> = base.into_iter().collect();
    for destination in destinations {
        match sink.addresses.find(destination) {
            Ok(url) => {
                let text = format!("destination {:?} goes to {}", shown(destination), origin(&url));
                findings.push(finding("destination", Level::Ok, text));
                origins.insert(origin(&url), url);
            }
            Err(why) => {
                let text = format!("destination {:?} {why}: its events are rejected", shown(destination));
                findings.push(finding("destination", Level::Fail, text));
            }
        }
    }
    let visits = origins.iter().map(|(origin, url)| visit(sink, origin, url));
    findings.extend(futures_util::future::join_all(visits).await.into_iter().flatten());
    findings.push(signature(sink));
    findings.extend(sink.keeper.trouble().map(|why| {
        let text = format!("{why}; what was read before is still used");
        finding("files", Level::Fail, text)
    }));
    findings.push(finding(
        "durability",
        Level::Ok,
        "a 2xx is the receiver's promise to keep the event; nobody can look behind it from here",
    ));
    findings
}

fn finding(check: &str, level: Level, text: impl Into<String>) -> Finding {
    debug_assert!(CHECKS.contains(&check), "{check} is not listed");
    Finding { check: check.to_owned(), level, text: text.into() }
}

/// One host: who it is, whether it is there, whether others can listen.
async fn visit(sink: &HttpSink, origin: &str, url: &Url) -> Vec<Finding> {
    let addresses = match addresses(sink, url).await {
        Ok(addresses) => addresses,
        Err(error) if error.is::<Forbidden>() => {
            let text = format!("{origin}: {error}; its events wait");
            return vec![finding("address", Level::Fail, text)];
        }
        Err(error) => {
            let text = format!("{origin}: no address: {error}. Its events wait");
            return vec![finding("reachable", Level::Fail, text)];
        }
    };
    let loopback = addresses.iter().all(IpAddr::is_loopback);
    let reached = reach(sink, url, addresses).await;
    let reached = match reached {
        Ok(words) => finding("reachable", Level::Ok, format!("{origin}: {words}")),
        Err(why) => finding("reachable", Level::Fail, format!("{origin}: {why}. Its events wait")),
    };
    vec![reached, transport(sink, origin, url, loopback)]
}

async fn addresses(
    sink: &HttpSink,
    url: &Url,
) -> Result<Vec<IpAddr>, Box<dyn std::error::Error + Send + Sync>> {
    let asked = sink.keeper.resolver.admitted(url.host_str().unwrap_or_default(), literal(url));
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err("the resolver does not answer".into()))
}

/// Connects to the first address that answers.
async fn reach(sink: &HttpSink, url: &Url, addresses: Vec<IpAddr>) -> Result<String, String> {
    let port = url.port_or_known_default().unwrap_or(443);
    let tls = match url.scheme() {
        "https" => Some(sink.config.options.tls().client_config().map_err(|error| error.to_string())?),
        _ => None,
    };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let task = tokio::task::spawn_blocking(move || {
        let mut why = "no address".to_owned();
        for address in addresses {
            match connect(SocketAddr::new(address, port), &host, tls.clone()) {
                Ok(words) => return Ok(words),
                Err(error) => why = format!("{address}: {error}"),
            }
        }
        Err(why)
    });
    match timeout(VISIT, task).await {
        Ok(Ok(reached)) => reached,
        Ok(Err(_)) => Err("the examination failed".to_owned()),
        Err(_) => Err("no connection in time".to_owned()),
    }
}

fn connect(address: SocketAddr, host: &str, tls: Option<ClientConfig>) -> Result<String, String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| error.to_string())?;
    let Some(tls) = tls else { return Ok(format!("{address} answers")) };
    let patience = Some(PATIENCE);
    stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience)).map_err(text)?;
    let name = ServerName::try_from(host.to_owned()).map_err(text)?;
    let mut connection = ClientConnection::new(Arc::new(tls), name).map_err(text)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).map_err(|error| format!("no TLS connection: {error}"))?;
    }
    connection.send_close_notify();
    // A receiver that is gone by now was there.
    let _ = connection.write_tls(&mut stream);
    Ok(format!("{address} answers, and its certificate is good"))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn transport(sink: &HttpSink, origin: &str, url: &Url, loopback: bool) -> Finding {
    if url.scheme() == "https" {
        let text = format!("{origin}: TLS, with the receiver's certificate verified");
        return finding("transport", Level::Ok, text);
    }
    let text = format!("{origin}: not encrypted");
    match (loopback, sink.config.sends_secret()) {
        (true, _) => finding("transport", Level::Ok, text),
        (false, false) => {
            finding("transport", Level::Warn, format!("{text}: anybody between can read the events"))
        }
        (false, true) => {
            let more =
                format!("{text}, and a password or token travels over it: use https:// or require_tls");
            finding("transport", Level::Warn, more)
        }
    }
}

fn signature(sink: &HttpSink) -> Finding {
    if !sink.config.signs() {
        let text = "requests are not signed: receivers cannot know that they are ours (secrets_file)";
        return finding("signature", Level::Warn, text);
    }
    if sink.config.url.is_none() {
        let text = "one secret signs for every host that a destination names: each receiver could forge events for the others; a sink for each of them is safer";
        return finding("signature", Level::Warn, text);
    }
    finding("signature", Level::Ok, "requests are signed")
}
