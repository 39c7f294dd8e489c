//! The production engine on the model, on a virtual clock: cases that a seed meets too rarely.

use posthaste::Limits;
use posthaste::clock::SystemClock;
use posthaste::event::Event;
use posthaste::lifecycle::ClassOverrides;
use posthaste::relay::{DrainOutcome, Process, RelayHandle, RelayPlan, RelaySettings, SinkEntry, start_in};
use posthaste::route::{Filter, Route, RouteTable};
use posthaste::sink::{Capabilities, Failure, Message, Ordering, Sink, Verdict};
use posthaste::store::{JoinPlan, LaneId, PageLimit, SinkPlan, StartAt, Store};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::faults::{Fault, Faults, FaultyStore, Op};
use posthaste_testkit::memory::MemoryDatabase;
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

const WAIT: Duration = Duration::from_secs(600);

/// Notes what arrives, when, and how many calls are inside at once.
#[derive(Default)]
struct Counting {
    inside: AtomicUsize,
    most: AtomicUsize,
    calls: AtomicUsize,
    arrived: Mutex<Vec<(i64, Instant)>>,
    /// Topics that answer as a destination out of reach does.
    unreachable: Mutex<Option<&'static str>>,
    /// Numbers that fail by themselves.
    failing: Mutex<Vec<i64>>,
    /// From this number on the sink is out of reach.
    away_from: Mutex<Option<i64>>,
}

#[async_trait::async_trait]
impl Sink for Counting {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Call, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let inside = self.inside.fetch_add(1, Atomic::SeqCst) + 1;
        self.most.fetch_max(inside, Atomic::SeqCst);
        self.calls.fetch_add(1, Atomic::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await; // pace: a call takes time
        self.inside.fetch_sub(1, Atomic::SeqCst);
        let dead = *self.unreachable.lock().expect("no panic");
        let failing = self.failing.lock().expect("no panic").clone();
        let judge = |message: &Message| {
            let seq = message.stored.seq;
            if dead == Some(&*message.stored.event.topic) {
                return Verdict::Retry(Failure::of_destination("test.away", "nobody there"));
            }
            if self.away_from.lock().expect("no panic").is_some_and(|from| seq >= from) {
                return Verdict::Retry(Failure::of_sink("test.down", "nobody there"));
            }
            if failing.contains(&seq) {
                return Verdict::Retry(Failure::of_event("test.no", "not this one"));
            }
            self.arrived.lock().expect("no panic").push((seq, Instant::now()));
            Verdict::Delivered
        };
        messages.iter().map(judge).collect()
    }
}

impl Counting {
    fn seqs(&self) -> Vec<i64> {
        self.arrived.lock().expect("no panic").iter().map(|(seq, _)| *seq).collect()
    }
}

fn launch(process: &Process, store: Arc<dyn Store>, sink: &Arc<Counting>) -> RelayHandle {
    launch_with(RelaySettings::default(), process, store, sink)
}

fn launch_with(
    settings: RelaySettings,
    process: &Process,
    store: Arc<dyn Store>,
    sink: &Arc<impl Sink + 'static>,
) -> RelayHandle {
    let settings = RelaySettings { drain_timeout_ms: 5_000, ..settings };
    let routes = RouteTable::new(vec![Route::everything_to("s")]);
    let sink: Arc<dyn Sink> = Arc::clone(sink) as _;
    let entry =
        SinkEntry { name: "s".into(), sink, start_at: StartAt::Earliest, classes: ClassOverrides::new() };
    let plan = RelayPlan {
        host: "host".into(),
        outbox: "test".into(),
        service: "test".into(),
        relay: "relay".into(),
        store,
        sinks: vec![entry],
        routes: routes.clone(),
        limits: Limits::default(),
        lanes: Some(1),
    };
    start_in(process, plan, watch::channel(settings).1, watch::channel(routes).1, Arc::new(SystemClock))
}

fn outbox(events: usize) -> MemoryDatabase {
    let database = MemoryDatabase::new();
    for n in 0..events {
        database.append_now(Event::new("t", "x").with_key(format!("k{n}")));
    }
    database
}

