//! Private Redis servers: one alone, a cluster of them, a sentinel that watches over them.
//!
//! Each counts as ready when it has said so in its log: a server with TLS or without an open user answers
//! nobody who merely asks. A port that somebody else listens on ends the server at its start, so no stranger
//! is mistaken for it.
//!
//! By default a server keeps an append-only file and syncs it every second, as Redis does by itself. A killed
//! process loses nothing by that, a machine without power would.

use std::{net::SocketAddr, path::Path, path::PathBuf, process::Command, time::Duration};

use rustix::process::Signal;

use super::{
    Pair, Port, ServiceError,
    dir::PrivateDir,
    guard::LastSignal,
    locate,
    process::{Process, logged, until},
};

const SERVICE: &str = "redis-server";
const READY: &str = "Ready to accept connections";
/// For a cluster to agree on itself.
const AGREE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a test wants otherwise than the defaults: an open server with an append-only file.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    settings: Vec<String>,
    tls: Option<(Pair, Option<PathBuf>)>,
    peers: Option<(Pair, PathBuf)>,
    cluster: bool,
}

impl RedisOptions {
    /// A line of the configuration, such as `maxmemory 4mb`, or `user shop on >pw ~open:* +xadd`.
    #[must_use]
    pub fn setting(mut self, line: &str) -> Self {
        self.settings.push(line.to_owned());
        self
    }

    /// Follows this server.
    #[must_use]
    pub fn replica_of(self, master: SocketAddr) -> Self {
        self.setting(&format!("replicaof {} {}", master.ip(), master.port()))
    }

    /// Requires TLS, with this certificate.
    #[must_use]
    pub fn tls(mut self, server: &Pair) -> Self {
        self.tls = Some((server.clone(), None));
        self
    }

    /// Requires TLS, and of each client a certificate that `client_ca` signed.
    #[must_use]
    pub fn mutual_tls(mut self, server: &Pair, client_ca: &Path) -> Self {
        self.tls = Some((server.clone(), Some(client_ca.to_owned())));
        self
    }

    /// The servers of a cluster speak TLS with each other too; without it they do not tell anybody where
    /// their ports with TLS are. A server shows `pair` to its peers, and `ca` has signed theirs.
    #[must_use]
    pub fn tls_between_peers(mut self, pair: &Pair, ca: &Path) -> Self {
        self.peers = Some((pair.clone(), ca.to_owned()));
        self
    }

    /// What `redis-cli` needs to be let in.
    fn cli_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if self.tls.is_some() {
            // Whatever certificate the server shows: it is the test's to judge.
            arguments.extend(["--tls", "--insecure"].map(str::to_owned));
        }
        if let Some((pair, _)) = &self.peers {
            let (certificate, key) = (pair.certificate.display().to_string(), pair.key.display().to_string());
            arguments.extend(["--cert".to_owned(), certificate, "--key".to_owned(), key]);
        }
        arguments
    }

    fn configuration(&self, port: &Port, bus: Option<&Port>, dir: &PrivateDir) -> String {
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("dir {:?}", dir.path()),
            "appendonly yes".to_owned(),
            "save \"\"".to_owned(),
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        match &self.tls {
            None => lines.push(format!("port {}", port.number())),
            Some((server, client_ca)) => {
                lines.push(format!("port 0\ntls-port {}", port.number()));
                lines.push(format!("tls-cert-file {:?}\ntls-key-file {:?}", server.certificate, server.key));
                lines.push(match client_ca {
                    Some(ca) => format!("tls-ca-cert-file {ca:?}\ntls-auth-clients yes"),
                    None => "tls-auth-clients no".to_owned(),
                });
            }
        }
        lines.extend(self.peers.as_ref().map(|(pair, ca)| {
            let Pair { certificate, key } = pair;
            format!("tls-cluster yes\ntls-ca-cert-file {ca:?}\ntls-client-cert-file {certificate:?}\ntls-client-key-file {key:?}")
        }));
        lines.extend(bus.map(|bus| {
            format!("cluster-enabled yes\ncluster-port {}\ncluster-node-timeout 2000", bus.number())
        }));
        lines.extend(self.settings.iter().cloned());
        lines.join("\n")
    }
}

