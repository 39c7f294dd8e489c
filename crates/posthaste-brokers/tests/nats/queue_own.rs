//! JetStream without order: what happens to messages in hand, to the durable consumer, and to the way there.

use super::queue::publish;
use super::*;
use crate::ground::consuming::{Stumbling, consumer, effects, numbered, until};
use consumer::AckPolicy;
use consumer::pull::Config as PullConfig;
use posthaste::consumer::Order;
use posthaste::sink::Level;
use posthaste::source::{Change, Delivery, Limit, Source, SourceError, Standing};
use posthaste_brokers::nats::{NatsQueue, SOURCE_CHECKS};
use posthaste_brokers::{GroupMember, Secret, SourceConfig};
use posthaste_testkit::conformance::source::Publication;
use posthaste_testkit::inbox::InboxDatabase;
use posthaste_testkit::leases::MemoryLeases;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;
use std::collections::BTreeSet;

const GROUP: &str = "billing";
const ALL: Limit = Limit { events: 1_000, bytes: 1 << 24 };
const SHORT: Duration = Duration::from_millis(50);

fn plan(member: &str) -> GroupMember {
    GroupMember { order: Order::None, member: Some(member.to_owned()), ..GroupMember::new(GROUP, ["S"]) }
}

impl Bed {
    /// A member whose durable consumer, if it makes one, waits for so long.
    fn queue(&self, member: &str, ack_wait_ms: u64) -> NatsQueue {
        NatsQueue::start(&NatsConfig { ack_wait_ms, ..self.config() }, &plan(member)).expect("valid")
    }

    async fn fill(&self, numbers: std::ops::Range<usize>) {
        for n in numbers {
            publish(self, "s.x".to_owned(), numbered(n, 3)).await;
        }
    }

    /// The durable consumer.
    async fn durable(&self) -> consumer::Info {
        let stream = self.jetstream.get_stream("S").await.expect("the stream");
        stream.get_consumer::<PullConfig>(GROUP).await.expect("the consumer").cached_info().clone()
    }

    async fn edit(&self, change: impl Fn(&mut PullConfig)) {
        let stream = self.jetstream.get_stream("S").await.expect("the stream");
        let found = stream.get_consumer::<PullConfig>(GROUP).await.expect("the consumer");
        let mut config = PullConfig {
            durable_name: Some(GROUP.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: found.cached_info().config.ack_wait,
            max_deliver: -1,
            ..Default::default()
        };
        change(&mut config);
        stream.update_consumer(config).await.expect("changed");
    }

    /// Waits until nothing is left to do.
    async fn until_settled(&self) {
        until(async || {
            let info = self.durable().await;
            (info.num_pending, info.num_ack_pending) == (0, 0)
        })
        .await;
    }
}

/// Calls until so many came. What is out of reach is asked again.
async fn take(source: &NatsQueue, count: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    until(async || {
        if let Ok(batch) = source.next(ALL, SHORT).await {
            taken.extend(batch.deliveries);
        }
        taken.len() >= count
    })
    .await;
    taken
}

fn tickets(deliveries: &[Delivery]) -> Vec<posthaste::source::Ticket> {
    deliveries.iter().map(|delivery| delivery.ticket.clone()).collect()
}

fn ids(deliveries: &[Delivery]) -> BTreeSet<String> {
    deliveries.iter().filter_map(|delivery| delivery.message.id.clone()).collect()
}

/// What it says instead of messages.
async fn fault(source: &NatsQueue, words: &str) -> SourceError {
    let mut said = None;
    until(async || {
        said = source.next(ALL, SHORT).await.err().filter(|error| error.to_string().contains(words));
        said.is_some()
    })
    .await;
    said.expect("an error")
}

/// F73: longer than `ack_wait`, with another member that would take it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f73_a_handler_that_takes_longer_than_ack_wait_has_its_message_alone() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s.>"]).await;
    bed.fill(0..3).await;
    let (slow, other) = (bed.queue("slow", 1_000), bed.queue("other", 1_000));
    let mut taken = Vec::new();
    until(async || {
        for source in [&slow, &other] {
            taken.extend(source.next(ALL, SHORT).await.expect("an answer").deliveries);
        }
        taken.len() == 3
    })
    .await;
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(4_500) {
        for source in [&slow, &other] {
            let again = source.next(ALL, SHORT).await.expect("an answer").deliveries;
            assert!(again.is_empty(), "{again:?}");
        }
    }
    assert_eq!(bed.durable().await.num_redelivered, 0, "it is the server that knows of progress");
    for source in [&slow, &other] {
        let standings = source.ack(&tickets(&taken)).await.expect("acknowledged");
        assert_eq!(standings.len(), 3);
    }
    bed.until_settled().await;
}

