//! Entries of the audit for which there was no space, kept in memory until there is.

use std::sync::{Mutex, PoisonError};

use crate::Try;

/// Maximum number of entries kept in memory. Further ones are only counted.
const MOST_WAITING: usize = 4096;

/// The entries of one process that still have to be written.
#[derive(Debug, Default)]
pub(crate) struct DeferredTries {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    tries: Vec<Try>,
    /// How many did not fit.
    dropped: usize,
}

impl DeferredTries {
    /// Adds entries; those beyond the limit are only counted.
    pub(crate) fn add(&self, mut tries: Vec<Try>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST_WAITING.saturating_sub(waiting.tries.len());
        waiting.dropped += tries.len().saturating_sub(room);
        tries.truncate(room);
        waiting.tries.append(&mut tries);
    }

    /// Takes all entries out, to be written.
    pub(crate) fn take(&self) -> Vec<Try> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut waiting.tries)
    }

    /// Returns how many entries are not written.
    pub(crate) fn count(&self) -> usize {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.tries.len() + waiting.dropped
    }
}