/// An outbox whose owners died at its first event, so often that the next one goes one by one. The last
/// `charged` of them had it in hand.
async fn deadly(events: usize, charged: usize) -> MemoryDatabase {
    let database = outbox(events);
    let names = vec!["s".to_owned()];
    for n in 0..10 {
        let store = database.store();
        let relay = format!("former-{n}");
        let plan = JoinPlan {
            relay: relay.as_str().into(),
            sinks: vec![SinkPlan {
                name: "s".into(),
                filter: Filter::Everything,
                start_at: StartAt::Earliest,
            }],
            routes: RouteTable::new(vec![Route::everything_to("s")]).fingerprint(&names),
            lanes: Some(1),
            lease_ttl: Duration::from_secs(20),
        };
        store.join(&plan).await.expect("join");
        let lease =
            store.take(&LaneId { sink: "s".into(), lane: 0 }).await.expect("an answer").expect("free");
        let page = lease.read(PageLimit { events: 10, bytes: 1 << 20 }).await.expect("a read");
        let first = page.events.first().map(|stored| stored.seq);
        lease.take_in_hand(first.filter(|_| n >= 10 - charged)).await.expect("written down");
        database.kill(&relay);
    }
    database
}

/// How many calls of two outboxes, with so many events together, are with the sink at once.
async fn most_at_once(outboxes: [(&Process, MemoryDatabase); 2], events: usize) -> usize {
    let sink = Arc::new(Counting::default());
    let settings = RelaySettings { page_events_max: 1, calls_in_flight: 1, ..RelaySettings::default() };
    let relays =
        outboxes.map(|(process, database)| launch_with(settings.clone(), process, database.store(), &sink));
    eventually("everything arrives", WAIT, || async { (sink.seqs().len() >= events).then_some(()) }).await;
    for relay in relays {
        assert_eq!(relay.drain().await, DrainOutcome::Clean);
    }
    sink.most.load(Atomic::SeqCst)
}

/// F21: several outboxes of one process must not charge each other's events with a death. Two processes are
/// two hands: that shows the case bites.
#[tokio::test(start_paused = true)]
async fn f21_one_event_in_hand_in_the_whole_process() {
    let (one, two) = (Process::default(), Process::default());
    for (second, most) in [(&one, 1), (&two, 2)] {
        let outboxes = [(&one, deadly(30, 0).await), (second, deadly(30, 0).await)];
        assert_eq!(most_at_once(outboxes, 60).await, most);
    }
}

/// F21: a lane that goes as usual may publish the killer while an innocent event is in hand elsewhere. An
/// event that one more death would end is alone with the sinks. Others in hand go beside the usual calls.
#[tokio::test(start_paused = true)]
async fn f21_an_event_on_its_last_chance_is_alone() {
    let process = Process::default();
    for (charged, most) in [(1, 2), (2, 1)] {
        let outboxes = [(&process, outbox(60)), (&process, deadly(1, charged).await)];
        assert_eq!(most_at_once(outboxes, 61).await, most, "charged with {charged} deaths");
    }
}

/// G7, G8: a store that does not answer does not hold up the end beyond the deadline.
#[tokio::test(start_paused = true)]
async fn g7_a_store_that_hangs_does_not_hold_up_a_drain() {
    let (database, sink, faults) = (MemoryDatabase::new(), Arc::new(Counting::default()), Faults::none());
    database.append_now(Event::new("t", "x"));
    let store = Arc::new(FaultyStore::new(database.store(), faults.clone()));
    let relay = launch(&Process::default(), store, &sink);
    eventually("it delivers", WAIT, || async { (sink.seqs().len() == 1).then_some(()) }).await;
    for op in [Op::Settle, Op::Roll, Op::Release, Op::Leave] {
        faults.always(op, Fault::Hold);
    }
    database.append_now(Event::new("t", "x"));
    eventually("one more is in hand", WAIT, || async { (sink.seqs().len() == 2).then_some(()) }).await;
    let started = Instant::now();
    assert_eq!(relay.drain().await, DrainOutcome::Hurried);
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
}

