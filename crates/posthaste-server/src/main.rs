//! The binary `posthaste`: the relay daemon and its command line.
//!
//! Reading order: [`cli`] names the commands, [`config`] says what is configured, [`daemon`] is what `run`
//! starts, [`http`] is what others see of it, [`api`] what operators ask it. Everything that moves an event
//! is in the library; this crate reads words, wires parts and prints answers.
//!
//! Exit codes: 0 done, 1 failure, 2 wrong usage or configuration.

// What is printed goes through `output`, which keeps foreign text from steering a terminal.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod again;
mod api;
mod audit;
mod cli;
mod config;
mod consumers;
mod daemon;
mod dashboard;
mod database;
#[cfg(feature = "sqlite")]
mod demo;
mod desk;
mod gateway;
mod handlers;
mod http;
mod life;
mod lifeline;
mod lines;
mod logging;
mod login;
mod output;
mod picture;
mod schemas;
mod secret;
mod source;
mod standing;
mod topology;
mod tuning;

use clap::Parser;
use std::process::ExitCode;

/// A relay takes and gives back memory for thousands of events at a time, on several threads. With the
/// system's allocator that was a fifth of the CPU time of a drain. mimalloc is as quick and was refused: it
/// held twice the memory.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Two crypto providers may be linked; without a choice the first handshake panics. A second call
    // cannot happen here, so its error has nothing to say.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = cli::Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::complain(&anyhow::anyhow!("cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = match runtime.block_on(cli::dispatch(cli)) {
        Ok(code) => code,
        Err(error) => output::complain(&error),
    };
    // A thread that waits for standard input must not keep the process.
    runtime.shutdown_background();
    code
}
