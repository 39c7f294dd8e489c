use super::*;
use async_trait::async_trait;
use std::sync::atomic::AtomicBool;

const RATE: Rate = Rate { per_s: 30.0, burst: 10 };

/// A shared limiter that can be away, for everybody or for one tenant, and that counts who asks.
#[derive(Default)]
struct SharedDouble {
    real: LocalLimiter,
    asked: AtomicU64,
    away: AtomicBool,
    /// It answers nobody: the question waits for ever.
    frozen: AtomicBool,
    odd: Option<&'static str>,
}

impl SharedDouble {
    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    fn go_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }
}

#[async_trait]
impl Limiter for SharedDouble {
    async fn take(&self, tenant: &Arc<str>, rate: Rate, events: u32) -> LimitDecision {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.frozen.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.away.load(Ordering::SeqCst) {
            return LimitDecision::Lost("it is away".to_owned());
        }
        if self.odd == Some(&**tenant) {
            return LimitDecision::Odd("a list".to_owned());
        }
        self.real.take_now(tenant, rate, events)
    }
}

fn guarded(on_loss: OnLoss, gateways: u32) -> (Arc<SharedDouble>, Arc<GuardedLimiter>) {
    guarded_by(SharedDouble::default(), on_loss, gateways)
}

fn guarded_by(
    shared: SharedDouble,
    on_loss: OnLoss,
    gateways: u32,
) -> (Arc<SharedDouble>, Arc<GuardedLimiter>) {
    let shared = Arc::new(shared);
    let plan = LimiterPlan { shared: Some(Arc::clone(&shared) as Arc<dyn Limiter>), on_loss, gateways };
    (shared, Arc::new(GuardedLimiter::new(plan)))
}

fn tenant(name: &str) -> Arc<str> {
    name.into()
}

fn passes(decision: &LimitDecision) -> bool {
    matches!(decision, LimitDecision::Passed { .. })
}

async fn lose(shared: &SharedDouble, guard: &GuardedLimiter) {
    shared.go_away(true);
    for n in 0..FAILURES {
        guard.take(&tenant(&format!("loses-{n}")), RATE, 1).await;
    }
    assert_ne!(guard.state().mode, LimiterMode::Shared);
}

async fn second() {
    tokio::time::advance(PAUSE.initial).await;
}

#[tokio::test(start_paused = true)]
async fn after_five_failures_nobody_asks_for_a_second_and_then_one_does() {
    for on_loss in [OnLoss::Local, OnLoss::Open, OnLoss::Closed] {
        let (shared, guard) = guarded(on_loss, 1);
        lose(&shared, &guard).await;
        assert_eq!(shared.asked(), 5);
        for n in 0..100 {
            guard.take(&tenant(&format!("t{n}")), RATE, 1).await;
        }
        assert_eq!((shared.asked(), guard.errors()), (5, 5), "{on_loss:?}");
        second().await;
        for n in 0..100 {
            guard.take(&tenant(&format!("t{n}")), RATE, 1).await;
        }
        assert_eq!(shared.asked(), 6, "{on_loss:?}");
        shared.go_away(false);
        second().await;
        assert!(passes(&guard.take(&tenant("back"), RATE, 1).await));
        assert_eq!(guard.state().mode, LimiterMode::Shared);
        assert!(passes(&guard.take(&tenant("back"), RATE, 1).await));
        assert_eq!(shared.asked(), 8, "{on_loss:?}");
    }
}

/// While the probe waits, everybody else is answered without waiting.
#[tokio::test(start_paused = true)]
async fn a_frozen_limiter_has_one_question_at_a_time() {
    let (shared, guard) = guarded(OnLoss::Local, 1);
    lose(&shared, &guard).await;
    shared.frozen.store(true, Ordering::SeqCst);
    second().await;
    let probe = {
        let guard = Arc::clone(&guard);
        tokio::spawn(async move { guard.take(&tenant("probe"), RATE, 1).await })
    };
    tokio::task::yield_now().await;
    for n in 0..100 {
        assert!(passes(&guard.take(&tenant(&format!("t{n}")), RATE, 1).await));
    }
    assert_eq!(shared.asked(), 6);
    // A client that hangs up takes the question with it. The next second has another one.
    probe.abort();
    assert!(probe.await.is_err());
    shared.frozen.store(false, Ordering::SeqCst);
    shared.go_away(false);
    second().await;
    guard.take(&tenant("next"), RATE, 1).await;
    assert_eq!((shared.asked(), guard.state().mode), (7, LimiterMode::Shared));
}

