//! What stands behind a sandbox.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::sandbox::Sandbox;
use crate::settings::Backend;
use crate::shared::Shared;

/// What stands behind one sandbox.
#[derive(Debug)]
pub(crate) enum Body {}

/// Renews the leases of what stands behind sandboxes.
pub(crate) fn keep_alive(_backend: &Backend) -> Option<JoinHandle<()>> {
    None
}

/// Does what the sandbox's state in transition asks for.
pub(crate) async fn act(_shared: &Arc<Shared>, _sandbox: &Sandbox) -> Result<(), String> {
    Ok(())
}

/// Ends everything.
pub(crate) async fn end_all(_shared: &Shared) {}
