//! Networks that lie, the same for every broker that has one connection: noticed in time, and over by itself.

use super::*;
use futures_util::future::BoxFuture;
use posthaste_testkit::conformance::sink::SlowLine;
use posthaste_testkit::services::Proxy;

/// A sink that is connected to a server of its own by way of a proxy.
pub(crate) struct Behind<S> {
    pub(crate) server: S,
    pub(crate) proxy: Proxy,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) destination: String,
    /// Tasks of the runtime before there was a sink.
    pub(crate) tasks: usize,
}

/// A line for the sink suite: a sink behind a proxy, and how its destination is counted.
pub(crate) struct Line<C> {
    pub(crate) proxy: Proxy,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) destination: String,
    pub(crate) count: C,
}

#[async_trait::async_trait]
impl<C> SlowLine for Line<C>
where
    C: Fn() -> BoxFuture<'static, usize> + Send + Sync,
{
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.sink)
    }

    fn destination(&self) -> String {
        self.destination.clone()
    }

    async fn delay(&self, delay: Duration) {
        self.proxy.delay(delay).await;
    }

    async fn count(&self) -> usize {
        (self.count)().await
    }
}

/// The tests of a broker with one connection. `$behind` makes a [`Behind`].
macro_rules! outage_suite {
    ($behind:ident, $unreachable:literal) => {
        #[tokio::test]
        async fn a_black_hole_is_noticed_within_the_delivery_timeout() {
            crate::ground::outage::black_hole(&require_service!($behind().await)).await;
        }

        #[tokio::test]
        async fn a_half_open_connection_is_noticed_within_the_delivery_timeout() {
            crate::ground::outage::half_open(&require_service!($behind().await)).await;
        }

        #[tokio::test]
        async fn a_refused_connection_is_noticed_at_once() {
            crate::ground::outage::refused(&require_service!($behind().await), $unreachable).await;
        }

        #[tokio::test]
        async fn reconnects_and_closing_leave_nothing_behind() {
            crate::ground::outage::leaves_nothing(&require_service!($behind().await)).await;
        }
    };
}
pub(crate) use outage_suite;

/// The delivery timeout of a sink with its defaults, and a little.
const TIMEOUT: Duration = Duration::from_millis(8_500);

/// Bytes go nowhere, and nobody says so.
pub(crate) async fn black_hole<S>(behind: &Behind<S>) {
    let Behind { proxy, sink, destination, .. } = behind;
    proxy.black_hole().await;
    assert_outage(sink, destination, TIMEOUT).await;
    // From now on it is known: the next calls do not wait for the delivery timeout.
    assert_outage(sink, destination, TIMEOUT).await;
    assert_outage(sink, destination, Duration::from_secs(3)).await;
    proxy.pass().await;
    until_delivered(sink, destination, BACK_WITHIN).await;
}

/// What is sent arrives, and what is answered does not.
pub(crate) async fn half_open<S>(behind: &Behind<S>) {
    let Behind { proxy, sink, destination, .. } = behind;
    proxy.half_open().await;
    assert_outage(sink, destination, TIMEOUT).await;
    proxy.pass().await;
    until_delivered(sink, destination, BACK_WITHIN).await;
}

/// Nobody listens any more: that is known at once, with the address.
pub(crate) async fn refused<S>(behind: &Behind<S>, code: &str) {
    let Behind { proxy, sink, destination, .. } = behind;
    proxy.refuse().await;
    proxy.cut().await;
    for _ in 0..3 {
        assert_outage(sink, destination, Duration::from_secs(2)).await;
    }
    let words = until_failed(sink, destination, code).await;
    assert!(words.contains(&proxy.addr().to_string()), "{words}");
    proxy.pass().await;
    until_delivered(sink, destination, BACK_WITHIN).await;
}

/// Down at the start: an outage and no error. Gives the id of a message that must not be sent behind the
/// relay's back.
pub(crate) async fn down_at_the_start(sink: &Arc<dyn Sink>, destination: &str, code: &str) -> String {
    let lost = loose(destination);
    let (id, started) = (lost.id(), Instant::now());
    assert_seen(&publish_one(sink, lost).await, "retry", code, Scope::Sink);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    id
}

/// Each lost connection leaves no task behind, and neither does the sink itself.
pub(crate) async fn leaves_nothing<S>(behind: &Behind<S>) {
    let Behind { proxy, sink, destination, tasks: before, .. } = behind;
    let connected = tasks();
    for _ in 0..5 {
        proxy.cut().await;
        until_delivered(sink, destination, BACK_WITHIN).await;
    }
    until(async || tasks() <= connected).await;
    proxy.refuse().await;
    proxy.cut().await;
    assert_outage(sink, destination, Duration::from_secs(2)).await;
    sink.close().await;
    let verdict = publish_one(sink, loose(destination)).await;
    assert!(seen(&verdict).1.ends_with(".closed"), "{verdict:?}");
    until(async || tasks() <= *before).await;
}

/// With the line cut off, a sink with a window of five lets five messages out and no more (G7).
pub(crate) async fn window_of_five(proxy: &Proxy, sink: &Arc<dyn Sink>, destination: &str) {
    until_delivered(sink, destination, DEADLINE).await;
    proxy.half_open().await;
    let calls: Vec<Vec<Message>> = (0..3).map(|_| many(destination, 10)).collect();
    let verdicts = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call))).await.concat();
    let unknown = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Unknown(_))).count();
    // Not sent: because of the outage, or because others filled the window.
    let unsent =
        verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Retry(_) | Verdict::Held)).count();
    assert_eq!((unknown, unsent), (5, 25), "{verdicts:?}");
}

/// And what was never answered does not fill the window for ever.
pub(crate) async fn window_is_free_again(proxy: &Proxy, sink: &Arc<dyn Sink>, destination: &str) {
    proxy.pass().await;
    until_delivered(sink, destination, BACK_WITHIN).await;
    assert_delivered(&sink.publish(&many(destination, 20)).await);
}
