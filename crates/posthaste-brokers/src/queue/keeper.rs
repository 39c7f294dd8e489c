//! Keeps the queues of a member being read: begins, and begins again whenever that ends.

use super::member::QueueMember;
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use posthaste::source::{SourceError, StartFrom};
use posthaste::task::{Task, spawn};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

/// Between two tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(1_500));
/// For giving back what is in hand.
const LEAVE_WAIT: Duration = Duration::from_secs(6);

/// The way to one queue.
#[async_trait]
pub(crate) trait QueueWay: Send + Sync + 'static {
    /// What comes of it.
    type Reading: QueueReading;

    /// Finds the queue, or makes the group's place in it, which begins there; and is ready to read. `None`:
    /// there is no queue yet.
    async fn open(&self, start_from: StartFrom) -> Result<Option<Self::Reading>, SourceError>;
}

/// A queue that is read.
#[async_trait]
pub(crate) trait QueueReading: Send {
    /// Messages in, acknowledgements out, until it ends.
    async fn serve(&mut self, leaving: &mut LeavingSign) -> ReadingEnd;

    /// Gives back what is left. No ticket settles anything any more.
    async fn give_back(&mut self, end: &ReadingEnd);
}

/// Why a reading ended.
#[derive(Debug)]
pub(crate) enum ReadingEnd {
    /// The connection is gone, or the queue: nobody hears what is given back.
    Lost(String),
    /// The consumer of the messages has stopped calling.
    Stalled,
    /// An operator has to do something.
    Refused(SourceError),
    /// This member leaves.
    Leaving,
    /// It dies.
    Cut,
}

/// Says when it is time to go.
#[derive(Debug, Clone)]
pub(crate) struct LeavingSign(watch::Receiver<Leaving>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    InOrder,
    Cut,
}

impl LeavingSign {
    /// Waits until the member leaves or dies.
    pub(crate) async fn told(&mut self) -> ReadingEnd {
        let told = self.0.wait_for(|leaving| *leaving != Leaving::No).await.map(|leaving| *leaving);
        if matches!(told, Ok(Leaving::InOrder)) { ReadingEnd::Leaving } else { ReadingEnd::Cut }
    }

    fn is_given(&self) -> bool {
        *self.0.borrow() != Leaving::No
    }
}

/// The tasks that read a member's queues.
#[derive(Debug)]
pub(crate) struct QueueKeepers {
    leaving: watch::Sender<Leaving>,
    tasks: Mutex<Vec<Task<()>>>,
}

impl QueueKeepers {
    /// Begins to read each queue, by a way of its own.
    pub(crate) fn start<W: QueueWay>(member: &Arc<QueueMember>, way: impl Fn(usize) -> W) -> Self {
        let leaving = watch::Sender::new(Leaving::No);
        let task = |index| {
            let sign = LeavingSign(leaving.subscribe());
            let keeper = QueueKeeper { member: Arc::clone(member), index, way: way(index), sign };
            spawn("queue", keeper.keep())
        };
        let tasks = Mutex::new((0..member.plan.topics.len()).map(task).collect());
        Self { leaving, tasks }
    }

    /// Ends all of them in order, and waits for that.
    pub(crate) async fn leave(&self) {
        self.end(Leaving::InOrder).await;
    }

    /// Ends all of them as a death would.
    pub(crate) async fn cut(&self) {
        self.end(Leaving::Cut).await;
    }

    async fn end(&self, how: Leaving) {
        self.leaving.send_replace(how);
        let tasks = std::mem::take(&mut *self.tasks.lock().await);
        let all = async {
            for task in tasks {
                // One that died has nothing to give back.
                let _ = task.await;
            }
        };
        let _ = timeout(LEAVE_WAIT, all).await;
    }
}

struct QueueKeeper<W> {
    member: Arc<QueueMember>,
    index: usize,
    way: W,
    sign: LeavingSign,
}

