//! The lines of a sink: the main one, the trial, and those that are being emptied.
//!
//! A line is replaced when it ended (fatal error), when it holds messages past their time, or when its
//! credentials have changed. New messages go to a new producer, and the old one ends when its last message is
//! answered. No event is dropped by this: a call is told what an old line could not deliver.

use super::line::{GRACE, LineContext, ProducerLine};
use crate::BuildError;
use crate::kafka::KafkaConfig;
use crate::kafka::client;
use crate::kafka::order::LineId;
use crate::kafka::verdict::DeliveryFault;
use crate::lock::locked;
use rdkafka::error::{KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use rdkafka::producer::Producer as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(in crate::kafka) struct Fleet {
    config: KafkaConfig,
    name: String,
    shared: LineContext,
    lines: Mutex<CurrentLines>,
}

#[derive(Debug)]
struct CurrentLines {
    main: Arc<ProducerLine>,
    trial: Arc<ProducerLine>,
    started: LineId,
    closed: bool,
}

impl Fleet {
    pub(in crate::kafka) fn start(
        config: &KafkaConfig,
        name: &str,
        shared: LineContext,
    ) -> Result<Self, BuildError> {
        let main = start(config, name, &shared, 1, false)?;
        let trial = start(config, name, &shared, 2, true)?;
        shared.order.set_main(1);
        shared.order.set_trial(2);
        let lines = Mutex::new(CurrentLines { main, trial, started: 2, closed: false });
        Ok(Self { config: config.clone(), name: name.to_owned(), shared, lines })
    }

    /// The line of this number, if it still takes messages. A line that has ended is replaced only here, when
    /// somebody wants it. Otherwise a principal without rights would end one producer after the other for
    /// nobody.
    pub(in crate::kafka) fn line(&self, id: LineId) -> Result<Arc<ProducerLine>, DeliveryFault> {
        let nobodys = DeliveryFault(RDKafkaErrorCode::PurgeQueue);
        let mut lines = self.lines();
        let line = [&lines.main, &lines.trial].into_iter().find(|line| line.id() == id).map(Arc::clone);
        let Some(line) = line.filter(|_| !lines.closed) else { return Err(nobodys) };
        let broken = line.broken();
        if broken.is_none() && !line.is_retired() {
            return Ok(line);
        }
        let fault = broken.unwrap_or(nobodys);
        self.replace(&mut lines, id, GRACE);
        Err(if line.is_trial() { fault } else { nobodys })
    }

    /// The line on which topics prove themselves. It is also used for questions.
    fn trial(&self) -> Arc<ProducerLine> {
        let mut lines = self.lines();
        if lines.trial.broken().is_some() || lines.trial.is_retired() {
            let id = lines.trial.id();
            self.replace(&mut lines, id, GRACE);
        }
        Arc::clone(&lines.trial)
    }

    /// Asks the brokers about a topic. This blocks the thread.
    pub(in crate::kafka) fn metadata(
        &self,
    ) -> impl Fn(&str, Duration) -> KafkaResult<Metadata> + Send + 'static {
        let line = self.trial();
        move |topic, within| line.producer().client().fetch_metadata(Some(topic), within)
    }

    pub(in crate::kafka) fn is_trial(&self, id: LineId) -> bool {
        self.lines().trial.id() == id
    }

    pub(in crate::kafka) fn is_closed(&self) -> bool {
        self.lines().closed
    }

    /// Messages of this line are past their time. The trial line gives them up by itself. The main line does
    /// not, so it is emptied and ended.
    pub(in crate::kafka) fn overdue(&self, id: LineId) {
        let mut lines = self.lines();
        if lines.main.id() == id {
            tracing::debug!(sink = self.name, "a producer holds messages past their time and is replaced");
            self.replace(&mut lines, id, GRACE);
        }
    }

    /// From this time on nobody waits for some message that this line has.
    pub(in crate::kafka) fn expire(&self, id: LineId, at: Instant) {
        let lines = self.lines();
        if lines.main.id() == id {
            lines.main.expire(at);
        }
    }

    /// Credentials have changed: both lines begin anew, and the old ones finish what they have.
    pub(in crate::kafka) fn renew(&self) {
        let mut lines = self.lines();
        for id in [lines.main.id(), lines.trial.id()] {
            self.replace(&mut lines, id, self.config.options.delivery_timeout());
        }
    }

    fn replace(&self, lines: &mut CurrentLines, id: LineId, patience: Duration) {
        if lines.closed {
            return;
        }
        let trial = lines.trial.id() == id;
        let number = lines.started + 1;
        let line = match start(&self.config, &self.name, &self.shared, number, trial) {
            Ok(line) => line,
            // A file is being changed just now, or there is no room for a thread. The next try may succeed.
            Err(error) => return tracing::warn!(sink = self.name, "no new producer: {error}"),
        };
        lines.started = number;
        let old = if trial {
            self.shared.order.set_trial(number);
            std::mem::replace(&mut lines.trial, line)
        } else {
            self.shared.order.set_main(number);
            std::mem::replace(&mut lines.main, line)
        };
        old.retire(Instant::now() + patience);
    }

    /// Ends both lines. Messages without an answer get none.
    pub(in crate::kafka) fn close(&self) {
        let mut lines = self.lines();
        lines.closed = true;
        lines.main.retire(Instant::now());
        lines.trial.retire(Instant::now());
    }

    fn lines(&self) -> MutexGuard<'_, CurrentLines> {
        locked(&self.lines)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.close();
    }
}

fn start(
    config: &KafkaConfig,
    name: &str,
    shared: &LineContext,
    id: LineId,
    trial: bool,
) -> Result<Arc<ProducerLine>, BuildError> {
    let client_config = config.producer(name, trial)?;
    ProducerLine::start(id, trial, &client_config, shared).map_err(|error| client::refusal(config, &error))
}