/// The server gives it again, whoever told it to: it is in hand, and the newer delivery is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_comes_again_in_hand_is_handed_out_once() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s.>"]).await;
    bed.fill(0..1).await;
    let source = bed.queue("a", 30_000);
    let taken = take(&source, 1).await;
    let client = async_nats::connect(bed.server.url()).await.expect("connected");
    client.publish(format!("$JS.ACK.S.{GROUP}.1.1.1.1.0"), "-NAK".into()).await.expect("sent");
    until(async || {
        let more = source.next(ALL, SHORT).await.expect("an answer").deliveries;
        assert!(more.is_empty(), "{more:?}");
        bed.durable().await.num_redelivered == 1
    })
    .await;
    bed.fill(1..2).await;
    let next = take(&source, 1).await;
    assert_eq!(ids(&next), BTreeSet::from(["m00001".to_owned()]), "only what is new");
    let all = [tickets(&taken), tickets(&next)].concat();
    assert_eq!(source.ack(&all).await, Ok(vec![Standing::Settled; 2]));
    bed.until_settled().await;
}

/// G8: nobody waits for `ack_wait`, neither when a member leaves nor when its consumer hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_who_leaves_or_hangs_gives_back_what_it_has_at_once() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s.>"]).await;
    bed.fill(0..200).await;
    // Longer than any deadline here.
    let leaving = bed.queue("a", 600_000);
    let taken = take(&leaving, 200).await;
    assert_eq!(leaving.ack(&tickets(&taken[..50])).await, Ok(vec![Standing::Settled; 50]));
    let fresh = async { bed.fill(200..300).await };
    let (drained, ()) = tokio::join!(leaving.drain(Duration::from_millis(300)), fresh);
    assert_eq!(drained.map(|drained| drained.abandoned), Ok(150));
    let late = leaving.ack(&tickets(&taken[50..51])).await;
    assert_eq!(late, Ok(vec![Standing::Revoked]));
    let mut hanging = plan("b");
    hanging.stall_limit = Duration::from_millis(500);
    let hanging = NatsQueue::start(&bed.config(), &hanging).expect("valid");
    assert_eq!(ids(&take(&hanging, 250).await).len(), 250);
    let heir = bed.queue("c", 600_000);
    let rest = take(&heir, 250).await;
    assert_eq!(ids(&rest).len(), 250);
    let back = hanging.next(ALL, SHORT).await.expect("it is a member again");
    assert!(back.changes.iter().any(|change| matches!(change, Change::Revoked { .. })), "{back:?}");
    heir.ack(&tickets(&rest)).await.expect("acknowledged");
    bed.until_settled().await;
}

