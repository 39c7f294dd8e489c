//! Proxies: in many networks the only way out.
//!
//! A connection through a proxy is made by `CONNECT`, for `https://` and for `http://` alike. So there is one
//! way to speak to a receiver, and with TLS the proxy does not see the headers that are meant for it. A proxy
//! may refuse `CONNECT` to other ports than 443, and then it says so.
//!
//! The variables of the environment are used only where the configuration asks for it, because whoever can
//! set them could redirect every event.

use super::connection::Payload;
use super::dial::{DialTarget, Unreached};
use super::guard::{Lookup, Network};
use crate::address::{Address, Scheme, Shape};
use crate::{BuildError, dial};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::net::TcpStream;

/// The value of the option `proxy` that means the environment.
pub(crate) const ENVIRONMENT: &str = "environment";
/// The largest answer of a proxy to `CONNECT`.
const HEAD_BYTES_MAX: usize = 16 << 10;

const SHAPE: Shape = Shape {
    schemes: &[Scheme { name: "http", tls: false, port: 80 }],
    needs_scheme: true,
    has_path: false,
    example: "http://proxy:3128",
    credentials: "proxy_user with proxy_password_file",
};

/// Which host is reached through which proxy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Proxies {
    http: Option<Arc<Proxy>>,
    https: Option<Arc<Proxy>>,
    direct: Vec<Direct>,
}

/// A proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: Address,
    authorization: Option<HeaderValue>,
}

/// Hosts that are reached without a proxy.
#[derive(Debug, Clone, PartialEq)]
enum Direct {
    All,
    /// A host and all below it.
    Domain(String),
    Network(Network),
}

impl Direct {
    fn parse(text: &str) -> Option<Self> {
        let name = text.trim().trim_start_matches('.').to_ascii_lowercase();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        match Network::parse(&name) {
            _ if name == "*" => Some(Self::All),
            Some(network) => Some(Self::Network(network)),
            None => (!name.is_empty() && name.chars().all(is_name)).then_some(Self::Domain(name)),
        }
    }

    fn holds(&self, target: &DialTarget) -> bool {
        match self {
            Self::All => true,
            Self::Domain(domain) => {
                let rest = target.host.strip_suffix(domain.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            Self::Network(network) => target.address.is_some_and(|address| network.contains(address)),
        }
    }
}

impl Proxies {
    /// `proxy` is a URL, or [`ENVIRONMENT`]. `direct` are the configured exceptions.
    pub(crate) fn new(
        proxy: Option<&str>,
        direct: &[String],
        authorization: Option<HeaderValue>,
    ) -> Result<Self, BuildError> {
        let parse = |text: &String| {
            let why = || format!("{text:?} must be a host, a network, or *");
            Direct::parse(text).ok_or_else(|| BuildError::option("no_proxy", why()))
        };
        let direct = direct.iter().map(parse).collect::<Result<_, _>>()?;
        let mut proxies = match proxy {
            None => Self::default(),
            Some(ENVIRONMENT) => Self::of_environment(|name| std::env::var(name).ok(), authorization)?,
            Some(url) => {
                let found = Some(Arc::new(Proxy::new(SHAPE, url, authorization)?));
                Self { http: found.clone(), https: found, direct: Vec::new() }
            }
        };
        proxies.direct.extend::<Vec<_>>(direct);
        Ok(proxies)
    }

    fn of_environment(
        variable: impl Fn(&str) -> Option<String>,
        authorization: Option<HeaderValue>,
    ) -> Result<Self, BuildError> {
        let read = |name: &str| {
            let value = variable(&name.to_ascii_lowercase()).or_else(|| variable(name));
            value.filter(|value| !value.trim().is_empty())
        };
        let proxy = |name: &str| {
            let Some(url) = read(name).or_else(|| read("ALL_PROXY")) else { return Ok(None) };
            let shape = Shape { needs_scheme: false, ..SHAPE };
            let found = Proxy::new(shape, url.trim(), authorization.clone());
            let named = |error| BuildError::option("proxy", format!("{name} of the environment: {error}"));
            found.map(|proxy| Some(Arc::new(proxy))).map_err(named)
        };
        // An exception that we do not understand is no reason to go around the proxy.
        let direct = read("NO_PROXY").unwrap_or_default().split(',').filter_map(Direct::parse).collect();
        Ok(Self { http: proxy("HTTP_PROXY")?, https: proxy("HTTPS_PROXY")?, direct })
    }

    /// The proxy for a host, if it is reached through one.
    pub(crate) fn of(&self, target: &DialTarget) -> Option<&Arc<Proxy>> {
        let proxy = if target.tls { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.direct.iter().any(|direct| direct.holds(target)))
    }
}

impl Proxy {
    fn new(shape: Shape, url: &str, authorization: Option<HeaderValue>) -> Result<Self, BuildError> {
        let (address, _) = shape.parse(url).map_err(|why| BuildError::option("proxy", why))?;
        Ok(Self { address, authorization })
    }

    /// A connection to the target, through this proxy. The proxy is at fault for all targets only if it
    /// cannot be connected to, or refuses us. Some proxies answer a `CONNECT` that they forbid, or cannot
    /// make, by closing the connection.
    pub(crate) async fn connect(
        &self,
        lookup: &dyn Lookup,
        target: &DialTarget,
    ) -> Result<TcpStream, Unreached> {
        let broken = |error: &dyn std::fmt::Display| Unreached::Proxy(format!("{}: {error}", self.address));
        let socket = self.dial(lookup).await.map_err(|error| broken(&error))?;
        let (status, socket) = self
            .tunnel(socket, target)
            .await
            .map_err(|error| format!("the proxy {} made no tunnel: {error}", self.address))?;
        match socket {
            Some(socket) => Ok(socket),
            None if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                Err(broken(&"wants other credentials (proxy_user, proxy_password_file)"))
            }
            None => Err(format!("the proxy {} answered {status}", self.address).into()),
        }
    }

    async fn dial(&self, lookup: &dyn Lookup) -> std::io::Result<TcpStream> {
        let Address { host, port, .. } = &self.address;
        let addresses = match host.parse() {
            Ok(address) => vec![address],
            Err(_) => lookup.lookup(host.clone()).await?,
        };
        dial::to_any(addresses, *port).await
    }

    /// Asks the proxy for a tunnel. The answer is its status, and the tunnel if it said yes.
    async fn tunnel(
        &self,
        socket: TcpStream,
        target: &DialTarget,
    ) -> Result<(StatusCode, Option<TcpStream>), super::BoxError> {
        let mut builder = http1::Builder::new();
        let handshake = builder.max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(socket));
        let (mut sender, mut connection) = handshake.await?;
        let mut sent = pin!(sender.send_request(self.request(target)?));
        let mut has_ended = false;
        let status = poll_fn(|context| {
            if !has_ended {
                has_ended = connection.poll_without_shutdown(context).is_ready();
            }
            sent.as_mut().poll(context)
        })
        .await?
        .status();
        if !status.is_success() {
            return Ok((status, None));
        }
        poll_fn(
            |context| if has_ended { Poll::Ready(Ok(())) } else { connection.poll_without_shutdown(context) },
        )
        .await?;
        let parts = connection.into_parts();
        if !parts.read_buf.is_empty() {
            return Err("somebody spoke before us".into());
        }
        Ok((status, Some(parts.io.into_inner())))
    }

