//! The socket that a command is given.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::gate::DockerGate;

/// How long to wait when no file descriptors are left.
const NO_ROOM: Duration = Duration::from_millis(50);

/// A listening socket that is removed when dropped.
#[derive(Debug)]
pub struct GateSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl GateSocket {
    /// Listens on a socket with the group and mode of the engine's own.
    ///
    /// A container whose user may use that one may then use this one. The directory keeps other
    /// users out.
    ///
    /// # Errors
    ///
    /// Fails when the socket cannot be created.
    pub fn bind(path: &Path, like: Option<&Path>) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let socket = Self { listener, path: path.to_owned() };
        let like = like.and_then(|like| std::fs::metadata(like).ok());
        let mode = like.as_ref().map_or(0o600, |like| like.mode() & 0o777);
        if let Some(like) = like {
            // Only root may set any group. Without it the mode grants less, never more.
            let _ = std::os::unix::fs::chown(path, None, Some(like.gid()));
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(socket)
    }
}

impl Drop for GateSocket {
    fn drop(&mut self) {
        // If this fails, the directory is removed later, and the socket with it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves until its [`DockerGate::stopper`] is cancelled. Returns when the creates in progress are
/// recorded.
pub async fn serve(gate: Arc<DockerGate>, socket: GateSocket) {
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted,
            () = gate.stop.cancelled() => break,
        };
        match accepted {
            Ok((client, _)) => {
                let gate = Arc::clone(&gate);
                tasks.spawn(async move {
                    if let Err(error) = gate.handle(client).await {
                        debug!(%error, "a connection ended early");
                    }
                });
            }
            Err(error) => {
                warn!(%error, "no connection can be accepted now");
                tokio::time::sleep(NO_ROOM).await;
            }
        }
    }
    drop(socket);
    tasks.close();
    tasks.wait().await;
}