/// A running server. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Redis {
    binary: PathBuf,
    cli: PathBuf,
    port: Port,
    bus: Option<Port>,
    tls: bool,
    cli_arguments: Vec<String>,
    process: Process,
}

impl Redis {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// `Missing` if it is not installed, otherwise `Failed` with the end of the server's log.
    pub async fn start(options: &RedisOptions) -> Result<Self, ServiceError> {
        let failed = |error: std::io::Error| ServiceError::failed(SERVICE, error);
        let (port, dir) =
            (Port::claim().map_err(failed)?, PrivateDir::create("redis", None).map_err(failed)?);
        let bus = options.cluster.then(Port::claim).transpose().map_err(failed)?;
        dir.write("redis.conf", options.configuration(&port, bus.as_ref(), &dir)).map_err(failed)?;
        let mut server = Self {
            binary: locate(SERVICE, &["/usr/bin/redis-server".into(), "/usr/local/bin/redis-server".into()])?,
            cli: locate("redis-cli", &["/usr/bin/redis-cli".into(), "/usr/local/bin/redis-cli".into()])?,
            port,
            bus,
            tls: options.tls.is_some(),
            cli_arguments: options.cli_arguments(),
            process: Process::new(SERVICE.to_owned(), dir, LastSignal::Kill)?,
        };
        server.start_again().await?;
        Ok(server)
    }

    /// Starts it after [`kill9`](Self::kill9) or [`stop`](Self::stop), with the same data on the same port.
    ///
    /// # Errors
    ///
    /// `Failed` with the end of the server's log.
    pub async fn start_again(&mut self) -> Result<(), ServiceError> {
        let configuration = self.process.dir().join("redis.conf").display().to_string();
        self.process.launch(&self.binary, &[configuration])?;
        let log = self.process.log();
        self.process.until_ready(async || logged(&log, READY)).await
    }

    /// Kills it with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// `Failed` if it is still there after a minute.
    pub async fn kill9(&mut self) -> Result<(), ServiceError> {
        self.process.end(Signal::KILL).await
    }

    /// Stops it in its own orderly way.
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

    /// `redis://` or, with TLS, `rediss://`; without credentials.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "rediss" } else { "redis" }, self.port.addr())
    }

    /// The loopback address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Runs one command with `redis-cli`, as an operator would, on a server with an open user.
    ///
    /// # Errors
    ///
    /// `Failed` if the program cannot be run. An error of the server is part of the text.
    pub fn cli(&self, arguments: &[&str]) -> Result<String, ServiceError> {
        let port = self.port.number().to_string();
        let mut command = Command::new(&self.cli);
        command.args(["-h", "127.0.0.1", "-p", &port]).args(&self.cli_arguments).args(arguments);
        let output = command.output().map_err(|error| ServiceError::failed("redis-cli", error))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }
}

