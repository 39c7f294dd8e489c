//! A private RabbitMQ, and the one that all tests of a process share.
//!
//! It takes six seconds and 140 MB to start, so one is [`shared_rabbitmq`]: queues and exchanges have names
//! of their own for each test, and what a test does to the whole broker (an alarm, a kill) it does to a
//! private one.
//!
//! A node of Erlang needs a name service, `epmd`, and starts one for the whole machine if there is none. Ours
//! has its own, on its own port, as a child like the server itself. It counts as ready when it greets a
//! client under its own node name, which is random, so a stranger on the same port is not mistaken for it.
//!
//! What an operator would do with `rabbitmqctl` is done by `erl_call`: the same calls, in milliseconds.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
};

use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
    sync::{Mutex, OnceCell},
};
use uuid::Uuid;

use super::{
    Pair, Port, ServiceError,
    dir::{PrivateDir, User},
    guard::LastSignal,
    locate,
    process::Process,
};

const SERVICE: &str = "rabbitmq-server";
const BINARY: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const EPMD: &str = "/usr/bin/epmd";
const ERL_CALL: &str = "/usr/lib/erlang/bin/erl_call";
/// Nobody but this test knows it, and nobody but this machine can use it.
const COOKIE: &str = "posthaste-test";
/// The greeting of a broker is about 500 bytes long.
const GREETING_BYTES: usize = 4_096;

/// A running broker. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Rabbitmq {
    node: String,
    port: Port,
    epmd_port: Port,
    dist_port: Port,
    /// One call at a time: two that come together take each other for the same node.
    calling: Mutex<()>,
    // Dropped in this order: the broker takes its leave of epmd.
    process: Process,
    _epmd: Process,
}

impl Rabbitmq {
    /// Starts a broker. `settings` are lines of its configuration, such as `max_message_size = 1048576`.
    /// Those that begin with `management.` switch the management on, such as `management.tcp.port = 15672`.
    ///
    /// # Errors
    ///
    /// `Missing` if it is not installed, otherwise `Failed` with the end of its log.
    pub async fn start(settings: &[&str]) -> Result<Self, ServiceError> {
        for program in [BINARY, EPMD, ERL_CALL] {
            locate(SERVICE, &[PathBuf::from(program)])?;
        }
        let failed = |error: io::Error| ServiceError::failed(SERVICE, error);
        let claim = || Port::claim().map_err(failed);
        let (port, epmd_port, dist_port) = (claim()?, claim()?, claim()?);
        let mut epmd =
            Process::new("epmd".to_owned(), private_dir("epmd").map_err(failed)?, LastSignal::Kill)?;
        let args = ["-port", &epmd_port.number().to_string(), "-address", "127.0.0.1"].map(str::to_owned);
        epmd.launch(EPMD.as_ref(), &args)?;
        // Before the server: one that finds none starts one that nobody ends.
        let epmd_addr = epmd_port.addr();
        epmd.until_ready(async || TcpStream::connect(epmd_addr).await.is_ok()).await?;
        let dir = private_dir("rabbitmq").map_err(failed)?;
        dir.write("rabbitmq.conf", configuration(port.addr(), settings)).map_err(failed)?;
        let is_managed = settings.iter().any(|line| line.starts_with("management."));
        let more = if is_managed { ", rabbitmq_management" } else { "" };
        dir.write("enabled_plugins", format!("[rabbitmq_auth_mechanism_ssl{more}].\n")).map_err(failed)?;
        dir.write(".erlang.cookie", COOKIE).map_err(failed)?;
        let process = Process::new(SERVICE.to_owned(), dir, LastSignal::Kill)?;
        let node = format!("test-{}@localhost", Uuid::now_v7().simple());
        let mut server =
            Self { node, port, epmd_port, dist_port, calling: Mutex::new(()), process, _epmd: epmd };
        server.start_again().await?;
        Ok(server)
    }

    /// Starts it after [`kill9`](Self::kill9) or [`stop`](Self::stop), with the same queues on the same port.
    ///
    /// # Errors
    ///
    /// `Failed` with the end of the server's log.
    pub async fn start_again(&mut self) -> Result<(), ServiceError> {
        let mut args = self.environment();
        args.push(BINARY.to_owned());
        self.process.launch("/usr/bin/env".as_ref(), &args)?;
        // The machine's part is written in another way there.
        let (addr, name) = (self.port.addr(), self.node.split('@').next().unwrap_or_default().to_owned());
        self.process.until_ready(async || greeted_by(addr, &name).await).await
    }

