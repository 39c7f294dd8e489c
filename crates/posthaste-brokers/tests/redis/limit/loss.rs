//! The server is away, slow or useless: each mode does what was declared, nobody waits, and the server judges
//! again by itself.

use super::*;
use posthaste_testkit::require_service;

/// A server behind a proxy, and the file with its password.
struct LimitBed {
    server: Redis,
    proxy: Proxy,
    password: TestFile,
    config: RedisConfig,
}

impl LimitBed {
    async fn start() -> Result<Self, ServiceError> {
        let server = Redis::start(&RedisOptions::default()).await?;
        let (proxy, url) = Proxy::start_before(&server.url()).await?;
        server.cli(&["CONFIG", "SET", "requirepass", ""])?;
        let password = TestFile::write("");
        let config = RedisConfig::new(&url);
        Ok(Self { server, proxy, password, config })
    }

    /// As an operator at the server's own machine.
    fn say(&self, words: &[&str]) -> String {
        self.server.cli(words).expect("asked")
    }
}

/// One outage, mode by mode.
async fn in_each_mode(
    words: &[&str],
    hurt: impl AsyncFn(&mut LimitBed),
    heal: impl AsyncFn(&mut LimitBed),
) -> Result<(), ServiceError> {
    for on_loss in [OnLoss::Local, OnLoss::Open, OnLoss::Closed] {
        let mut bed = LimitBed::start().await?;
        let gateway = Gateway::new(&bed.config, on_loss, TIMEOUT);
        gateway.until_shared().await;
        hurt(&mut bed).await;
        assert_lost(&gateway, on_loss, words).await;
        heal(&mut bed).await;
        gateway.until_shared().await;
    }
    Ok(())
}

fn is_right(decision: &LimitDecision, on_loss: OnLoss) -> bool {
    match on_loss {
        OnLoss::Local | OnLoss::Open => passes(decision),
        OnLoss::Closed => matches!(decision, LimitDecision::Lost(_)),
    }
}