    fn request(&self, target: &DialTarget) -> Result<Request<Payload>, super::BoxError> {
        let host = match target.host.contains(':') {
            true => format!("[{}]:{}", target.host, target.port),
            false => format!("{}:{}", target.host, target.port),
        };
        let mut request = Request::new(Payload::empty());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = host.parse()?;
        request.headers_mut().insert(HOST, HeaderValue::try_from(host)?);
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use url::Url;

    fn shown(proxies: &Proxies, url: &str) -> Option<String> {
        let target = DialTarget::new(&Url::parse(url).expect("a URL"));
        proxies.of(&target).map(|proxy| proxy.address.to_string())
    }

    #[test]
    fn who_is_reached_through_a_proxy() {
        let direct = ["shop.example", ".corp", "10.0.0.0/8", "fd12::/16"].map(str::to_owned);
        let proxies = Proxies::new(Some("http://proxy:3128"), &direct, None).expect("a proxy");
        for url in ["https://h.example/", "http://h.example/", "https://myshop.example/", "https://11.0.0.1/"]
        {
            assert_eq!(shown(&proxies, url).as_deref(), Some("http://proxy:3128"), "{url}");
        }
        for url in [
            "https://shop.example/",
            "https://a.SHOP.example/",
            "http://x.corp/",
            "http://10.1.2.3/",
            "https://[fd12::1]/",
        ] {
            assert_eq!(shown(&proxies, url), None, "{url}");
        }
        assert_eq!(shown(&Proxies::new(None, &[], None).expect("none"), "https://h/"), None);
    }

    #[test]
    fn what_is_no_proxy_is_named() {
        for bad in
            ["", "proxy:3128", "https://proxy", "socks5://proxy", "http://u:secret@proxy", "http://p/x"]
        {
            let error = Proxies::new(Some(bad), &[], None).expect_err(bad);
            assert_eq!(error.option_name(), "proxy");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        for bad in ["", "a b", "http://h", "10.0.0.0/99"] {
            let error = Proxies::new(Some("http://p"), &[bad.to_owned()], None).expect_err(bad);
            assert_eq!(error.option_name(), "no_proxy");
        }
    }

    #[test]
    fn the_environment_where_it_is_asked_for() {
        let environment = |pairs: &'static [(&str, &str)]| {
            let variable = move |name: &str| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            Proxies::of_environment(variable, None)
        };
        let proxies = environment(&[
            ("HTTPS_PROXY", "http://secure:1"),
            ("http_proxy", "plain:2"),
            ("NO_PROXY", "localhost, .corp, what is this"),
        ])
        .expect("proxies");
        assert_eq!(shown(&proxies, "https://h/").as_deref(), Some("http://secure:1"));
        assert_eq!(shown(&proxies, "http://h/").as_deref(), Some("http://plain:2"));
        assert_eq!((shown(&proxies, "https://localhost/"), shown(&proxies, "http://x.corp/")), (None, None));
        let all = environment(&[("ALL_PROXY", "http://all:3")]).expect("a proxy");
        assert_eq!(shown(&all, "https://h/").as_deref(), Some("http://all:3"));
        assert_eq!(shown(&environment(&[("HTTPS_PROXY", " ")]).expect("none"), "https://h/"), None);
        let error = environment(&[("HTTPS_PROXY", "http://u:secret@p")]).expect_err("credentials");
        assert!(
            !error.to_string().contains("secret") && error.to_string().contains("HTTPS_PROXY"),
            "{error}"
        );
    }
}
