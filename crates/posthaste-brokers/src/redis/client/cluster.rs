//! A cluster: which server has which slot, and a link to each.
//!
//! The map is asked for at the start, when a server says that a slot has moved, and when a server is down. In
//! between it is believed. It comes from any server that answers, and those of the configuration are asked
//! last. The client's own cluster connection was refused ([`super`] says why). Here a request goes to one
//! server and has that server's answer.

use super::config_failure;
use super::connection::{self, Wanted};
use super::session::{self, EntryPoint, RedisLink, Session, closed};
use crate::address::Address;
use crate::lock::locked;
use crate::redis::RedisConfig;
use ::redis::{Value, cmd};
use posthaste::sink::{Failure, Scope};
use posthaste::task::{Task, spawn};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

const SLOTS: usize = 16_384;
const SLOT_MAX: i64 = SLOTS as i64 - 1;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between two looks at the map.
const PAUSE: Duration = Duration::from_millis(300);
/// The map is asked for again after this time, even if nobody has doubted it.
const STALE: Duration = Duration::from_secs(30);

/// The server of each slot, as an index into the nodes. It is `None` where nobody serves the slot.
#[derive(Debug, Clone, PartialEq)]
struct SlotMap {
    slots: Vec<Option<u16>>,
    nodes: Vec<Address>,
}

#[derive(Debug, Clone)]
enum ClusterState {
    New,
    Down(Failure),
    Up(Arc<SlotMap>),
    Closed,
}

/// The way to all servers of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    inside: Arc<ClusterShared>,
    task: Task<()>,
}

#[derive(Debug)]
struct ClusterShared {
    config: Arc<RedisConfig>,
    name: Arc<str>,
    seeds: Vec<Address>,
    state: watch::Sender<ClusterState>,
    links: Mutex<HashMap<Address, Arc<RedisLink>>>,
    doubt: Notify,
}

impl Cluster {
    pub(super) fn start(config: Arc<RedisConfig>, seeds: Vec<Address>, name: Arc<str>) -> Self {
        let state = watch::Sender::new(ClusterState::New);
        let links = Mutex::default();
        let inside = Arc::new(ClusterShared { config, name, seeds, state, links, doubt: Notify::new() });
        let task = spawn("redis.cluster", Arc::clone(&inside).keep_map());
        Self { inside, task }
    }

    /// The session for a stream, which may be waited for this long, or why there is none.
    pub(crate) async fn session(&self, stream: &str, wait: Duration) -> Result<Arc<Session>, Failure> {
        let known = |state: &ClusterState| matches!(state, ClusterState::Up(_) | ClusterState::Closed);
        let until = Instant::now() + wait;
        let map = self.inside.map(wait, known).await?;
        let slot = slot_of(stream.as_bytes());
        let Some(address) = map.owner(slot) else {
            self.inside.doubt.notify_one();
            let text = format!("no server of the cluster serves slot {slot}, where the stream {stream:?} is");
            return Err(Failure::of_destination("redis.cluster_down", text));
        };
        let left = until.saturating_duration_since(Instant::now());
        let found = self.inside.link(address)?.session(left).await;
        if found.is_err() {
            // Perhaps a replica has taken over, so the map is asked for again.
            self.inside.doubt.notify_one();
        }
        found
    }

    /// The sessions with all servers, or why there is none, as soon as each server was tried once.
    pub(crate) async fn sessions(
        &self,
        wait: Duration,
    ) -> Result<Vec<Result<Arc<Session>, Failure>>, Failure> {
        let map = self.inside.map(wait, |state| !matches!(state, ClusterState::New)).await?;
        let links: Result<Vec<_>, _> = map.nodes.iter().map(|address| self.inside.link(address)).collect();
        let links = links?;
        Ok(futures_util::future::join_all(links.iter().map(|link| link.session_if_any(wait))).await)
    }

    /// Slots that nobody serves.
    pub(crate) fn unserved(&self) -> usize {
        match &*self.inside.state.borrow() {
            ClusterState::Up(map) => map.slots.iter().filter(|owner| owner.is_none()).count(),
            _ => SLOTS,
        }
    }

    /// The server `says` tells that a slot is elsewhere, and it knows better than the map.
    pub(crate) fn moved(&self, slot: u16, to: &str, says: &Session) {
        self.inside.moved(slot, to, &says.address);
    }

