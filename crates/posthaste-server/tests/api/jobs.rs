//! Jobs: whoever serves the API runs them, and finishes what another one left behind.

use crate::acts::over;
use crate::binary::{posthaste, run};
use crate::daemon::Daemon;
use crate::desk::Desk;
use crate::rig::{Answered, Rig, answered_by, directory, write};
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

const LETTERS: usize = 20;

/// `posthaste ui` with the file of a rig.
pub(crate) struct Ui {
    pub(crate) daemon: Daemon,
    pub(crate) address: String,
    token: String,
}

impl Ui {
    pub(crate) fn start(rig: &Rig) -> Self {
        Self::at(&rig.dir, &rig.admin)
    }

    /// With the file of a directory, for an administrator's token.
    pub(crate) fn at(dir: &Path, token: &str) -> Self {
        Self::with(dir, token, &[])
    }

    /// The same, with times of its own in milliseconds.
    pub(crate) fn with(dir: &Path, token: &str, times: &[(&str, &str)]) -> Self {
        let file = dir.join("posthaste.toml");
        let mut command = posthaste(&["ui", "--config", file.to_str().expect("UTF-8")]);
        command.envs(times.iter().copied());
        let daemon = Daemon::spawn(command);
        let line = daemon.says("API http://");
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.expect("an address").to_owned();
        Self { daemon, address, token: token.to_owned() }
    }

    fn answer(&self, method: &str, path: &str, body: &Value) -> Answered {
        answered_by(&self.address, method, path, &self.token, &body.to_string())
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        self.answer(method, path, body).ok()
    }

    /// How a page is answered now.
    pub(crate) fn status(&self, path: &str) -> u16 {
        self.answer("GET", path, &json!({})).status
    }

    fn get(&self, path: &str) -> Value {
        self.ask("GET", path, &json!({}))
    }

    /// Waits for a page to say something.
    pub(crate) fn eventually(&self, path: &str, found: impl Fn(&Value) -> bool) -> Value {
        self.within(Duration::from_secs(60), path, found)
    }

    pub(crate) fn within(&self, time: Duration, path: &str, found: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + time;
        loop {
            let page = self.answer("GET", path, &json!({}));
            if page.status == 200 && found(&page.json()) {
                return page.json();
            }
            assert!(Instant::now() < end, "{path}: {} {}\n{}", page.status, page.text, self.daemon.said());
            std::thread::sleep(Duration::from_millis(50)); // pace: a page cannot call when it changes
        }
    }

    /// Events that are dead, and those that wait, by number.
    fn letters(&self) -> (BTreeSet<i64>, BTreeSet<i64>) {
        let seqs = |list: &str| {
            let page = self.get(&format!("/outboxes/a/{list}?limit=1000"));
            let all = page[list].as_array().expect("a list").clone();
            let seqs: BTreeSet<i64> = all.iter().filter_map(|one| one["seq"].as_i64()).collect();
            assert_eq!(seqs.len(), all.len(), "each once: {page}");
            seqs
        };
        (seqs("dead"), seqs("deferred"))
    }

    /// Begins a replay of all letters, and says where it is seen.
    pub(crate) fn replay(&self, rate: impl Into<Option<f64>>) -> String {
        let mut body = json!({ "kind": "dead.replay", "filter": { "all": true }, "reason": "mended" });
        if let Some(rate) = rate.into() {
            body["rate_per_s"] = rate.into();
        }
        format!("/outboxes/a/jobs/{}", self.ask("POST", "/outboxes/a/jobs", &body)["job"])
    }
}

/// What a file knows of its first job.
#[derive(Debug)]
struct JobRow {
    state: String,
    done: i64,
    owner: String,
    epoch: i64,
}

/// The file of outbox `a`, looked at past its processes: whoever looks by the API makes them look, too.
struct OutboxFile(rusqlite::Connection);

impl OutboxFile {
    fn open(rig: &Rig) -> Self {
        let file = rusqlite::Connection::open(rig.dir.join("a.db")).expect("the file");
        file.busy_timeout(Duration::from_secs(20)).expect("a timeout");
        Self(file)
    }