/// G2: a drain gives up pages that nobody touched. A page that was being read meanwhile must not be settled:
/// the cursor would pass those.
#[tokio::test(start_paused = true)]
async fn g2_a_page_that_arrives_during_a_drain_settles_nothing() {
    let (database, sink, faults) = (MemoryDatabase::new(), Arc::new(Counting::default()), Faults::none());
    // Pages of two: the first is touched and not done, the second nobody touches, the third is being read. It
    // needs no sink to be decided.
    let seqs: Vec<i64> = (0..4).map(|_| database.append_now(Event::new("t", "x"))).collect();
    *sink.away_from.lock().expect("no panic") = Some(seqs[1]);
    let later = database.now().plus_micros(600_000_000);
    database.append_now(Event::new("t", "x").deliver_at(later));
    for fault in [Fault::None, Fault::None, Fault::Slow(Duration::from_secs(1))] {
        faults.once(Op::Read, fault);
    }
    faults.always(Op::Settle, Fault::Slow(Duration::from_secs(2)));
    let store = Arc::new(FaultyStore::new(database.store(), faults.clone()));
    let settings = RelaySettings { page_events_max: 2, ..RelaySettings::default() };
    let relay = launch_with(settings, &Process::default(), store, &sink);
    eventually("the first arrives", WAIT, || async { (sink.seqs() == seqs[..1]).then_some(()) }).await;
    assert_eq!(faults.injected(), 1, "the third page is being read");
    relay.drain().await;
    let unsettled = database.unsettled("s");
    assert!(seqs[1..].iter().all(|seq| unsettled.contains(seq)), "{unsettled:?} of {seqs:?}");
}

