//! A line that is cut at a certain moment: what became of the commit is found out, and is true.

use crate::fixture::IntakeGround;
use posthaste::intake::{IngestRequest, Intake};
use posthaste_postgres::{PostgresConfig, PostgresIntake};
use posthaste_testkit::intake::{IntakeFixture, ask, keyed, patient, request};
use posthaste_testkit::services::Proxy;
use std::sync::Arc;

/// What a client says with the call, and with the look at it.
const CALL: &str = "gateway_append($1";
const LOOK: &str = "on conflict do nothing returning id";

/// Ends the call that is under way, on the server's side.
const END_CALL: &str = "select pg_terminate_backend(pid, 5000) from pg_stat_activity
                         where datname = current_database() and query like '%gateway_append($1%' and pid <> pg_backend_pid()";

struct CutLine {
    ground: IntakeGround,
    proxy: Proxy,
    intake: Arc<dyn Intake>,
}

impl CutLine {
    async fn make() -> Option<Self> {
        let ground = IntakeGround::make().await?;
        let (proxy, url) = Proxy::start_before(&ground.config().url).await.expect("a proxy");
        let intake = Arc::new(PostgresIntake::start(PostgresConfig::new(url), patient()));
        Some(Self { ground, proxy, intake })
    }

    /// It is answered as if nothing had happened, and is there once.
    async fn is_there_once(&self, request: &IngestRequest, answer: Answer) {
        let admitted = answer.await.expect("no client panics").expect("stored");
        let ids: Vec<_> = request.events.iter().map(|event| event.id).collect();
        assert_eq!((&admitted.ids, admitted.replayed), (&ids, false));
        let stored: Vec<_> = self.ground.events().await.iter().map(|event| event.id).collect();
        assert_eq!(stored, ids);
    }
}

type Answer = tokio::task::JoinHandle<Result<posthaste::intake::Admitted, posthaste::intake::IntakeError>>;

/// It committed: the answer is that of the commit, with a key and without.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_commit_whose_answer_was_lost_is_found() {
    for one in [keyed("acme", "k", 1), request("acme", "t", &["a", "b"])] {
        let Some(line) = CutLine::make().await else { return };
        line.proxy.cut_answer(CALL, 1).await;
        line.is_there_once(&one, ask(&line.intake, one.clone())).await;
        assert_eq!(line.proxy.aimed_cuts(), 1);
    }
}

/// It was a repetition, and the answer said so.
#[tokio::test(flavor = "multi_thread")]
async fn w4_a_repetition_whose_answer_was_lost_is_one() {
    let Some(line) = CutLine::make().await else { return };
    let first = keyed("acme", "k", 1);
    line.is_there_once(&first, ask(&line.intake, first.clone())).await;
    line.proxy.cut_answer(CALL, 1).await;
    let again = line.intake.append(keyed("acme", "k", 1)).await.expect("known");
    assert!(again.replayed && again.ids == [first.events[0].id], "{again:?}");
    assert_eq!(line.proxy.aimed_cuts(), 1);
}

/// The server does not know yet that we are gone, and commits: the look waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_commit_that_is_still_under_way_is_waited_for() {
    let Some(line) = CutLine::make().await else { return };
    let block = line.ground.block().await;
    let one = request("acme", "t", &["a", "b"]);
    let answer = ask(&line.intake, one.clone());
    line.ground.until_blocked().await;
    line.proxy.cut().await;
    line.ground.until("select count(*) from pg_locks where not granted and locktype = 'transactionid'").await;
    drop(block);
    line.is_there_once(&one, answer).await;
}

/// It never committed, and never will: it goes again.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_call_that_died_goes_again() {
    let Some(line) = CutLine::make().await else { return };
    let block = line.ground.block().await;
    let one = keyed("acme", "k", 1);
    let answer = ask(&line.intake, one.clone());
    line.ground.until_blocked().await;
    line.ground.run(END_CALL).await;
    drop(block);
    line.is_there_once(&one, answer).await;
}

/// The look at it has committed, and its answer is lost too: what the next look finds is our own row.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_look_whose_answer_was_lost_is_not_taken_for_the_commit() {
    let Some(line) = CutLine::make().await else { return };
    let block = line.ground.block().await;
    let one = request("acme", "t", &["a"]);
    let answer = ask(&line.intake, one.clone());
    line.ground.until_blocked().await;
    // The third answer is that to its commit.
    line.proxy.cut_answer(LOOK, 3).await;
    line.ground.run(END_CALL).await;
    drop(block);
    line.is_there_once(&one, answer).await;
    assert_eq!(line.proxy.aimed_cuts(), 1);
}