/// One dies with its hands full, and the server is killed and comes back. Each effect happens once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g5_a_dead_member_and_a_dead_server_and_each_effect_happens_once() {
    let mut bed = require_service!(Bed::open().await);
    bed.stream("S", &["s.>"]).await;
    let (database, handler) = (InboxDatabase::default(), Arc::<Stumbling>::default());
    let join = |bed: &Bed, name: &str| Arc::new(bed.queue(name, 1_000));
    let dying = join(&bed, "a");
    let members = [Arc::clone(&dying), join(&bed, "b"), join(&bed, "c")];
    let mut members: Vec<_> =
        (0..).zip(members).map(|(n, source)| consumer(source, &database, &handler, n)).collect();
    bed.fill(0..300).await;
    until(async || database.tables().effects.len() >= 30).await;
    dying.freeze().await;
    bed.fill(300..400).await;
    bed.server.kill9().await.expect("killed");
    bed.server.start_again().await.expect("started again");
    until(async || database.tables().effects.len() >= 390).await;
    let client = async_nats::connect(bed.server.url()).await.expect("connected");
    bed.jetstream = jetstream::new(client);
    bed.fill(400..450).await;
    until(async || database.tables().effects.len() >= 450).await;
    bed.until_settled().await;
    for member in members.drain(1..) {
        member.drain().await;
    }
    let done: Vec<String> = effects(&database).into_values().flatten().collect();
    assert_eq!((done.len(), done.iter().collect::<BTreeSet<_>>().len()), (450, 450));
}

/// F72: by its place, which it has at every delivery, and a log would call it the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f72_a_message_without_an_id_is_the_same_when_it_comes_again() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s.>"]).await;
    for _ in 0..2 {
        publish(&bed, "s.x".to_owned(), Publication::default()).await;
    }
    let first = bed.queue("a", 1_000);
    let taken = ids(&take(&first, 2).await);
    assert!(taken.len() == 2 && taken.iter().any(|id| id.starts_with("S/0@1#")), "{taken:?}");
    first.freeze().await;
    let second = bed.queue("b", 1_000);
    assert_eq!(ids(&take(&second, 2).await), taken);
}

/// Whoever changes the consumer is told what it costs, also while it is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f73_a_consumer_that_somebody_changed_is_refused_and_one_that_was_deleted_is_made_again() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s.>"]).await;
    bed.fill(0..2).await;
    let source = bed.queue("a", 30_000);
    let taken = take(&source, 2).await;
    assert_eq!(source.ack(&tickets(&taken)).await, Ok(vec![Standing::Settled; 2]));
    let stream = bed.jetstream.get_stream("S").await.expect("the stream");
    stream.delete_consumer(GROUP).await.expect("deleted");
    let again = take(&source, 2).await;
    assert_eq!(ids(&again), ids(&taken), "a new consumer begins anew; the marks know them");
    assert_eq!(source.ack(&tickets(&again)).await, Ok(vec![Standing::Settled; 2]));
    bed.edit(|config| config.max_deliver = 5).await;
    let told = fault(&source, "max_deliver is 5").await;
    assert!(matches!(&told, SourceError::Fatal(why) if why.contains("--max-deliver=-1")), "{told}");
    let later = bed.queue("b", 30_000);
    let told = fault(&later, "max_deliver is 5").await;
    assert!(matches!(told, SourceError::Fatal(_)), "{told}");
    // They would come back, and take what nobody asks them for here.
    drop((source, later));
    bed.edit(|_| {}).await;
    bed.fill(2..3).await;
    assert_eq!(ids(&take(&bed.queue("c", 30_000), 1).await), BTreeSet::from(["m00002".to_owned()]));
}

