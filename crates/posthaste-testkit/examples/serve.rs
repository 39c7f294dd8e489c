//! Starts brokers privately, tells their addresses, and ends them when its standard input closes.
//!
//!     cargo run -p posthaste-testkit --example serve -- kafka redis
//!
//! One line each on standard output: `kafka kafka://127.0.0.1:23456`. It is what `./bench` measures against,
//! and good for looking at a sink by hand.

use posthaste_testkit::services::{
    Kafka, KafkaOptions, Nats, NatsOptions, Rabbitmq, Redis, RedisOptions, ServiceError,
};
use std::io::Read;

/// Kept until the end; dropping it ends the server.
#[allow(dead_code)] // held, not read
enum Server {
    Kafka(Kafka),
    Nats(Nats),
    Rabbitmq(Rabbitmq),
    Redis(Redis),
}

async fn start(kind: &str) -> Result<(Server, String), ServiceError> {
    Ok(match kind {
        "kafka" => {
            let server = Kafka::start(&KafkaOptions::default().for_throughput()).await?;
            let url = format!("kafka://{}", server.bootstrap());
            (Server::Kafka(server), url)
        }
        // As it is run: three nodes, and rights.
        "kafka-cluster" => {
            let server =
                Kafka::start(&KafkaOptions::default().nodes(3).authorizer().for_throughput()).await?;
            let url = format!("kafka://{}", server.bootstrap());
            (Server::Kafka(server), url)
        }
        "nats" => {
            let server = Nats::start(&NatsOptions::default()).await?;
            let url = server.url();
            (Server::Nats(server), url)
        }
        "rabbitmq" => {
            let server = Rabbitmq::start(&[]).await?;
            let url = server.url();
            (Server::Rabbitmq(server), url)
        }
        "redis" => {
            let server = Redis::start(&RedisOptions::default()).await?;
            let url = server.url();
            (Server::Redis(server), url)
        }
        other => {
            let why = "known are kafka, kafka-cluster, nats, rabbitmq, redis".to_owned();
            return Err(ServiceError::Failed { service: other.to_owned(), why });
        }
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    let mut servers = Vec::new();
    for kind in std::env::args().skip(1) {
        match start(&kind).await {
            Ok((server, url)) => {
                println!("{kind} {url}");
                servers.push(server);
            }
            Err(error) => {
                eprintln!("{error}");
                return std::process::ExitCode::FAILURE;
            }
        }
    }
    // Until whoever asked for them has gone.
    let mut input = std::io::stdin();
    while matches!(input.read(&mut [0; 64]), Ok(1..)) {}
    std::process::ExitCode::SUCCESS
}
