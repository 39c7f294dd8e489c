//! A TCP proxy whose network can be made worse while a test runs.
//!
//! It stands between a client and a real server and does what networks do: refuse, cut, swallow, delay. Each
//! switch returns when it is in force: a byte or a connection that comes after the `await` meets the new
//! behaviour. It applies to the connections that are open and to new ones.
//!
//! Two decisions. The proxy runs on a thread with a runtime of its own, so that a test may block its runtime
//! or pause its clock. And a connection that has lost bytes is never healed: TCP delivers all bytes or none,
//! so going on after a gap would test something that no network does. When the proxy passes again, such a
//! connection is reset, and the client has to notice and come back; so it is with a NAT gateway that was
//! restarted.
//!
//! The kernel's own tools (`iptables`, `tc netem`) were refused: they need privileges and act on the whole
//! machine.

mod link;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use futures_util::FutureExt;
use link::{Mode, ProxyState, carry};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use crate::services::{Port, ServiceError, url, with_addr};

const SERVICE: &str = "proxy";
/// Between two tries of something that nobody tells us about.
const PACE: Duration = Duration::from_millis(5);

/// A fault proxy in front of one address. Dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    link: Arc<ProxyState>,
    orders: Option<mpsc::UnboundedSender<(ProxyCommand, oneshot::Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum ProxyCommand {
    Switch(Mode),
    Refuse,
    Cut,
}

impl Proxy {
    /// Starts a proxy in front of `target`, which need not listen yet. It passes everything.
    ///
    /// # Errors
    ///
    /// `Failed` if there is no port for it.
    pub async fn start(target: SocketAddr) -> Result<Self, ServiceError> {
        Self::spawn(target).map_err(|error| ServiceError::failed(SERVICE, error))
    }

    /// Starts a proxy in front of the server of `url`, and gives that URL by way of the proxy.
    ///
    /// # Errors
    ///
    /// `Failed` if the URL has no address, or there is no port for the proxy.
    pub async fn start_before(url: &str) -> Result<(Self, String), ServiceError> {
        let target =
            tokio::net::lookup_host(url::host_and_port(url)).await.ok().and_then(|mut found| found.next());
        let target = target.ok_or_else(|| ServiceError::failed(SERVICE, format!("no address in {url}")))?;
        let proxy = Self::start(target).await?;
        let url = with_addr(url, proxy.addr());
        Ok((proxy, url))
    }

    fn spawn(target: SocketAddr) -> std::io::Result<Self> {
        let port = Port::claim()?;
        let listener = std::net::TcpListener::bind(port.addr())?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let link = Arc::new(ProxyState::new(target));
        let (orders, inbox) = mpsc::unbounded_channel();
        let serving = Arc::clone(&link);
        let thread = std::thread::Builder::new().name("test-proxy".to_owned()).spawn(move || {
            runtime.block_on(async move {
                if let Ok(listener) = TcpListener::from_std(listener) {
                    serve(listener, serving, inbox).await;
                }
            });
        })?;
        Ok(Self { port, link, orders: Some(orders), thread: Some(thread) })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Everything passes again. Connections that have lost bytes are reset.
    pub async fn pass(&self) {
        self.order(ProxyCommand::Switch(Mode::Pass)).await;
    }

    /// New connections are refused, as by a machine on which nothing listens. Open ones go on; for an outage,
    /// follow with [`cut`](Self::cut).
    pub async fn refuse(&self) {
        self.order(ProxyCommand::Refuse).await;
    }

    /// All open connections are reset, once. New ones are treated as before.
    pub async fn cut(&self) {
        self.order(ProxyCommand::Cut).await;
    }

    /// Everything is accepted and read, nothing is forwarded, in both directions. Not even the end of a
    /// connection: the server goes on believing in a client that is gone.
    pub async fn black_hole(&self) {
        self.order(ProxyCommand::Switch(Mode::BlackHole)).await;
    }

    /// What the client sends reaches the server, the replies are dropped.
    pub async fn half_open(&self) {
        self.order(ProxyCommand::Switch(Mode::HalfOpen)).await;
    }

    /// Everything arrives this much later, in each direction. It is a delay of the line, not a limit of its
    /// width: what is sent in one moment arrives in one moment.
    pub async fn delay(&self, delay: Duration) {
        self.order(ProxyCommand::Switch(Mode::Delay(delay))).await;
    }

    /// Exactly `bytes` more pass from clients to the server, counted over all connections; the connection
    /// that carried the last of them is then reset, and the proxy passes again.
    pub async fn cut_after_bytes(&self, bytes: u64) {
        self.order(ProxyCommand::Switch(Mode::CutAfter(bytes))).await;
    }

    /// The first connection on which a client says `text` is reset instead of the server's answer of this
    /// number, counted from 1 for the answer to the text itself; what was said before has reached the server
    /// and been obeyed. From the text on the proxy passes everything else. All that a server sends between
    /// two things that its client says is one answer.
    ///
    /// # Panics
    ///
    /// If there is no text, or no number.
    pub async fn cut_answer(&self, text: &'static str, number: u32) {
        assert!(!text.is_empty() && number > 0, "which answer to what?");
        self.order(ProxyCommand::Switch(Mode::CutAnswer(text, number))).await;
    }

    /// How many connections were ended by [`cut_after_bytes`](Self::cut_after_bytes) and
    /// [`cut_answer`](Self::cut_answer).
    pub fn aimed_cuts(&self) -> u64 {
        self.link.aimed_cuts.load(Ordering::Relaxed)
    }

    /// How many answers of the server have passed: what a client costs it, whatever the length.
    pub fn answers(&self) -> u64 {
        self.link.answers.load(Ordering::Relaxed)
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.link.open.load(Ordering::Relaxed)
    }

    /// How many connections were ever accepted.
    pub fn accepted(&self) -> u64 {
        *self.link.accepted.borrow()
    }

    /// Waits until that many connections were accepted since the start.
    pub async fn until_accepted(&self, at_least: u64) {
        // Fails only when the sender is gone, and `self` holds it.
        let _ = self.link.accepted.subscribe().wait_for(|accepted| *accepted >= at_least).await;
    }

    async fn order(&self, order: ProxyCommand) {
        let (done, in_force) = oneshot::channel();
        let sent = self.orders.as_ref().map(|orders| orders.send((order, done)));
        assert!(matches!(sent, Some(Ok(()))) && in_force.await.is_ok(), "the proxy's thread has ended");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was printed by its own thread.
            let _ = thread.join();
        }
    }
}

/// Accepts, obeys, and collects what has ended, until the proxy is dropped.
async fn serve(
    listener: TcpListener,
    link: Arc<ProxyState>,
    mut orders: mpsc::UnboundedReceiver<(ProxyCommand, oneshot::Sender<()>)>,
) {
    let addr = listener.local_addr();
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Orders first: a connection that is already in the queue when an order is given meets the new
            // behaviour.
            biased;
            order = orders.recv() => {
                let Some((order, done)) = order else { return };
                obey(order, &link, &mut listener, &mut connections).await;
                if listener.is_none() && !link.refuses() && let Ok(addr) = &addr {
                    listener = Some(listen_again(*addr).await);
                }
                link.open.store(connections.len(), Ordering::Relaxed);
                // Whoever gave the order may have stopped waiting.
                let _ = done.send(());
            }
            client = accept(listener.as_ref()) => {
                link.accepted.send_modify(|accepted| *accepted += 1);
                connections.spawn(carry(client, Arc::clone(&link)));
            }
            Some(_) = connections.join_next() => {}
        }
        link.open.store(connections.len(), Ordering::Relaxed);
    }
}

