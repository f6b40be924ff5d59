//! The state that all requests of a server share.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::backend::SandboxBody;
use crate::fault::Faults;
use crate::limit::RateLimiter;
use crate::lock::lock;
use crate::registry::SandboxRegistry;
use crate::sandbox::ServerInfo;
use crate::session::{PerSandbox, Pty, ShellSession};
use crate::settings::{Delays, SandboxHost};

/// The state that all requests of a server share.
#[derive(Debug)]
pub(crate) struct ServerState {
    /// The data that is the same for all sandboxes.
    pub(crate) origin: ServerInfo,
    /// The credentials and their permissions.
    pub(crate) access: Credentials,
    /// The backend of the sandboxes.
    pub(crate) backend: SandboxHost,
    /// The delays of operations.
    pub(crate) delays: Delays,
    /// The names that a create may use.
    pub(crate) known: KnownNames,
    /// All sandboxes.
    registry: Mutex<SandboxRegistry>,
    /// The backends of sandboxes that are not hollow.
    bodies: Mutex<HashMap<Uuid, Arc<SandboxBody>>>,
    /// The sessions in the sandboxes.
    pub(crate) sessions: PerSandbox<ShellSession>,
    /// The terminals in the sandboxes.
    pub(crate) ptys: PerSandbox<Pty>,
    /// The faults.
    faults: Mutex<Faults>,
    /// The rate limits.
    limiter: Mutex<RateLimiter>,
    /// The request counts.
    counts: Mutex<Counts>,
    /// Ends the server.
    pub(crate) cancel: CancellationToken,
    /// The background tasks.
    pub(crate) tasks: TaskTracker,
}

/// The names that a create may use.
#[derive(Debug)]
pub(crate) struct KnownNames {
    pub(crate) snapshots: Vec<String>,
    pub(crate) regions: Vec<String>,
}

/// The credentials and their permissions.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// The authorities that a request may name.
    pub(crate) authorities: [String; 2],
    /// The key.
    pub(crate) api_key: String,
    /// The token that goes with the organisation's header instead of a key.
    pub(crate) jwt: String,
    /// The permissions of the key.
    pub(crate) permissions: Mutex<Vec<String>>,
    /// The first segment of the admin paths.
    pub(crate) admin: String,
}

/// The request counts.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Counts {
    /// All requests of clients.
    pub(crate) total: u64,
    /// By method and path pattern.
    pub(crate) by_route: BTreeMap<String, u64>,
    /// By status of the response.
    pub(crate) by_status: BTreeMap<u16, u64>,
    /// Requests that were cut off without a response.
    pub(crate) cut: u64,
    /// Requests that a limit refused, by throttler.
    pub(crate) throttled: BTreeMap<String, u64>,
}

/// The parts of a new [`ServerState`].
pub(crate) struct ServerParts {
    pub(crate) origin: ServerInfo,
    pub(crate) access: Credentials,
    pub(crate) backend: SandboxHost,
    pub(crate) delays: Delays,
    pub(crate) known: KnownNames,
    pub(crate) limiter: RateLimiter,
}

impl ServerState {
    /// Creates a state without sandboxes.
    pub(crate) fn new(parts: ServerParts) -> Self {
        Self {
            origin: parts.origin,
            access: parts.access,
            backend: parts.backend,
            delays: parts.delays,
            known: parts.known,
            registry: Mutex::default(),
            bodies: Mutex::default(),
            sessions: PerSandbox::default(),
            ptys: PerSandbox::default(),
            faults: Mutex::default(),
            limiter: Mutex::new(parts.limiter),
            counts: Mutex::default(),
            cancel: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Locks the sandboxes.
    pub(crate) fn registry(&self) -> MutexGuard<'_, SandboxRegistry> {
        lock(&self.registry)
    }

    /// Locks the backends of the sandboxes.
    pub(crate) fn bodies(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<SandboxBody>>> {
        lock(&self.bodies)
    }

    /// Locks the faults.
    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        lock(&self.faults)
    }

    /// Locks the limits.
    pub(crate) fn limiter(&self) -> MutexGuard<'_, RateLimiter> {
        lock(&self.limiter)
    }

    /// Locks the counts.
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    /// Drops the sessions and terminals of a sandbox that ends.
    pub(crate) fn forget_sessions(&self, sandbox: &Uuid) {
        self.sessions.forget(sandbox);
        self.ptys.forget(sandbox);
    }

    /// Returns whether the key has a permission.
    pub(crate) fn may(&self, permission: &str) -> bool {
        lock(&self.access.permissions).iter().any(|known| known == permission)
    }
}
