//! The consumer from outside: the real process, a real broker, a real PostgreSQL, handlers in SQL, and
//! something that goes wrong.
//!
//! What is checked is what an operator could check: effects happened once (I1), positions say the truth
//! (I2), keys are in order (I3), marks and rows are the same (I4). The broker is a local one where the
//! broker is not the point.
#![cfg(feature = "sqlite")]

mod marks;
mod member;
mod points;
mod rig;
mod scale;
mod wire;

mod acts;
#[cfg(feature = "kafka")]
mod cluster;
mod control;
mod database;
mod days;
mod deaths;
#[cfg(feature = "kafka")]
mod example;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod grounds;
mod handlers;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod kafka_foreign;
#[cfg(feature = "kafka")]
mod kafka_members;
#[cfg(feature = "kafka")]
mod kafka_positions;
#[cfg(feature = "http")]
mod languages;
mod letters;
mod members;
#[cfg(feature = "nats")]
mod nats;
mod operator;
#[cfg(feature = "kafka")]
mod outage;
mod poison;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod range;
#[cfg(feature = "redis")]
mod redis;
mod refusals;
mod restore;
#[cfg(feature = "schemas")]
mod schemas;
#[cfg(feature = "kafka")]
mod storm;
mod tracing;
mod waiting;
