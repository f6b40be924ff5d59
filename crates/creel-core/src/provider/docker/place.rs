//! Where an engine is: whether what talks to it can be seen among the processes of this machine.
//!
//! A unix socket is no proof. It may be forwarded to another machine, and in a container it may
//! be the host's, whose processes cannot be seen. The kernel tells who listens: its process id is
//! 0 if it is outside of our pid namespace, and its program must be an engine's.

use std::path::Path;

use tokio::net::UnixStream;

/// The programs that listen on the socket of an engine: itself, or who starts it on demand.
const LISTENERS: [&str; 4] = ["dockerd", "podman", "systemd", "init"];

/// Returns the engine of this machine that listens on a socket; in doubt none does.
pub(super) async fn listener(socket: &Path) -> Option<i32> {
    let stream = UnixStream::connect(socket).await.ok()?;
    let pid = stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    LISTENERS.contains(&name.trim_end()).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_that_is_no_engine_may_lead_anywhere() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s.sock");
        assert_eq!(listener(&socket).await, None);
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(listener(&socket).await, None);
    }
}
