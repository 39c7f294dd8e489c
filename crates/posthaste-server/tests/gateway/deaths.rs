//! A gateway is killed wherever a death leaves something behind. Its clients repeat under their keys, and in
//! the end the ledger balances.

use crate::clients::{Balancer, Ledger};
use crate::points::POINTS;
use crate::rig::{Rig, ask, begin};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use std::sync::atomic::{AtomicUsize, Ordering};

const CLIENTS: usize = 6;
const REQUESTS: usize = 60;

macro_rules! deaths {
    ($($name:ident = $index:literal;)*) => {
        mod on_sqlite {
            $(
                #[test]
                fn $name() {
                    super::dies_at(super::POINTS[$index], &super::Rig::start(super::LIMIT));
                }
            )*
        }
        mod on_postgres {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    let database = super::require_service!(super::TestDatabase::create().await);
                    super::dies_at(super::POINTS[$index], &super::Rig::on_postgres(database, super::LIMIT));
                }
            )*
        }
    };
}

deaths! {
    dies_at_taken = 0;
    dies_at_before_commit = 1;
    dies_at_after_commit = 2;
    dies_at_stored = 3;
}

/// Nobody is refused: what is counted here is something else.
const LIMIT: &str = "limit = { rate_per_s = 100000, burst = 1000000 }\n";

/// W1, W4: none lost, none twice.
fn dies_at((point, visit): (&str, u32), rig: &Rig) {
    let key = rig.key("acme", &[]);
    let (mortal, address) = begin(&rig.dir, &[("POSTHASTE_CRASH", &format!("{point}@{visit}"))]);
    rig.until("the mortal gateway knows the key", || {
        let head = [("authorization", &*format!("Bearer {key}"))];
        ask(&address, "GET", "/v1/openapi.json", &head, b"").status == 200
    });
    let (balancer, ledger, next) = (Balancer::of(&[&address]), Ledger::default(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(n) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < REQUESTS) {
                    ledger.hand_in(&balancer, &key, &format!("request-{n}"));
                }
            });
        }
        // Of SIGKILL, so it has no code and says nothing.
        let (code, said) = mortal.ends();
        assert_eq!(code, -1, "{point}: {said}");
        assert!(ledger.len() < REQUESTS, "it died before the last request");
        balancer.replace(0, &rig.address);
    });
    assert_eq!(ledger.len(), REQUESTS);
    let stored: Vec<String> =
        rig.events().iter().map(|event| event["id"].as_str().expect("an id").to_owned()).collect();
    ledger.balances(&stored);
}