async fn obey(
    order: ProxyCommand,
    link: &ProxyState,
    listener: &mut Option<TcpListener>,
    connections: &mut JoinSet<()>,
) {
    match order {
        ProxyCommand::Switch(mode) => link.switch(mode),
        ProxyCommand::Refuse => {
            link.switch(Mode::Refuse);
            *listener = None;
        }
        ProxyCommand::Cut => {
            reset_waiting(link, listener.as_ref()).await;
            link.cut();
            while connections.join_next().await.is_some() {}
        }
    }
}

/// Pending forever without a listener. Out of descriptors is the only error that lasts, and it passes too.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            Err(_) => tokio::time::sleep(PACE).await, // pace
        }
    }
}

/// A connection that waits in the kernel's queue is open for its client, so a cut has to meet it as well.
async fn reset_waiting(link: &ProxyState, listener: Option<&TcpListener>) {
    // Lets the runtime ask the kernel first; without that, it would not know yet of a connection made just
    // now.
    tokio::task::yield_now().await;
    while let Some(client) = accept(listener).now_or_never() {
        link.accepted.send_modify(|accepted| *accepted += 1);
        let _ = client.set_zero_linger();
    }
}

/// The port is claimed, so what is in the way can only be the old socket, and only for a moment.
async fn listen_again(addr: SocketAddr) -> TcpListener {
    loop {
        if let Ok(listener) = TcpListener::bind(addr).await {
            return listener;
        }
        tokio::time::sleep(PACE).await; // pace
    }
}
