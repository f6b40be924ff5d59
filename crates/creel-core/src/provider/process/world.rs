//! The provider's own state, and how its errors are classified.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::provider::{ErrorClass, ProviderError, ProviderName, Result};

use super::channel::Containment;
use super::sidecar::Shelf;

/// The program that runs as holder and as init.
///
/// It is started with these arguments and then the resource id, an environment that holds
/// nothing but the marker, and its order on the standard input; it must do nothing but call
/// [`holder::run`](super::holder::run), before it opens a file or starts a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderProgram {
    /// The program; `/proc/self/exe` is this one, even after its file was replaced.
    pub program: PathBuf,
    /// The arguments before the resource id.
    pub args: Vec<String>,
}

/// What the process provider needs to know.
#[derive(Debug, Clone)]
pub struct ProcessSettings {
    /// The directory that holds records and directories; it is made when needed.
    pub root: PathBuf,
    /// The program that runs as holder and as init.
    pub holder: HolderProgram,
    /// The one containment to use; `None` takes the best that works.
    pub containment: Option<Containment>,
}

/// The provider's state.
#[derive(Debug)]
pub(super) struct World {
    /// What it was told.
    pub settings: ProcessSettings,
    /// The containments that this machine refused, and why: they are not tried again.
    refused: Mutex<BTreeMap<Containment, String>>,
    /// The holders this process started: their parent must reap them.
    holders: Mutex<Vec<Child>>,
}

impl World {
    /// Starts with nothing known.
    pub(super) fn new(settings: ProcessSettings) -> Self {
        Self { settings, refused: Mutex::default(), holders: Mutex::default() }
    }

    /// Opens the directory of records.
    pub(super) fn shelf(&self, operation: &str) -> Result<Shelf> {
        Shelf::open(&self.settings.root).map_err(|error| io_failure(operation, &error))
    }

    /// Returns the containments to try, the best first.
    pub(super) fn candidates(&self) -> Vec<Containment> {
        match self.settings.containment {
            Some(forced) => vec![forced],
            None => {
                let refused = lock(&self.refused);
                Containment::ALL.into_iter().filter(|one| !refused.contains_key(one)).collect()
            }
        }
    }

    /// Remembers that a containment cannot be had on this machine.
    pub(super) fn note_refusal(&self, containment: Containment, reason: String) {
        tracing::warn!(containment = containment.name(), reason, "containment is not available");
        // Whether there is a control group to use may differ from one create to the next.
        if containment == Containment::PidNamespace {
            lock(&self.refused).insert(containment, reason);
        }
    }

    /// Takes a holder to reap it when it has ended.
    pub(super) fn adopt(&self, holder: Child) {
        lock(&self.holders).push(holder);
    }

    /// Reaps the holders that have ended.
    pub(super) fn reap_holders(&self) {
        lock(&self.holders).retain_mut(|holder| matches!(holder.try_wait(), Ok(None)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both lists are whole at every moment, so a panic elsewhere does not spoil them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an error of this provider.
pub(super) fn failure(
    operation: &str,
    class: ErrorClass,
    message: impl Into<String>,
) -> ProviderError {
    ProviderError {
        provider: ProviderName::Process,
        operation: operation.to_owned(),
        message: message.into(),
        class,
        retry_after: None,
    }
}

/// Classifies an error of the operating system.
pub(crate) fn io_failure(operation: &str, error: &io::Error) -> ProviderError {
    use io::ErrorKind as K;
    let class = match error.kind() {
        K::PermissionDenied | K::ReadOnlyFilesystem => ErrorClass::Denied,
        K::StorageFull | K::QuotaExceeded => ErrorClass::Quota,
        K::InvalidInput | K::InvalidFilename | K::NotADirectory => ErrorClass::Invalid,
        _ => ErrorClass::Transient,
    };
    failure(operation, class, error.to_string())
}
