//! The only place that spawns.
//!
//! A task has a name, and its panic reaches whoever awaits it instead of vanishing (F68). Dropping the
//! handle aborts the task: nothing outlives its owner by accident.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::task::JoinHandle;

/// A running task that is aborted when this handle is dropped.
#[derive(Debug)]
pub struct Task<T> {
    name: &'static str,
    handle: JoinHandle<T>,
    is_detached: bool,
}

/// Starts a named task.
pub fn spawn<T, F>(name: &'static str, work: F) -> Task<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    Task { name, handle: tokio::spawn(work), is_detached: false }
}

impl<T> Task<T> {
    /// Asks the task to stop at its next await.
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// Lets the task end by itself: only for one that ends with the thing it serves.
    pub fn detach(mut self) {
        self.is_detached = true;
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if !self.is_detached {
            self.handle.abort();
        }
    }
}

/// The task ended without a result: it panicked or was aborted.
#[derive(Debug, thiserror::Error)]
#[error("task {name} ended without a result: {cause}")]
pub struct TaskDied {
    /// Its name.
    pub name: &'static str,
    /// Panic message or "cancelled".
    pub cause: String,
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskDied>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let name = self.name;
        Pin::new(&mut self.handle).poll(context).map_err(|error| TaskDied { name, cause: error.to_string() })
    }
}
