//! Locks mutexes whose values are consistent at all times.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. Every value here is consistent at all times, so a poisoned lock is usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
