//! SIGSTOP past the lease (F20, G4): a relay that stands still with rows in hand loses them to another one,
//! nothing is lost, and what it writes when it wakes up changes nothing.
//!
//! The first relay prints to a pipe that nobody reads: it stands in the middle of a publish, with its rows
//! claimed.

use crate::binary::{Scratch, posthaste};
use crate::daemon::Daemon;
use crate::ground::{PATIENT, Service, WAIT};
use posthaste_testkit::conformance::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// A relay whose output nobody reads yet. Dropping it kills it.
struct Stuck {
    child: Child,
    log: PathBuf,
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the first relay said:\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

impl Stuck {
    fn start(file: &Scratch) -> Self {
        let log = PathBuf::from(format!("{}.log", file.path()));
        let mut command = posthaste(&["run", "--listen", "off", "--config", file.path()]);
        let stderr = std::fs::File::create(&log).expect("a file for its log");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        Self { child: command.spawn().expect("the binary starts"), log }
    }

    /// Waits until it stands in the middle of a publish: the pipe holds the first event, and not the second.
    /// Rows that are claimed in the table are not enough, because the answer to the claim may still be on its
    /// way.
    async fn publishes(&self) {
        let out = self.child.stdout.as_ref().expect("it is piped");
        eventually("it publishes", WAIT, async || {
            (rustix::io::ioctl_fionread(out).expect("a pipe") >= 50_000).then_some(())
        })
        .await;
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the child is ours");
    }

    /// Wakes it up, and reads what it prints from now on.
    fn wake(&mut self) {
        let mut out = self.child.stdout.take().expect("it is piped");
        std::thread::spawn(move || std::io::copy(&mut out.by_ref(), &mut std::io::sink()));
        self.signal(Signal::CONT);
    }

    async fn says(&self, texts: &[&str]) {
        eventually(&format!("one of {texts:?}"), WAIT, async || {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            texts.iter().any(|text| said.contains(text)).then_some(())
        })
        .await;
    }
}

/// A table, its preset, how rows get in, which are in hand, and which are done.
struct Table {
    ddl: &'static str,
    name: &'static str,
    preset: &'static str,
    insert: &'static str,
    in_hand: &'static str,
    done: &'static str,
}

const MARKED: Table = Table {
    ddl: "create table outbox (id uuid primary key default gen_random_uuid(), topic text not null, key text, payload_json jsonb not null, idempotency_key text,
        status text not null default 'pending', retry_count int not null default 0, last_error text, last_attempt_at timestamptz,
        next_attempt_at timestamptz not null default now(), published_at timestamptz, created_at timestamptz not null default now())",
    name: "outbox",
    preset: "talkie",
    insert: "outbox (topic, payload_json) select 't', jsonb_build_object('x', repeat('x', 50000))",
    in_hand: "(select count(*) >= 10 from outbox where status = 'publishing')",
    done: "outbox where status = 'published' and retry_count = 0",
};

const LOCKED: Table = Table {
    ddl: "create table outbox_events (id uuid primary key default gen_random_uuid(), aggregate_type varchar(50) not null, aggregate_id uuid not null, event_type varchar(100) not null,
        payload jsonb not null, occurred_at timestamptz default now(), status varchar(20) default 'PENDING',
        retry_count int default 0, next_attempt_at timestamptz default now(), last_error text null, processed_at timestamptz null)",
    name: "outbox_events",
    preset: "outbox-events",
    insert: "outbox_events (aggregate_type, aggregate_id, event_type, payload) select 'o', gen_random_uuid(), 't', jsonb_build_object('x', repeat('x', 50000))",
    // By what the locks leave in the rows: a question that locks them itself would hide some from the relay's
    // claim.
    in_hand: "(select count(*) >= 10 from outbox_events where xmax::text <> '0')",
    done: "outbox_events where status = 'PUBLISHED' and retry_count = 0",
};

async fn stopped(table: Table, says: &[&str]) {
    let Some(service) = Service::new(table.ddl).await else { return };
    service.execute(&format!("insert into {} from generate_series(1, 40)", table.insert)).await;
    let adopt = format!("preset = \"{}\"\nbatch = 10\nlease_ms = 8000", table.preset);
    let config = service.config(&adopt, "type = \"stdout\"", "");
    let long = std::fs::read_to_string(config.path()).expect("it is there");
    // As long as a machine may stand still between the claim and the signal.
    let relay = "lease_ttl_ms = 8000\npublish_timeout_ms = 5000\n";
    let config = Scratch::new(&long.replace(PATIENT, relay));
    let mut first = Stuck::start(&config);
    service.until(table.in_hand).await;
    first.publishes().await;
    first.signal(Signal::STOP);

    let second = Daemon::start(&["--config", config.path()]);
    service.until(&format!("(select count(*) = 40 from {})", table.done)).await;
    let rows = format!(
        "select jsonb_agg(to_jsonb(t) - 'payload' - 'payload_json' order by id)::text from {} t",
        table.name
    );
    let before: String = service.ask(&rows).await;
    let published = second.events(40);
    let ids: std::collections::HashSet<_> = published.iter().map(|event| event["id"].to_string()).collect();
    assert_eq!(ids.len(), 40, "nothing is lost: the second relay published all of them");

    first.wake();
    first.says(says).await;
    assert_eq!(service.ask::<String>(&rows).await, before, "G4: what it wrote late hit nothing");
    // It goes on like any other, and so does the table.
    second.stop();
    service.execute(&format!("insert into {} from generate_series(1, 20)", table.insert)).await;
    service.until(&format!("(select count(*) = 60 from {})", table.done)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f20_a_stopped_relay_with_marked_rows() {
    stopped(MARKED, &["taken or changed by somebody else", "taken by another relay", "lease"]).await;
}

/// The server ends a transaction that stands still for half a minute, and the rows are free.
#[tokio::test(flavor = "multi_thread")]
async fn f20_a_stopped_relay_with_locked_rows() {
    stopped(LOCKED, &["lease", "lost"]).await;
}
