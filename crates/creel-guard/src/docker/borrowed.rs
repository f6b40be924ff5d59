//! Volumes that a container uses without owning them.
//!
//! An anonymous volume is removed with the container it was made for. But a container may share the
//! volumes of another one, or name a volume by its long id. Such a volume must not be taken for the
//! command's own.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use creel_model::provider::{Kind, Provider};
use tracing::warn;

use super::container::ContainerBody;
use super::gate::DockerGate;

/// The volumes of a container that are not its own.
#[derive(Debug)]
pub(super) enum Borrowed {
    These(HashSet<String>),
    /// The volumes could not be determined, so none may be taken for its own.
    Anything,
}

/// The containers that use volumes which are not their own.
#[derive(Debug, Default)]
pub(super) struct Borrowers {
    by_container: Mutex<HashMap<String, Borrowed>>,
}

impl Borrowers {
    pub(super) fn note(&self, container: String, borrowed: Borrowed) {
        if matches!(&borrowed, Borrowed::These(names) if names.is_empty()) {
            return;
        }
        let mut known = self.by_container.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(container, borrowed);
    }

    pub(super) fn has(&self, container: &str, volume: &str) -> bool {
        let known = self.by_container.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(container) {
            Some(Borrowed::These(names)) => names.contains(volume),
            Some(Borrowed::Anything) => true,
            None => false,
        }
    }
}

impl DockerGate {
    /// Returns the volumes of a container that are not its own: those it names, and those of the
    /// containers it shares volumes with.
    pub(super) async fn borrowed_by(&self, body: &ContainerBody) -> Borrowed {
        let mut names: HashSet<String> = body.volume_names().into_iter().collect();
        for container in body.volumes_from() {
            match self.engine.inspect(Kind::Container, &container).await {
                Ok(seen) => names.extend(seen.into_iter().flat_map(|seen| {
                    seen.uses.into_iter().filter(|(kind, _)| *kind == Kind::Volume).map(|it| it.1)
                })),
                Err(error) => {
                    warn!(%error, "the volumes that a container shares are not known");
                    return Borrowed::Anything;
                }
            }
        }
        Borrowed::These(names)
    }
}
