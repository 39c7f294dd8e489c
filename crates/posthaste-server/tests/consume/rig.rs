//! A service with a handler in SQL, a broker, and processes that consume.
//!
//! The handler notes each call in a table and has nothing that would stop it from being called twice. So
//! what is in the table is what happened, and the rest of the database is what Posthaste says about it.

#[cfg(feature = "kafka")]
use crate::grounds::{kafka_sink, kafka_topic};
use crate::marks::{EVENT_IDS, MARKS, REQUEST_KEYS};
use crate::member::{Member, WAIT};
use crate::wire::{Parcel, Wire};
use posthaste_testkit::conformance::eventually;
#[cfg(feature = "kafka")]
use posthaste_testkit::services::Kafka;
use posthaste_testkit::services::{Postgres, ServiceError, TestDatabase};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
#[cfg(any(feature = "schemas", all(feature = "http", feature = "nats")))]
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
#[cfg(feature = "kafka")]
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};
#[cfg(feature = "kafka")]
use tokio::sync::RwLock;
use tokio_postgres::{Client, NoTls};

pub(crate) const KEYS: i32 = 8;

const SERVICE: &str = include_str!("service.sql");

/// Whose database it is.
pub(crate) enum Ground {
    Shared(TestDatabase),
    Own(Box<Postgres>),
}

pub(crate) struct Rig {
    ground: Ground,
    pub(crate) client: Client,
    dir: PathBuf,
    wire: Wire,
    /// The topic; also the consumer's group at the broker.
    pub(crate) topic: String,
    started: AtomicU32,
    /// The number of the last message.
    last: AtomicI32,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }
}

