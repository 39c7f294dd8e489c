//! Migrations, administration and doctor against real servers.

mod admin;
mod dead;
mod lanes;
mod migrate;
mod reader;
mod repair;
mod setting;