    fn run(&self, sql: &str) {
        self.0.execute_batch(sql).expect("SQL");
    }

    fn number(&self, sql: &str) -> i64 {
        self.0.query_row(sql, [], |row| row.get(0)).expect("a number")
    }

    /// A job that nobody has asked any process for.
    fn put_job(&self, plan: &str, state: &str, more: &str) {
        self.run(&format!(
            "insert into posthaste_jobs (kind, plan, upto, total, actor, verified, reason, trace_id, created_at, state)
             values ('{}', '{plan}', '999999', 20, 'ann', 0, 'x', 't', 1, '{state}');
             update posthaste_jobs set epoch = 1{more} where job = last_insert_rowid()",
            plan.split('"').nth(3).expect("its kind")
        ));
    }

    fn job(&self) -> JobRow {
        let sql = "select state, done, coalesce(owner, ''), epoch from posthaste_jobs order by job limit 1";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(JobRow { state: row.get(0)?, done: row.get(1)?, owner: row.get(2)?, epoch: row.get(3)? })
        };
        self.0.query_row(sql, [], read).expect("a job")
    }

    fn until(&self, what: &str, found: impl Fn(&JobRow) -> bool) -> JobRow {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let job = self.job();
            if found(&job) {
                return job;
            }
            assert!(Instant::now() < end, "{what}: {job:?}");
            std::thread::sleep(Duration::from_millis(50)); // pace: a file cannot call when it changes
        }
    }

    /// Of two processes that were there all the time, whoever runs the job is killed. Nobody looks.
    fn finished_by_the_other(&self, all: i64) {
        let left = self.until("it runs", |job| job.done >= 1 && !job.owner.is_empty());
        let pid = left.owner.split(':').nth(1).and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        kill_process(pid.expect("a name with a process"), Signal::KILL).expect("it is ours");
        self.run("update posthaste_jobs set lease_until = 1");
        let ended = self.until("the other one ends it", |job| job.state == "done");
        assert!(ended.epoch > left.epoch && ended.owner != left.owner, "{left:?} {ended:?}");
        assert_eq!(ended.done, all, "{ended:?}");
    }
}

/// A rig without its relay, whose outbox `a` has letters that stay where they are put.
fn buried() -> Rig {
    let rig = Rig::start("");
    let url = format!("sqlite:{}", rig.dir.join("a.db").display());
    for n in 5..LETTERS {
        run(&["append", "bad", "--key", &format!("order-{n}"), "--payload", "no JSON", "--url", &url]).ok();
    }
    rig.eventually("/outboxes/a/dead", |page| {
        page["dead"].as_array().is_some_and(|all| all.len() == LETTERS)
    });
    rig.daemon.signal(Signal::KILL);
    rig
}

