//! One node: a process, its listeners, and the proxies before them.

use std::{io, net::SocketAddr, path::PathBuf};

use rustix::process::Signal;

use super::{
    SERVICE,
    java::{Java, Jvm},
    options::{Bound, INTERNAL, KafkaOptions, NodePlace, Security},
};
use crate::services::{
    Port, Proxy, ServiceError,
    dir::PrivateDir,
    guard::LastSignal,
    process::{Process, logged},
};

/// The line of the log that says that a broker takes part in its cluster and serves its clients.
const READY: &str = "Kafka Server started";

/// One node of a Kafka cluster.
#[derive(Debug)]
pub struct Node {
    id: u32,
    java: Java,
    jvm: Jvm,
    listeners: Vec<Listener>,
    controller: Option<Port>,
    process: Process,
}

#[derive(Debug)]
struct Listener {
    name: String,
    port: Port,
    proxy: Option<Proxy>,
}

impl Listener {
    async fn open(name: &str, security: &Security) -> Result<Self, ServiceError> {
        let port = Port::claim().map_err(|error| ServiceError::failed(SERVICE, error))?;
        let proxy = match security {
            Security::Proxied => Some(Proxy::start(port.addr()).await?),
            _ => None,
        };
        Ok(Self { name: name.to_owned(), port, proxy })
    }

    fn bound(&self) -> Bound<'_> {
        Bound { name: &self.name, bound: self.port.addr(), advertised: self.advertised() }
    }

    fn advertised(&self) -> SocketAddr {
        self.proxy.as_ref().map_or(self.port.addr(), Proxy::addr)
    }
}

impl Node {
    /// Takes ports and a directory for a node, and starts nothing.
    pub(super) async fn prepare(id: u32, java: &Java, options: &KafkaOptions) -> Result<Self, ServiceError> {
        let failed = |error: io::Error| ServiceError::failed(SERVICE, error);
        let mut listeners = vec![Listener::open(INTERNAL, &Security::Plain).await?];
        for (name, security) in &options.listeners {
            listeners.push(Listener::open(name, security).await?);
        }
        let controls = id == 1 || !options.first_controls;
        let controller = controls.then(Port::claim).transpose().map_err(failed)?;
        let dir = PrivateDir::create("kafka", None).map_err(failed)?;
        let process = Process::new(format!("{SERVICE} node {id}"), dir, LastSignal::Kill)?;
        Ok(Self { id, java: java.clone(), jvm: options.jvm(), listeners, controller, process })
    }

    /// Writes its configuration. `controllers` are those of the whole cluster.
    pub(super) fn configure(
        &self,
        options: &KafkaOptions,
        controllers: &[(u32, SocketAddr)],
    ) -> io::Result<PathBuf> {
        let place = NodePlace {
            id: self.id,
            data: self.process.dir().join("data"),
            listeners: self.listeners.iter().map(Listener::bound).collect(),
            controllers: controllers.to_vec(),
        };
        let dir = self.process.dir();
        for (name, security) in &options.listeners {
            if let Some(pair) = security.server_pair() {
                let (key, certificate) = (std::fs::read(&pair.key)?, std::fs::read(&pair.certificate)?);
                dir.write(&format!("{name}.pem"), [key, certificate].concat())?;
            }
        }
        dir.write("log4j2.properties", include_str!("log4j2.properties"))?;
        dir.write("server.properties", options.properties(&place))
    }

    pub(super) fn controller(&self) -> Option<(u32, SocketAddr)> {
        self.controller.as_ref().map(|port| (self.id, port.addr()))
    }

    pub(super) fn dir(&self) -> &std::path::Path {
        self.process.dir().path()
    }

    pub(super) fn launch(&mut self) -> Result<(), ServiceError> {
        let dir = self.process.dir();
        let mut args = self.java.args(dir.path(), self.jvm);
        args.extend(["kafka.Kafka".to_owned(), dir.join("server.properties").display().to_string()]);
        self.process.launch(self.java.program(), &args)
    }

    pub(super) async fn until_ready(&mut self) -> Result<(), ServiceError> {
        let log = self.process.log();
        self.process.until_ready(async || logged(&log, READY)).await
    }

    /// Starts it after [`kill9`](Self::kill9) or [`stop`](Self::stop), with the same data on the same ports,
    /// and waits until it serves. A cluster that has lost its majority is not served before enough nodes are
    /// back: then [`Kafka::start_again`](super::Kafka::start_again) starts all that are down together.
    ///
    /// # Errors
    ///
    /// `Failed` with the end of the server's log.
    pub async fn start_again(&mut self) -> Result<(), ServiceError> {
        self.launch()?;
        self.until_ready().await
    }

    /// Kills it with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// `Failed` if it is still there after a minute.
    pub async fn kill9(&mut self) -> Result<(), ServiceError> {
        self.process.end(Signal::KILL).await
    }

    /// Stops it in its own orderly way: it hands over what it leads. Without a controller it cannot, and
    /// waits for one.
    ///
    /// # Errors
    ///
    /// `Failed` if it is still there after a minute.
    pub async fn stop(&mut self) -> Result<(), ServiceError> {
        self.process.end(Signal::TERM).await
    }

    /// Stops the process without ending it: connections stay open and nobody answers, from the moment this
    /// returns.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// The process's pid, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Its `node.id`.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Where clients of this listener are told to connect to.
    ///
    /// # Panics
    ///
    /// If the options named no such listener.
    pub fn addr(&self, listener: &str) -> SocketAddr {
        self.listener(listener).advertised()
    }

    /// The proxy before a listener with [`Security::Proxied`].
    ///
    /// # Panics
    ///
    /// If the options named no such listener.
    pub fn proxy(&self, listener: &str) -> &Proxy {
        let proxy = self.listener(listener).proxy.as_ref();
        proxy.unwrap_or_else(|| panic!("the listener {listener} has no proxy"))
    }

    fn listener(&self, name: &str) -> &Listener {
        let found = self.listeners.iter().find(|listener| listener.name == name);
        found.unwrap_or_else(|| panic!("there is no listener {name}"))
    }
}
