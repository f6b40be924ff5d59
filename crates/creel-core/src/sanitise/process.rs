//! What this process knows to be secret, for every text that leaves it.
//!
//! A masker of a run knows the secrets of that run. But errors of providers, logs and messages
//! are written in places that know of no run. What one part of a process has learned is secret in
//! all that the process stores or shows, so it is kept here, and only ever added to.

use std::sync::{LazyLock, PoisonError, RwLock};

use super::{Masker, Secrets};

static KNOWN: LazyLock<RwLock<(Secrets, Masker)>> = LazyLock::new(|| {
    let none = Secrets::new();
    let masker = Masker::new(&none);
    RwLock::new((none, masker))
});

/// Makes secrets known to everything that this process stores or shows from here on.
pub fn remember(secrets: &Secrets) {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if known.0.learn(secrets) {
        known.1 = Masker::new(&known.0);
    }
}

/// Returns the masker that knows every secret of this process.
pub fn process_masker() -> Masker {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).1.clone()
}
