//! The secrets known to this process, for every text that leaves it.
//!
//! The masker of a run knows the secrets of that run. But errors of providers, logs and messages
//! are written in code that knows no run. What one part of a process learns is secret in everything
//! that the process stores or shows. So it is kept here, and only ever added to.

use std::sync::{LazyLock, PoisonError, RwLock};

use super::masker::Masker;
use super::secrets::Secrets;
use super::text::Masked;

static KNOWN: LazyLock<RwLock<(Secrets, Masker)>> = LazyLock::new(|| {
    let none = Secrets::new();
    let masker = Masker::new(&none);
    RwLock::new((none, masker))
});

/// Adds secrets to everything that this process stores or shows from now on.
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

/// Masks a text with every secret known to this process.
impl From<&str> for Masked {
    fn from(text: &str) -> Self {
        process_masker().mask(text)
    }
}

impl From<String> for Masked {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}