/// An event that was appended for later is not sent when the event before it leaves.
#[tokio::test(start_paused = true)]
async fn an_event_for_later_waits_for_its_time_and_not_for_its_key() {
    let (database, sink, faults) = (MemoryDatabase::new(), Arc::new(Counting::default()), Faults::none());
    let first = database.append_now(Event::new("t", "1").with_key("k"));
    *sink.failing.lock().expect("no panic") = vec![first];
    // It failed, and the settlement that says so is on its way: its key is held in the relay's memory alone.
    faults.once(Op::Settle, Fault::Slow(Duration::from_secs(2)));
    let store = Arc::new(FaultyStore::new(database.store(), faults.clone()));
    let relay = launch(&Process::default(), store, &sink);
    eventually("the first failed", WAIT, || async { (faults.injected() == 1).then_some(()) }).await;
    let (now, at) = (Instant::now(), database.now().plus_micros(120_000_000));
    let later = database.append_now(Event::new("t", "2").with_key("k").deliver_at(at));
    eventually("both wait", WAIT, || async { (database.deferred("s").len() == 2).then_some(()) }).await;
    sink.failing.lock().expect("no panic").clear();
    eventually("both arrive", WAIT, || async { (sink.seqs().len() == 2).then_some(()) }).await;
    assert_eq!(sink.seqs(), [first, later]);
    let arrived = sink.arrived.lock().expect("no panic")[1].1;
    assert!(arrived.duration_since(now) >= Duration::from_secs(119), "{:?}", arrived.duration_since(now));
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// G7: a destination that stays away is asked now and then, also when the store stumbles in between, and not
/// again and again.
#[tokio::test(start_paused = true)]
async fn g7_probes_of_a_destination_end() {
    let (database, sink, faults) = (MemoryDatabase::new(), Arc::new(Counting::default()), Faults::none());
    *sink.unreachable.lock().expect("no panic") = Some("away");
    for n in 0..50 {
        database.append_now(Event::new("away", "x").with_key(format!("k{n}")));
    }
    let store = Arc::new(FaultyStore::new(database.store(), faults.clone()));
    let relay = launch(&Process::default(), store, &sink);
    eventually("they wait", WAIT, || async { (database.deferred("s").len() == 50).then_some(()) }).await;
    let before = sink.calls.load(Atomic::SeqCst);
    for _ in 0..5_000 {
        faults.once(Op::Due, Fault::Refuse);
    }
    tokio::time::sleep(Duration::from_secs(30)).await; // pace: virtual time
    let stumbled = faults.injected();
    assert!((5..=500).contains(&stumbled), "half a minute of a store that stumbles: asked {stumbled} times");
    faults.heal();
    tokio::time::sleep(Duration::from_secs(120)).await; // pace: virtual time
    let calls = sink.calls.load(Atomic::SeqCst) - before;
    assert!((10..=400).contains(&calls), "two minutes of an outage: {calls} calls");
    *sink.unreachable.lock().expect("no panic") = None;
    eventually("it is back", Duration::from_secs(30), || async { (sink.seqs().len() == 50).then_some(()) })
        .await;
    assert!(database.dead("s").is_empty(), "F50");
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// Takes a second for its first calls and answers all others at once. One event fails once; behind it its
/// call is held.
#[derive(Default)]
struct Prompt {
    slow_calls: usize,
    calls: AtomicUsize,
    fails_once: Mutex<Option<i64>>,
    arrived: Mutex<Vec<i64>>,
}

#[async_trait::async_trait]
impl Sink for Prompt {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        if self.calls.fetch_add(1, Atomic::SeqCst) < self.slow_calls {
            tokio::time::sleep(Duration::from_secs(1)).await; // pace: virtual time
        }
        let mut held = false;
        let judge = |message: &Message| {
            let seq = message.stored.seq;
            let mut fails = self.fails_once.lock().expect("no panic");
            if held {
                return Verdict::Held;
            }
            if fails.take_if(|failing| *failing == seq).is_some() {
                held = true;
                return Verdict::Retry(Failure::of_event("test.no", "not this time"));
            }
            self.arrived.lock().expect("no panic").push(seq);
            Verdict::Delivered
        };
        messages.iter().map(judge).collect()
    }
}

/// G3: a call that is answered at once is heard before another one starts, also when older calls come back at
/// the same moment and make room: otherwise what follows of its failed key slips past.
#[tokio::test(start_paused = true)]
async fn g3_a_call_that_is_answered_at_once_is_heard_first() {
    let settings = RelaySettings { page_events_max: 2, ..RelaySettings::default() };
    let slow_calls = settings.calls_in_flight;
    let database = MemoryDatabase::new();
    for n in 0..slow_calls * 2 {
        database.append_now(Event::new("t", "x").with_key(format!("other-{n}")));
    }
    let key: Vec<i64> = (0..16).map(|_| database.append_now(Event::new("t", "x").with_key("k"))).collect();
    let sink = Arc::new(Prompt { slow_calls, fails_once: Mutex::new(Some(key[0])), ..Prompt::default() });
    let relay = launch_with(settings, &Process::default(), database.store(), &sink);
    let arrived = || sink.arrived.lock().expect("no panic").clone();
    let all = slow_calls * 2 + key.len();
    eventually("everything arrives", WAIT, || async { (arrived().len() == all).then_some(()) }).await;
    let of_key: Vec<i64> = arrived().into_iter().filter(|seq| key.contains(seq)).collect();
    assert_eq!(of_key, key);
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// Takes all but one destination at once. That one never answers: a call that holds something for it comes
/// back after the sink's delivery timeout.
#[derive(Default)]
struct Hole {
    /// When each event was taken.
    arrived: Mutex<Vec<(i64, Instant)>>,
    fails_once: Mutex<Option<i64>>,
}

#[async_trait::async_trait]
impl Sink for Hole {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let judge = |message: &Message| {
            let seq = message.stored.seq;
            if message.destination == "hole" {
                return Verdict::Unknown(Failure::of_destination("test.silent", "no answer"));
            }
            if self.fails_once.lock().expect("no panic").take_if(|failing| *failing == seq).is_some() {
                return Verdict::Retry(Failure::of_event("test.no", "not this time"));
            }
            self.arrived.lock().expect("no panic").push((seq, Instant::now()));
            Verdict::Delivered
        };
        let verdicts = messages.iter().map(judge).collect();
        if messages.iter().any(|message| message.destination == "hole") {
            tokio::time::sleep(Duration::from_secs(8)).await; // pace: virtual time
        }
        verdicts
    }
}

/// F30: a destination that never answers costs the others nothing: not while its first events run into the
/// timeout, and not while it is probed.
#[tokio::test(start_paused = true)]
async fn f30_a_destination_that_never_answers_costs_the_others_nothing() {
    let (database, sink) = (MemoryDatabase::new(), Arc::new(Hole::default()));
    let relay = launch_with(RelaySettings::default(), &Process::default(), database.store(), &sink);
    let mut appended = Vec::new();
    for n in 0..600 {
        database.append_now(Event::new("hole", "x").with_key(format!("hole-{n}")));
        appended
            .push((database.append_now(Event::new("live", "x").with_key(format!("k{n}"))), Instant::now()));
        tokio::time::sleep(Duration::from_millis(50)).await; // pace: virtual time
    }
    let arrived = || sink.arrived.lock().expect("no panic").clone();
    eventually("all live ones arrive", WAIT, || async { (arrived().len() == 600).then_some(()) }).await;
    let late = |(seq, at): &(i64, Instant)| {
        let taken = arrived().iter().find(|(other, _)| other == seq).map(|(_, at)| *at);
        taken.is_none_or(|taken| taken.duration_since(*at) > Duration::from_millis(400)).then_some(*seq)
    };
    let late: Vec<i64> = appended.iter().filter_map(late).collect();
    assert!(late.is_empty(), "{} of 600 were late: {late:?}", late.len());
    // A retry of another destination does not wait for a probe either.
    let failing = database.append_now(Event::new("live", "x").with_key("again"));
    *sink.fails_once.lock().expect("no panic") = Some(failing);
    let started = Instant::now();
    let retried = || async { arrived().iter().any(|(seq, _)| *seq == failing).then_some(()) };
    eventually("it is retried", WAIT, retried).await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert!(database.dead("s").is_empty(), "F50");
    relay.drain().await;
}

/// Asks for half a minute the first time.
#[derive(Default)]
struct Busy {
    offered: Mutex<Vec<(i64, Instant)>>,
}

#[async_trait::async_trait]
impl Sink for Busy {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let mut offered = self.offered.lock().expect("no panic");
        let first = offered.is_empty();
        offered.extend(messages.iter().map(|message| (message.stored.seq, Instant::now())));
        let failure = Failure::of_destination("test.busy", "not now");
        let busy = Verdict::Retry(failure.with_retry_after(Some(Duration::from_secs(30))));
        vec![if first { busy } else { Verdict::Delivered }; messages.len()]
    }
}