/// Made for it, and still no logs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_forget_are_queues_and_no_logs() {
    for retention in [stream::RetentionPolicy::WorkQueue, stream::RetentionPolicy::Interest] {
        let bed = require_service!(Bed::open().await);
        bed.stream_with(stream::Config { retention, ..plain("S", &["s.>"]) }).await;
        let mut latest = plan("a");
        latest.start_from = posthaste::source::StartFrom::Latest;
        let source = NatsQueue::start(&bed.config(), &latest).expect("valid");
        until(async || {
            source.next(ALL, SHORT).await.expect("an answer");
            source.view().await.expect("a view").len() == 1
        })
        .await;
        bed.fill(0..5).await;
        let taken = take(&source, 5).await;
        source.ack(&tickets(&taken)).await.expect("acknowledged");
        until(async || bed.jetstream.get_stream("S").await.expect("there").cached_info().state.messages == 0)
            .await;
        for order in [Order::Key, Order::Partition] {
            let plan = GroupMember { order, ..plan("b") };
            let leases = Arc::new(MemoryLeases::default());
            let log = SourceConfig::Nats(Box::new(bed.config())).build(&plan, leases).expect("valid");
            let mut told = None;
            until(async || {
                told = log.next(ALL, SHORT).await.err();
                told.is_some()
            })
            .await;
            let told = told.expect("an error");
            assert!(matches!(&told, SourceError::Fatal(why) if why.contains("order = \"none\"")), "{told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_are_missing_are_named_and_doctor_knows_the_queue() {
    let accounts = r#"accounts { A { jetstream: enabled, users: [
        { user: "blind", password: "pw", permissions: { publish: ["$JS.API.STREAM.INFO.S"], subscribe: ["_INBOX.>"] } }
        { user: "unmaking", password: "pw", permissions: { subscribe: ["_INBOX.>"],
          publish: ["$JS.API.STREAM.INFO.S", "$JS.API.CONSUMER.INFO.S.billing"] } }
        { user: "mute", password: "pw", permissions: { subscribe: ["_INBOX.>"],
          publish: ["$JS.API.STREAM.INFO.S", "$JS.API.CONSUMER.*.S.billing", "$JS.API.CONSUMER.MSG.NEXT.S.billing"] } }
        { user: "unasking", password: "pw", permissions: { subscribe: ["_INBOX.>"],
          publish: ["$JS.API.STREAM.INFO.S", "$JS.API.CONSUMER.*.S.billing", "$JS.ACK.S.billing.>"] } }
        { user: "right", password: "pw", permissions: { subscribe: ["_INBOX.>"],
          publish: ["$JS.API.STREAM.INFO.S", "$JS.API.CONSUMER.*.S.billing", "$JS.API.CONSUMER.MSG.NEXT.S.billing",
                    "$JS.ACK.S.billing.>"] } }
        { user: "root", password: "pw" } ] } }"#;
    let server = require_service!(Nats::start(&NatsOptions::default().setting(accounts)).await);
    let url = server.url();
    let as_user = |user: &str| {
        NatsConfig::new(&url).with(|options| {
            options.user = Some(user.to_owned());
            options.password = Some(Secret::new("pw"));
        })
    };
    let root = async_nats::ConnectOptions::with_user_and_password("root".to_owned(), "pw".to_owned());
    let root = jetstream::new(root.connect(server.url()).await.expect("connected"));
    root.create_stream(plain("S", &["s.>"])).await.expect("a stream");
    let bed = Bed { server, jetstream: root };
    bed.fill(0..2).await;
    let join = |user: &str| NatsQueue::start(&as_user(user), &plan(user)).expect("valid");
    fault(&join("blind"), "$JS.API.CONSUMER.INFO.S.billing").await;
    let doctor = async |user: &str| {
        let source = SourceConfig::Nats(Box::new(as_user(user)));
        let found = source.examine(&plan(user), None).await;
        assert!(found.iter().all(|finding| SOURCE_CHECKS.contains(&finding.check.as_str())), "{found:?}");
        found
    };
    assert_found(&doctor("right").await, "queue", Level::Warn, "no consumer \"billing\" yet");
    fault(&join("unmaking"), "$JS.API.CONSUMER.CREATE.S.billing").await;
    fault(&join("unasking"), "$JS.API.CONSUMER.MSG.NEXT.S.billing").await;
    assert_found(&doctor("unasking").await, "rights", Level::Fail, "MSG.NEXT.S.billing");
    let mute = join("mute");
    let taken = take(&mute, 2).await;
    assert_eq!(mute.ack(&tickets(&taken)).await, Ok(vec![Standing::Revoked; 2]), "nobody heard it");
    fault(&mute, "$JS.ACK.S.billing").await;
    mute.freeze().await;

    let found = doctor("right").await;
    assert_found(&found, "queue", Level::Ok, "consumer \"billing\"");
    assert_found(&found, "rights", Level::Ok, "may be read");
    assert_eq!(bed.durable().await.num_waiting, 0, "doctor asked for no message");
    assert_found(&found, "ack-wait", Level::Ok, "30 s");
    assert_found(&found, "max-deliver", Level::Ok, "-1");
    assert_found(
        &found,
        "lag",
        Level::Ok,
        "0 messages of stream \"S\" wait for consumer \"billing\", and 2 are",
    );
    bed.edit(|config| {
        config.max_deliver = 3;
        config.ack_wait = Duration::from_secs(1);
        config.max_ack_pending = 7;
    })
    .await;
    let found = doctor("right").await;
    assert_found(&found, "queue", Level::Fail, "max_deliver is 3");
    assert_found(&found, "ack-wait", Level::Warn, "--wait=30000ms");
    assert_found(&found, "max-deliver", Level::Fail, "3 times");
    assert_found(&found, "lag", Level::Warn, "max_ack_pending");
    bed.edit(|config| config.ack_wait = Duration::from_secs(1)).await;
    let right = join("right");
    let taken = take(&right, 2).await;
    assert_eq!(
        right.ack(&tickets(&taken)).await,
        Ok(vec![Standing::Settled; 2]),
        "no more rights are needed"
    );
    right.drain(Duration::from_secs(5)).await.expect("drained");
}

