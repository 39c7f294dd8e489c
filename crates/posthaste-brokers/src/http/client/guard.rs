//! Which addresses may be delivered to (F47).
//!
//! A webhook's URL is often chosen by somebody else, and our process stands inside a network that this
//! somebody cannot reach. So only public addresses are admitted: not ours, not our neighbours', not the
//! cloud's metadata. IPv6 has many ways to write an IPv4 address, and then the address inside is judged.
//!
//! The guard stands between the resolver and the dialler. The addresses that it answers are those that are
//! connected to. So there is no moment between looking and connecting at which a name could change (DNS
//! rebinding). An address that is written in a URL comes to no resolver. It is judged before the request is
//! made, and again here when it is dialled.

use crate::BuildError;
use crate::lock::locked;
use futures_util::future::{BoxFuture, FutureExt, Shared, ready};
use rustc_hash::FxHashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use url::Url;

/// IPv4 networks that are not public.
const PRIVATE_V4: [(Ipv4Addr, u8); 17] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),        // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),       // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),    // carrier-grade NAT, a cloud's metadata
    (Ipv4Addr::new(127, 0, 0, 0), 8),      // loopback
    (Ipv4Addr::new(168, 63, 129, 16), 32), // a cloud's wire server, in the middle of public addresses
    (Ipv4Addr::new(169, 254, 0, 0), 16),   // link-local, clouds' metadata
    (Ipv4Addr::new(172, 16, 0, 0), 12),    // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),     // protocol assignments, a cloud's metadata
    (Ipv4Addr::new(192, 0, 2, 0), 24),     // documentation
    (Ipv4Addr::new(192, 31, 196, 0), 24),  // AS112
    (Ipv4Addr::new(192, 88, 99, 0), 24),   // relays from 6to4
    (Ipv4Addr::new(192, 168, 0, 0), 16),   // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),    // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24),  // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),   // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),      // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),      // reserved, broadcast
];

/// Parts of the public IPv6 space that are not public.
const PRIVATE_V6: [(Ipv6Addr, u8); 3] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments, Teredo
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// The rules of one sink.
#[derive(Debug)]
pub(crate) struct Guard {
    allow_private: bool,
    allowed: Vec<Network>,
}

impl Guard {
    pub(crate) fn new(allow_private: bool, networks: &[String]) -> Result<Self, BuildError> {
        let parse = |text: &String| {
            let why = || format!("{text:?} is no network: it must look like 10.1.0.0/16");
            Network::parse(text).ok_or_else(|| BuildError::option("allow_networks", why()))
        };
        Ok(Self { allow_private, allowed: networks.iter().map(parse).collect::<Result<_, _>>()? })
    }

    /// Whether this address may be connected to.
    pub(crate) fn admits(&self, address: IpAddr) -> bool {
        let address = embedded(address);
        self.allow_private || is_public(address) || self.allowed.iter().any(|net| net.contains(address))
    }

    /// Judges an address that a URL names itself.
    pub(crate) fn check_literal(&self, url: &Url) -> Result<(), Forbidden> {
        literal(url).map_or(Ok(()), |address| self.check(address))
    }

    fn check(&self, address: IpAddr) -> Result<(), Forbidden> {
        if self.admits(address) { Ok(()) } else { Err(Forbidden { host: address.to_string() }) }
    }
}

/// The address that stands in a URL in place of a name. The URL's parser has made usual numbers of it.
pub(crate) fn literal(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// The host has no address that may be delivered to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Forbidden {
    host: String,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a public address (allow_networks can open it)", self.host)
    }
}

impl std::error::Error for Forbidden {}

/// The IPv4 address inside an IPv6 one, however it is written.
fn embedded(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let inner = match v6.segments() {
        // Mapped, compatible, translated (NAT64 by the well-known prefix; ::ffff:0:a.b.c.d).
        [0, 0, 0, 0, 0, 0xffff, a, b] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] | [0, 0, 0, 0, 0xffff, 0, a, b] => {
            (a, b)
        }
        [0, 0, 0, 0, 0, 0, a, b] if a != 0 => (a, b),
        // 6to4.
        [0x2002, a, b, ..] => (a, b),
        _ => return address,
    };
    let [a, b] = [inner.0.to_be_bytes(), inner.1.to_be_bytes()];
    Ipv4Addr::new(a[0], a[1], b[0], b[1]).into()
}

fn is_public(address: IpAddr) -> bool {
    let within = |(base, length): (IpAddr, u8)| Network { base, length }.contains(address);
    match address {
        IpAddr::V4(_) => !PRIVATE_V4.iter().any(|(base, length)| within(((*base).into(), *length))),
        // Only 2000::/3 is given to anybody in public.
        IpAddr::V6(v6) => {
            v6.segments()[0] & 0xe000 == 0x2000
                && !PRIVATE_V6.iter().any(|(base, length)| within(((*base).into(), *length)))
        }
    }
}

/// Addresses with a common beginning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Network {
    base: IpAddr,
    length: u8,
}

