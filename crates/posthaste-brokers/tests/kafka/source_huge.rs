//! A source that is paused very often.

use super::source_own::{Reader, alone, plain};
use super::*;
use posthaste::source::Source;
use posthaste_testkit::require_service;
use std::collections::BTreeMap;

const PARTITIONS: usize = 40;
/// Memory may grow by this, in MB, which 10,000 leaks of a kilobyte would not fit in.
const GROWTH_MAX: u64 = 8;

/// How often all partitions are paused and resumed, half of them at a time: 200 pauses, or with
/// `POSTHASTE_SOAK=1` 10,000. Memory is the whole process's, so it says something only there, where no other
/// test runs.
fn rounds() -> (usize, bool) {
    let is_soak = std::env::var_os("POSTHASTE_SOAK").is_some_and(|value| !value.is_empty() && value != "0");
    (if is_soak { 500 } else { 10 }, is_soak)
}

/// Resident memory, in MB.
fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("kilobytes") / 1024
}

/// F63: pausing neither loses what was fetched already, nor keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f63_ten_thousand_pauses_lose_nothing_and_cost_no_memory() {
    let (rounds, is_soak) = rounds();
    let kafka = require_service!(shared().await);
    let topic = topic_with(kafka, PARTITIONS as u32, &[]).await;
    let mut reader = Reader::join(&config(kafka), &alone(&topic));
    until(async || {
        assert_eq!(reader.next().await, []);
        reader.view().await.len() == PARTITIONS
    })
    .await;
    let mut partitions: Vec<_> = reader.view().await.into_iter().map(|view| view.partition).collect();
    partitions.sort();
    let (mut sent, mut seen, mut ends) = (0, 0, BTreeMap::new());
    let mut take = async |reader: &mut Reader| {
        let taken = reader.next().await;
        reader.ack(&taken).await.expect("acknowledged");
        for delivery in &taken {
            let position = delivery.position.expect("a position");
            let expected = ends.insert(delivery.partition().clone(), position + 1).unwrap_or(0);
            assert_eq!(position, expected, "each once and in order");
        }
        taken.len()
    };
    let mut early = 0;
    for round in 0..rounds {
        if round % 10 == 0 {
            kafka.send(&topic, &plain(sent..sent + 400), None).await.expect("sent");
            sent += 400;
        }
        for (number, partition) in partitions.iter().enumerate() {
            match number % 2 == round % 2 {
                true => reader.source.pause(partition).await.expect("assigned"),
                false => reader.source.resume(partition).await.expect("assigned"),
            }
        }
        seen += take(&mut reader).await;
        if round == rounds / 5 {
            early = rss();
        }
    }
    for partition in &partitions {
        reader.source.resume(partition).await.expect("assigned");
    }
    let end = Instant::now() + DEADLINE;
    while seen < sent {
        assert!(Instant::now() < end, "{seen} of {sent}");
        seen += take(&mut reader).await;
    }
    let (pauses, late) = (rounds * PARTITIONS / 2, rss());
    eprintln!("many pauses: {early} MB, and {late} MB after {pauses} of them");
    assert!(!is_soak || late <= early + GROWTH_MAX, "F63: {early} MB, and {late} MB after {pauses} pauses");
}
