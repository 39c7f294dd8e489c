//! Topology from outside: the real command on real clusters, judged by Kafka's own Java client.
#![cfg(feature = "kafka")]

mod desk;
mod files;
mod fort;
mod one;
mod phoenix;
mod points;
mod trouble;