    /// As systemd would: then the script makes way for the server, and the child is the server.
    fn environment(&self) -> Vec<String> {
        let path = |name: &str| self.process.dir().join(name).display().to_string();
        let erl = "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none";
        vec![
            format!("HOME={}", self.process.dir().path().display()),
            "LC_ALL=C.UTF-8".to_owned(),
            "RUNNING_UNDER_SYSTEMD=true".to_owned(),
            format!("RABBITMQ_NODENAME={}", self.node),
            format!("RABBITMQ_MNESIA_BASE={}", path("mnesia")),
            format!("RABBITMQ_LOG_BASE={}", path("logs")),
            "RABBITMQ_LOGS=-".to_owned(),
            format!("RABBITMQ_CONFIG_FILE={}", path("rabbitmq.conf")),
            "RABBITMQ_CONF_ENV_FILE=/dev/null".to_owned(),
            format!("RABBITMQ_ENABLED_PLUGINS_FILE={}", path("enabled_plugins")),
            format!("RABBITMQ_PID_FILE={}", path("pid")),
            format!("RABBITMQ_DIST_PORT={}", self.dist_port.number()),
            format!("ERL_EPMD_PORT={}", self.epmd_port.number()),
            "ERL_EPMD_ADDRESS=127.0.0.1".to_owned(),
            format!("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS={erl}"),
        ]
    }

    /// Kills it with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// `Failed` if it is still there after a minute.
    pub async fn kill9(&mut self) -> Result<(), ServiceError> {
        self.process.end(Signal::KILL).await
    }

    /// Stops it in its own orderly way: it says goodbye to its clients.
    ///
    /// # Errors
    ///
    /// `Failed` if it is still there after a minute.
    pub async fn stop(&mut self) -> Result<(), ServiceError> {
        self.process.end(Signal::TERM).await
    }

    /// Stops the process without ending it: connections stay open and nobody answers.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Evaluates Erlang in the broker and answers with what came of it, as text.
    ///
    /// # Errors
    ///
    /// `Failed` if the broker does not answer with `ok`.
    pub async fn eval(&self, expression: &str) -> Result<String, ServiceError> {
        let failed = |why: String| ServiceError::failed(SERVICE, format!("{expression}: {why}"));
        let called = self.erl_call(expression).await.map_err(|error| failed(error.to_string()))?;
        if called.starts_with("{ok, ") { Ok(called) } else { Err(failed(called)) }
    }

    async fn erl_call(&self, expression: &str) -> io::Result<String> {
        let _calling = self.calling.lock().await;
        let mut call = Command::new(ERL_CALL)
            .args(["-h", &format!("call-{}", Uuid::now_v7().simple())])
            .args(["-sname", &self.node, "-c", COOKIE, "-e"])
            .env("ERL_EPMD_PORT", self.epmd_port.number().to_string())
            .env("HOME", "/nonexistent")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut input) = call.stdin.take() {
            input.write_all(format!("{expression}.\n").as_bytes()).await?;
        }
        let output = call.wait_with_output().await?;
        let text = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// Makes a user with rights in the virtual host `/`: patterns of names to configure, write and read.
    ///
    /// # Errors
    ///
    /// `Failed` if the broker refuses.
    pub async fn add_user(&self, name: &str, password: &str, rights: [&str; 3]) -> Result<(), ServiceError> {
        self.eval(&format!(
            "ok = rabbit_auth_backend_internal:add_user(<<{name:?}>>, <<{password:?}>>, <<\"test\">>)"
        ))
        .await?;
        self.allow(name, rights).await
    }

    /// Changes a user's rights in the virtual host `/`.
    ///
    /// # Errors
    ///
    /// `Failed` if the broker refuses.
    pub async fn allow(&self, name: &str, [configure, write, read]: [&str; 3]) -> Result<(), ServiceError> {
        let call = format!(
            "ok = rabbit_auth_backend_internal:set_permissions(<<{name:?}>>, <<\"/\">>, <<{configure:?}>>, <<{write:?}>>, <<{read:?}>>, <<\"test\">>)"
        );
        self.eval(&call).await.map(drop)
    }