#[tokio::test(start_paused = true)]
async fn failures_that_are_not_in_a_row_are_no_loss() {
    let (shared, guard) = guarded(OnLoss::Closed, 1);
    for n in 0..20 {
        shared.go_away(n % 5 != 4);
        let decision = guard.take(&tenant(&format!("t{n}")), RATE, 1).await;
        assert_eq!(passes(&decision), n % 5 == 4, "{decision:?}");
    }
    assert_eq!((shared.asked(), guard.state().mode), (20, LimiterMode::Shared));
}

/// What passes in `seconds` if somebody asks every millisecond.
async fn flood(guards: &[Arc<GuardedLimiter>], seconds: u64) -> u32 {
    let (acme, mut passed) = (tenant("acme"), 0);
    for _ in 0..seconds * 1_000 {
        for guard in guards {
            passed += u32::from(passes(&guard.take(&acme, RATE, 1).await));
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    passed
}

/// §13.7: rate × t + gateways × burst, over all of them.
#[tokio::test(start_paused = true)]
async fn in_process_the_rate_is_divided_by_the_gateways_and_the_burst_is_whole() {
    let mut guards = Vec::new();
    for _ in 0..3 {
        let (shared, guard) = guarded(OnLoss::Local, 3);
        lose(&shared, &guard).await;
        guards.push(guard);
    }
    let passed = flood(&guards, 10).await;
    assert!((300 + 3 * 9..=300 + 3 * 10).contains(&passed), "{passed}");
    // Without a shared limiter it is the same.
    let alone = GuardedLimiter::new(LimiterPlan { gateways: 3, ..LimiterPlan::default() });
    assert_eq!((alone.state().mode, alone.state().why.clone()), (LimiterMode::Local, None));
    let passed = flood(&[Arc::new(alone)], 10).await;
    assert!((100 + 9..=100 + 10).contains(&passed), "{passed}");
}

#[tokio::test(start_paused = true)]
async fn a_change_to_and_fro_gives_nobody_a_second_burst() {
    let (shared, guard) = guarded(OnLoss::Local, 10);
    let acme = tenant("acme");
    lose(&shared, &guard).await;
    assert!(passes(&guard.take(&acme, RATE, 10).await));
    shared.go_away(false);
    second().await;
    guard.take(&tenant("probe"), RATE, 1).await;
    assert_eq!(guard.state().mode, LimiterMode::Shared);
    lose(&shared, &guard).await;
    assert!(!passes(&guard.take(&acme, RATE, 10).await));
}

#[tokio::test(start_paused = true)]
async fn open_passes_everything_and_closed_says_that_nobody_can_judge() {
    for on_loss in [OnLoss::Open, OnLoss::Closed] {
        let (shared, guard) = guarded(on_loss, 1);
        let acme = tenant("acme");
        guard.take(&acme, RATE, 10).await;
        assert!(!passes(&guard.take(&acme, RATE, 1).await));
        assert!(guard.refused(&acme, RATE, 1).is_some());
        lose(&shared, &guard).await;
        // What was remembered is another mode's.
        assert_eq!(guard.refused(&acme, RATE, 1), None);
        for _ in 0..50 {
            let decision = guard.take(&acme, RATE, 7).await;
            match on_loss {
                OnLoss::Open => {
                    assert_eq!(decision, LimitDecision::Passed { left: 3, full_in: Duration::ZERO });
                }
                _ => assert_eq!(decision, LimitDecision::Lost("it is away".to_owned())),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_was_refused_is_refused_without_a_question_until_one_event_could_pass() {
    let (shared, guard) = guarded(OnLoss::Local, 1);
    let acme = tenant("acme");
    guard.take(&acme, RATE, 10).await;
    assert!(!passes(&guard.take(&acme, RATE, 4).await));
    for _ in 0..1_000 {
        let LimitDecision::Wait { wait, one, left } = guard.take(&acme, RATE, 4).await else { panic!() };
        assert_eq!(left, 0);
        let (one_ms, wait_ms) = (one.as_millis(), wait.as_millis());
        assert!((32..=34).contains(&one_ms) && (132..=134).contains(&wait_ms), "{one:?} {wait:?}");
    }
    assert_eq!(shared.asked(), 2);
    // A limit that was raised is in force at once, and others are not concerned.
    let raised = Rate { burst: 20, ..RATE };
    assert_eq!(guard.refused(&acme, raised, 1), None);
    assert!(passes(&guard.take(&acme, raised, 1).await));
    assert!(passes(&guard.take(&tenant("other"), RATE, 1).await));
    assert_eq!(shared.asked(), 4);
}

/// Only the wait for one event is remembered: a batch that had to wait does not hold back a single event.
#[tokio::test(start_paused = true)]
async fn a_batch_that_waits_holds_back_no_single_event() {
    let (_, guard) = guarded(OnLoss::Local, 1);
    let acme = tenant("acme");
    guard.take(&acme, RATE, 5).await;
    assert!(!passes(&guard.take(&acme, RATE, 8).await));
    assert_eq!(guard.refused(&acme, RATE, 1), None);
    assert!(passes(&guard.take(&acme, RATE, 1).await));
}

/// The wait that was said, by the limiter or from memory, is true.
#[tokio::test(start_paused = true)]
async fn a_client_that_obeys_passes() {
    let (_, guard) = guarded(OnLoss::Local, 1);
    let acme = tenant("acme");
    guard.take(&acme, RATE, 10).await;
    for events in [1, 3, 10, 2, 1, 7] {
        guard.take(&acme, RATE, events).await;
        let LimitDecision::Wait { wait, .. } = guard.take(&acme, RATE, events).await else { panic!() };
        tokio::time::advance(wait).await;
        let decision = guard.take(&acme, RATE, events).await;
        assert!(passes(&decision), "{events}: {decision:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_odd_row_costs_its_own_tenant_only() {
    let odd = SharedDouble { odd: Some("odd"), ..SharedDouble::default() };
    let (shared, guard) = guarded_by(odd, OnLoss::Closed, 3);
    let mut passed = 0;
    for _ in 0..1_000 {
        passed += u32::from(passes(&guard.take(&tenant("odd"), RATE, 1).await));
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert!((19..=20).contains(&passed), "a third of the rate, and its burst: {passed}");
    assert_eq!((guard.state().mode, guard.errors() > 5), (LimiterMode::Shared, true));
    let asked = shared.asked();
    assert!(passes(&guard.take(&tenant("other"), RATE, 10).await));
    assert_eq!(shared.asked(), asked + 1);
}

/// One change of the state for a change of the mode: a line of the log goes with it.
#[tokio::test(start_paused = true)]
async fn it_tells_who_judges_and_why() {
    let (shared, guard) = guarded(OnLoss::Closed, 1);
    let mut seen = guard.watch();
    assert_eq!((guard.state().mode, guard.state().why), (LimiterMode::Shared, None));
    lose(&shared, &guard).await;
    assert!(seen.has_changed().expect("open"));
    let lost = seen.borrow_and_update().clone();
    assert_eq!((lost.mode, lost.why.as_deref()), (LimiterMode::Closed, Some("it is away")));
    for _ in 0..3 {
        second().await;
        guard.take(&tenant("probe"), RATE, 1).await;
        guard.take(&tenant("other"), RATE, 1).await;
    }
    assert!(!seen.has_changed().expect("open"), "nothing is new");
    assert_eq!(guard.state(), lost);
    shared.go_away(false);
    second().await;
    guard.take(&tenant("probe"), RATE, 1).await;
    let back = seen.borrow_and_update().clone();
    assert_eq!((back.mode, back.why), (LimiterMode::Shared, None));
}

/// Questions that were under way when the breaker opened say nothing new, however many they are.
#[tokio::test(start_paused = true)]
async fn late_failures_of_one_outage_are_one_outage() {
    let (shared, guard) = guarded(OnLoss::Local, 1);
    let late: Vec<_> = (0..50).map(|_| guard.ask().expect("free")).collect();
    lose(&shared, &guard).await;
    second().await;
    shared.go_away(false);
    let probe = guard.ask().expect("the probe");
    late.into_iter().for_each(|question| question.lost(OnLoss::Local, "late"));
    assert!(guard.ask().is_none(), "one probe");
    probe.answered();
    assert_eq!(guard.state().mode, LimiterMode::Shared);
    assert!(passes(&guard.take(&tenant("acme"), RATE, 1).await));
}

/// Counts the lines of a log.
#[derive(Default)]
struct LineCount(AtomicU64);

impl tracing::Subscriber for LineCount {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A line at each change, and one for an odd row, however many requests there are.
#[tokio::test(start_paused = true)]
async fn a_line_at_each_change_and_no_more() {
    let lines = Arc::new(LineCount::default());
    let _default = tracing::subscriber::set_default(Arc::clone(&lines));
    let written = || lines.0.load(Ordering::SeqCst);
    let odd = SharedDouble { odd: Some("odd"), ..SharedDouble::default() };
    let (shared, guard) = guarded_by(odd, OnLoss::Local, 1);
    for _ in 0..50 {
        guard.take(&tenant("odd"), RATE, 1).await;
    }
    assert_eq!(written(), 1);
    lose(&shared, &guard).await;
    for _ in 0..5 {
        second().await;
        for n in 0..20 {
            guard.take(&tenant(&format!("t{n}")), RATE, 1).await;
        }
    }
    assert_eq!(written(), 2);
    shared.go_away(false);
    second().await;
    for n in 0..20 {
        guard.take(&tenant(&format!("t{n}")), RATE, 1).await;
    }
    assert_eq!(written(), 3);
}

#[tokio::test(start_paused = true)]
async fn another_configuration_is_in_force_at_once() {
    let (shared, guard) = guarded(OnLoss::Closed, 1);
    lose(&shared, &guard).await;
    // Of the same limiter it is known that it is away.
    let again = Arc::clone(&shared) as Arc<dyn Limiter>;
    guard.change(LimiterPlan { shared: Some(again), on_loss: OnLoss::Open, gateways: 1 });
    assert!(passes(&guard.take(&tenant("acme"), RATE, 1).await));
    assert_eq!((guard.state().mode, guard.state().why), (LimiterMode::Open, Some("it is away".to_owned())));
    assert_eq!(shared.asked(), 5);
    let other = Arc::new(SharedDouble::default());
    let plan = LimiterPlan {
        shared: Some(Arc::clone(&other) as Arc<dyn Limiter>),
        on_loss: OnLoss::Open,
        gateways: 2,
    };
    let earlier = {
        second().await;
        guard.ask().expect("the probe of the old one")
    };
    guard.change(plan);
    earlier.lost(OnLoss::Closed, "the old one");
    assert_eq!((guard.state().mode, guard.state().why), (LimiterMode::Shared, None));
    assert!(passes(&guard.take(&tenant("acme"), RATE, 1).await));
    assert_eq!((other.asked(), shared.asked()), (1, 5));
    guard.change(LimiterPlan::default());
    assert!(passes(&guard.take(&tenant("acme"), RATE, 10).await));
    assert_eq!((guard.state().mode, other.asked()), (LimiterMode::Local, 1));
}

#[tokio::test(start_paused = true)]
async fn whoever_is_unknown_is_forgotten() {
    let odd = SharedDouble { odd: Some("odd"), ..SharedDouble::default() };
    let (_, guard) = guarded_by(odd, OnLoss::Local, 1);
    for name in ["acme", "odd"] {
        guard.take(&tenant(name), RATE, 10).await;
        assert!(!passes(&guard.take(&tenant(name), RATE, 1).await));
    }
    assert_eq!((lock(&guard.refusals).len(), lock(&guard.watched).odd.len()), (2, 1));
    guard.keep(|name| name == "acme");
    assert_eq!((lock(&guard.refusals).len(), lock(&guard.watched).odd.len()), (1, 0));
}

#[test]
fn the_modes_have_the_names_of_the_configuration() {
    for (on_loss, name) in [(OnLoss::Local, "local"), (OnLoss::Open, "open"), (OnLoss::Closed, "closed")] {
        assert_eq!(serde_json::to_value(on_loss).expect("a word"), name);
        assert_eq!(LimiterMode::from(on_loss).as_str(), name);
    }
    assert_eq!(OnLoss::default(), OnLoss::Local);
    assert!(LimiterMode::ALL.map(LimiterMode::as_str).contains(&"shared"));
}
