//! Fault tests: the real process, a real PostgreSQL, a real NATS, and something that goes wrong.
//!
//! What is checked is what an operator would check from outside: every committed event arrived or is
//! visibly dead (G2), first deliveries of a key are in append order (G3), an outage cost no event an
//! attempt (F50), and things went on within the time that was promised.
//!
//! Times are real. A machine that also compiles is slow, so a bound is asserted with slack and the
//! measured time is printed. `POSTHASTE_SOAK=1` plays the large faults at full size.

mod broker;
mod ledger;
mod load;
mod relay;
mod rig;
mod scale;

mod cut;
mod drain;
mod fair;
mod full;
mod huge;
#[cfg(feature = "kafka")]
mod kafka;
mod many;
mod outage;
mod poison;
mod pooler;
mod recovery;
mod relane;
mod server;
#[cfg(feature = "http")]
mod sinks;
mod tls;
mod waiting;