pub(crate) async fn connect(url: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

impl Rig {
    /// On the shared server and a local broker, with these lines in the consumer's table.
    pub(crate) async fn set(consumer: &str) -> Result<Self, ServiceError> {
        let database = TestDatabase::create().await?;
        Ok(Self::local(Ground::Shared(database), consumer).await)
    }

    /// On a server of its own, to be killed, and a local broker.
    pub(crate) async fn set_on(server: Postgres, consumer: &str) -> Self {
        Self::local(Ground::Own(Box::new(server)), consumer).await
    }

    async fn local(ground: Ground, consumer: &str) -> Self {
        let dir = directory();
        let file = dir.join("broker.db");
        let sink = format!("type = \"local\"\npath = {file:?}\npartitions = 2");
        Self::on(ground, dir, Wire::local(&file), "orders".to_owned(), &sink, consumer).await
    }

    /// On the shared server and Kafka, with a topic of its own.
    #[cfg(feature = "kafka")]
    pub(crate) async fn set_on_kafka(
        kafka: &'static Kafka,
        partitions: u32,
        consumer: &str,
    ) -> Result<Self, ServiceError> {
        let sink = kafka_sink(kafka);
        let topic = kafka_topic(kafka, partitions).await?;
        let ground = Ground::Shared(TestDatabase::create().await?);
        Ok(Self::on(ground, directory(), Wire::Kafka(kafka), topic, &sink, consumer).await)
    }

    /// On the shared server and a Kafka of its own, to be restarted.
    #[cfg(feature = "kafka")]
    pub(crate) async fn set_on_own_kafka(
        kafka: Arc<RwLock<Kafka>>,
        consumer: &str,
    ) -> Result<Self, ServiceError> {
        let (sink, topic) = {
            let kafka = kafka.read().await;
            (kafka_sink(&kafka), kafka_topic(&kafka, 1).await?)
        };
        let ground = Ground::Shared(TestDatabase::create().await?);
        Ok(Self::on(ground, directory(), Wire::OwnKafka(kafka), topic, &sink, consumer).await)
    }

    /// On the shared server and a topic of that Kafka, with these lines in the sink's table.
    #[cfg(feature = "kafka")]
    pub(crate) async fn set_on_topic(
        kafka: Arc<RwLock<Kafka>>,
        topic: &str,
        sink: &str,
        consumer: &str,
    ) -> Result<Self, ServiceError> {
        let ground = Ground::Shared(TestDatabase::create().await?);
        Ok(Self::on(ground, directory(), Wire::OwnKafka(kafka), topic.to_owned(), sink, consumer).await)
    }

    /// Another broker behind the same name.
    #[cfg(feature = "kafka")]
    pub(crate) async fn move_to(&mut self, kafka: &'static Kafka) {
        let Wire::OwnKafka(before) = &self.wire else { panic!("the broker is not ours") };
        let before = kafka_sink(&*before.read().await);
        self.reconfigure(&before, &kafka_sink(kafka));
        self.wire = Wire::Kafka(kafka);
        kafka.create_topic(&self.topic, 1, 1, &[]).await.expect("a topic of the same name");
    }

    pub(crate) async fn on(
        ground: Ground,
        dir: PathBuf,
        wire: Wire,
        topic: String,
        sink: &str,
        consumer: &str,
    ) -> Self {
        let url = ground.url();
        let text = format!(
            "service = \"trial\"\n[http]\nlisten = \"127.0.0.1:0\"\n[[outbox]]\nname = \"shop\"\nurl = \"{url}\"\n\
             [[route]]\ntopics = [\"*\"]\nsinks = [\"broker\"]\n[sinks.broker]\n{sink}\nstart_at = \"earliest\"\n\
             [consumers.billing]\nsource = \"broker\"\ntopics = [\"{topic}\"]\ngroup = \"{topic}\"\n\
             dead_letters = {{ topic = \"{topic}.dead\", key = \"{{partition}}\" }}\n{consumer}\n\
             [[consumers.billing.handle]]\nsql = \"trial.handle\"\n"
        );
        std::fs::write(dir.join("posthaste.toml"), text).expect("the configuration");
        let (client, started, last) =
            (connect(&url).await.expect("the server answers"), AtomicU32::new(0), AtomicI32::new(0));
        let rig = Self { ground, client, dir, wire, topic, started, last };
        rig.cli(&["migrate", "up"]).ok();
        let (phoenix, seed) = ("tables = \"phoenix\"", "tables = \"processed-event-ids\"");
        let is_mapped = consumer.contains(phoenix) || consumer.contains(seed);
        let tables = if is_mapped { rig.cli(&["consumers", "sql"]).ok() } else { String::new() };
        let marks = match () {
            () if consumer.contains(phoenix) => REQUEST_KEYS,
            () if consumer.contains(seed) => EVENT_IDS,
            () => MARKS,
        };
        rig.run(&format!("{tables};{SERVICE};{marks}")).await;
        rig
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect(sql);
    }

    /// Where the database is, for whoever has its rights.
    pub(crate) fn url(&self) -> String {
        self.ground.url()
    }

    /// Where the database is, for this login.
    pub(crate) fn url_as(&self, login: &str) -> String {
        match &self.ground {
            Ground::Shared(database) => database.url_as(login),
            Ground::Own(server) => server.url_for("postgres", login),
        }
    }

    /// Another configuration for those that start from now on.
    pub(crate) fn replace_configuration(&self, text: &str) {
        std::fs::write(self.dir.join("posthaste.toml"), text).expect("the configuration");
    }

    /// Changes the configuration, for whoever is started from now on.
    pub(crate) fn reconfigure(&self, from: &str, to: &str) {
        let file = self.dir.join("posthaste.toml");
        let text = std::fs::read_to_string(&file).expect("the configuration");
        assert!(text.contains(from), "{from:?} is not in\n{text}");
        self.replace_configuration(&text.replace(from, to));
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bare_command();
        command.arg("--config").arg(self.dir.join("posthaste.toml")).args(args);
        command
    }

    fn bare_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTHASTE_"));
        for (name, _) in ours {
            command.env_remove(name);
        }
        command.env_remove("RUST_LOG").current_dir(&self.dir).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end, with a configuration in which one thing is another.
    pub(crate) fn cli_but(&self, thing: &str, other: &str, args: &[&str]) -> Ended {
        let text = std::fs::read_to_string(self.dir.join("posthaste.toml")).expect("the configuration");
        assert!(text.contains(thing), "{thing}");
        let changed = self.dir.join("changed.toml");
        std::fs::write(&changed, text.replace(thing, other)).expect("the other configuration");
        let file = changed.to_str().expect("a plain name");
        Self::end(self.bare_command().args(["--config", file]).args(args))
    }

    /// A file beside the configuration.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.dir.join(name);
        std::fs::write(&file, text).expect("a file of the test");
        file
    }

    /// Starts a command whose end is somebody else's.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    }

    /// Runs a command to its end.
    pub(crate) fn cli(&self, args: &[&str]) -> Ended {
        Self::end(&mut self.command(args))
    }

    fn end(command: &mut Command) -> Ended {
        let output = command.output().expect("the binary starts");
        Ended {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub(crate) fn start(&self) -> Member {
        self.start_to_die("")
    }

    /// Starts a process that dies at a crash point, `name@visit`.
    pub(crate) fn start_to_die(&self, crash: &str) -> Member {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let log = self.dir.join(format!("log-{number}"));
        let file = OpenOptions::new().create(true).append(true).open(&log).expect("a log");
        let mut command = self.command(&["run"]);
        command.stdout(Stdio::null()).stderr(file);
        if !crash.is_empty() {
            command.env("POSTHASTE_CRASH", crash);
        }
        Member::spawn(command, log)
    }

    /// The next so many messages of this type, on all keys in turn.
    pub(crate) async fn publish(&self, count: i32, kind: &str) {
        self.publish_with(count, &[("type", kind)]).await;
    }

    pub(crate) async fn publish_with(&self, count: i32, headers: &[(&str, &str)]) {
        let from = self.last.fetch_add(count, Ordering::Relaxed) + 1;
        let parcels = (from..from + count).map(|n| parcel(n, headers)).collect();
        self.wire.send(&self.topic, parcels).await;
    }

    /// The next so many messages, each of the type that its number says.
    pub(crate) async fn publish_mixed(&self, count: i32, kind: impl Fn(i32) -> &'static str) {
        let from = self.last.fetch_add(count, Ordering::Relaxed) + 1;
        let headers: Vec<_> = (from..from + count).map(|n| [("type", kind(n))]).collect();
        let parcels = (from..).zip(&headers).map(|(n, headers)| parcel(n, headers)).collect();
        self.wire.send(&self.topic, parcels).await;
    }

    /// Messages of this type and of these numbers, which may be there already, with such payloads.
    #[cfg(any(feature = "schemas", all(feature = "http", feature = "nats")))]
    pub(crate) async fn send(&self, kind: &str, numbers: Range<i32>, payload: impl Fn(i32) -> String) {
        self.last.fetch_max(numbers.end - 1, Ordering::Relaxed);
        let headers = [("type", kind)];
        let parcels = numbers.map(|n| Parcel { payload: payload(n), ..parcel(n, &headers) });
        self.wire.send(&self.topic, parcels.collect()).await;
    }

    /// A copy of a message, with its id, at another position.
    pub(crate) async fn publish_again(&self, n: i32, kind: &str) {
        self.publish(1, "order").await;
        self.wire.send(&self.topic, vec![parcel(n, &[("type", kind)])]).await;
    }

    /// The number of the last message.
    pub(crate) fn last(&self) -> i32 {
        self.last.load(Ordering::Relaxed)
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.expect("a count").get(0)
    }

    /// Waits until a count is at least this.
    pub(crate) async fn until(&self, sql: &str, wanted: i64) {
        eventually(&format!("{sql} is {wanted}"), WAIT, || async {
            (self.count(sql).await >= wanted).then_some(())
        })
        .await;
    }

    /// Waits until everything that was published is settled, and the positions are saved.
    pub(crate) async fn until_settled(&self) {
        let settled = "select count(*) from trial.marks where outcome <> 'w'";
        self.until(settled, self.last().into()).await;
        self.until_saved().await;
    }

    /// Waits until the positions are at the end of the topic.
    pub(crate) async fn until_saved(&self) {
        let mut ends: BTreeMap<i32, i64> = BTreeMap::new();
        for lying in self.wire.lying(&self.topic).await {
            ends.insert(lying.partition, lying.position + 1);
        }
        eventually("positions are at the end", WAIT, || async {
            let mut positions = self.positions().await;
            positions.retain(|_, position| *position > 0);
            (positions == ends).then_some(())
        })
        .await;
    }

    /// Positions as the database has them.
    pub(crate) async fn positions(&self) -> BTreeMap<i32, i64> {
        let sql = "select partition, coalesce(position, 0) from posthaste.inbox_partitions";
        let rows = self.client.query(sql, &[]).await.expect("positions");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Positions as the broker has them, once they are those of the database.
    pub(crate) async fn until_committed(&self) -> BTreeMap<i32, i64> {
        eventually("the broker has the positions", WAIT, || async {
            let (ours, mut theirs) = (self.positions().await, self.committed().await);
            theirs.retain(|partition, _| ours.contains_key(partition));
            (ours == theirs).then_some(theirs)
        })
        .await
    }

    /// Positions as the broker has them.
    pub(crate) async fn committed(&self) -> BTreeMap<i32, i64> {
        self.wire.committed(&self.topic).await
    }

    /// How many of the first so many messages lie in each partition.
    pub(crate) async fn spread(&self, first: i32) -> BTreeMap<i32, i64> {
        let ids: Vec<String> = (1..=first).map(|n| format!("m{n}")).collect();
        let mut spread = BTreeMap::new();
        for lying in self.wire.lying(&self.topic).await {
            let counts = lying.id.is_some_and(|id| ids.contains(&id));
            *spread.entry(lying.partition).or_default() += i64::from(counts);
        }
        spread
    }

    /// Who has partitions, once for each.
    async fn owners(&self) -> Vec<String> {
        let sql = "select coalesce(owner, '') from posthaste.inbox_partitions";
        let rows = self.client.query(sql, &[]).await.expect("owners");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// The partitions of a member, as an array of SQL.
    #[cfg(feature = "kafka")]
    pub(crate) async fn partitions_of(&self, member: &Member) -> String {
        let sql = "select partition, coalesce(owner, '') from posthaste.inbox_partitions";
        let rows = self.client.query(sql, &[]).await.expect("owners");
        let its = rows.iter().filter(|row| member.is(row.get(1)));
        format!("{{{}}}", its.map(|row| row.get::<_, i32>(0).to_string()).collect::<Vec<_>>().join(","))
    }

    /// Waits until these have all partitions, and each of them has one.
    pub(crate) async fn until_shared_by(&self, members: &[&Member]) {
        let end = Instant::now() + WAIT;
        loop {
            let owners = self.owners().await;
            let each_has_one = members.iter().all(|member| owners.iter().any(|owner| member.is(owner)));
            let all_are_theirs = owners.iter().all(|owner| members.iter().any(|member| member.is(owner)));
            if each_has_one && all_are_theirs {
                return;
            }
            if Instant::now() >= end {
                for member in members {
                    eprintln!("a member's health: {}", member.get("/readyz").await.1);
                }
                panic!("{owners:?} do not share it:\n{}", self.cli(&["consumers", "status"]).out);
            }
            tokio::time::sleep(Duration::from_millis(10)).await; // pace
        }
    }

    /// What must be true at any time, also right after a death: effects once, keys in order, marks as rows,
    /// positions that say the truth. A letter that was replayed runs behind later ones of its key.
    pub(crate) async fn check(&self, when: &str) {
        let back = "select count(*) from (select n < lag(n) over (partition by key order by seq) as back \
                    from trial.effects where type <> 'reject') e where back";
        assert_eq!(self.count(back).await, 0, "I3: a key is out of order, {when}");
        self.check_but_order(when).await;
    }

    /// The same where a range was replayed: it runs behind what came later.
    pub(crate) async fn check_but_order(&self, when: &str) {
        let twice = "select count(*) - count(distinct id) from trial.effects";
        assert_eq!(self.count(twice).await, 0, "I1: an effect happened twice, {when}");
        for (outcome, rows) in [
            ("d", "select id from trial.effects"),
            ("w", "select message_id from posthaste.inbox_deferred"),
            ("x", "select message_id from posthaste.inbox_dead_letters"),
        ] {
            let marks = format!("select id from trial.marks where outcome = '{outcome}'");
            let odd = format!(
                "select count(*) from (({marks} except {rows}) union all ({rows} except {marks})) odd"
            );
            assert_eq!(self.count(&odd).await, 0, "I4: marks {outcome} are not the rows, {when}");
        }
        let positions = self.positions().await;
        let lying = self.wire.lying(&self.topic).await.into_iter();
        let decided =
            lying.filter(|lying| positions.get(&lying.partition).is_some_and(|end| lying.position < *end));
        let ids: Vec<String> = decided.filter_map(|lying| lying.id).collect();
        let sql = "select count(*) from unnest($1::text[]) id where id not in (select id from trial.marks)";
        let undecided: i64 = self.client.query_one(sql, &[&ids]).await.expect("marks").get(0);
        assert_eq!(undecided, 0, "I2: messages before a position are not decided, {when}");
    }

    /// Lets everything come to its end, and looks at it.
    pub(crate) async fn finish(&self, member: Member, when: &str) {
        self.until_settled().await;
        member.stop().await;
        self.check(when).await;
        let owned = "select count(*) from posthaste.inbox_partitions where owner is not null or not clean";
        assert_eq!(self.count(owned).await, 0, "G8: a partition was not given back, {when}");
    }

    /// The server, if it is our own.
    pub(crate) fn server(&mut self) -> &mut Postgres {
        match &mut self.ground {
            Ground::Own(server) => server,
            Ground::Shared(_) => panic!("the server is not ours"),
        }
    }

    /// Connects again after the server was away.
    pub(crate) async fn reconnect(&mut self) {
        self.client = eventually("the server answers", WAIT, || self.try_connect()).await;
    }

    /// A connection, if the server is there.
    pub(crate) async fn try_connect(&self) -> Option<Client> {
        connect(&self.ground.url()).await
    }
}

impl Ground {
    fn url(&self) -> String {
        match self {
            Self::Shared(database) => database.url(),
            Self::Own(server) => server.url(),
        }
    }
}

pub(crate) fn directory() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("posthaste-trial-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    dir
}

fn parcel<'a>(n: i32, headers: &'a [(&'a str, &'a str)]) -> Parcel<'a> {
    let (key, payload) = (format!("k{}", n % KEYS), format!("{{\"n\": {n}}}"));
    Parcel { id: Some(format!("m{n}")), key, headers, payload }
}