impl<W: QueueWay> QueueKeeper<W> {
    async fn keep(mut self) {
        let (mut pause, mut start_from) = (PAUSE.0, self.member.plan.start_from);
        while !self.sign.is_given() {
            let mut sign = self.sign.clone();
            let open = async {
                // A consumer that hung may come back.
                self.member.until_called().await;
                self.way.open(start_from).await
            };
            let opened = tokio::select! {
                opened = open => opened,
                _ = sign.told() => return,
            };
            if opened.is_ok() {
                // "From now on" was when the group began, or began to wait. A place that somebody deletes is
                // made again at the beginning: nothing is passed over.
                start_from = StartFrom::Earliest;
            }
            match opened {
                Ok(Some(reading)) => {
                    let began = Instant::now();
                    self.read(reading).await;
                    // One that ends at once is no better than one that is not opened: a right may be missing.
                    if began.elapsed() > PAUSE.1 {
                        pause = PAUSE.0;
                    }
                }
                Ok(None) => {}
                Err(SourceError::Closed) => return,
                Err(fault) => self.member.tell(fault),
            }
            tokio::select! {
                () = sleep(pause) => {}
                _ = sign.told() => return,
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Reads until it ends, and gives back what is left where somebody hears it.
    async fn read(&mut self, mut reading: W::Reading) {
        let plan = &self.member.plan;
        tracing::info!(queue = plan.topics[self.index], group = plan.group, "subscribed");
        self.member.shelves().assign(self.index);
        self.member.stir();
        let end = reading.serve(&mut self.sign).await;
        // The shelf forgets first: no ticket settles anything from here on.
        self.member.shelves().revoke(self.index);
        self.member.stir();
        if matches!(end, ReadingEnd::Stalled | ReadingEnd::Refused(_) | ReadingEnd::Leaving) {
            reading.give_back(&end).await;
        }
        match end {
            ReadingEnd::Lost(why) => self.member.tell(SourceError::Transient(why)),
            ReadingEnd::Refused(fault) => self.member.tell(fault),
            ReadingEnd::Stalled | ReadingEnd::Leaving | ReadingEnd::Cut => {}
        }
    }
}

/// What the future in an option says; where there is none, nothing.
pub(crate) async fn of<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(running) => {
            let output = running.await;
            *future = None;
            output
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupMember;
    use std::sync::Mutex as Lock;

    /// A queue that can be opened. Each of its readings lasts so long.
    struct Refusing {
        opened: Arc<Lock<Vec<Instant>>>,
        lasts: Duration,
    }

    struct Refused(Duration);

    #[async_trait]
    impl QueueWay for Refusing {
        type Reading = Refused;

        async fn open(&self, _: StartFrom) -> Result<Option<Refused>, SourceError> {
            self.opened.lock().expect("no panic").push(Instant::now());
            Ok(Some(Refused(self.lasts)))
        }
    }

    #[async_trait]
    impl QueueReading for Refused {
        async fn serve(&mut self, _: &mut LeavingSign) -> ReadingEnd {
            sleep(self.0).await;
            ReadingEnd::Lost("no right to acknowledge".to_owned())
        }

        async fn give_back(&mut self, _: &ReadingEnd) {}
    }

    /// The pauses between the end of a reading and the next one, in ms.
    async fn pauses(lasts: Duration) -> Vec<u128> {
        let (opened, member) =
            (Arc::<Lock<Vec<_>>>::default(), QueueMember::new(&GroupMember::new("g", ["q"])));
        let member = Arc::new(member);
        let keepers = QueueKeepers::start(&member, |_| Refusing { opened: Arc::clone(&opened), lasts });
        let open_times = || opened.lock().expect("no panic").clone();
        while open_times().len() < 9 {
            sleep(Duration::from_millis(10)).await;
        }
        keepers.cut().await;
        open_times().windows(2).map(|pair| (pair[1] - pair[0] - lasts).as_millis()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_right_after_it_was_opened_is_opened_again_after_growing_pauses() {
        let short = pauses(Duration::from_millis(300)).await;
        assert!(short.windows(2).all(|pair| pair[0] < pair[1] || pair[1] >= 1_500), "{short:?}");
        assert!(short.last() >= Some(&1_500), "{short:?}");
        let long = pauses(Duration::from_secs(60)).await;
        assert!(long.iter().all(|pause| (50..100).contains(pause)), "{long:?}");
    }
}