    /// Opens a port with TLS and this certificate; with `client_ca`, every client must show one of that
    /// authority.
    ///
    /// # Errors
    ///
    /// `Failed` if the broker refuses.
    pub async fn tls_listener(
        &self,
        server: &Pair,
        client_ca: Option<&Path>,
    ) -> Result<TlsListener, ServiceError> {
        let failed = |error: io::Error| ServiceError::failed(SERVICE, error);
        let port = Port::claim().map_err(failed)?;
        let pair = Pair {
            certificate: self.process.dir().join(&format!("{}.pem", port.number())),
            key: self.process.dir().join(&format!("{}.key", port.number())),
        };
        let listener = TlsListener { port, pair };
        self.use_certificate(&listener, server).await?;
        let verify = match client_ca {
            Some(ca) => {
                let name = format!("{}.ca", listener.port.number());
                let ca = std::fs::read(ca)
                    .and_then(|text| self.process.dir().write(&name, text))
                    .map_err(failed)?;
                format!("{{cacertfile, {ca:?}}}, {{verify, verify_peer}}, {{fail_if_no_peer_cert, true}}")
            }
            None => "{verify, verify_none}".to_owned(),
        };
        let Pair { certificate, key } = &listener.pair;
        self.eval(&format!(
            "ok = rabbit_networking:start_ssl_listener({{\"127.0.0.1\", {}}}, [{{certfile, {certificate:?}}}, {{keyfile, {key:?}}}, {verify}], 1)",
            listener.port.number(),
        ))
        .await?;
        Ok(listener)
    }

    /// Gives a listener another certificate, for the connections that come after this.
    ///
    /// # Errors
    ///
    /// `Failed` if the broker refuses.
    pub async fn use_certificate(&self, listener: &TlsListener, server: &Pair) -> Result<(), ServiceError> {
        let copy = |from: &Path, to: &Path| {
            let name = to.file_name().unwrap_or_default().to_string_lossy();
            std::fs::read(from).and_then(|text| self.process.dir().write(&name, text))
        };
        copy(&server.certificate, &listener.pair.certificate)
            .and_then(|_| copy(&server.key, &listener.pair.key))
            .map_err(|error| ServiceError::failed(SERVICE, error))?;
        // Erlang remembers files for two minutes.
        self.eval("ok = ssl:clear_pem_cache()").await.map(drop)
    }

    /// `amqp://`, the virtual host `/`; its user is `guest`.
    pub fn url(&self) -> String {
        format!("amqp://{}", self.port.addr())
    }

    /// The loopback address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }
}

/// A port with TLS. The certificate that it shows lies in files of the broker's.
#[derive(Debug)]
pub struct TlsListener {
    port: Port,
    pair: Pair,
}

impl TlsListener {
    /// `amqps://`, the virtual host `/`.
    pub fn url(&self) -> String {
        format!("amqps://{}", self.port.addr())
    }
}

/// The broker of all tests of this process.
///
/// # Errors
///
/// `Missing` or `Failed`, the same each time: a start that failed is not tried again by each test.
pub async fn shared_rabbitmq() -> Result<&'static Rabbitmq, ServiceError> {
    static SHARED: OnceCell<Result<Rabbitmq, ServiceError>> = OnceCell::const_new();
    // Small enough for a test to pass it, large enough for every other one.
    SHARED
        .get_or_init(|| Rabbitmq::start(&["max_message_size = 6000000"]))
        .await
        .as_ref()
        .map_err(Clone::clone)
}

fn private_dir(what: &str) -> io::Result<PrivateDir> {
    PrivateDir::create(what, User::for_servers()?)
}

fn configuration(addr: SocketAddr, settings: &[&str]) -> String {
    let ours = [
        format!("listeners.tcp.1 = {addr}"),
        "auth_mechanisms.1 = PLAIN".to_owned(),
        "auth_mechanisms.2 = EXTERNAL".to_owned(),
        "ssl_cert_login_from = common_name".to_owned(),
        // Without it a certificate is never a login, whatever a listener of its own demands.
        "ssl_options.verify = verify_peer".to_owned(),
        // A machine that is short of disk is no reason for an alarm in a test.
        "disk_free_limit.absolute = 1MB".to_owned(),
    ];
    let lines: Vec<&str> = ours.iter().map(String::as_str).chain(settings.iter().copied()).collect();
    lines.join("\n") + "\n"
}

/// The broker's first frame holds its cluster's name, which is that of the node.
async fn greeted_by(addr: SocketAddr, name: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(addr).await else { return false };
    let (mut greeting, mut size) = (vec![0; GREETING_BYTES], 0);
    if stream.write_all(b"AMQP\x00\x00\x09\x01").await.is_err() {
        return false;
    }
    while let Ok(more @ 1..) = stream.read(&mut greeting[size..]).await {
        size += more;
        if greeting[..size].windows(name.len()).any(|window| window == name.as_bytes()) {
            return true;
        }
    }
    false
}