    pub(crate) async fn close(&self) {
        self.task.abort();
        let links = self.inside.close();
        futures_util::future::join_all(links.values().map(|link| link.close())).await;
    }
}

impl ClusterShared {
    async fn map(
        &self,
        wait: Duration,
        known: impl FnMut(&ClusterState) -> bool,
    ) -> Result<Arc<SlotMap>, Failure> {
        let mut state = self.state.subscribe();
        // If it is too late, the state says why.
        let _ = timeout(wait, state.wait_for(known)).await;
        match &*state.borrow() {
            ClusterState::New => {
                Err(Failure::of_sink("redis.unreachable", "no node of the cluster has answered yet"))
            }
            ClusterState::Up(map) => Ok(Arc::clone(map)),
            ClusterState::Down(failure) => Err(failure.clone()),
            ClusterState::Closed => Err(closed()),
        }
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Address, Arc<RedisLink>>> {
        locked(&self.links)
    }

    /// The link to a server. After the end none is begun, because nobody would close it.
    fn link(&self, address: &Address) -> Result<Arc<RedisLink>, Failure> {
        let start = || {
            let target = EntryPoint::Server { address: address.clone(), database: 0 };
            let (config, name) = (Arc::clone(&self.config), Arc::clone(&self.name));
            Arc::new(session::start(config, vec![target], Scope::Destination, name))
        };
        let mut links = self.links();
        if matches!(&*self.state.borrow(), ClusterState::Closed) {
            return Err(closed());
        }
        Ok(Arc::clone(links.entry(address.clone()).or_insert_with(start)))
    }

    /// From now on there are no links. The last ones are given back.
    fn close(&self) -> HashMap<Address, Arc<RedisLink>> {
        // The lock keeps others from beginning a link in between.
        let mut links = self.links();
        self.state.send_replace(ClusterState::Closed);
        std::mem::take(&mut *links)
    }

    fn moved(&self, slot: u16, to: &str, says: &Address) {
        let Some(address) = named(to, says) else { return };
        self.state.send_modify(|state| {
            if let ClusterState::Up(map) = state {
                Arc::make_mut(map).assign(slot, address);
            }
        });
        self.doubt.notify_one();
    }

    /// Takes this map, unless the cluster is closed.
    fn believe(&self, map: SlotMap) {
        self.state.send_if_modified(|state| {
            let is_open = !matches!(state, ClusterState::Closed);
            if is_open {
                *state = ClusterState::Up(Arc::new(map));
            }
            is_open
        });
    }

    async fn keep_map(self: Arc<Self>) {
        loop {
            match self.ask_around().await {
                Ok(map) => {
                    // Messages that are under way to a server without slots become `Unknown`. That is rare
                    // enough.
                    self.links().retain(|address, _| map.nodes.contains(address));
                    self.believe(map);
                }
                Err(failure) => {
                    self.state.send_if_modified(|state| {
                        let unknown = !matches!(state, ClusterState::Up(_) | ClusterState::Closed);
                        if unknown {
                            *state = ClusterState::Down(failure);
                        }
                        unknown
                    });
                }
            }
            sleep(PAUSE).await;
            if matches!(&*self.state.borrow(), ClusterState::Up(_)) {
                // A doubt and the end of this time are both reasons to look.
                let _ = timeout(STALE, self.doubt.notified()).await;
            }
        }
    }

    async fn ask_around(&self) -> Result<SlotMap, Failure> {
        let mut nodes = match &*self.state.borrow() {
            ClusterState::Up(map) => map.nodes.clone(),
            _ => Vec::new(),
        };
        nodes.extend(self.seeds.iter().cloned());
        let mut failure = None;
        for node in &nodes {
            match self.ask(node).await {
                Ok(map) => return Ok(map),
                Err(why) => failure = Some(why),
            }
        }
        Err(failure.unwrap_or_else(|| Failure::of_sink("redis.unreachable", "the cluster has no nodes")))
    }

    async fn ask(&self, node: &Address) -> Result<SlotMap, Failure> {
        let login = self.config.login(0).map_err(|error| config_failure(&error))?;
        let (connection, _driver) =
            connection::open(&self.config, node, login, &self.name, Wanted::Anybody).await?;
        let mut question = cmd("CLUSTER");
        question.arg("SLOTS");
        let answer = timeout(ANSWER_TIMEOUT, connection.ask_one(&question)).await;
        let answer = answer.map_err(|_| connection::unreachable(node, "no answer in time"))?;
        match answer.map_err(|error| connection::lost(node, &error))? {
            Value::Array(ranges) => SlotMap::read(&ranges, node).in_use(node),
            Value::ServerError(error) => {
                let words = error.details().unwrap_or_default();
                let code = if error.code() == "NOPERM" { "redis.denied" } else { "redis.unsupported" };
                let text = format!("{node} does not say who has which slot: {} {words}", error.code());
                Err(Failure::of_sink(code, text))
            }
            _ => Err(connection::unreachable(node, "its answer to CLUSTER SLOTS makes no sense")),
        }
    }
}

impl SlotMap {
    /// Reads `CLUSTER SLOTS`. An entry has the first slot, the last slot, the master as host and port, and
    /// its replicas.
    fn read(ranges: &[Value], asked: &Address) -> Self {
        let mut map = Self { slots: vec![None; SLOTS], nodes: Vec::new() };
        for range in ranges {
            let Value::Array(parts) = range else { continue };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else {
                continue;
            };
            let (host, port) = match master.as_slice() {
                [Value::BulkString(host), Value::Int(port), ..] => (String::from_utf8_lossy(host), port),
                // The server does not know its own name.
                [Value::Nil, Value::Int(port), ..] => ("".into(), port),
                _ => continue,
            };
            let Some(address) = named(&format!("{host}:{port}"), asked) else { continue };
            for slot in (*first).max(0)..=(*last).min(SLOT_MAX) {
                if let Ok(slot) = u16::try_from(slot) {
                    map.assign(slot, address.clone());
                }
            }
        }
        map
    }