impl Network {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (base, length) = text.split_once('/').map_or((text, None), |(base, length)| (base, Some(length)));
        let base: IpAddr = base.parse().ok()?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Some(most), |length| length.parse().ok())?;
        (length <= most).then_some(Self { base, length })
    }

    pub(crate) fn contains(self, address: IpAddr) -> bool {
        let same = |a: u128, b: u128, bits: u32| {
            let rest = bits - u32::from(self.length);
            rest == 128 || a >> rest == b >> rest
        };
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(other)) => same(base.to_bits().into(), other.to_bits().into(), 32),
            (IpAddr::V6(base), IpAddr::V6(other)) => same(base.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

/// A resolver: it knows the addresses of a name.
pub(crate) trait Lookup: Send + Sync + 'static {
    fn lookup(&self, name: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>>;
}

/// Names that the system's resolver is asked for at once. Each takes a thread that cannot be called back.
const LOOKUPS_MAX: usize = 64;
/// Names that are being asked for, or wait for a thread.
const OPEN_MAX: usize = 1_024;
/// How long a name waits for a thread: as long as a connection may take.
const ROOM_WAIT: Duration = Duration::from_secs(3);
const BUSY: &str = "the resolver is busy";

/// The system's resolver. A name is asked for once at a time, for all who want it, so a slow name has one
/// thread and not one for each request. Nothing is remembered.
pub(crate) struct System {
    open: PendingLookups,
    room: Arc<Semaphore>,
}

/// The names that are being asked for.
type PendingLookups = Arc<Mutex<FxHashMap<String, PendingLookup>>>;

struct PendingLookup {
    answering: SharedLookup,
    /// Whoever waits for the answer is subscribed here.
    wanted: Arc<watch::Sender<()>>,
}

type SharedLookup = Shared<BoxFuture<'static, Result<Vec<IpAddr>, String>>>;

impl Default for System {
    fn default() -> Self {
        Self { open: Arc::default(), room: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }
}

impl Lookup for System {
    fn lookup(&self, name: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
        let mut open = locked(&self.open);
        if !open.contains_key(&name) {
            if open.len() >= OPEN_MAX {
                return Box::pin(ready(Err(std::io::Error::other(BUSY))));
            }
            let wanted = Arc::new(watch::Sender::new(()));
            let (pending, room) = (Arc::clone(&self.open), Arc::clone(&self.room));
            // A task ends and makes room also when nobody waits for it any more. It needs the lock first,
            // which is ours until this function returns.
            let asked = tokio::spawn(ask(name.clone(), pending, room, Arc::clone(&wanted)));
            let answering = asked.map(|ended| ended.unwrap_or_else(|died| Err(died.to_string())));
            open.insert(name.clone(), PendingLookup { answering: answering.boxed().shared(), wanted });
        }
        let PendingLookup { answering, wanted } = &open[&name];
        let (answering, wants) = (answering.clone(), wanted.subscribe());
        Box::pin(async move {
            let _wants = wants;
            answering.await.map_err(std::io::Error::other)
        })
    }
}

async fn ask(
    name: String,
    pending: PendingLookups,
    room: Arc<Semaphore>,
    wanted: Arc<watch::Sender<()>>,
) -> Result<Vec<IpAddr>, String> {
    let found = tokio::select! {
        biased;
        room = room.acquire() => {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await.map_err(|error| error.to_string());
            drop(room);
            found
        }
        () = unwanted(&name, &pending, &wanted) => return Err(BUSY.to_owned()),
        () = sleep(ROOM_WAIT) => Err(BUSY.to_owned()),
    };
    locked(&pending).remove(&name);
    found.map(|found| found.map(|address| address.ip()).collect())
}

/// Waits until nobody wants this name any more. The name is forgotten in the same moment, so whoever comes
/// next asks anew.
async fn unwanted(name: &str, pending: &PendingLookups, wanted: &watch::Sender<()>) {
    loop {
        {
            let mut pending = locked(pending);
            if wanted.is_closed() {
                pending.remove(name);
                return;
            }
        }
        wanted.closed().await;
    }
}

/// A resolver that tells addresses that may be connected to, or none.
#[derive(Clone)]
pub(crate) struct Guarded {
    pub(crate) guard: Arc<Guard>,
    pub(crate) lookup: Arc<dyn Lookup>,
}

impl Guarded {
    /// The addresses that may be connected to: the one in the URL, or those of the name.
    pub(crate) async fn admitted(
        &self,
        name: &str,
        literal: Option<IpAddr>,
    ) -> Result<Vec<IpAddr>, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(address) = literal {
            self.guard.check(address)?;
            return Ok(vec![address]);
        }
        let found = self.lookup.lookup(name.to_owned()).await?;
        if found.is_empty() {
            return Err(format!("{name} has no address").into());
        }
        let (admitted, refused): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|address| self.guard.admits(*address));
        match refused.first() {
            Some(address) if admitted.is_empty() => {
                Err(Forbidden { host: format!("{name} is {address}, which") }.into())
            }
            _ => Ok(admitted),
        }
    }
}

#[cfg(test)]
mod tests;
