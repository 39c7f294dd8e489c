//! Migrations, administration and doctor against real servers.

mod admin;
mod consumer;
mod dead;
mod lanes;
mod migrate;
mod reader;
mod repair;
mod setting;
