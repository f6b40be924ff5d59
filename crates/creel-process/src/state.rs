//! The provider's own state, and the classification of its errors.

use std::collections::BTreeMap;
use std::io;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use creel_model::id::ResourceId;
use creel_model::provider::{ErrorClass, Kind, ProviderError, Result};

use super::settings::ProcessSettings;
use super::sidecar::SidecarDirectory;
use super::tree_record::Containment;

/// The provider's state.
#[derive(Debug)]
pub(super) struct ProviderState {
    /// The settings.
    pub settings: ProcessSettings,
    /// The containments that this machine refused, and why; they are not tried again.
    refused: Mutex<BTreeMap<Containment, String>>,
    /// The holders that this process started; their parent must reap them.
    holders: Mutex<Vec<Child>>,
}

impl ProviderState {
    /// Creates the state of a new provider.
    pub(super) fn new(settings: ProcessSettings) -> Self {
        Self { settings, refused: Mutex::default(), holders: Mutex::default() }
    }

    /// Opens the directory of records.
    pub(super) fn records(&self, operation: &str) -> Result<SidecarDirectory> {
        SidecarDirectory::open(&self.settings.root).map_err(|error| io_failure(operation, &error))
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

    /// Records that a containment is unavailable on this machine.
    pub(super) fn note_refusal(&self, containment: Containment, reason: String) {
        tracing::warn!(containment = containment.name(), reason, "containment is not available");
        // Whether a usable control group exists may differ from one create to the next.
        if containment == Containment::PidNamespace {
            lock(&self.refused).insert(containment, reason);
        }
    }

    /// Takes over a holder, to reap it when it has ended.
    pub(super) fn adopt(&self, holder: Child) {
        lock(&self.holders).push(holder);
    }

    /// Reaps the holders that have ended.
    pub(super) fn reap_holders(&self) {
        lock(&self.holders).retain_mut(|holder| matches!(holder.try_wait(), Ok(None)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both collections are consistent at every moment, so a panic elsewhere does no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the resource of an id, for a kind that this provider has.
///
/// Any other kind or id is an error: "absent" would count as proof that an object is gone.
pub(super) fn checked(kind: Kind, id: &str, operation: &str) -> Result<ResourceId> {
    let refused = |message| Err(failure(operation, ErrorClass::Invalid, message));
    if !matches!(kind, Kind::Process | Kind::Directory) {
        return refused(format!("this machine has no objects of the kind {kind}"));
    }
    match ResourceId::of_object(id) {
        Some(resource) => Ok(resource),
        None => refused(format!("`{id}` is not the id of one")),
    }
}

/// Creates an error of this provider.
pub(super) fn failure(
    operation: &str,
    class: ErrorClass,
    message: impl Into<String>,
) -> ProviderError {
    ProviderError {
        provider: crate::NAME,
        operation: operation.to_owned(),
        message: message.into(),
        class,
        retry_after: None,
    }
}

/// Classifies an error of the operating system.
pub(super) fn io_failure(operation: &str, error: &io::Error) -> ProviderError {
    use io::ErrorKind as K;
    let class = match error.kind() {
        K::PermissionDenied | K::ReadOnlyFilesystem => ErrorClass::Denied,
        K::StorageFull | K::QuotaExceeded => ErrorClass::Quota,
        K::InvalidInput | K::InvalidFilename | K::NotADirectory => ErrorClass::Invalid,
        _ => ErrorClass::Transient,
    };
    failure(operation, class, error.to_string())
}
