//! Taking a lock, for the whole crate.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock, also when a thread has panicked under it. Nothing under these locks panics half way, so what is
/// inside is whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