#[test]
fn a_job_whose_process_was_killed_is_finished_by_another_one() {
    let rig = buried();
    let first = Ui::start(&rig);
    let before = first.letters();
    assert_eq!((before.0.len(), before.1.len()), (LETTERS, 0));
    let job = first.replay(4.0);
    first.eventually(&job, |job| job["done"].as_u64().is_some_and(|done| done >= 4));
    first.daemon.signal(Signal::KILL);
    let second = Ui::start(&rig);
    let left = second.get(&job);
    assert!(left["state"] == "running" && left["done"].as_u64() < Some(LETTERS as u64), "{left}");
    let (dead, waiting) = second.letters();
    assert!(dead.is_disjoint(&waiting) && dead.union(&waiting).eq(&before.0), "{dead:?} {waiting:?}");
    let ended = second.eventually(&job, over);
    assert_eq!((&ended["state"], &ended["done"]), (&"done".into(), &LETTERS.into()), "{ended}");
    assert!(ended["epoch"].as_i64() > left["epoch"].as_i64(), "another one ran it: {left} {ended}");
    assert_eq!(second.letters(), (BTreeSet::new(), before.0));
    // Each letter is in the line of one chunk.
    let trail = second.get("/audit?outbox=a&action=replay&limit=1000");
    let lines = trail["audit"].as_array().expect("a list");
    let ids: Vec<&str> = lines
        .iter()
        .flat_map(|line| line["detail"]["ids"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!((ids.len(), ids.iter().collect::<BTreeSet<_>>().len()), (LETTERS, LETTERS), "{trail}");
    assert!(
        lines.iter().all(|line| line["actor"] == "root" && line["detail"]["job"] == left["job"]),
        "{trail}"
    );
    assert!(lines.len() >= LETTERS / 4, "a chunk holds what a part of a second allows: {trail}");
    second.daemon.stop();
}

#[test]
fn who_is_told_to_stop_ends_between_two_chunks_and_leaves_the_job() {
    let rig = buried();
    // A database that is away when the process starts holds up nobody else's jobs.
    let file = rig.dir.join("posthaste.toml");
    let text = std::fs::read_to_string(&file).expect("it is there");
    let url = "url = \"postgres://u:hunter2@127.0.0.1:1/d\"";
    assert!(text.contains(url), "{text}");
    write(&file, &text.replace(url, &format!("{url}\nadmin_{url}")));
    let ui = Ui::start(&rig);
    ui.daemon.says("jobs wait: the database cannot be opened for acts");
    let job = ui.replay(2.0);
    ui.eventually(&job, |job| job["done"].as_u64() >= Some(1));
    let paused = ui.ask("POST", &format!("{job}/pause"), &json!({ "reason": "wait" }));
    assert_eq!(paused["state"], "paused");
    ui.ask("POST", &format!("{job}/resume"), &json!({ "reason": "go" }));
    let done = paused["done"].as_u64();
    ui.eventually(&job, |job| job["done"].as_u64() > done);
    let begun = Instant::now();
    let said = ui.daemon.stop();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(!said.contains("hunter2"), "{said}");
    let ui = Ui::start(&rig);
    let left = ui.get(&job);
    let (dead, waiting) = ui.letters();
    assert_eq!(
        (dead.len() + waiting.len(), Some(waiting.len() as u64)),
        (LETTERS, left["done"].as_u64()),
        "{left}"
    );
    assert!(!over(&left), "{left}");
}

/// The relay looks at its outbox anyway, and rings for a job that nobody runs.
#[test]
fn a_relay_that_was_there_all_the_time_finishes_what_another_one_left() {
    let rig = Rig::start("");
    let url = format!("sqlite:{}", rig.dir.join("a.db").display());
    // Something waits, so gauges are fresh.
    run(&["append", "later", "--payload", "{}", "--deliver-at", "+1h", "--url", &url]).ok();
    let second = Daemon::start(&["--config", rig.dir.join("posthaste.toml").to_str().expect("UTF-8")]);
    second.says("API http://");
    let body =
        json!({ "kind": "dead.replay", "filter": { "all": true }, "reason": "mended", "rate_per_s": 1.0 });
    rig.ask("POST", "/outboxes/a/jobs", &rig.admin, &body.to_string()).ok();
    OutboxFile::open(&rig).finished_by_the_other(5);
}

/// Without a relay a runner looks by itself, seldom.
#[test]
fn an_api_that_was_there_all_the_time_finishes_what_another_one_left() {
    let rig = buried();
    let seldom = [("POSTHASTE_JOB_LOOK_MS", "1000")];
    let uis = [(); 2].map(|()| Ui::with(&rig.dir, &rig.admin, &seldom));
    uis[0].replay(4.0);
    let all = i64::try_from(LETTERS).expect("a few");
    OutboxFile::open(&rig).finished_by_the_other(all);
}

#[test]
fn a_job_of_a_newer_version_is_left_to_a_newer_process() {
    let rig = buried();
    let file = OutboxFile::open(&rig);
    let newer = r#"{"kind":"dead.discard","filter":{"all":true,"attempts_over":5}}"#;
    file.put_job(newer, "running", ", owner = 'newer:1', lease_until = 1");
    file.put_job(newer, "queued", "");
    let ui = Ui::start(&rig);
    // Whoever has run this one has seen those.
    let body = json!({ "kind": "dead.replay", "filter": { "key": "order-7" }, "reason": "mended" });
    let job = format!("/outboxes/a/jobs/{}", ui.ask("POST", "/outboxes/a/jobs", &body)["job"]);
    ui.eventually(&job, over);
    let cli = |act: &str| rig.cli(&["jobs", act, "1", "--reason", "x", "--outbox", "a"]);
    let resumed = cli("resume");
    assert_eq!(resumed.code, 1, "{}", resumed.out);
    assert!(
        resumed.err.contains("a newer one runs it") && resumed.err.contains("`attempts_over`"),
        "{}",
        resumed.err
    );
    let left =
        "select count(*) from posthaste_jobs where job < 3 and state in ('running', 'queued') and epoch = 1
                   and done + left_alone = 0 and error is null";
    assert_eq!(file.number(left), 2, "{}", ui.daemon.said());
    let (dead, waiting) = ui.letters();
    assert_eq!((dead.len(), waiting.len()), (LETTERS - 1, 1));
    assert_eq!(
        file.number("select count(*) from posthaste_audit where action like '% job' and actor <> 'root'"),
        0
    );
    cli("cancel").ok();
}

/// Between the order and the run somebody else may take it: a trigger is as quick as one can be.
#[test]
fn who_resumes_a_job_and_is_not_the_one_who_runs_it_is_told_so() {
    let rig = buried();
    let file = OutboxFile::open(&rig);
    file.put_job(r#"{"kind":"dead.replay","filter":{"all":true}}"#, "paused", "");
    file.run(
        "create trigger quicker after update of state on posthaste_jobs when new.state = 'queued' begin
           update posthaste_jobs set state = 'running', owner = 'other:1', lease_until = (unixepoch() + 30) * 1000000 where job = new.job;
         end",
    );
    let resume = || rig.cli(&["jobs", "resume", "1", "--reason", "it is quick again", "--outbox", "a"]);
    let first = resume();
    assert_eq!(first.code, 1, "{}", first.out);
    assert!(first.err.contains("it was resumed, and is not run here"), "{}", first.err);
    let orders = "select count(*) from posthaste_audit where action = 'resume job'";
    assert_eq!(file.number(orders), 1);
    let second = resume();
    assert!(second.err.contains("run by other:1 at this moment; nothing was done"), "{}", second.err);
    assert_eq!(file.number(orders), 1);
}

#[test]
fn jobs_that_ended_a_year_ago_are_forgotten() {
    let rig = buried();
    let file = OutboxFile::open(&rig);
    let day = 86_400_000_000_i64;
    let now = file.number("select cast(unixepoch() as integer) * 1000000");
    for (state, days) in [("done", 366), ("failed", 366), ("done", 364), ("cancelled", 400)] {
        let ended = format!(", ended_at = {}", now - days * day);
        file.put_job(r#"{"kind":"dead.replay","filter":{"all":true}}"#, state, &ended);
    }
    file.put_job(r#"{"kind":"dead.replay","filter":{"all":true}}"#, "paused", "");
    let ui = Ui::start(&rig);
    ui.replay(None);
    let left = "select group_concat(job, ' ') from (select job from posthaste_jobs order by job)";
    let left: String = file.0.query_row(left, [], |row| row.get(0)).expect("a list");
    assert_eq!(left, "3 5 6", "what is not over stays, and what ended lately");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_ended_a_year_ago_are_forgotten_on_postgresql() {
    let database = require_service!(TestDatabase::create().await);
    let desk = Desk::set(&database, &database.url(), 3).await;
    let put = "insert into posthaste.jobs (kind, plan, upto, total, actor, verified, reason, trace_id, state, ended_at)
               select 'dead.replay', '{\"kind\":\"dead.replay\",\"filter\":{\"all\":true}}', '1', 1, 'ann', false, 'x', 't', s,
                      now() - make_interval(days => d)
                 from (values ('done', 366), ('failed', 366), ('done', 364), ('cancelled', 400), ('paused', null)) v (s, d)";
    desk.client.batch_execute(put).await.expect("jobs");
    let ui = desk.serve();
    ui.replay(None);
    let left = "select string_agg(job::text, ' ' order by job) from posthaste.jobs";
    let left: String = desk.client.query_one(left, &[]).await.expect("a list").get(0);
    assert_eq!(left, "3 5 6", "what is not over stays, and what ended lately");
    ui.daemon.stop();
}

/// A consumer's own tables have its marks and what its service says of its letters. A job on them goes by
/// those, whoever resumes it.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_resume_goes_by_the_tables_of_the_consumer() {
    let database = require_service!(TestDatabase::create().await);
    let dir = directory();
    let (file, broker, url) = (dir.join("posthaste.toml"), dir.join("broker.db"), database.url());
    let text = format!(
        "service = \"trial\"\n[[outbox]]\nname = \"shop\"\nurl = {url:?}\n\
         [sinks.broker]\ntype = \"local\"\npath = {broker:?}\npartitions = 2\n\
         [[route]]\ntopics = [\"*\"]\nsinks = [\"broker\"]\n\
         [consumers.billing]\nsource = \"broker\"\ntopics = [\"orders\"]\ntables = \"phoenix\"\n\
         [[consumers.billing.handle]]\nsql = \"trial.handle\"\n"
    );
    write(&file, &text);
    let cli = |args: &[&str]| run(&[args, &["--config", file.to_str().expect("UTF-8")]].concat());
    cli(&["migrate", "up"]).ok();
    let client = database.connect().await.expect("a connection");
    client.batch_execute(&cli(&["consumers", "sql"]).ok().out).await.expect("the service's tables");
    let letters = "with l as (
           insert into posthaste.inbox_dead_letters (letter, consumer, message_id, topic, partition, position, headers, payload,
             holds_key, attempts, disposition, error_class, error_code, error, fingerprint)
           select gen_random_uuid(), 'billing', 'm' || n, 'orders', 0, n, '[]', '{}', false, 5, 'exhausted', 'permanent',
                  case when n <= 3 then 'x.replay' else 'x.discard' end, 'no', 1
             from generate_series(1, 5) n
           returning *),
         marks as (insert into sys.request_keys (request_key) select 'billing:' || message_id from l)
         insert into sys.dead_letters (id, original_topic, original_partition, original_offset, consumer_group, payload)
         select letter, topic, partition, position, consumer, '{}' from l";
    client.batch_execute(letters).await.expect("letters");
    let jobs = "insert into posthaste.jobs (kind, consumer, plan, upto, total, actor, verified, reason, trace_id, state)
         select k, 'billing', jsonb_build_object('kind', k, 'consumer', 'billing', 'filter', jsonb_build_object('code', c)),
                'ffffffff-ffff-ffff-ffff-ffffffffffff', 9, 'ann', false, 'x', 't', 'paused'
           from (values ('consumer.replay', 'x.replay'), ('consumer.discard', 'x.discard')) v (k, c)";
    client.batch_execute(jobs).await.expect("jobs");
    for (job, done, status) in [("1", 3, "REPLAYED"), ("2", 2, "ARCHIVED")] {
        let ended = cli(&["jobs", "resume", job, "--reason", "mended", "--json"]).ok().json();
        assert_eq!((&ended["state"], &ended["done"]), (&"done".into(), &done.into()), "{ended}");
        let of = "select count(*) from sys.dead_letters where replay_status = $1";
        let said: i64 = client.query_one(of, &[&status]).await.expect("a count").get(0);
        assert_eq!(said, i64::from(done), "{status}");
    }
    let waits = "select count(*) from posthaste.inbox_deferred where consumer = 'billing'";
    assert_eq!(client.query_one(waits, &[]).await.expect("a count").get::<_, i64>(0), 3);
    std::fs::remove_dir_all(&dir).expect("it was there");
}