/// Servers that share the slots among them, without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    /// The servers; each holds an equal part of the slots, in this order.
    pub nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts this many servers and joins them.
    ///
    /// # Errors
    ///
    /// `Missing` if Redis is not installed, `Failed` if the servers do not find together.
    pub async fn start(count: usize, options: &RedisOptions) -> Result<Self, ServiceError> {
        Self::start_each(&vec![options.clone(); count]).await
    }

    /// The same, each server with its own options.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_each(options: &[RedisOptions]) -> Result<Self, ServiceError> {
        let mut nodes = Vec::new();
        for options in options {
            nodes.push(Redis::start(&RedisOptions { cluster: true, ..options.clone() }).await?);
        }
        let cluster = Self { nodes };
        cluster.join().await?;
        Ok(cluster)
    }

    /// A server that could be of a cluster and is of none, as one that was taken out of its own.
    ///
    /// # Errors
    ///
    /// As [`Redis::start`].
    pub async fn lone(options: &RedisOptions) -> Result<Redis, ServiceError> {
        Redis::start(&RedisOptions { cluster: true, ..options.clone() }).await
    }

    async fn join(&self) -> Result<(), ServiceError> {
        let first = &self.nodes[0];
        let share = 16_384_usize.div_ceil(self.nodes.len());
        for (index, node) in self.nodes.iter().enumerate() {
            let (from, to) = (index * share, ((index + 1) * share).min(16_384) - 1);
            node.cli(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()])?;
            // Two nodes that claim the same epoch would quarrel at the first failover.
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            let (ip, port) = (first.addr().ip().to_string(), first.addr().port().to_string());
            let bus = first.bus.as_ref().map_or(0, Port::number).to_string();
            node.cli(&["CLUSTER", "MEET", &ip, &port, &bus])?;
        }
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        let agreed = || {
            self.nodes.iter().all(|node| {
                let info = node.cli(&["CLUSTER", "INFO"]).unwrap_or_default();
                info.contains("cluster_state:ok") && info.contains(&known)
            })
        };
        if until(AGREE_TIMEOUT, agreed).await {
            return Ok(());
        }
        Err(ServiceError::failed("redis cluster", "its nodes do not agree"))
    }

    /// Gives a slot without keys to another node, and everybody is told.
    ///
    /// # Errors
    ///
    /// `Failed` if `redis-cli` cannot be run.
    pub fn move_slot(&self, slot: u16, to: usize) -> Result<(), ServiceError> {
        let owner = self.nodes[to].cli(&["CLUSTER", "MYID"])?;
        let slot = slot.to_string();
        // The new owner first: the others follow whoever has the higher epoch.
        self.nodes[to].cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &owner])?;
        self.nodes[to].cli(&["CLUSTER", "BUMPEPOCH"])?;
        for node in &self.nodes {
            node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &owner])?;
        }
        Ok(())
    }
}

/// A sentinel that watches one master. It is alone, so its own word is enough for a failover.
#[derive(Debug)]
pub struct RedisSentinel {
    port: Port,
    process: Process,
}

impl RedisSentinel {
    /// Starts a sentinel that knows this master, and through it its replicas, under this name.
    ///
    /// # Errors
    ///
    /// `Missing` if Redis is not installed, otherwise `Failed` with the end of the sentinel's log.
    pub async fn start(name: &str, master: SocketAddr) -> Result<Self, ServiceError> {
        Self::start_with(name, master, "").await
    }

    /// The same, with these lines of configuration.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_with(name: &str, master: SocketAddr, settings: &str) -> Result<Self, ServiceError> {
        let binary =
            locate(SERVICE, &["/usr/bin/redis-server".into(), "/usr/local/bin/redis-server".into()])?;
        let failed = |error: std::io::Error| ServiceError::failed("redis sentinel", error);
        let (port, dir) =
            (Port::claim().map_err(failed)?, PrivateDir::create("sentinel", None).map_err(failed)?);
        let (ip, number) = (master.ip(), master.port());
        let configuration = format!(
            "port {}\nbind 127.0.0.1\ndir {:?}\nsentinel monitor {name} {ip} {number} 1\nsentinel down-after-milliseconds \
             {name} 500\nsentinel failover-timeout {name} 3000\n{settings}\n",
            port.number(),
            dir.path(),
        );
        let configuration = dir.write("sentinel.conf", configuration).map_err(failed)?;
        let mut process = Process::new("redis sentinel".to_owned(), dir, LastSignal::Kill)?;
        process.launch(&binary, &[configuration.display().to_string(), "--sentinel".to_owned()])?;
        let log = process.log();
        process.until_ready(async || logged(&log, "+monitor master")).await?;
        Ok(Self { port, process })
    }

    /// Waits until it knows a replica of its master: without one there is nothing to fail over to.
    pub async fn knows_a_replica(&self) -> bool {
        let log = self.process.log();
        until(AGREE_TIMEOUT, || logged(&log, "+slave ")).await
    }

    /// `redis://`, without credentials.
    pub fn url(&self) -> String {
        format!("redis://{}", self.port.addr())
    }
}
