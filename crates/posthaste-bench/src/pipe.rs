//! Reading the `stdout` sink: a line in our hands is an event that was acknowledged.
//!
//! The sink flushes its lines and then calls them delivered, so the pipe is the one place where the moment
//! of an acknowledgement can be seen from outside, without a broker. A thread of its own reads it, because
//! a runtime that is busy with appends would add its own delay to every arrival.

use super::load::Seen;
use anyhow::Context as _;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::process::ChildStdout;
use uuid::Uuid;

/// Several pages of events, so that the reader never holds up the relay.
const BUFFER_BYTES: usize = 1 << 20;

/// What stands before the id: the first header of every line.
const BEFORE_ID: &[u8] = b"\"Message-ID\":\"";

/// Calls `arrived` for each line with the event's id and the moment it was here, until the relay ends.
pub(super) fn read(
    stdout: ChildStdout,
    mut arrived: impl FnMut(Uuid, Instant) + Send + 'static,
) -> anyhow::Result<JoinHandle<()>> {
    let mut pipe = std::fs::File::from(stdout.into_owned_fd()?);
    let work = move || {
        let (mut buffer, mut filled) = (vec![0; BUFFER_BYTES], 0);
        // An error is the end too: the relay is gone.
        while let Ok(read) = pipe.read(&mut buffer[filled..]) {
            if read == 0 {
                break;
            }
            filled += read;
            let now = Instant::now();
            let whole = buffer[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            for line in buffer[..whole].split(|byte| *byte == b'\n') {
                if let Some(id) = id_of(line) {
                    arrived(id, now);
                }
            }
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
            if filled == buffer.len() {
                buffer.resize(2 * filled, 0);
            }
        }
    };
    std::thread::Builder::new().name("pipe".to_owned()).spawn(work).context("no thread for the pipe")
}

fn id_of(line: &[u8]) -> Option<Uuid> {
    let at = line.windows(BEFORE_ID.len()).position(|window| window == BEFORE_ID)? + BEFORE_ID.len();
    Uuid::try_parse_ascii(line.get(at..at + 36)?).ok()
}

/// Arrivals, counted by the reading thread and looked at by the measurement.
#[derive(Clone)]
pub(super) struct Count(Arc<Mutex<(Seen, Option<Instant>)>>);

impl Count {
    pub(super) fn new(seen: Seen) -> Self {
        Self(Arc::new(Mutex::new((seen, None))))
    }

    fn lock(&self) -> MutexGuard<'_, (Seen, Option<Instant>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what comes out of this relay.
    pub(super) fn read(&self, stdout: ChildStdout) -> anyhow::Result<JoinHandle<()>> {
        let count = self.clone();
        self.lock().1 = None;
        read(stdout, move |id, now| {
            let mut inner = count.lock();
            inner.0.note(id);
            inner.1.get_or_insert(now);
        })
    }

    /// Looks at the count.
    pub(super) fn with<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.lock().0)
    }

    /// When the present relay's first event came.
    pub(super) fn first(&self) -> Option<Instant> {
        self.lock().1
    }
}

/// Waits for a reading thread, whose relay has ended.
pub(super) async fn join(reader: JoinHandle<()>) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(move || reader.join())
        .await?
        .map_err(|_| anyhow::anyhow!("the pipe's reader panicked"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_its_event() {
        let id = Uuid::now_v7();
        let line =
            format!(r#"{{"destination":"t","headers":{{"Message-ID":"{id}","key":"k"}},"payload":"x"}}"#);
        assert_eq!(id_of(line.as_bytes()), Some(id));
        assert_eq!(id_of(&line.as_bytes()[..50]), None);
        assert_eq!(id_of(b""), None);
    }
}