/// F46: `Retry-After` is kept for the whole destination, fresh events included.
#[tokio::test(start_paused = true)]
async fn f46_a_destination_that_asks_for_time_gets_it() {
    let (database, sink) = (MemoryDatabase::new(), Arc::new(Busy::default()));
    let relay = launch_with(RelaySettings::default(), &Process::default(), database.store(), &sink);
    let first = database.append_now(Event::new("t", "x").with_key("a"));
    let offered = || sink.offered.lock().expect("no panic").clone();
    eventually("it is offered", WAIT, || async { (!offered().is_empty()).then_some(()) }).await;
    let second = database.append_now(Event::new("t", "x").with_key("b"));
    eventually("both are delivered", WAIT, || async { (offered().len() == 3).then_some(()) }).await;
    let offered = offered();
    let waits: Vec<_> = offered.iter().map(|(_, at)| *at - offered[0].1).collect();
    assert!(waits[1] >= Duration::from_secs(30) && waits[1] < Duration::from_secs(33), "{waits:?}");
    let mut seqs: Vec<_> = offered[1..].iter().map(|(seq, _)| *seq).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, [first, second]);
    relay.drain().await;
}

/// Holds everything, at once, until it is told otherwise.
#[derive(Default)]
struct Reluctant {
    willing: std::sync::atomic::AtomicBool,
    calls: AtomicUsize,
    arrived: Mutex<Vec<i64>>,
}

#[async_trait::async_trait]
impl Sink for Reluctant {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        self.calls.fetch_add(1, Atomic::SeqCst);
        if !self.willing.load(Atomic::SeqCst) {
            return vec![Verdict::Held; messages.len()];
        }
        self.arrived.lock().expect("no panic").extend(messages.iter().map(|message| message.stored.seq));
        vec![Verdict::Delivered; messages.len()]
    }
}

/// G7: a sink that answers at once and holds everything is asked again after a pause; the lane hears of other
/// things.
#[tokio::test(start_paused = true)]
async fn g7_a_sink_that_holds_everything_is_asked_now_and_then() {
    let (database, sink) = (MemoryDatabase::new(), Arc::new(Reluctant::default()));
    for n in 0..40 {
        let event = Event::new("t", "x");
        database.append_now(if n % 2 == 0 { event } else { event.with_key("k") });
    }
    let relay = launch_with(RelaySettings::default(), &Process::default(), database.store(), &sink);
    tokio::time::sleep(Duration::from_secs(10)).await; // pace: virtual time
    let calls = sink.calls.load(Atomic::SeqCst);
    assert!((10..=1_500).contains(&calls), "ten seconds: {calls} calls");
    sink.willing.store(true, Atomic::SeqCst);
    let all = || async { (sink.arrived.lock().expect("no panic").len() == 40).then_some(()) };
    eventually("everything arrives", WAIT, all).await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}
