//! What all requests of a server share.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::backend::Body;
use crate::fault::Faults;
use crate::limit::Limiter;
use crate::registry::Registry;
use crate::sandbox::Origin;
use crate::settings::{Backend, Delays};
use crate::toolbox::{Pty, Session, Shelf};

/// What all requests of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// What is the same for all sandboxes.
    pub(crate) origin: Origin,
    /// Whom the server answers, and what they may.
    pub(crate) access: Access,
    /// What stands behind a sandbox.
    pub(crate) backend: Backend,
    /// How long things take.
    pub(crate) delays: Delays,
    /// What a create may name.
    pub(crate) known: Known,
    /// All sandboxes.
    registry: Mutex<Registry>,
    /// What stands behind those that are not hollow.
    bodies: Mutex<HashMap<Uuid, Arc<Body>>>,
    /// The sessions in them.
    pub(crate) sessions: Shelf<Session>,
    /// The terminals in them.
    pub(crate) ptys: Shelf<Pty>,
    /// The faults.
    faults: Mutex<Faults>,
    /// The rate limits.
    limiter: Mutex<Limiter>,
    /// What was asked.
    counts: Mutex<Counts>,
    /// Ends everything.
    pub(crate) cancel: CancellationToken,
    /// What runs beside the requests.
    pub(crate) tasks: TaskTracker,
}

/// What a create may name.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) snapshots: Vec<String>,
    pub(crate) regions: Vec<String>,
}

/// Whom the server answers, and what they may.
#[derive(Debug)]
pub(crate) struct Access {
    /// The authorities that a request may name.
    pub(crate) authorities: [String; 2],
    /// The key.
    pub(crate) api_key: String,
    /// The token that goes with the organisation's header instead of a key.
    pub(crate) jwt: String,
    /// What the key may do.
    pub(crate) permissions: Mutex<Vec<String>>,
    /// The first segment of the admin paths.
    pub(crate) admin: String,
}

/// How often what was asked.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Counts {
    /// All requests of clients.
    pub(crate) total: u64,
    /// By method and path pattern.
    pub(crate) by_route: BTreeMap<String, u64>,
    /// By status of the answer.
    pub(crate) by_status: BTreeMap<u16, u64>,
    /// Requests that were cut off without an answer.
    pub(crate) cut: u64,
    /// Requests that a limit refused, by throttler.
    pub(crate) throttled: BTreeMap<String, u64>,
}

/// What a [`Shared`] is made of.
pub(crate) struct Parts {
    pub(crate) origin: Origin,
    pub(crate) access: Access,
    pub(crate) backend: Backend,
    pub(crate) delays: Delays,
    pub(crate) known: Known,
    pub(crate) limiter: Limiter,
}

impl Shared {
    /// Starts with nothing.
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            origin: parts.origin,
            access: parts.access,
            backend: parts.backend,
            delays: parts.delays,
            known: parts.known,
            registry: Mutex::default(),
            bodies: Mutex::default(),
            sessions: Shelf::default(),
            ptys: Shelf::default(),
            faults: Mutex::default(),
            limiter: Mutex::new(parts.limiter),
            counts: Mutex::default(),
            cancel: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Locks the sandboxes.
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    /// Locks what stands behind the sandboxes.
    pub(crate) fn bodies(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<Body>>> {
        lock(&self.bodies)
    }

    /// Locks the faults.
    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        lock(&self.faults)
    }

    /// Locks the limits.
    pub(crate) fn limiter(&self) -> MutexGuard<'_, Limiter> {
        lock(&self.limiter)
    }

    /// Locks the counts.
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    /// Forgets what was open in a sandbox that ends.
    pub(crate) fn forget_sessions(&self, sandbox: &Uuid) {
        self.sessions.forget(sandbox);
        self.ptys.forget(sandbox);
    }

    /// Returns whether the key has a permission.
    pub(crate) fn may(&self, permission: &str) -> bool {
        lock(&self.access.permissions).iter().any(|known| known == permission)
    }
}

/// Locks; every value here is whole at every moment, so a panic elsewhere does not spoil it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