/// Five questions, no more than one a second after them, and the declared answer to everybody.
async fn assert_lost(gateway: &Gateway, on_loss: OnLoss, words: &[&str]) {
    let before = gateway.guard.errors();
    until(async || {
        let decision = gateway.one().await;
        // What was under way may still be answered.
        assert!(is_right(&decision, on_loss) || passes(&decision), "{on_loss:?}: {decision:?}");
        gateway.mode() != LimiterMode::Shared
    })
    .await;
    assert_eq!((gateway.mode(), gateway.guard.errors() - before), (on_loss.into(), 5));
    let (asked, since) = (gateway.asked(), Instant::now());
    for _ in 0..300 {
        let decision = gateway.one().await;
        assert!(is_right(&decision, on_loss), "{on_loss:?}: {decision:?}");
    }
    let acme = tenant("acme");
    let first = gateway.guard.take(&acme, SLOW, 10).await;
    assert!(is_right(&first, on_loss), "{on_loss:?}: {first:?}");
    let beyond = gateway.guard.take(&acme, SLOW, 10).await;
    let is_limited = on_loss == OnLoss::Local && is_a_share(&beyond);
    assert!(is_limited || (on_loss != OnLoss::Local && is_right(&beyond, on_loss)), "{beyond:?}");
    let probes = gateway.asked() - asked;
    assert!(probes <= since.elapsed().as_secs() + 1, "{probes} questions in {:?}", since.elapsed());
    let why = gateway.guard.state().why.expect("a reason");
    assert!(words.iter().any(|words| why.contains(words)) && !why.contains(SECRET), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused() {
    let hurt = async |bed: &mut LimitBed| {
        bed.proxy.refuse().await;
        bed.proxy.cut().await;
    };
    let heal = async |bed: &mut LimitBed| bed.proxy.pass().await;
    require_service!(in_each_mode(&["refused", "lost", "reset", "127.0.0.1"], hurt, heal).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn black_holed() {
    let hurt = async |bed: &mut LimitBed| bed.proxy.black_hole().await;
    let heal = async |bed: &mut LimitBed| bed.proxy.pass().await;
    require_service!(in_each_mode(&["no answer within 60 ms", "not answered"], hurt, heal).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_by_200_ms() {
    let hurt = async |bed: &mut LimitBed| bed.proxy.delay(Duration::from_millis(200)).await;
    let heal = async |bed: &mut LimitBed| bed.proxy.pass().await;
    require_service!(in_each_mode(&["no answer within 60 ms"], hurt, heal).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen() {
    let hurt = async |bed: &mut LimitBed| bed.server.pause();
    let heal = async |bed: &mut LimitBed| bed.server.resume();
    require_service!(in_each_mode(&["no answer within 60 ms", "not answered"], hurt, heal).await);
}

/// A replica: nobody may write there. After a failover another connection leads to the master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readonly() {
    let hurt = async |bed: &mut LimitBed| drop(bed.say(&["REPLICAOF", "127.0.0.1", "1"]));
    let heal = async |bed: &mut LimitBed| drop(bed.say(&["REPLICAOF", "NO", "ONE"]));
    require_service!(in_each_mode(&["READONLY", "replica"], hurt, heal).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory() {
    let hurt = async |bed: &mut LimitBed| drop(bed.say(&["CONFIG", "SET", "maxmemory", "1"]));
    let heal = async |bed: &mut LimitBed| drop(bed.say(&["CONFIG", "SET", "maxmemory", "0"]));
    require_service!(in_each_mode(&["OOM"], hurt, heal).await);
}

/// The password is another one, and the file follows later. It is read again at each connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password() {
    for on_loss in [OnLoss::Local, OnLoss::Open, OnLoss::Closed] {
        let bed = require_service!(LimitBed::start().await);
        let right = format!("{SECRET}-new");
        bed.password.replace(SECRET);
        bed.say(&["CONFIG", "SET", "requirepass", SECRET]);
        let config = bed.config.clone().with(|options| options.password_file = bed.password.path());
        let gateway = Gateway::new(&config, on_loss, TIMEOUT);
        gateway.until_shared().await;
        let client = client(&bed.server.url().replace("redis://", &format!("redis://:{SECRET}@"))).await;
        run(&client, &["CONFIG", "SET", "requirepass", &right]).await;
        run(&client, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        assert_lost(&gateway, on_loss, &["refuses user", "lost", "unreachable"]).await;
        until(async || {
            gateway.one().await;
            gateway.guard.state().why.is_some_and(|why| why.contains(&bed.password.named()))
        })
        .await;
        bed.password.replace(&right);
        gateway.until_shared().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_and_started_again() {
    let hurt = async |bed: &mut LimitBed| bed.server.kill9().await.expect("killed");
    let heal = async |bed: &mut LimitBed| bed.server.start_again().await.expect("started");
    require_service!(in_each_mode(&["refused", "lost", "127.0.0.1"], hurt, heal).await);
}

/// Counted at the server: five questions, and then one a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_five_failures_the_server_is_not_asked() {
    let bed = require_service!(Bed::open().await);
    let gateway = Gateway::new(&bed.config(), OnLoss::Local, TIMEOUT);
    gateway.until_shared().await;
    let calls = || {
        let stats = bed.server.cli(&["INFO", "commandstats"]).expect("asked");
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.and_then(|calls| calls.parse::<u64>().ok()).expect("a number")
    };
    bed.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let (before, began) = (calls(), Instant::now());
    while began.elapsed() < Duration::from_millis(2_500) {
        gateway.one().await;
        tokio::task::yield_now().await;
    }
    let asked = calls() - before;
    let most = 5 + began.elapsed().as_secs() + 1;
    assert!((5..=most).contains(&asked), "{asked} questions, and {most} at most were right");
}

/// The server has forgotten the script: nobody notices.
#[tokio::test]
async fn a_script_that_is_forgotten_is_sent_again() {
    let bed = require_service!(Bed::open().await);
    let gateway = Gateway::new(&bed.config(), OnLoss::Closed, DEADLINE);
    gateway.shared.real.tried(DEADLINE).await.expect("it is there");
    for _ in 0..3 {
        bed.run(&["SCRIPT", "FLUSH"]).await;
        for _ in 0..3 {
            assert!(passes(&gateway.one().await));
        }
    }
    assert_eq!((gateway.guard.errors(), gateway.mode()), (0, LimiterMode::Shared));
    let whole = bed.server.cli(&["INFO", "commandstats"]).expect("asked");
    assert!(whole.contains("cmdstat_eval:calls=3,"), "whole three times, and by its hash otherwise: {whole}");
}

/// W3 over a restart: buckets are full again, which is one burst more and not an outage.
#[tokio::test]
async fn a_server_that_lost_everything_gives_one_burst_more() {
    let bed = require_service!(Bed::open().await);
    let limiter = limiter(&bed.config(), DEADLINE);
    limiter.tried(DEADLINE).await.expect("it is there");
    let (acme, slow) = (tenant("acme"), Rate { per_s: 0.01, burst: 10 });
    assert!(passes(&limiter.take(&acme, slow, 10).await));
    bed.run(&["FLUSHALL"]).await;
    assert!(passes(&limiter.take(&acme, slow, 10).await));
    assert!(!passes(&limiter.take(&acme, slow, 1).await));
}

/// It is down when the gateway starts, and silent: nobody waits for the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_while_it_connects() {
    let bed = require_service!(LimitBed::start().await);
    bed.proxy.black_hole().await;
    let gateway = Gateway::new(&bed.config, OnLoss::Closed, DEADLINE);
    // The timeout is a minute, so an answer within seconds did not wait for it.
    for _ in 0..20 {
        assert!(matches!(gateway.one().await, LimitDecision::Lost(_)));
    }
    assert_eq!((gateway.asked(), gateway.mode()), (5, LimiterMode::Closed));
    bed.proxy.pass().await;
    gateway.until_shared().await;
}
