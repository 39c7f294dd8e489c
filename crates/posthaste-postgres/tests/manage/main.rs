//! Migrations, administration and doctor against real servers.

mod admin;
mod audit;
mod consumer;
mod dead;
mod jobs;
mod lanes;
mod migrate;
mod reader;
mod repair;
mod setting;
mod tuning;
