//! `posthaste health`: asks the process on this host how it is, and ends with 0 if it is well. For a
//! container's health check, where there is no shell and nothing else that could ask a page.

use super::Context;
use crate::output::escape::line;
use crate::output::{Usage, paragraph};
use clap::Args;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A page of ours is some kilobytes; whoever sends more is somebody else.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  posthaste health                              what /readyz says
  posthaste health --live                       only whether the process runs
  posthaste health --address 127.0.0.1:7678 --timeout 1000

Asks the address of `[http] listen`, on this host. The exit status is 0 if it is
well and 1 if not. What is wrong with events is said by `posthaste status`.";

/// Ask the process on this host whether it is well
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HealthArgs {
    /// Ask here, instead of the address in the file
    #[arg(long, value_name = "IP:PORT")]
    address: Option<SocketAddr>,
    /// Only whether it runs, not whether events go on
    #[arg(long)]
    live: bool,
    /// Longest wait for the answer
    #[arg(long, value_name = "MS", default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    timeout: u64,
}

pub(crate) async fn run(context: &Context, args: HealthArgs) -> anyhow::Result<ExitCode> {
    let address = match args.address {
        Some(address) => address,
        None => context.config()?.listen.map(reachable).ok_or_else(|| {
            Usage("`[http] listen` is \"off\": there is nobody to ask; name an --address".to_owned())
        })?,
    };
    let page = if args.live { "/livez" } else { "/readyz" };
    let wait = Duration::from_millis(args.timeout);
    let asked = timeout(wait, ask(address, page)).await;
    let asked = asked.unwrap_or_else(|_| Err(format!("no answer within {} ms", args.timeout)));
    let (status, body) = asked.map_err(|why| {
        let means = "either it does not run, or it listens elsewhere. What is appended waits in the database";
        anyhow::anyhow!("http://{address}{page} cannot be asked: {why}; {means}")
    })?;
    let said: Value = serde_json::from_str(&body).unwrap_or_else(|_| body.trim_end().into());
    context.out().data(&said, || draw(&said))?;
    Ok(if status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whoever listens at all addresses is asked at the one of this host.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}

/// The status and the body of a page.
async fn ask(address: SocketAddr, page: &str) -> Result<(u16, String), String> {
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {page} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = talk.await.map_err(|error| error.to_string())?;
    parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| "what answers is no page of ours".to_owned())
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// A line for each outbox and each consumer.
fn draw(said: &Value) -> String {
    let seats = |kind: &'static str, list: &str| {
        let seats = said[list].as_array().cloned().unwrap_or_default();
        seats.into_iter().map(move |seat| {
            let text = |name: &str| line(seat[name].as_str().unwrap_or_default()).into_owned();
            let ready = if seat["ready"] == false { "not ready: " } else { "" };
            paragraph(&format!("{kind} {}: {ready}{}", text(kind), text("why")), "")
        })
    };
    let lines: Vec<String> = seats("outbox", "outboxes").chain(seats("consumer", "consumers")).collect();
    match lines.is_empty() {
        true => said.as_str().map_or_else(|| said.to_string(), str::to_owned),
        false => lines.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_read_and_anything_else_is_none() {
        assert_eq!(parse("HTTP/1.1 200 OK\r\na: b\r\n\r\nalive\n"), Some((200, "alive\n".to_owned())));
        assert_eq!(parse("HTTP/1.0 503 No\r\n\r\n"), Some((503, String::new())));
        for wrong in
            ["", "SSH-2.0-x\r\n\r\n", "HTTP/1.1\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1 200 OK\r\n"]
        {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn everywhere_is_asked_here() {
        let here = |text: &str| reachable(text.parse().expect("an address")).to_string();
        assert_eq!((here("0.0.0.0:7"), here("[::]:7")), ("127.0.0.1:7".to_owned(), "[::1]:7".to_owned()));
        assert_eq!(here("10.0.0.1:7"), "10.0.0.1:7");
    }

    #[test]
    fn each_outbox_has_a_line() {
        let said = json!({ "ready": false, "outboxes": [{ "outbox": "a", "ready": true, "why": "idle" },
            { "outbox": "b", "ready": false, "why": "the database is out of reach" }] });
        assert_eq!(draw(&said), "outbox a: idle\noutbox b: not ready: the database is out of reach");
        assert_eq!(draw(&json!("alive")), "alive");
    }
}