    /// The map, if it is in use. A node that was taken out of its cluster, or has not joined one yet, serves
    /// nothing and knows nobody who does. The others know better.
    fn in_use(self, asked: &Address) -> Result<Self, Failure> {
        if self.nodes.is_empty() {
            let text = format!("{asked} is in no cluster: as far as it knows, nobody serves any slot");
            return Err(Failure::of_sink("redis.cluster_down", text));
        }
        Ok(self)
    }

    fn assign(&mut self, slot: u16, address: Address) {
        let Some(owner) = self.slots.get_mut(usize::from(slot)) else { return };
        let known = self.nodes.iter().position(|node| *node == address);
        let index = known.unwrap_or_else(|| {
            self.nodes.push(address);
            self.nodes.len() - 1
        });
        // The index fits, because there are fewer servers than slots.
        *owner = u16::try_from(index).ok();
    }

    fn owner(&self, slot: u16) -> Option<&Address> {
        self.slots
            .get(usize::from(slot))
            .copied()
            .flatten()
            .and_then(|index| self.nodes.get(usize::from(index)))
    }
}

/// The slot of a key. It is that of the part between the first braces, if there is one.
fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % 16_384
}

/// CRC-16/XMODEM, as the cluster's specification says.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// Reads `host:port` as a cluster writes it, without brackets around an IPv6 address.
pub(super) fn named(text: &str, like: &Address) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    // A node that does not know its own name means "where you asked me".
    let host = if host.is_empty() || host == "?" { &like.host } else { host };
    Some(like.sibling(host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::topology;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % 16_384, "an empty tag is none");
        assert_eq!(slot_of(b"foo{{bar}}zap"), crc16(b"{bar") % 16_384);
        assert_eq!(slot_of(b"foo{bar"), crc16(b"foo{bar") % 16_384);
    }

    #[test]
    fn a_map_is_read_and_a_moved_slot_changes_it() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range = |first, last, node: Vec<Value>| {
            Value::Array(vec![Value::Int(first), Value::Int(last), Value::Array(node)])
        };
        let ranges = [
            range(0, 9, vec![text("10.0.0.1"), Value::Int(7), text("id")]),
            range(10, 19, vec![Value::Nil, Value::Int(8)]),
            Value::Nil,
        ];
        let asked = topology::server(topology::SHAPE, "redis://seed:1").expect("an address").0;
        let mut map = SlotMap::read(&ranges, &asked).in_use(&asked).expect("two nodes serve");
        let owner = |map: &SlotMap, slot| map.owner(slot).map(ToString::to_string);
        assert_eq!(owner(&map, 9), Some("redis://10.0.0.1:7".into()));
        assert_eq!(owner(&map, 10), Some("redis://seed:8".into()));
        assert_eq!((owner(&map, 20), owner(&map, u16::MAX)), (None, None));
        map.assign(9, asked.sibling("seed", 8));
        assert_eq!((owner(&map, 9), map.nodes.len()), (Some("redis://seed:8".into()), 2));
    }

    /// Anything that a server may answer: numbers, texts, and lists of lists of them.
    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            prop_oneof![any::<i64>(), -2..20_000_i64].prop_map(Value::Int),
            any::<Vec<u8>>().prop_map(Value::BulkString),
            Just(Value::BulkString(b"10.0.0.1".to_vec())),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| prop::collection::vec(inner, 0..4).prop_map(Value::Array))
    }

    fn ranges() -> impl Strategy<Value = Value> {
        let port = prop_oneof![values(), (0..70_000_i64).prop_map(Value::Int)];
        (-9..20_000_i64, -9..20_000_i64, values(), port).prop_map(|(first, last, host, port)| {
            let node = Value::Array(vec![host, port]);
            Value::Array(vec![Value::Int(first), Value::Int(last), node])
        })
    }

    proptest! {
        #[test]
        fn any_answer_is_a_map_and_names_only_nodes_it_knows(
            ranges in prop::collection::vec(prop_oneof![values(), ranges()], 0..4),
            text in "(\\PC{0,12}|[0-9.:]{0,12}):[0-9]{0,6}",
        ) {
            let asked = topology::server(topology::SHAPE, "redis://seed:1").expect("an address").0;
            let map = SlotMap::read(&ranges, &asked);
            prop_assert!((0..=u16::MAX).all(|slot| map.owner(slot).is_none_or(|owner| map.nodes.contains(owner))));
            prop_assert!(named(&text, &asked).is_none_or(|node| !node.host.is_empty()));
        }
    }

    fn inside() -> (ClusterShared, Address) {
        let seed = topology::server(topology::SHAPE, "redis://seed:1").expect("an address").0;
        let inside = ClusterShared {
            config: Arc::new(RedisConfig::new("redis://seed:1")),
            name: "test".into(),
            seeds: vec![seed.clone()],
            state: watch::Sender::new(ClusterState::New),
            links: Mutex::default(),
            doubt: Notify::new(),
        };
        (inside, seed)
    }

    fn map(owner: Address) -> SlotMap {
        let mut map = SlotMap { slots: vec![None; SLOTS], nodes: Vec::new() };
        map.assign(7, owner);
        map
    }

    #[tokio::test]
    async fn g8_after_the_end_there_is_no_map_and_no_link() {
        let (inside, seed) = inside();
        inside.believe(map(seed.clone()));
        inside.link(&seed).expect("begun");
        assert_eq!(inside.close().len(), 1);
        inside.believe(map(seed.clone()));
        assert_eq!(inside.map(Duration::ZERO, |_| true).await.expect_err("closed").code, "redis.closed");
        assert_eq!(inside.link(&seed).expect_err("closed").code, "redis.closed");
        assert!(inside.links().is_empty());
    }

    /// A server that does not know its name says only a port.
    #[tokio::test]
    async fn a_slot_that_has_moved_to_a_port_is_where_that_was_said() {
        let (inside, seed) = inside();
        inside.believe(map(seed.clone()));
        inside.moved(7, ":6381", &seed.sibling("other", 6380));
        let map = inside.map(Duration::ZERO, |_| true).await.expect("known");
        assert_eq!(map.owner(7).map(ToString::to_string), Some("redis://other:6381".to_owned()));
    }

    #[test]
    fn a_map_without_slots_is_none() {
        let asked = topology::server(topology::SHAPE, "redis://seed:1").expect("an address").0;
        let failure = SlotMap::read(&[], &asked).in_use(&asked).expect_err("nobody serves anything");
        assert_eq!(failure.code, "redis.cluster_down");
        assert!(failure.message.contains("redis://seed:1"), "{failure:?}");
    }

    #[test]
    fn a_node_without_a_name_is_where_it_was_asked() {
        let like = topology::server(topology::SHAPE, "rediss://seed:1").expect("an address").0;
        let named = |text| named(text, &like).map(|address| address.to_string());
        assert_eq!(named("10.0.0.1:7"), Some("rediss://10.0.0.1:7".to_owned()));
        assert_eq!(named(":7"), Some("rediss://seed:7".to_owned()));
        assert_eq!(named("::1:7"), Some("rediss://[::1]:7".to_owned()));
        assert_eq!(named("x"), None);
    }
}
