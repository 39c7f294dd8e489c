//! A private Apache Kafka: one node or a cluster, KRaft, with the listeners that a test asks for.
//!
//! Each node is a process of its own and can be killed, stopped, paused and started again by itself. Beside
//! them runs one JVM with Kafka's own tools and Java client (`Console.java`): it formats the storage, creates
//! topics, ACLs and SCRAM users, and [`dump`](Kafka::dump)s a topic. So what our own client has written is
//! judged by another client.
//!
//! Besides the listeners of the options there is always a plaintext one, [`bootstrap`](Kafka::bootstrap), for
//! the brokers among themselves and for the test. Whoever comes that way has no name (`User:ANONYMOUS`), and
//! with [`KafkaOptions::authorizer`] that one may do everything.
//!
//! A broker tells its clients where to connect to, so a fault proxy in front of it has to be known to it
//! before it starts: [`Security::Proxied`] makes one for each node.
//!
//! What it costs (2 cores): a node takes 1.5 s of CPU to start and 170 MB, the console 0.8 s and 135 MB; one
//! node is there after 2 s on a quiet machine, three after 5 s, three times as late under load. Without the
//! class archive of `scripts/services` a node takes 2.3 s and 210 MB. After `kill9` a node waits for the end
//! of its old session, 3 s.
//!
//! The alternatives: Kafka's shell scripts start a JVM for each question (1 s, where the console needs some
//! milliseconds); librdkafka's mock cluster knows no ACL, no SASL and no disk.

mod console;
mod java;
mod node;
mod options;
mod records;

use std::{io, net::SocketAddr};

use console::Console;
use futures_util::future::try_join_all;
use java::Java;
pub use node::Node;
use options::INTERNAL;
pub use options::{KafkaOptions, Security};
pub use records::{ForeignRecord, PartitionReplicas, Record, Right, TransactionEnd};
use uuid::Uuid;

use super::ServiceError;

const SERVICE: &str = "kafka";
/// Between our look at a port and the broker's bind somebody else may take it.
const TRIES: u32 = 3;

/// A running cluster. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Kafka {
    // Dropped first: it works in the first node's directory.
    pub(crate) console: Console,
    nodes: Vec<Node>,
}

impl Kafka {
    /// Starts a cluster and waits until all its nodes serve.
    ///
    /// # Errors
    ///
    /// `Missing` if it is not installed, otherwise `Failed` with the end of a node's log.
    pub async fn start(options: &KafkaOptions) -> Result<Self, ServiceError> {
        let java = Java::find()?;
        let mut tries = 1;
        loop {
            match Self::try_start(&java, options).await {
                Err(ServiceError::Failed { why, .. })
                    if why.contains("Address already in use") && tries < TRIES =>
                {
                    tries += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_start(java: &Java, options: &KafkaOptions) -> Result<Self, ServiceError> {
        let failed = |error: io::Error| ServiceError::failed(SERVICE, error);
        let mut nodes = Vec::new();
        for id in options.node_ids() {
            nodes.push(Node::prepare(id, java, options).await?);
        }
        let controllers: Vec<(u32, SocketAddr)> = nodes.iter().filter_map(Node::controller).collect();
        let configure = |node: &Node| node.configure(options, &controllers);
        let properties: Vec<_> = nodes.iter().map(configure).collect::<io::Result<_>>().map_err(failed)?;
        let console = Console::start(java, nodes[0].dir()).map_err(failed)?;
        let mut cluster = Self { console, nodes };
        let (id, scram) = (cluster_id(), options.scram_arguments());
        for file in properties {
            let file = file.display().to_string();
            let mut arguments = vec!["format", "-t", &id, "-c", &file];
            arguments.extend(scram.iter().map(String::as_str));
            cluster.console.ask("", "format", &arguments).await?;
        }
        cluster.start_again().await?;
        Ok(cluster)
    }

    /// Starts all nodes that are down, with the same data on the same ports, and waits until they serve.
    ///
    /// # Errors
    ///
    /// `Failed` with the end of a node's log.
    pub async fn start_again(&mut self) -> Result<(), ServiceError> {
        let mut down: Vec<_> = self.nodes.iter_mut().filter(|node| node.pid().is_none()).collect();
        for node in &mut down {
            node.launch()?;
        }
        try_join_all(down.into_iter().map(Node::until_ready)).await.map(drop)
    }

    /// Kills all nodes with SIGKILL and waits until they are gone.
    ///
    /// # Errors
    ///
    /// `Failed` if one is still there after a minute.
    pub async fn kill9(&mut self) -> Result<(), ServiceError> {
        try_join_all(self.nodes.iter_mut().map(Node::kill9)).await.map(drop)
    }

    /// Stops all nodes in their own orderly way.
    ///
    /// # Errors
    ///
    /// `Failed` if one is still there after a minute.
    pub async fn stop(&mut self) -> Result<(), ServiceError> {
        try_join_all(self.nodes.iter_mut().map(Node::stop)).await.map(drop)
    }

    /// Stops all processes without ending them: connections stay open and nobody answers, from the moment
    /// this returns.
    pub fn pause(&self) {
        self.nodes.iter().for_each(Node::pause);
    }

    /// Lets them go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.nodes.iter().for_each(Node::resume);
    }

    /// The node with this `node.id`; the first is 1.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn node(&self, id: u32) -> &Node {
        self.nodes.iter().find(|node| node.id() == id).expect("a node of that id")
    }

    /// The node with this `node.id`, to kill it or start it again.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn node_mut(&mut self, id: u32) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.id() == id).expect("a node of that id")
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The plaintext addresses of all nodes, as `bootstrap.servers` takes them.
    pub fn bootstrap(&self) -> String {
        self.bootstrap_at(INTERNAL)
    }

    /// The addresses of a listener of the options, on all nodes.
    ///
    /// # Panics
    ///
    /// If the options named no such listener.
    pub fn bootstrap_at(&self, listener: &str) -> String {
        let addrs: Vec<_> = self.nodes.iter().map(|node| node.addr(listener).to_string()).collect();
        addrs.join(",")
    }
}

/// Sixteen bytes in base64 for URLs, as Kafka writes them. It must not begin with a dash; a version 7 UUID
/// begins with its time, so the first letter is the same for years.
fn cluster_id() -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let number = Uuid::now_v7().as_u128();
    // 22 letters of 6 bits are 132: the last letter has four bits of filling.
    let letter = |at: u32| match 122_u32.checked_sub(6 * at) {
        Some(shift) => (number >> shift) & 63,
        None => (number << 4) & 63,
    };
    (0..22).map(|at| char::from(LETTERS[letter(at) as usize])).collect()
}
