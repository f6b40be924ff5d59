//! Where an engine is: whether what talks to it can be seen among the processes of this machine.
//!
//! A unix socket is no proof. It may be forwarded to another machine, and in a container it may
//! be the host's, whose processes cannot be seen. The kernel tells who listens: its process id is
//! 0 if it is outside of our pid namespace, and its program must be an engine's.

use std::path::Path;

use tokio::net::UnixStream;

/// The programs that listen on the socket of an engine: itself, or who starts it on demand.
const LISTENERS: [&str; 4] = ["dockerd", "podman", "systemd", "init"];

/// Returns whether an engine of this machine listens on a socket; in doubt none does.
pub(super) async fn is_served_here(socket: &Path) -> bool {
    let Ok(stream) = UnixStream::connect(socket).await else { return false };
    let listener = stream.peer_cred().ok().and_then(|credentials| credentials.pid());
    let Some(pid) = listener.filter(|pid| *pid > 0) else { return false };
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    LISTENERS.contains(&name.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_that_is_no_engine_may_lead_anywhere() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s.sock");
        assert!(!is_served_here(&socket).await);
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        assert!(!is_served_here(&socket).await);
    }
}