#[tokio::test]
async fn a_queue_of_a_stream_is_no_log_and_a_group_must_be_a_name() {
    let config = NatsConfig::new("nats://127.0.0.1:1");
    let source = SourceConfig::Nats(Box::new(config.clone()));
    let reader = source.reader(GROUP, Order::None).expect("a reader");
    let told = reader.survey(&["S".to_owned()]).await.expect_err("no log").to_string();
    assert!(told.contains("has no positions"), "{told}");
    let dotted = GroupMember { group: "a.b".to_owned(), ..plan("a") };
    let told = NatsQueue::start(&config, &dotted).map(drop).expect_err("no name").to_string();
    assert!(told.contains("durable consumer"), "{told}");
    let hasty = NatsConfig { ack_wait_ms: 10, ..config };
    assert!(NatsQueue::start(&hasty, &plan("a")).is_err());
    let keys = r#"{"type": "nats", "url": "nats://h", "ack_wait_ms": 5000}"#;
    let SourceConfig::Nats(read) = serde_json::from_str(keys).expect("valid") else { panic!("NATS") };
    assert_eq!(read.ack_wait_ms, 5_000);
    assert!(serde_json::from_str::<SinkConfig>(keys).is_err(), "a sink has no such key");
}

/// A link that takes everything and answers nothing is left. What came over it and is acknowledged stays so,
/// and what was in hand comes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_half_open_link_of_a_queue_is_left() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s.>"]).await;
    bed.fill(0..5).await;
    let proxy = Proxy::start(bed.server.addr()).await.expect("a proxy");
    let way = NatsConfig::new(&format!("nats://{}", proxy.addr()));
    let source = NatsQueue::start(&NatsConfig { ack_wait_ms: 2_000, ..way }, &plan("a")).expect("valid");
    let taken = take(&source, 5).await;
    assert_eq!(source.ack(&tickets(&taken[..3])).await, Ok(vec![Standing::Settled; 3]));
    proxy.half_open().await;
    bed.fill(5..7).await;
    until(async || source.next(ALL, SHORT).await.is_err()).await;
    assert_eq!(source.ack(&tickets(&taken[3..4])).await, Ok(vec![Standing::Revoked]));
    proxy.pass().await;
    let again = take(&source, 4).await;
    let expected = ids(&taken[3..]).into_iter().chain(["m00005".to_owned(), "m00006".to_owned()]);
    assert_eq!(ids(&again), expected.collect());
    assert_eq!(source.ack(&tickets(&again)).await, Ok(vec![Standing::Settled; again.len()]));
    bed.until_settled().await;
}
